//! `kubectl debug` as users run it: the refusal names a remedy, and the remedy works.

use serde_json::{Value, json};

use crate::{
    pods::{assert_mutated, gpu_pod},
    shared::{control_plane, create_class, webhook},
};

#[test]
fn the_command_in_the_refusal_debugs_a_node() {
    webhook();
    create_class("debug-node", &json!({"access": {"mode": "Restricted"}}));
    let admin = control_plane()
        .namespace("debug-node", &json!({}), &json!({}))
        .unwrap();
    let taint =
        json!({"key": "nvlink-domains.io/class", "value": "debug-node", "effect": "NoSchedule"});
    let node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "debug-plain-1"}, "spec": {"unschedulable": true, "taints": [taint]}
    });
    admin.create(&node).unwrap();
    let debug = ["debug", "node/debug-plain-1", "--image=busybox"];
    let refused = admin.refused(&debug, "").unwrap();
    let mut lines = refused.lines();
    let command = lines.find(|line| line.starts_with("kubectl debug "));
    let command = command.expect(&refused);
    // There is no kubelet, so no shell would ever start.
    let output = admin.shell(&command.replace(" -it ", " ")).unwrap();
    assert!(output.status.success(), "{command}: {output:?}");
    let system = admin.in_namespace("kube-system");
    let pods = system.get(&["pods"]).unwrap();
    let made = |pod: &&Value| pod["spec"]["nodeName"] == "debug-plain-1";
    let pod = pods["items"].as_array().unwrap().iter().find(made);
    let name = pod.unwrap()["metadata"]["name"].as_str().unwrap();
    system
        .run(&["delete", "pod", name, "--grace-period=0", "--force"])
        .unwrap();
}

#[test]
fn the_flags_in_the_refusal_copy_a_pod() {
    if nvlink_tests::assets::lacks("kubectl debug --keep-annotations", 32) {
        return;
    }
    create_class("debug-copied", &json!({}));
    let kubectl = control_plane()
        .namespace("debug-copy", &json!({}), &json!({}))
        .unwrap();
    let mut pod = gpu_pod("train", 2);
    pod["metadata"]["annotations"] = json!({"nvlink-domains.io/class": "debug-copied"});
    assert_mutated(&kubectl.create(&pod).unwrap(), "debug-copied", 2);
    let debug = ["debug", "train", "--image=busybox"];
    let alone = ["--copy-to=alone", "--keep-annotations"];
    let refused = kubectl.refused(&[&debug[..], &alone].concat(), "").unwrap();
    for part in [
        "rule reserved-annotation:",
        "leave out --keep-annotations or add --keep-labels",
    ] {
        assert!(refused.contains(part), "{part} is not in {refused}");
    }
    let whole = ["--copy-to=whole", "--keep-annotations", "--keep-labels"];
    for flags in [&["--copy-to=plain"][..], &whole] {
        kubectl.run(&[&debug[..], flags].concat()).unwrap();
    }
}
