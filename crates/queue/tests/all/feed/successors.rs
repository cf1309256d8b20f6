//! Pods whose turn it was, which the queue had to fail: their successors take the turn. And pods that got
//! past the queue, which count for their project.

use std::sync::Arc;

use nvlink_api::class::Class;
use nvlink_planner::Reason;
use serde_json::{Value, json};

use super::{NOW, Queue, pod};

/// Returns a pod of a Job that waits, created so many seconds after the others' time.
fn of_job(name: &str, job: &str, seconds: u32) -> Value {
    let mut pod = pod(name, 4, 1);
    pod["metadata"]["creationTimestamp"] = json!(format!("2026-08-01T10:00:{seconds:02}Z"));
    pod["metadata"]["ownerReferences"] = json!([{"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": job, "controller": true}]);
    pod
}

fn failed(mut pod: Value, reason: &str) -> Value {
    pod["metadata"]["resourceVersion"] = json!("9");
    pod["status"] = json!({"phase": "Failed", "reason": reason});
    pod
}

/// Lets `a` fail for `reason`, `b` be next in line, and `c` be made later in the place of `a`; returns
/// which of the two comes first.
fn first_after(reason: &str, job: &str) -> Vec<String> {
    let mut queue = Queue::new();
    queue.feed.pod(of_job("a", "train", 0));
    assert_eq!(queue.released(NOW), ["team/a"]);
    queue.feed.pod(of_job("b", "other", 10));
    queue.feed.pod(failed(of_job("a", "train", 0), reason));
    queue.feed.pod(of_job("c", job, 20));
    queue.released(NOW + 30_000)
}

#[test]
fn the_successor_of_a_pod_that_lost_its_node_keeps_its_turn() {
    for reason in ["QueueNodeLost", "QueueNodeRefuses", "QueueClassGone"] {
        assert_eq!(first_after(reason, "train"), ["team/c"], "{reason}");
    }
    // It had its time, or it failed by itself; and the pod of another Job is no successor.
    assert_eq!(first_after("QueueTimeout", "train"), ["team/b"]);
    assert_eq!(first_after("Error", "train"), ["team/b"]);
    assert_eq!(first_after("QueueNodeLost", "third"), ["team/b"]);
}

#[test]
fn one_successor_takes_one_turn() {
    let mut queue = Queue::new();
    queue.feed.pod(of_job("a", "train", 0));
    queue.released(NOW);
    queue
        .feed
        .pod(failed(of_job("a", "train", 0), "QueueNodeLost"));
    // Said again, it is no second turn.
    queue
        .feed
        .pod(failed(of_job("a", "train", 0), "QueueNodeLost"));
    queue.feed.pod(of_job("b", "other", 10));
    for name in ["c", "d"] {
        queue.feed.pod(of_job(name, "train", 20));
    }
    for first in ["team/c", "team/b", "team/d"] {
        assert_eq!(queue.released(NOW + 30_000), [first]);
        queue.feed.gone(&first.into());
    }
}

/// While no webhook ran, somebody started a pod without the class on its nodes.
#[test]
fn a_pod_that_got_past_the_queue_counts_for_its_project() {
    for (mode, free) in [("Restricted", false), ("Open", true)] {
        let mut queue = Queue::new();
        let spec = json!({
            "access": {"mode": mode, "maxGpusPerProject": 3},
            "placement": {"whenUnavailable": "Queue"},
        });
        let class = Class::new("line", &serde_json::from_value(spec).unwrap()).unwrap();
        queue.feed.class("line", Some(Ok(Arc::new(class))));
        let mut past = pod("past", 2, 1);
        past["metadata"]["labels"] = json!({});
        past["spec"]["schedulingGates"] = json!([]);
        past["spec"]["nodeName"] = json!("n1");
        past["status"]["phase"] = json!("Running");
        queue.feed.pod(past);
        queue.feed.pod(pod("a", 2, 1));
        // Two of four GPUs are free.
        assert_eq!(queue.released(NOW).len(), usize::from(free), "{mode}");
        let waiting = queue.planner.round(NOW).waiting;
        let quota = waiting
            .iter()
            .any(|one| matches!(one.reason, Reason::Quota { .. }));
        assert_eq!(quota, !free, "{mode}: {waiting:?}");
    }
}
