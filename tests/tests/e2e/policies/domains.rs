//! What a stolen token of the queue may do with ComputeDomains.

use nvlink_tests::{ComputeDomains, Kubectl, assets};
use serde_json::{Value, json};

use super::{
    control_plane,
    own::{admits, refuses, stage},
};

/// A ComputeDomain as the queue makes it, for its pods.
fn domain(uid: &Value) -> Value {
    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "waits", "uid": uid});
    let name = "nvlink-domains-waits-1";
    json!({
        "apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomain",
        "metadata": {
            "name": name, "labels": {"nvlink-domains.io/class": "line"}, "ownerReferences": [owner],
            "annotations": {"nvlink-domains.io/queue-term": "1"},
        },
        "spec": {"numNodes": 0, "channel": {"resourceClaimTemplate": {"name": name}}},
    })
}

/// The same with another value in its metadata.
fn with(uid: &Value, key: &str, value: Value) -> Value {
    let mut domain = domain(uid);
    domain["metadata"][key] = value;
    domain
}

#[test]
fn a_stolen_token_makes_only_domains_of_pods_and_changes_only_their_owners() {
    let (cluster, _turn) = control_plane();
    if assets::lacks("resource.k8s.io/v1", 34) {
        return;
    }
    ComputeDomains::install_crds(cluster.kubectl()).unwrap();
    let (own, admin) = stage(cluster, "own-domains");
    let create = |by: &Kubectl, domain: &Value, dry: &[&str]| {
        let create = [&["create", "-f", "-"], dry].concat();
        by.run_with(&create, &domain.to_string())
    };
    let dry = ["--dry-run=server"];
    let pod = |name: &str| admin.get(&["pod", name]).unwrap();
    let uid = &pod("waits")["metadata"]["uid"];
    admits("a domain", create(&own, &domain(uid), &[]));
    let job = json!([{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": uid}]);
    for (what, domain) in [
        ("another name", with(uid, "name", json!("mine"))),
        ("no owner", with(uid, "ownerReferences", json!([]))),
        ("an owner that is no pod", with(uid, "ownerReferences", job)),
        (
            "a finalizer",
            with(uid, "finalizers", json!(["example.com/x"])),
        ),
    ] {
        refuses(what, create(&own, &domain, &dry));
    }
    let change = |metadata: Value| {
        let patch = json!({ "metadata": metadata }).to_string();
        let change = ["patch", "computedomain", "nvlink-domains-waits-1"];
        let merge = ["--type=merge", "-p", &patch];
        own.run(&[&change[..], &merge, &dry].concat())
    };
    let mut owners = domain(uid)["metadata"]["ownerReferences"].clone();
    let second = json!({
        "apiVersion": "v1", "kind": "Pod", "name": "released",
        "uid": pod("released")["metadata"]["uid"],
    });
    owners.as_array_mut().unwrap().push(second);
    admits(
        "a further owner",
        change(json!({"ownerReferences": owners})),
    );
    refuses("a label", change(json!({"labels": {"a": "b"}})));
    let finalizers = json!({"finalizers": ["example.com/x"]});
    refuses("a finalizer of one", change(finalizers));
    let delete = ["delete", "computedomain", "nvlink-domains-waits-1"];
    refuses("a deletion", own.run(&[&delete[..], &dry].concat()));
}
