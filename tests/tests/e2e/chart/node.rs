//! The exporter with the chart's rights and the policy on its token: it publishes about its own
//! node, and its token is good for nothing else.

use std::{fs, path::PathBuf};

use nvlink_tests::{ControlPlane, Exporter, Kubectl, Node, assets, node, wait_until, workdir};
use serde_json::json;

use super::{Installed, SOON, control_plane};

const NAMESPACE: &str = "nvlink-exporter";
const ACCOUNT: &str = "nvlink-exporter";

/// Returns a kubeconfig with a token of the exporter's account, made with `flags`.
fn with_token(control_plane: &ControlPlane, name: &str, flags: &[&str]) -> PathBuf {
    let kubectl = control_plane.kubectl().in_namespace(NAMESPACE);
    let token = kubectl.run(&[&["create", "token", ACCOUNT], flags].concat());
    let path = workdir::fresh("token").unwrap().join(name);
    fs::copy(control_plane.kubeconfig(), &path).unwrap();
    let set = ["config", "set-credentials", "test", "--token"];
    let kubectl = Kubectl::new(&path).unwrap();
    kubectl
        .run(&[&set[..], &[token.unwrap().trim()]].concat())
        .unwrap();
    path
}

/// Returns a kubeconfig with the token that the kubelet of `node` would give to an exporter's pod.
pub(super) fn on(control_plane: &ControlPlane, node: &str) -> PathBuf {
    let kubectl = control_plane.kubectl().in_namespace(NAMESPACE);
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": node},
        "spec": {"nodeName": node, "serviceAccountName": ACCOUNT,
            "containers": [{"name": "exporter", "image": "exporter"}]},
    });
    kubectl.create(&pod).unwrap();
    let bound = ["--bound-object-kind", "Pod", "--bound-object-name", node];
    with_token(control_plane, node, &bound)
}

/// Commands that the token of an exporter on `n1` must not be able to run, and why.
const REFUSED: [(&str, &str); 14] = [
    (
        "label node n2 nvlink-domains.io/domain=x",
        "may write only what is published about this node",
    ),
    (
        "label node n2 any=x",
        "may write only what is published about this node",
    ),
    ("label node n1 any=x", "may write only these labels"),
    ("label node n1 kept-", "may write only these labels"),
    (
        "label node n1 kept=other --overwrite",
        "may write only these labels",
    ),
    (
        "label node n1 nvlink-domains.io/class=x",
        "may write only these labels",
    ),
    (
        "label node n1 gpu.topology/interconnect=nvswitch",
        "may write only these labels",
    ),
    ("annotate node n1 any=x", "may write only these annotations"),
    (
        "annotate node n1 nvlink-domains.io/decision=x",
        "may write only these annotations",
    ),
    ("taint node n1 any=x:NoSchedule", "may not change the spec"),
    (
        "patch node n1 -p {\"spec\":{\"unschedulable\":true}}",
        "may not change the spec",
    ),
    (
        "patch node n1 -p {\"metadata\":{\"finalizers\":[\"a/b\"]}}",
        "may not change the spec",
    ),
    (
        "delete nodetopology n2",
        "may write only what is published about this node",
    ),
    (
        "patch nodetopology n2 --type=merge -p {\"metadata\":{\"labels\":{\"a\":\"b\"}}}",
        "may write only what is published",
    ),
];

