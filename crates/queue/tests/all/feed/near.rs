//! Required pod affinity and anti-affinity of pods that wait: Tekton's affinity assistant.

use nvlink_cluster::kinds::NodeObject;
use nvlink_planner::Reason;
use nvlink_queue::{
    feed::node::Node,
    notice::{About, Notice},
    placement::id,
};
use serde_json::{Value, json};

use super::{NOW, Queue, pod};

const HOST: &str = "kubernetes.io/hostname";

/// Sets a node with GPUs and its usual label.
pub(super) fn node(queue: &mut Queue, name: &str, gpus: u32) {
    let metadata = json!({"name": name, "labels": {HOST: name}});
    let node = Node::of(&NodeObject {
        metadata: serde_json::from_value(metadata).unwrap(),
        status: json!({
            "allocatable": {"nvidia.com/gpu": gpus.to_string()},
            "conditions": [{"type": "Ready", "status": "True"}],
        }),
        ..NodeObject::default()
    });
    queue.feed.node(name, Some(node));
}

/// Returns the pod that Tekton places first.
fn assistant(node: &str) -> Value {
    json!({
        "metadata": {
            "namespace": "team", "name": "affinity-assistant-1-0", "uid": format!("assistant on {node}"),
            "labels": {"app.kubernetes.io/instance": "affinity-assistant-1"},
        },
        "spec": {"nodeName": node, "containers": [{"name": "c"}]},
        "status": {"phase": "Running"},
    })
}

fn with(name: &str, kind: &str, selector: Value) -> Value {
    let mut pod = pod(name, 1, 1);
    let term = json!({"labelSelector": selector, "topologyKey": HOST});
    pod["spec"]["affinity"] =
        json!({kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}});
    pod
}

fn task() -> Value {
    let labels = json!({"app.kubernetes.io/instance": "affinity-assistant-1"});
    with("task", "podAffinity", json!({"matchLabels": labels}))
}

#[test]
fn a_pod_waits_for_the_pod_that_it_must_be_near_and_goes_to_its_node() {
    let mut queue = Queue::new();
    node(&mut queue, "n1", 4);
    node(&mut queue, "n2", 0);
    queue.feed.pod(task());
    assert!(queue.released(NOW).is_empty());
    let waiting = queue.planner.round(NOW).waiting.remove(0);
    assert_eq!(waiting.reason, Reason::Incomplete);
    let notice = Notice::new(&waiting, queue.feed.obstacle(&waiting.job));
    let member = queue.feed.member(&id("team", "task")).unwrap();
    assert_eq!(
        notice.why(About::from(member)),
        "pod team/task must be near pods with app.kubernetes.io/instance=affinity-assistant-1 (required pod affinity), and none of them is on a node yet"
    );
    queue.feed.pod(assistant("n2"));
    assert!(queue.released(NOW).is_empty(), "it is elsewhere");
    queue.feed.gone(&id("team", "affinity-assistant-1-0"));
    queue.feed.pod(assistant("n1"));
    assert_eq!(queue.released(NOW), ["team/task"]);
    // One of another namespace is another one.
    let mut other = assistant("n1");
    other["metadata"]["namespace"] = json!("other");
    queue.feed.gone(&id("team", "affinity-assistant-1-0"));
    queue.feed.pod(other);
    assert!(queue.released(NOW).is_empty());
}

#[test]
fn the_node_of_a_pod_is_found_whichever_comes_first() {
    let mut queue = Queue::new();
    queue.feed.pod(assistant("n1"));
    queue.feed.pod(task());
    assert!(queue.released(NOW).is_empty(), "the node has no such label");
    node(&mut queue, "n1", 4);
    assert_eq!(queue.released(NOW), ["team/task"]);
}

#[test]
fn a_pod_stays_away_from_pods_that_it_must_not_be_near() {
    let mut queue = Queue::new();
    node(&mut queue, "n1", 4);
    let loud = json!({"matchLabels": {"app": "loud"}});
    queue.feed.pod(with("shy", "podAntiAffinity", loud));
    assert_eq!(queue.released(NOW), ["team/shy"]);
    let mut loud = assistant("n1");
    loud["metadata"]["labels"] = json!({"app": "loud"});
    queue.feed.pod(loud.clone());
    assert!(queue.released(NOW).is_empty());
    loud["status"]["phase"] = json!("Succeeded");
    queue.feed.pod(loud);
    assert_eq!(queue.released(NOW), ["team/shy"]);
}

#[test]
fn the_first_of_pods_that_attract_each_other_may_go_anywhere() {
    let mut queue = Queue::new();
    node(&mut queue, "n1", 4);
    let mut first = with(
        "first",
        "podAffinity",
        json!({"matchLabels": {"app": "twins"}}),
    );
    first["metadata"]["labels"]["app"] = json!("twins");
    queue.feed.pod(first);
    assert_eq!(queue.released(NOW), ["team/first"]);
}

#[test]
fn terms_are_not_read_where_there_are_too_many() {
    let mut queue = Queue::new();
    node(&mut queue, "n1", 4);
    let one = |name: String, number: usize| {
        with(
            &name,
            "podAffinity",
            json!({"matchLabels": {"number": number.to_string()}}),
        )
    };
    for number in 0..200 {
        queue.feed.pod(one(format!("p{number:03}"), number));
    }
    let released = queue.released(NOW);
    assert_eq!(released.len(), 4, "all four GPUs are given");
    assert!(
        released.iter().all(|pod| &**pod >= "team/p128"),
        "{released:?}"
    );
    let mut queue = Queue::new();
    node(&mut queue, "n1", 4);
    let many: serde_json::Map<_, _> = (0..65).map(|key| (format!("k{key}"), json!("v"))).collect();
    queue
        .feed
        .pod(with("odd", "podAffinity", json!({ "matchLabels": many })));
    assert_eq!(queue.released(NOW), ["team/odd"]);
}
