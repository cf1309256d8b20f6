//! `kubectl nvlink preview`, as a user runs it.

use std::{
    fs,
    io::Write,
    path::Path,
    process::{Command, Output, Stdio},
};

use serde_json::Value;
use tempfile::TempDir;

mod gangs;
mod kinds;
mod nodes;
mod rights;

const CLASSES: &str = "\
apiVersion: nvlink-domains.io/v1alpha1
kind: DomainClass
metadata: {name: fast}
spec:
  nodeSelector: {matchLabels: {nvlink-domains.io/interconnect: nvlink}}
  appliesTo: {minGpus: 2}
---
apiVersion: nvlink-domains.io/v1alpha1
kind: DomainClass
metadata: {name: closed}
spec:
  access: {mode: Restricted}
";

const NODE: &str = r#"{
  "apiVersion": "nvlink-domains.io/v1alpha1", "kind": "NodeTopology", "metadata": {"name": "pair"},
  "spec": {
    "source": {"kind": "sim"},
    "gpus": [{"index": 0}, {"index": 1}],
    "edges": [{"a": 0, "b": 1, "via": "direct", "links": 4, "bytesPerSecond": 56000000000}],
    "domains": [{"id": "pair.0", "gpus": [0, 1]}]
  }
}"#;

const JOB: &str = "\
apiVersion: batch/v1
kind: Job
metadata: {name: train, namespace: ci}
spec:
  template:
    metadata: {labels: {app: \"007\"}}
    spec:
      restartPolicy: Never
      containers:
      - name: main
        image: img
        args: [\"yes\", \"1.0\", \"on\"]
        resources: {limits: {nvidia.com/gpu: 2}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: other}
";

fn files() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
    write("classes.yaml", CLASSES);
    write("job.yaml", JOB);
    fs::create_dir(directory.path().join("nodes")).unwrap();
    write("nodes/pair.json", NODE);
    directory
}

fn run(directory: &Path, args: &[&str], stdin: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_kubectl-nvlink"))
        .args(args)
        .current_dir(directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A program that rejects its arguments does not read stdin.
    drop(child.stdin.take().unwrap().write_all(stdin.as_bytes()));
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[track_caller]
fn fails(output: &Output, code: i32, reasons: &[&str]) {
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{message}");
    assert!(output.stdout.is_empty());
    for reason in reasons {
        assert!(
            message.contains(reason),
            "{message} should contain {reason}"
        );
    }
}

const PREVIEW: &[&str] = &[
    "preview",
    "--cluster",
    "classes.yaml",
    "--cluster",
    "nodes",
    "-f",
];

#[test]
fn a_diff_and_its_reasons() {
    let directory = files();
    let output = run(
        directory.path(),
        &[PREVIEW, &["job.yaml", "--output", "diff"]].concat(),
        "",
    );
    let (diff, reasons) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{reasons}");
    assert!(
        diff.contains("+              - key: nvlink-domains.io/domain-size\n"),
        "{diff}"
    );
    assert!(
        !diff
            .lines()
            .any(|line| line.starts_with('-') && !line.starts_with("---")),
        "{diff}"
    );
    assert!(
        diff.starts_with(
            "--- Job/train in namespace ci before\n+++ Job/train in namespace ci after\n"
        ),
        "{diff}"
    );
    for line in [
        "Job/train: class \"fast\"",
        "why: the class claims",
        "nodes that fit: pair (1 of 1)",
    ] {
        assert!(reasons.contains(line), "{reasons}");
    }
}

#[test]
fn yaml_is_stable_and_strings_stay_strings() {
    let directory = files();
    let once = run(directory.path(), &[PREVIEW, &["-"]].concat(), JOB);
    let once = text(&once.stdout);
    assert!(
        once.contains("\"007\"") && once.contains("kind: ConfigMap"),
        "{once}"
    );
    assert!(
        once.contains("\"yes\"") && once.contains("\"1.0\"") && once.contains("\"on\""),
        "{once}"
    );
    let twice = run(
        directory.path(),
        &[PREVIEW, &["-", "-o", "diff"]].concat(),
        &once,
    );
    assert_eq!(text(&twice.stdout), "", "a second pass changes nothing");
}

#[test]
fn patches_and_json() {
    let directory = files();
    let output = run(
        directory.path(),
        &[PREVIEW, &["job.yaml", "-o", "patch"]].concat(),
        "",
    );
    let patch = text(&output.stdout);
    assert!(
        patch.contains("\"/spec/template/metadata/labels/nvlink-domains.io~1class\""),
        "{patch}"
    );
    let output = run(
        directory.path(),
        &[PREVIEW, &["job.yaml", "-o", "json"]].concat(),
        "",
    );
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        list["items"][0]["spec"]["template"]["metadata"]["labels"]["nvlink-domains.io/project"],
        "ci"
    );
}

#[test]
fn restricted_classes() {
    let directory = files();
    let named = JOB.replace(
        "app: \"007\"}",
        "app: x}, annotations: {nvlink-domains.io/class: closed}",
    );
    let args = [PREVIEW, &["-", "--user", "alice"]].concat();
    let output = run(directory.path(), &args, &named);
    fails(
        &output,
        1,
        &[
            "Job/train: refused by rule not-authorized",
            "\"system:serviceaccount:kube-system:job-controller\"",
            "\"ci/default\"",
            "kubectl create rolebinding",
            "a controller creates the pods of a Job",
            "--allow-use CLASS assumes the right",
        ],
    );
    let output = run(
        directory.path(),
        &[&args[..], &["--allow-use", "closed"]].concat(),
        &named,
    );
    assert!(output.status.success(), "{}", text(&output.stderr));
    let output = run(
        directory.path(),
        &[&args[..], &["--namespace-default", "closed"]].concat(),
        JOB,
    );
    fails(&output, 1, &["the default class of namespace ci"]);
}

#[test]
fn bad_input_is_named() {
    let directory = files();
    let path = directory.path();
    let input = |stdin: &str| run(path, &[PREVIEW, &["-"]].concat(), stdin);
    fails(&input(""), 2, &["stdin holds no document"]);
    fails(&input("a: [1"), 2, &["stdin", "line"]);
    fails(&input("- 1"), 2, &["stdin", "not an object"]);
    fails(&input("a: \u{0}"), 2, &["stdin"]);
    fails(
        &run(path, &[PREVIEW, &["gone.yaml"]].concat(), ""),
        2,
        &["gone.yaml"],
    );
    let bomb = "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\n\
                d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\n\
                g: &g [*f,*f,*f,*f,*f,*f,*f,*f,*f]\nh: [*g,*g,*g,*g,*g,*g,*g,*g,*g]\n";
    fails(&input(bomb), 2, &["stdin"]);
    fails(
        &input(&format!("a: {}", "[".repeat(100_000))),
        2,
        &["stdin"],
    );
}

#[test]
fn bad_classes_and_nodes_are_named() {
    let directory = files();
    let path = directory.path();
    let class = |text: &str| {
        fs::write(path.join("bad.yaml"), text).unwrap();
        run(
            path,
            &["preview", "-f", "job.yaml", "--cluster", "bad.yaml"],
            "",
        )
    };
    fails(
        &class("{kind: Pod, metadata: {name: p}}"),
        2,
        &["bad.yaml: Pod", "expected a DomainClass"],
    );
    let head = "apiVersion: nvlink-domains.io/v1alpha1\nkind: DomainClass\nmetadata: {name: c}\n";
    fails(
        &class(&format!("{head}spec: {{minBandwidth: 4GB}}")),
        2,
        &["bad.yaml", "minBandwidth"],
    );
    fails(
        &class(&format!("{head}spec: {{minBandwidth: 300}}")),
        2,
        &[
            "spec.minBandwidth: invalid type: integer `300`, expected whole GB/s with the unit, such as 400GBps",
        ],
    );
    fails(
        &class(&format!("{head}spec: {{access: {{maxGpusPerUser: 4}}}}")),
        2,
        &["bad.yaml", "unknown field spec.access.maxGpusPerUser"],
    );
    fs::write(
        path.join("nodes/bad.json"),
        "{\"kind\": \"NodeTopology\", \"metadata\": {\"name\": \"x\"}}",
    )
    .unwrap();
    fails(
        &run(path, &[PREVIEW, &["job.yaml"]].concat(), ""),
        2,
        &["nodes/bad.json", "NodeTopology \"x\""],
    );
}

#[test]
fn bad_usage_is_status_2() {
    let directory = files();
    for args in ["preview", "nonsense"] {
        fails(&run(directory.path(), &[args], ""), 2, &[]);
    }
}

#[test]
fn passed_over_classes_and_ignored_annotations_are_noted() {
    let directory = tempfile::tempdir().unwrap();
    let class = "{apiVersion: nvlink-domains.io/v1alpha1, kind: DomainClass, metadata: {name: fast}, \
                 spec: {appliesTo: {minGpus: 1}, access: {mode: Restricted}}}";
    std::fs::write(directory.path().join("class.yaml"), class).unwrap();
    let job = "{apiVersion: batch/v1, kind: Job, \
               metadata: {name: train, annotations: {nvlink-domains.io/class: fast}}, \
               spec: {template: {spec: {containers: [{name: c, image: i, \
               resources: {limits: {nvidia.com/gpu: 2}}}]}}}}";
    let arguments = ["preview", "--cluster", "class.yaml", "-f", "-"];
    let output = run(directory.path(), &arguments, job);
    let reasons = text(&output.stderr);
    assert!(output.status.success(), "{reasons}");
    assert!(reasons.contains("--allow-use fast"), "{reasons}");
    assert!(
        reasons.contains("/spec/template/metadata/annotations"),
        "{reasons}"
    );
}
