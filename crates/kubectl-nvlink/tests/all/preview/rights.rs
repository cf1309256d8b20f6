//! Who may use a restricted class: by `--allow-use`, by CI identity, and not by any
//! of the ways around it.

use std::{fs, path::Path, process::Output};

use serde_json::{Value, json};

use super::{fails, files, run, text};

const CLASS: &str = "closed";

/// Returns a document of `kind` in `namespace` whose pods name the class.
fn document(kind: &str, namespace: &str, account: &str) -> Value {
    let annotations = json!({"nvlink-domains.io/class": CLASS});
    let spec = json!({"serviceAccountName": account, "containers": [{
        "name": "main", "image": "i", "resources": {"limits": {"nvidia.com/gpu": 1}}
    }]});
    let metadata = json!({"name": "train", "namespace": namespace, "annotations": annotations});
    match kind {
        "Pod" => json!({"apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": spec}),
        _ => json!({
            "apiVersion": "batch/v1", "kind": kind,
            "metadata": {"name": "train", "namespace": namespace},
            "spec": {"template": {"metadata": {"annotations": annotations}, "spec": spec}}
        }),
    }
}

fn preview(directory: &Path, arguments: &[&str], document: &Value) -> Output {
    let first = [
        "preview",
        "--cluster",
        "classes.yaml",
        "-o",
        "text",
        "-f",
        "-",
    ];
    run(
        directory,
        &[&first[..], arguments].concat(),
        &document.to_string(),
    )
}

#[test]
fn rights_are_not_read_from_files() {
    let directory = files();
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": {"name": "use-closed", "namespace": "ci"}
    });
    fs::write(directory.path().join("role.json"), role.to_string()).unwrap();
    let pod = document("Pod", "ci", "trainer");
    let output = preview(directory.path(), &["--cluster", "role.json"], &pod);
    let said = text(&output.stderr);
    assert!(
        said.contains("note: role.json: Role \"use-closed\" is ignored")
            && said.contains("--allow-use"),
        "{said}"
    );
    assert_eq!(output.status.code(), Some(1), "it gives no right: {said}");

    for (kind, arguments, allowed) in [
        ("Pod", &["--user", "ada"][..], false),
        ("Pod", &["--user", "ada", "--allow-use", CLASS], true),
        ("Pod", &["--as", "ada", "--allow-use", "other,*"], true),
        ("Pod", &["--allow-use", "other"], false),
        ("Job", &["--allow-use", CLASS], true),
        ("Job", &[], false),
    ] {
        let output = preview(
            directory.path(),
            arguments,
            &document(kind, "ci", "trainer"),
        );
        let said = text(&output.stdout);
        assert_eq!(
            output.status.code(),
            Some(i32::from(!allowed)),
            "{kind} {arguments:?}: {said}"
        );
        for part in [
            "refused by rule not-authorized",
            "kubectl create --dry-run=server --as",
        ] {
            assert_eq!(said.contains(part), !allowed, "{said}");
        }
        let controller = said.contains("a controller creates the pods of a Job");
        assert_eq!(controller, kind == "Job" && !allowed, "{said}");
    }
}

