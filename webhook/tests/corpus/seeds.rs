//! Reviews of real pods: of launchers, operators and CI systems, of each
//! version of Kubernetes, and of the list of cases about access.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

/// The reviews that the corpus is made from.
pub(crate) fn reviews() -> Vec<Value> {
    let mut all: Vec<Value> = pods().iter().map(|pod| review(pod, &Value::Null)).collect();
    all.extend(cases());
    assert!(all.len() > 200, "{} seeds", all.len());
    all
}

fn pods() -> Vec<Value> {
    let tests = Path::new(crate::TESTS);
    let folders = ["../../crates/admission/tests/classify", "versions"]
        .map(|name| fs::read_dir(tests.join(name)).unwrap());
    let mut files: Vec<_> = folders
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    let read = |path: &PathBuf| serde_saphyr::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let mut pods: Vec<Value> = files.iter().map(read).collect();
    // The one that has most of what we write already.
    pods.extend((0..8).map(|_| full()));
    pods
}

/// A review of the creation of `pod`, or of a change from `old` to it, as API servers write it.
pub(crate) fn review(pod: &Value, old: &Value) -> Value {
    let operation = if old.is_null() { "CREATE" } else { "UPDATE" };
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "requestKind": {"group": "", "version": "v1", "kind": "Pod"},
            "requestResource": {"group": "", "version": "v1", "resource": "pods"},
            "name": "train", "namespace": "ci", "operation": operation,
            "userInfo": {
                "username": "system:serviceaccount:ci:runner", "uid": "014fbff9a07c",
                "groups": ["system:serviceaccounts", "system:authenticated"],
                "extra": {"authentication.kubernetes.io/credential-id": ["JTI=7ee52be0"]}
            },
            "object": pod, "oldObject": old, "dryRun": false,
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"}
        }
    })
}

/// The list of cases: creations and changes, by many users.
fn cases() -> Vec<Value> {
    let list: Value = serde_json::from_str(include_str!(
        "../../../crates/admission/tests/cases/access.json"
    ))
    .unwrap();
    let case = |case: &Value| {
        let base = case["base"].as_str().unwrap_or("gpu");
        let mut pod = list["pods"][base].clone();
        put(&mut pod, case);
        let change = &case["change"];
        let mut review = if change.is_null() {
            review(&pod, &Value::Null)
        } else {
            let old = pod.clone();
            put(&mut pod, change);
            review(&pod, &old)
        };
        let request = &mut review["request"];
        match change["action"].as_str() {
            Some("debug") => request["subResource"] = json!("ephemeralcontainers"),
            Some("resize") => request["subResource"] = json!("resize"),
            _ => {}
        }
        request["namespace"] = case.get("in").cloned().unwrap_or(json!("team"));
        request["userInfo"]["username"] = case.get("by").cloned().unwrap_or(json!("alice"));
        review
    };
    list["cases"].as_array().unwrap().iter().map(case).collect()
}

/// Puts the parts of a case into a pod; less exact than the list's own way, which is no matter here.
fn put(pod: &mut Value, parts: &Value) {
    let mut lay = |pointer: &str, part: &Value| {
        let place = pod.pointer_mut(pointer).unwrap();
        for (key, value) in part.as_object().into_iter().flatten() {
            place[key] = value.clone();
        }
    };
    lay("/metadata", &parts["meta"]);
    lay("/spec", &parts["spec"]);
    lay("/spec/containers/0", &parts["main"]);
}

/// A gang's pod that has something at each place that the webhook writes to.
fn full() -> Value {
    let limits =
        |gpus: &str| json!({"limits": {"nvidia.com/gpu": gpus, "cpu": "500m", "memory": "1Gi"}});
    let term = |key: &str| json!({"matchExpressions": [{"key": key, "operator": "In", "values": ["a", "b"]}]});
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "train", "namespace": "ci", "uid": "0b9c",
            "labels": {"app": "träin", "project.runner.gitlab.com/id": "42"},
            "annotations": {
                "nvlink-domains.io/class": "restricted",
                "nvlink-domains.io/gang": "g", "nvlink-domains.io/gang-size": "2", "note": "…"
            },
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u", "controller": true}]
        },
        "spec": {
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [term("disk"), term("zone")]
                    },
                    "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": term("disk")}]
                },
                "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                    {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "x"}}}
                ]}
            },
            "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
            "initContainers": [
                {"name": "fetch", "image": "curl", "env": [{"name": "A", "value": "1"}]},
                {"name": "log", "image": "log", "restartPolicy": "Always", "resources": limits("0")}
            ],
            "containers": [
                {
                    "name": "main", "image": "cuda", "resources": limits("8"),
                    "command": ["torchrun", "--nproc-per-node=8", "train.py"],
                    "env": [
                        {"name": "NCCL_IB_HCA", "value": "mlx5_9"},
                        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
                    ],
                    "envFrom": [{"configMapRef": {"name": "c"}}]
                },
                {"name": "side", "image": "busybox"}
            ],
            "ephemeralContainers": [{"name": "debug", "image": "busybox"}],
            "schedulingGates": [{"name": "example.com/wait"}],
            "volumes": [{"name": "repo", "emptyDir": {}}]
        },
        "status": {}
    })
}
