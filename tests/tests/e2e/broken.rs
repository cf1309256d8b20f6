//! From the fault of a GPU to the node on which the scheduler places a job.

use std::time::Duration;

use nvlink_tests::{Exporter, Kubectl, Node, http, node, wait_until};
use serde_json::{Value, json};

use crate::{
    pods::{gpu_pod, is_bound, is_unschedulable, wait_for_pods},
    shared::{control_plane, create_class, namespace_with_class},
};

const SOON: Duration = Duration::from_secs(30);
const POOL: &str = "broken";
const XID: &str = r#"[{"xid": {"gpu": 2, "xid": 74}}]"#;

/// Starts an exporter of a node of its own.
fn exporter(name: &str) -> Exporter {
    let control_plane = control_plane();
    let arguments = ["--source", "sim:dgx-h100", "--collection-interval", "100ms"];
    node::create(control_plane.kubectl(), &[Node::new(name, 8).pool(POOL)]).unwrap();
    Exporter::publishing(control_plane.kubeconfig(), name, &arguments).unwrap()
}

fn set(exporter: &Exporter, faults: &str) {
    let answer = http::send("PUT", &exporter.url("/sim/faults"), faults).unwrap();
    assert_eq!(answer.status, 200, "{}", answer.body);
}

/// Waits until the node's largest domain has `gpus` healthy GPUs.
fn wait_for_healthy(name: &str, gpus: &str) {
    let label = "nvlink-domains.io/healthy-domain-size";
    wait_until(&format!("{gpus} healthy GPUs of {name}"), SOON, || {
        let node = control_plane().kubectl().get(&["node", name])?;
        let labels = &node["metadata"]["labels"];
        anyhow::ensure!(labels[label] == gpus, "the label is {}", labels[label]);
        assert_eq!(labels["nvlink-domains.io/domain-size"], "8");
        Ok(Some(()))
    })
    .unwrap();
}

/// Returns the faults of each GPU in the NodeTopology, once GPU 2 has `wanted`.
fn wait_for_faults(name: &str, wanted: &Value) {
    wait_until(&format!("the faults {wanted} of {name}"), SOON, || {
        let topology = control_plane().kubectl().get(&["nodetopology", name])?;
        let found = &topology["spec"]["gpus"][2]["faults"];
        anyhow::ensure!(found == wanted, "the faults are {found}");
        Ok(Some(()))
    })
    .unwrap();
}

/// Creates a pod of `gpus` GPUs and waits until `wanted` is true of it; returns its node.
fn place(kubectl: &Kubectl, name: &str, gpus: u32, wanted: fn(&Value) -> bool) -> Value {
    let mut pod = gpu_pod(name, gpus);
    pod["metadata"]["labels"] = json!({"job": name});
    node::in_pool(&mut pod["spec"], POOL);
    kubectl.create(&pod).unwrap();
    let pods = wait_for_pods(kubectl, &format!("job={name}"), 1, wanted);
    pods[0]["spec"]["nodeName"].clone()
}

fn remove(kubectl: &Kubectl) {
    let now = ["--all", "--force", "--grace-period=0"];
    kubectl
        .run(&[&["delete", "pods"][..], &now].concat())
        .unwrap();
}

#[test]
fn a_broken_gpu_keeps_jobs_off_its_node_until_it_is_reset() {
    let (a, b) = (exporter("broken-a"), exporter("broken-b"));
    wait_for_healthy("broken-a", "8");
    wait_for_healthy("broken-b", "8");
    set(&a, XID);
    wait_for_healthy("broken-a", "7");
    wait_for_faults("broken-a", &json!(["xid-74"]));
    let metrics = a.metrics().unwrap();
    let unhealthy = metrics
        .lines()
        .filter(|line| line.starts_with("nvlink_gpu_unhealthy{"));
    let unhealthy: Vec<_> = unhealthy.collect();
    let [series] = &unhealthy[..] else {
        panic!("{unhealthy:?}");
    };
    assert!(
        series.contains("gpu=\"2\"") && series.contains("reason=\"xid-74\""),
        "{series}"
    );

    // The document that the exporter serves is what `place` reads.
    let served = http::text(&a.url("/api/v1/topology")).unwrap();
    let served: Value = serde_json::from_str(&served).unwrap();
    assert_eq!(served["spec"]["gpus"][2]["faults"], json!(["xid-74"]));

    create_class(
        "broken-avoid",
        &json!({"placement": {"brokenGpus": "Avoid"}}),
    );
    create_class("broken-last", &json!({}));
    let avoid = namespace_with_class("broken-avoid", "broken-avoid");
    let last = namespace_with_class("broken-last", "broken-last");
    for (kubectl, name) in [(&avoid, "avoid"), (&last, "last")] {
        assert_eq!(place(kubectl, name, 8, is_bound), "broken-b", "{name}");
        remove(kubectl);
    }
    // Where no node is healthy, one class waits and the other takes what there is.
    set(&b, XID);
    wait_for_healthy("broken-b", "7");
    assert!(place(&avoid, "eight", 8, is_unschedulable).is_null());
    assert!(place(&avoid, "seven", 7, is_bound).is_string());
    assert!(place(&last, "eight", 8, is_bound).is_string());
    remove(&last);

    set(&b, r#"[{"gpu-reset": {"gpu": 2}}]"#);
    wait_for_healthy("broken-b", "8");
    wait_for_faults("broken-b", &Value::Null);
    remove(&avoid);
    assert_eq!(place(&avoid, "again", 8, is_bound), "broken-b");
}
