//! CPU, memory and other resources, which pods without devices hold, too.

use nvlink_planner::Reason;
use nvlink_queue::placement::id;
use serde_json::{Value, json};

use super::{NOW, Queue, placed, pod};

/// Returns a pod without devices on the node.
pub(super) fn plain(name: &str, requests: Value) -> Value {
    json!({
        "metadata": {"namespace": "kube-system", "name": name, "uid": name},
        "spec": {
            "nodeName": "n1", "containers": [{"name": "c", "resources": {"requests": requests}}],
        },
        "status": {"phase": "Running"},
    })
}

/// Returns a pod that waits for a GPU and more.
pub(super) fn asking(name: &str, version: u64, requests: Value) -> Value {
    let mut pod = pod(name, 1, version);
    pod["spec"]["containers"][0]["resources"]["requests"] = requests;
    pod
}

#[test]
fn a_job_waits_for_cpu_and_memory_that_other_pods_hold() {
    let mut queue = Queue::new();
    queue.node(json!({"nvidia.com/gpu": "4", "cpu": "8", "memory": "64Gi", "pods": "3"}));
    queue
        .feed
        .pod(plain("daemon", json!({"cpu": "500m", "memory": "1Gi"})));
    queue.feed.pod(plain("build", json!({"cpu": "4"})));
    queue.feed.pod(asking("a", 1, json!({"cpu": "4"})));
    queue.feed.pod(asking("b", 2, json!({"memory": "63Gi"})));
    assert_eq!(queue.released(NOW), ["team/b"]);
    let waiting = queue.planner.round(NOW).waiting;
    assert_eq!(waiting[0].reason, Reason::Resources { asked: 1 });

    // A pod that has ended holds nothing, nor does one that is gone.
    let mut ended = plain("build", json!({"cpu": "4"}));
    ended["status"]["phase"] = json!("Succeeded");
    queue.feed.pod(ended);
    assert_eq!(queue.released(NOW), ["team/a", "team/b"]);
    queue.feed.pod(plain("build", json!({"cpu": "4"})));
    assert_eq!(queue.released(NOW), ["team/b"]);
    queue.feed.gone(&id("kube-system", "build"));
    assert_eq!(queue.released(NOW), ["team/a", "team/b"]);

    // A released pod holds what it asks for, and a place among the node's three pods.
    queue.feed.expect(&id("team", "a"), placed(&[0], 0));
    let both = asking("c", 3, json!({"cpu": "3501m"}));
    queue.feed.pod(both);
    assert_eq!(queue.released(NOW), ["team/b"]);
    queue.feed.pod(asking("c", 4, json!({"cpu": "3500m"})));
    assert_eq!(queue.released(NOW), ["team/b"], "the node takes three pods");
    queue
        .feed
        .retain_pods(&["team/a", "team/b", "team/c"].map(Into::into).into());
    assert_eq!(queue.released(NOW), ["team/b", "team/c"]);
}

#[test]
fn resources_that_some_node_has_are_counted_on_all() {
    let mut queue = Queue::new();
    queue.feed.pod(asking("a", 1, json!({"rdma/hca": "1"})));
    assert_eq!(
        queue.released(NOW),
        ["team/a"],
        "somebody else hands them out"
    );
    queue.node(json!({"nvidia.com/gpu": "4", "rdma/hca": "0"}));
    assert!(queue.released(NOW).is_empty());
    queue.node(json!({"nvidia.com/gpu": "4", "rdma/hca": "2", "hugepages-2Mi": "1Gi"}));
    queue
        .feed
        .pod(plain("db", json!({"hugepages-2Mi": "512Mi"})));
    queue
        .feed
        .pod(asking("b", 2, json!({"hugepages-2Mi": "768Mi"})));
    queue.feed.pod(asking("c", 3, json!({"rdma/hca": "2"})));
    assert_eq!(queue.released(NOW), ["team/a"]);
    queue.feed.gone(&id("team", "a"));
    queue.feed.gone(&id("kube-system", "db"));
    assert_eq!(queue.released(NOW), ["team/b", "team/c"]);
}
