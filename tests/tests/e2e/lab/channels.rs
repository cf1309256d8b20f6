//! IMEX channels on a real kubelet with a DRA driver: what the exporter reads of their holders and of the
//! daemon that serves them.

use nvlink_tests::LabNode;
use serde_json::json;

use super::{Bench, WORK, claimed::device_class, cluster, spec};
use crate::allocations::values;

const DRIVER: &str = "compute-domain.nvidia.com";

/// Creates a pod whose container has the device of a kind, `channel` or `daemon`.
fn create(bench: &Bench, name: &str, kind: &str) {
    let expression = format!("device.attributes['{DRIVER}'].type == '{kind}'");
    let exactly =
        json!({"deviceClassName": DRIVER, "selectors": [{"cel": {"expression": expression}}]});
    let claim = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name},
        "spec": {"devices": {"requests": [{"name": kind, "exactly": exactly}]}},
    });
    bench.kubectl.create(&claim).unwrap();
    let mut spec = spec(bench.lab.name(), 0, WORK);
    spec["resourceClaims"] = json!([{"name": kind, "resourceClaimName": name}]);
    let container = &mut spec["containers"][0];
    container["resources"] = json!({"claims": [{"name": kind}]});
    container["readinessProbe"] = json!({
        "exec": {"command": ["test", "-e", "/tmp/up"]}, "periodSeconds": 1, "timeoutSeconds": 10,
    });
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec});
    bench.kubectl.create(&pod).unwrap();
}

/// Returns the values of the channel that `imex-job` holds, of the daemon, and whether it is ready.
fn series(text: &str, node: &str) -> [Vec<f64>; 3] {
    let pod = |pod| [("node", node), ("namespace", "ci"), ("pod", pod)];
    let holder = [("container", "main"), ("channel", "0")];
    let channel = [&pod("imex-job")[..], &holder].concat();
    [
        values(text, "nvlink_imex_channel_info", &channel),
        values(text, "nvlink_imex_daemon_info", &pod("imex-daemon")),
        values(text, "nvlink_imex_daemon_ready", &pod("imex-daemon")),
    ]
}

#[test]
fn the_exporter_names_the_holder_of_a_channel_and_says_whether_its_daemon_is_ready() {
    if !device_class() {
        return;
    }
    let (name, profile) = ("lab-imex", "hgx-a100-4");
    let node = LabNode::new(name, profile).claimed_with(&["-compute-domains"]);
    let bench = Bench::start_with(&node, profile);
    let selector = json!({"cel": {"expression": format!("device.driver == '{DRIVER}'")}});
    let class = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": DRIVER},
        "spec": {"selectors": [selector]},
    });
    let cluster = cluster().control_plane.kubectl();
    cluster.create(&class).unwrap();
    let run = |arguments: &[&str]| bench.kubectl.run(arguments).unwrap();
    let wait_for = |what: &str, wanted: [&[f64]; 3]| {
        bench.wait_for(what, |text| {
            series(text, name).each_ref().map(Vec::as_slice) == wanted
        })
    };

    // The driver prepares a channel when the daemon of the node is ready.
    create(&bench, "imex-daemon", "daemon");
    bench.wait_for_phase("imex-daemon", "Running");
    create(&bench, "imex-job", "channel");
    wait_for("a daemon that starts", [&[], &[1.0], &[0.0]]);
    let pod = bench.kubectl.get(&["pod", "imex-job"]).unwrap();
    assert_eq!(pod["status"]["phase"], "Pending");
    run(&["exec", "imex-daemon", "--", "touch", "/tmp/up"]);
    wait_for("a daemon that is ready", [&[1.0], &[1.0], &[1.0]]);
    run(&["exec", "imex-daemon", "--", "rm", "/tmp/up"]);
    wait_for("a daemon that fails", [&[1.0], &[1.0], &[0.0]]);
    run(&["delete", "pod", "imex-daemon", "--now"]);
    let text = wait_for("no daemon", [&[1.0], &[], &[]]);
    assert!(!text.contains("nvlink_allocation_info{"), "no GPU: {text}");
    bench.end("imex-job");
    // It still exists.
    bench.wait_for_phase("imex-job", "Succeeded");
    wait_for("no holder", [&[], &[], &[]]);
}
