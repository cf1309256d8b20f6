//! Objects with pod templates, and the output for programs.

use std::path::Path;

use serde_json::{Value, json};

use super::{files, run, text};

fn template() -> Value {
    json!({"spec": {"containers": [{
        "name": "main", "image": "img", "resources": {"limits": {"nvidia.com/gpu": 2}}
    }]}})
}

fn object(api: &str, kind: &str, spec: Value) -> Value {
    json!({"apiVersion": api, "kind": kind, "metadata": {"name": "train", "namespace": "ci"}, "spec": spec})
}

/// Returns what `preview` prints for `document` as `output`; it must not be refused.
#[track_caller]
fn preview(document: &Value, output: &str) -> Value {
    let directory = files();
    let arguments = [
        "preview",
        "--cluster",
        "classes.yaml",
        "-f",
        "-",
        "-o",
        output,
    ];
    let printed = run(directory.path(), &arguments, &document.to_string());
    assert!(printed.status.success(), "{}", text(&printed.stderr));
    serde_json::from_slice(&printed.stdout).unwrap()
}

/// Returns the pattern of the decision with its source, one line for each template.
#[track_caller]
fn patterns(document: &Value) -> Vec<String> {
    let report = preview(document, "report");
    let line = |verdict: &Value| {
        let (path, decision) = (&verdict["path"], &verdict["decision"]);
        let word = |value: &Value| value.as_str().unwrap().to_owned();
        let (pattern, from) = (&decision["pattern"], &decision["patternFrom"]);
        format!("{} {}, {}", word(path), word(pattern), word(from))
    };
    report.as_array().unwrap().iter().map(line).collect()
}

/// The patch leads to exactly the document that is printed, without the owner and
/// the labels that only the pods will have.
#[track_caller]
fn patch_leads_to_the_document(document: &Value) {
    let patch: json_patch::Patch = serde_json::from_value(preview(document, "patch")).unwrap();
    let after = preview(document, "json");
    let mut patched = document.clone();
    json_patch::patch(&mut patched, &patch).unwrap();
    assert_eq!(patched, after);
    let text = after.to_string();
    for foreign in [
        "ownerReferences",
        "jobset.sigs",
        "training.kubeflow",
        "ray.io/node",
    ] {
        let key = format!("\"{foreign}");
        assert!(!text.contains(&key), "{foreign} in {text}");
    }
    assert!(text.contains("nvlink-domains.io/decision"), "{text}");
}

#[test]
fn each_kind_is_decided_on_as_its_controller_creates_the_pods() {
    let text = include_str!("kinds.yaml").replace("TEMPLATE", &template().to_string());
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    assert!(documents.len() >= 10);
    for mut document in documents {
        let expected = document.as_object_mut().unwrap().remove("expected");
        document["metadata"] = json!({"name": "train", "namespace": "ci"});
        assert_eq!(json!(patterns(&document)), expected.unwrap(), "{document}");
        patch_leads_to_the_document(&document);
    }
}

#[test]
fn a_document_without_a_class_is_not_changed() {
    for metadata in [
        json!(null),
        json!({"labels": null}),
        json!({}),
        json!("odd"),
    ] {
        let mut template = template();
        template["spec"]["containers"][0]["resources"] = json!({});
        template["metadata"] = metadata;
        let job = object(
            "jobset.x-k8s.io/v1alpha2",
            "JobSet",
            json!({"template": template}),
        );
        assert_eq!(preview(&job, "json"), job);
        assert_eq!(preview(&job, "patch"), json!([]));
    }
}

#[test]
fn a_job_of_kueue_gets_a_note_on_what_kueue_reads() {
    let directory = files();
    let class = json!({
        "apiVersion": "nvlink-domains.io/v1alpha1", "kind": "DomainClass", "metadata": {"name": "queued"},
        "spec": {"appliesTo": {"minGpus": 1}, "scheduler": {"integration": "Kueue"}}
    });
    std::fs::write(directory.path().join("kueue.json"), class.to_string()).unwrap();
    let mut job = object("batch/v1", "Job", json!({"template": template()}));
    job["spec"]["template"]["metadata"] = json!({
        "labels": {"kueue.x-k8s.io/queue-name": "team"},
        "annotations": {"nvlink-domains.io/gang": "train"}
    });
    let arguments = [
        "preview",
        "--cluster",
        "kueue.json",
        "-f",
        "-",
        "-o",
        "text",
    ];
    let printed = run(directory.path(), &arguments, &job.to_string());
    let said = text(&printed.stdout);
    assert!(printed.status.success(), "{said}");
    // Kueue reads the Job that owns this pod, so the pod's own annotation has no effect.
    assert!(
        said.contains("kueue.x-k8s.io/podset-preferred-topology: nvlink-domains.io/domain"),
        "{said}"
    );
}