#[test]
fn ci_identity() {
    let directory = files();
    let class = |provider: Value| {
        let access = json!({"mode": "Restricted", "ciProjects": [provider]});
        let class = json!({
            "apiVersion": "nvlink-domains.io/v1alpha1", "kind": "DomainClass",
            "metadata": {"name": CLASS}, "spec": {"access": access}
        });
        fs::write(directory.path().join("class.json"), class.to_string()).unwrap();
    };
    let code = |document: &Value, who: &[&str]| {
        let first = [
            "preview",
            "--cluster",
            "class.json",
            "-o",
            "text",
            "-f",
            "-",
        ];
        let output = run(
            directory.path(),
            &[&first[..], who].concat(),
            &document.to_string(),
        );
        (output.status.code().unwrap(), text(&output.stdout))
    };
    class(json!({
        "provider": "gitlab", "projectIds": [42],
        "runners": [{"namespace": "gitlab", "serviceAccount": "runner"}]
    }));
    let mut pod = document("Pod", "ci", "default");
    let runner = ["--user", "system:serviceaccount:gitlab:runner"];
    pod["metadata"]["labels"] = json!({"project.runner.gitlab.com/id": "42"});
    assert_eq!(code(&pod, &runner).0, 0, "{}", code(&pod, &runner).1);
    assert_eq!(code(&pod, &[]).0, 1, "the label alone proves nothing");
    pod["metadata"]["labels"] = json!({"project.runner.gitlab.com/id": "43"});
    let (status, said) = code(&pod, &runner);
    assert_eq!(status, 1);
    assert!(
        said.contains("kubectl patch domainclasses.nvlink-domains.io closed"),
        "{said}"
    );

    // Buildkite's stack creates Jobs, so its runner is the job controller.
    class(json!({
        "provider": "buildkite",
        "identities": [{"namespace": "ci", "serviceAccount": "agent"}],
        "runners": [{"namespace": "kube-system", "serviceAccount": "job-controller"}]
    }));
    assert_eq!(code(&document("Job", "ci", "agent"), &[]).0, 0);
    assert_eq!(code(&document("Job", "ci", "default"), &[]).0, 1);
    assert_eq!(code(&document("Pod", "ci", "agent"), &[]).0, 1);
}

#[test]
fn ways_around_a_class_are_refused() {
    let directory = files();
    let plain = |spec: Value| {
        let mut pod = document("Pod", "ci", "default");
        pod["metadata"]["annotations"] = json!({});
        json_patch::merge(&mut pod["spec"], &spec);
        pod
    };
    let container = |field: &str, value: Value| {
        let mut pod = plain(json!({}));
        pod["spec"]["containers"][0][field] = value;
        pod
    };
    for (pod, rule) in [
        (plain(json!({"nodeName": "pair"})), "node-name"),
        (
            plain(json!({"tolerations": [{"operator": "Exists"}]})),
            "toleration",
        ),
        (
            container(
                "env",
                json!([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]),
            ),
            "visible-devices",
        ),
    ] {
        let output = preview(directory.path(), &[], &pod);
        let said = text(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(
            said.contains(&format!("refused by rule {rule}: ")),
            "{said}"
        );
    }
    let output = preview(
        directory.path(),
        &["--allow-use", CLASS],
        &plain(json!({"nodeName": "pair"})),
    );
    assert!(output.status.success(), "{}", text(&output.stdout));
}

#[test]
fn the_node_of_a_pod_from_a_cluster_is_not_refused() {
    let directory = files();
    let mut pod = document("Pod", "ci", "default");
    pod["metadata"]["annotations"] = json!({"nvlink-domains.io/class": "fast"});
    pod["metadata"]["uid"] = json!("705ab4f5");
    pod["spec"]["nodeName"] = json!("pair");
    let arguments = [
        "preview",
        "--cluster",
        "classes.yaml",
        "-o",
        "json",
        "-f",
        "-",
    ];
    let output = run(directory.path(), &arguments, &pod.to_string());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let after: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(after["spec"]["nodeName"], "pair");
    assert_eq!(
        after["metadata"]["labels"]["nvlink-domains.io/class"],
        "fast"
    );
}

#[test]
fn namespaces_of_a_cluster() {
    let directory = files();
    let namespaces = "\
{apiVersion: v1, kind: Namespace, metadata: {name: defaulted, annotations: {nvlink-domains.io/default-class: closed}}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: left, labels: {nvlink-domains.io/webhook: ignore}}}
";
    fs::write(directory.path().join("namespaces.yaml"), namespaces).unwrap();
    let decide = |namespace: &str| {
        let mut pod = document("Pod", namespace, "default");
        pod["metadata"]["annotations"] = json!({});
        preview(directory.path(), &["--cluster", "namespaces.yaml"], &pod)
    };
    let output = decide("defaulted");
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("the default class of namespace defaulted"),
        "{said}"
    );
    for (namespace, why) in [
        ("left", "nvlink-domains.io/webhook=ignore"),
        ("kube-system", "exempt"),
        ("nvlink-system", "exempt"),
    ] {
        let output = decide(namespace);
        let said = text(&output.stdout);
        assert!(output.status.success() && said.contains(why), "{said}");
    }
}

