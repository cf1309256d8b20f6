//! What `preview` says of jobs of several pods, whose number it reads from their objects.

use std::fs;

use super::{files, run, text};

const CLASS: &str = "\
apiVersion: nvlink-domains.io/v1alpha1
kind: DomainClass
metadata: {name: fast}
spec: {appliesTo: {minGpus: 2}}
";

/// Writes the recordings of `boards` boards and a job, previews it, and returns what is said.
fn said(boards: usize, job: &str, strict: bool) -> (String, bool) {
    let directory = files();
    let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
    write("classes.yaml", CLASS);
    fs::remove_file(directory.path().join("nodes/pair.json")).unwrap();
    for board in 0..boards {
        let name = format!("h200-{board}");
        let document = super::nodes::board(&name, 99).to_string();
        write(&format!("nodes/{name}.json"), &document);
    }
    write("job.yaml", job);
    let mut args = vec!["preview", "--cluster", "classes.yaml", "--cluster", "nodes"];
    args.extend(["-f", "job.yaml"]);
    args.extend(strict.then_some("--strict"));
    let output = run(directory.path(), &args, "");
    let said = text(&output.stdout) + &text(&output.stderr);
    // Long lines are folded.
    let words: Vec<_> = said.split_whitespace().collect();
    (words.join(" "), output.status.success())
}

fn template(gpus: u32) -> String {
    format!(
        "{{spec: {{containers: [{{name: pytorch, image: img, resources: {{limits: {{nvidia.com/gpu: {gpus}}}}}}}]}}}}"
    )
}

fn pytorch(workers: u32, gpus: u32) -> String {
    let template = template(gpus);
    format!(
        "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {{name: ddp}}\nspec:\n  pytorchReplicaSpecs:\n    Master: {{replicas: 1, template: {template}}}\n    Worker: {{replicas: {workers}, template: {template}}}\n"
    )
}

#[test]
fn the_pods_of_a_job_that_one_pod_could_do_are_called_separate_hosts() {
    let halves = "2 pods of 4 GPUs do not reach each other over NVLink, also on one node; one pod of 8 GPUs does (docs/gangs.md)";
    let (told, _) = said(2, &pytorch(1, 4), false);
    // Once for the pods of each template.
    assert_eq!(told.matches(halves).count(), 2, "{told}");
    let job = |command: &str| {
        let template =
            template(4).replace("image: img", &format!("image: img, command: {command}"));
        let template = template.replace("{spec: {", "{spec: {restartPolicy: Never, ");
        format!(
            "apiVersion: batch/v1\nkind: Job\nmetadata: {{name: train}}\nspec:\n  completionMode: Indexed\n  completions: 2\n  parallelism: 2\n  template: {template}\n"
        )
    };
    let (told, _) = said(2, &job("[torchrun, --nnodes=2, train.py]"), false);
    assert_eq!(told.matches(halves).count(), 1, "{told}");
    // Independent tasks, and a job that needs several nodes.
    let (told, _) = said(2, &job("[pytest, -x]"), false);
    assert!(!told.contains("do not reach"), "{told}");
    let (told, fits) = said(2, &pytorch(1, 8), true);
    assert!(fits && !told.contains("do not reach"), "{told}");
}

#[test]
fn a_job_with_more_pods_than_all_nodes_can_hold_never_starts() {
    let never = "the gang needs 3 pods of 8 GPU(s); all nodes of class \"fast\" together hold 2 pods: its pods will stay Pending";
    let (told, fits) = said(2, &pytorch(2, 8), true);
    assert!(told.contains(never) && !fits, "{told}");
    let (told, fits) = said(3, &pytorch(2, 8), true);
    assert!(fits, "{told}");
}