#[test]
fn a_job_of_mpi_gets_a_note_on_what_its_ranks_read() {
    let directory = files();
    let class = json!({
        "apiVersion": "nvlink-domains.io/v1alpha1", "kind": "DomainClass", "metadata": {"name": "tcp"},
        "spec": {"appliesTo": {"minGpus": 1}, "environment": {"fabric": "TCP"}}
    });
    std::fs::write(directory.path().join("tcp.json"), class.to_string()).unwrap();
    let mut launcher = template();
    launcher["spec"]["containers"][0]["resources"] = json!({});
    let replicas = json!({"Launcher": {"template": launcher}, "Worker": {"template": template()}});
    let job = object(
        "kubeflow.org/v2beta1",
        "MPIJob",
        json!({"mpiReplicaSpecs": replicas}),
    );
    let arguments = ["preview", "--cluster", "tcp.json", "-f", "-", "-o", "text"];
    let printed = run(directory.path(), &arguments, &job.to_string());
    let said = text(&printed.stdout);
    assert!(printed.status.success(), "{said}");
    // The operator starts sshd in workers without a command.
    let told = "the ranks start over ssh, which passes on no variable of the container: pass NCCL_IB_DISABLE, UCX_TLS to mpirun";
    assert_eq!(said.matches(told).count(), 1, "{said}");
}

#[test]
fn lists_directories_and_documents_without_pods() {
    let directory = files();
    let job = object("batch/v1", "Job", json!({"template": template()}));
    let list = json!({"kind": "List", "items": [job, {"kind": "ConfigMap"}]});
    let report = preview(&list, "report");
    assert_eq!(report[0]["path"], "/items/0/spec/template");
    assert_eq!(report[0]["name"], "Job/train");
    assert_eq!(report[0]["nodes"], Value::Null, "none were given");

    std::fs::create_dir(directory.path().join("jobs")).unwrap();
    for name in ["a.json", "b.yaml"] {
        std::fs::write(directory.path().join("jobs").join(name), job.to_string()).unwrap();
    }
    let arguments = [
        "preview",
        "--cluster",
        "classes.yaml",
        "-f",
        "jobs",
        "-o",
        "report",
    ];
    let printed = run(directory.path(), &arguments, "");
    let report: Value = serde_json::from_slice(&printed.stdout).unwrap();
    assert_eq!(report.as_array().unwrap().len(), 2);

    let arguments = ["preview", "-f", "classes.yaml", "-o", "text"];
    let printed = run(directory.path(), &arguments, "");
    assert!(printed.status.success());
    let notes = text(&printed.stderr);
    assert!(notes.contains("no pods and no pod templates"), "{notes}");
    // A gate of CI must not pass because it checked nothing.
    let strict = [&arguments[..], &["--cluster", "nodes", "--strict"]].concat();
    let printed = run(directory.path(), &strict, "");
    assert_eq!(printed.status.code(), Some(2), "{printed:?}");
    assert!(text(&printed.stderr).contains("nothing is checked"));
}

/// Kueue admits a Job before its pods exist, and Volcano names itself in them.
#[test]
fn jobs_of_other_schedulers_are_handed_over() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/examples");
    for (example, scheduler) in [("kueue", "Kueue"), ("volcano", "Volcano")] {
        let file = |name: &str| format!("{root}/{example}/{name}.yaml");
        let (job, class) = (file("job"), file("class"));
        let arguments = [
            "preview",
            "-f",
            &job,
            "--cluster",
            &class,
            "--allow-use",
            "*",
        ];
        let show = |output: &str| {
            let all = [&arguments[..], &["-o", output]].concat();
            let done = run(Path::new(root), &all, "");
            assert!(done.status.success(), "{done:?}");
            text(&done.stdout) + &text(&done.stderr)
        };
        let said = show("text");
        assert!(
            !said.contains("does not place this pod"),
            "{scheduler}: {said}"
        );
        let changed = show("diff");
        let added: Vec<&str> = changed
            .lines()
            .filter(|line| line.starts_with('+'))
            .collect();
        let foreign = [
            "schedulerName",
            "schedulingGates",
            "local-queue-name",
            "podAffinity",
        ];
        for word in foreign {
            assert!(
                !added.iter().any(|line| line.contains(word)),
                "{word}: {changed}"
            );
        }
    }
}