#[test]
fn the_report_of_a_refusal() {
    let directory = files();
    let pod = document("Pod", "ci", "default").to_string();
    let arguments = [
        "preview",
        "--cluster",
        "classes.yaml",
        "-f",
        "-",
        "-o",
        "report",
    ];
    let output = run(directory.path(), &arguments, &pod);
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let verdict = &report[0];
    assert_eq!(
        [
            &verdict["allowed"],
            &verdict["rule"],
            &verdict["class"],
            &verdict["user"]
        ],
        [
            &json!(false),
            &json!("not-authorized"),
            &json!(CLASS),
            &json!("preview")
        ]
    );
    assert!(
        verdict["message"]
            .as_str()
            .unwrap()
            .contains("kubectl apply -f -")
    );
    // Other formats print nothing that could be mistaken for an admitted document.
    for form in ["yaml", "diff", "patch", "json"] {
        let arguments = [
            "preview",
            "--cluster",
            "classes.yaml",
            "-f",
            "-",
            "-o",
            form,
        ];
        fails(
            &run(directory.path(), &arguments, &pod),
            1,
            &["refused by rule not-authorized"],
        );
    }
}

const PLATFORM: &str = r#"
apiVersion: v1
kind: List
items:
- apiVersion: apps/v1
  kind: DaemonSet
  metadata: {name: node-logs, namespace: logging}
  spec:
    template:
      spec:
        tolerations: [{operator: Exists}]
        containers: [{name: main, image: img}]
- apiVersion: apps/v1
  kind: Deployment
  metadata: {name: web, namespace: shop}
  spec:
    template:
      spec:
        containers: [{name: main, image: img}]
- apiVersion: v1
  kind: Pod
  metadata:
    name: node-logs-x1
    namespace: logging
    uid: u
    ownerReferences: [{apiVersion: apps/v1, kind: DaemonSet, name: node-logs, uid: d, controller: true}]
  spec:
    nodeName: n1
    tolerations: [{operator: Exists}]
    containers: [{name: main, image: img}]
"#;

#[test]
fn restrict_lists_what_would_be_refused_and_what_admits_it() {
    let directory = files();
    let open = super::CLASSES.split("---").next().unwrap();
    fs::write(directory.path().join("open.yaml"), open).unwrap();
    let restrict = |class: &str| {
        let cluster = if class == "fast" {
            "open.yaml"
        } else {
            "classes.yaml"
        };
        let args = ["preview", "-f", "-", "--cluster", cluster, "-o", "text"];
        run(
            directory.path(),
            &[&args[..], &["--restrict", class]].concat(),
            PLATFORM,
        )
    };
    for class in ["fast", "closed"] {
        let output = restrict(class);
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(
            text.contains("DaemonSet/node-logs") && text.contains("toleration"),
            "{text}"
        );
        // The command that admits it, for this class and namespace.
        let remedy = format!("kubectl patch domainclasses.nvlink-domains.io {class} ");
        assert!(
            text.contains(&remedy) && text.contains("\"value\":\"logging\""),
            "{text}"
        );
        assert!(
            !text.contains("Deployment/web") && !text.contains("node-logs-x1"),
            "{text}"
        );
        let note = String::from_utf8(output.stderr).unwrap();
        assert!(
            note.contains("note: 1 of 2 pods and templates would be refused"),
            "{note}"
        );
    }
    let output = restrict("none");
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        error.contains("--restrict none: add the class with --cluster"),
        "{error}"
    );
}

/// Else, a daemon that tolerates the taint before the class is restricted would seem to be admitted.
#[test]
fn restrict_names_what_is_refused_already() {
    let directory = files();
    let daemon = json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {"name": "shipper", "namespace": "logging"},
        "spec": {"template": {"spec": {
            "containers": [{"name": "main", "image": "i"}],
            "tolerations": [{"key": "nvlink-domains.io/class", "operator": "Exists"}],
        }}},
    });
    let args = [
        "preview",
        "-f",
        "-",
        "--cluster",
        "classes.yaml",
        "-o",
        "text",
    ];
    let args = [&args[..], &["--restrict", "closed"]].concat();
    let output = run(directory.path(), &args, &daemon.to_string());
    let note = text(&output.stderr);
    let wanted =
        "note: refused already, also while the class is open: 1, such as DaemonSet/shipper; ";
    assert!(note.contains(wanted), "{note}");
}
