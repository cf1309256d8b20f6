//! Jobs of one pod wait until a domain is free, and start there.

use serde_json::{Value, json};

use super::cluster::{Cluster, SOON, placement, waits};
use crate::pods::node_terms;
use nvlink_tests::wait_until;

/// Asserts that the queue let the pod run on `node` only, and that it does.
#[track_caller]
fn assert_placed(pod: &Value, node: &str, gpus: usize) {
    assert_eq!(pod["spec"]["nodeName"], node, "{pod:#}");
    let field = json!([{"key": "metadata.name", "operator": "In", "values": [node]}]);
    let terms = node_terms(pod);
    assert!(!terms.is_empty() && terms.iter().all(|term| term["matchFields"] == field));
    let placed = placement(pod).unwrap();
    assert_eq!(placed["node"], node);
    assert_eq!(placed["gpus"].as_array().map(Vec::len), Some(gpus));
    assert_eq!(placed["quality"], 1.0);
}

#[test]
fn jobs_wait_for_a_domain_and_start_there_in_order() {
    let cluster = Cluster::start(&["n1", "n2"], json!({}));
    for holder in ["first", "second"] {
        cluster.create_for(holder, 8, "30m");
    }
    let first = cluster.bound("first");
    let second = cluster.bound("second");
    let nodes = [&first, &second].map(|pod| pod["spec"]["nodeName"].as_str().unwrap());
    assert!(nodes[0] != nodes[1]);
    assert_placed(&first, nodes[0], 8);

    // Pods are ordered by the second in which they were created, then by name.
    cluster.create_for("waits-1", 6, "60m");
    cluster.create_for("waits-2", 8, "60m");
    cluster.create_for("waits-3", 2, "60m");
    let seen = || ["waits-1", "waits-2", "waits-3"].map(|name| cluster.pod(name));
    assert!(seen().iter().all(waits), "both nodes are full");

    // The third job fits beside the first one, and delays nobody: the second one will get the
    // other node earlier.
    cluster.end("second");
    assert_placed(&cluster.bound("waits-1"), nodes[1], 6);
    assert_placed(&cluster.bound("waits-3"), nodes[1], 2);
    assert!(waits(&cluster.pod("waits-2")));
    cluster.end("first");
    assert_placed(&cluster.bound("waits-2"), nodes[0], 8);
}

#[test]
fn a_job_that_waited_too_long_fails_with_the_reason() {
    let cluster = Cluster::start(&["n1"], json!({"queueTimeout": "5s"}));
    cluster.create("holds", 8);
    cluster.bound("holds");
    cluster.create("waits", 2);
    let failed = wait_until("the job to fail", SOON, || {
        let pod = cluster.pod("waits");
        Ok((pod["status"]["phase"] == "Failed").then_some(pod))
    });
    let failed = failed.unwrap();
    assert_eq!(failed["status"]["reason"], "QueueTimeout");
    let message = failed["status"]["message"].as_str().unwrap();
    assert!(
        message.contains("it needs 2 GPUs in one NVLink domain, and none is free"),
        "{message}"
    );
    // It holds nothing, so the next job gets the GPUs.
    cluster.end("holds");
    cluster.create("next", 8);
    assert_placed(&cluster.bound("next"), "n1", 8);
}

#[test]
fn pods_leave_a_class_that_does_not_queue_any_more() {
    let cluster = Cluster::start(&["n1"], json!({}));
    cluster.create("holds", 8);
    cluster.bound("holds");
    cluster.create("waits", 2);
    assert!(waits(&cluster.pod("waits")));
    cluster.set_class(json!({"whenUnavailable": "Pending"}));
    wait_until("the pod to leave the queue", SOON, || {
        let pod = cluster.pod("waits");
        Ok((!waits(&pod)).then_some(pod))
    })
    .map(|pod| {
        let placed = placement(&pod).unwrap();
        assert_eq!(placed["why"], "class \"line\" does not queue any more");
        assert_eq!(placed["node"], Value::Null);
    })
    .unwrap();

    // A pod of a class that somebody deletes is not stuck either.
    cluster.set_class(json!({}));
    cluster.settle_class();
    cluster.create("orphan", 8);
    assert!(waits(&cluster.pod("orphan")));
    cluster.delete_class();
    wait_until("the orphan to leave the queue", SOON, || {
        Ok((!waits(&cluster.pod("orphan"))).then_some(()))
    })
    .unwrap();
}