#[test]
fn the_token_of_an_exporter_is_good_for_its_own_node_only() {
    let (control_plane, _turn) = control_plane();
    let _installed = Installed::with(control_plane, "");
    let kubectl = control_plane.kubectl();
    let nodes = ["n1", "n2"].map(|name| Node::new(name, 8).label("kept", "yes"));
    node::create(kubectl, &nodes).unwrap();
    let foreign = json!({
        "apiVersion": "nvlink-domains.io/v1alpha1", "kind": "NodeTopology",
        "metadata": {"name": "n2"}, "spec": {"source": {"kind": "sim"}, "gpus": [{"index": 0}]},
    });
    kubectl.create(&foreign).unwrap();

    let token = on(control_plane, "n1");
    publishes(kubectl, &token);
    let thief = Kubectl::new(&token).unwrap();
    // Policies take effect a moment after they are created.
    wait_until("the policy", SOON, || {
        let (command, part) = REFUSED[0];
        let arguments: Vec<_> = command.split(' ').chain(["--dry-run=server"]).collect();
        Ok(thief.refused(&arguments, "")?.contains(part).then_some(()))
    })
    .unwrap();
    for (command, part) in REFUSED {
        let arguments: Vec<_> = command.split(' ').collect();
        let said = thief.refused(&arguments, "").unwrap();
        assert!(said.contains(part), "{command}: {said}");
    }
    refused_to_taint(&thief);
    // Not made for a pod, so that nothing tells where it is used.
    let nowhere = Kubectl::new(with_token(control_plane, "nowhere", &[])).unwrap();
    let arguments = [
        "label",
        "node",
        "n1",
        "nvlink-domains.io/domain=x",
        "--overwrite",
    ];
    let said = nowhere.refused(&arguments, "").unwrap();
    assert!(said.contains("must name its node"), "{said}");

    let node = kubectl.get(&["node", "n1"]).unwrap();
    assert_eq!(node["metadata"]["labels"]["kept"], "yes");
    forget(kubectl);
}

/// The rules for the GPUs of another node, and those that end pods, are refused.
fn refused_to_taint(thief: &Kubectl) {
    if assets::lacks("beta of DeviceTaintRules", 36) {
        return;
    }
    for (pool, effect) in [("n2", "NoSchedule"), ("n1", "NoExecute")] {
        let rule = json!({
            "apiVersion": "resource.k8s.io/v1beta2", "kind": "DeviceTaintRule",
            "metadata": {"name": "thief"},
            "spec": {
                "deviceSelector": {"driver": "gpu.nvidia.com", "pool": pool, "device": "gpu-0"},
                "taint": {"key": "a/b", "effect": effect},
            },
        });
        let said = thief.refused(&["create", "-f", "-"], &rule.to_string());
        let said = said.unwrap();
        let expected = "only DeviceTaintRules of the GPUs of this node";
        assert!(said.contains(expected), "{said}");
    }
}

/// Runs an exporter with the token until it has published, and removes that again with the same
/// token.
fn publishes(kubectl: &Kubectl, token: &std::path::Path) {
    let arguments = ["--source", "sim:dgx-h100", "--kubernetes"];
    let exporter = Exporter::publishing(token, "n1", &arguments).unwrap();
    wait_until("the NodeTopology", SOON, || {
        kubectl.get(&["nodetopology", "n1"]).map(Some)
    })
    .unwrap_or_else(|error| panic!("{error:#}\n{}", exporter.process.log()));
    let node = kubectl.get(&["node", "n1"]).unwrap();
    assert_eq!(
        node["metadata"]["labels"]["nvlink-domains.io/domain-size"],
        "8"
    );
    let log = exporter.process.log();
    assert!(!log.contains("forbidden"), "{log}");
    drop(exporter);
    let mut unpublish =
        nvlink_tests::command(nvlink_tests::programs::path("nvlink-exporter").unwrap());
    unpublish.args(["unpublish", "--node-name", "n1"]);
    let output = unpublish.env("KUBECONFIG", token).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let node = kubectl.get(&["node", "n1"]).unwrap();
    let labels = node["metadata"]["labels"].as_object().unwrap();
    assert!(!labels.contains_key("nvlink-domains.io/domain-size"));
}

pub(super) fn forget(kubectl: &Kubectl) {
    let exporters = kubectl.in_namespace(NAMESPACE);
    let now = ["--force", "--grace-period=0"];
    exporters
        .run(&[&["delete", "pod", "n1"], &now[..]].concat())
        .unwrap();
    kubectl
        .run(&["delete", "node", "n1", "n2", "--ignore-not-found"])
        .unwrap();
    kubectl.run(&["delete", "nodetopology", "--all"]).unwrap();
}
