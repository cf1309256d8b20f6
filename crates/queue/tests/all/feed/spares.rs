//! Spare nodes of a fabric: which jobs leave them free, and which may use them.

use std::{collections::BTreeSet, sync::Arc};

use nvlink_cluster::kinds::NodeObject;
use nvlink_planner::Reason;
use nvlink_queue::feed::node::Node;
use nvlink_topology::labels;
use serde_json::json;

use super::{
    NOW, Queue,
    channels::{OTHER, RACK, member, publish, racks, set_node, start},
    pod,
};

const TRAYS: [&str; 4] = ["t1", "t2", "t3", "t4"];

/// Returns a queue of a class that leaves nodes free, with a rack of four trays of four GPUs.
fn rack(spares: u32) -> Queue {
    let mut queue = racks(&TRAYS.map(|tray| (tray, Some(RACK))));
    queue.class(Some(
        json!({"whenUnavailable": "Queue", "spareNodes": spares}),
    ));
    queue
}

/// Returns the nodes on which pods of four GPUs start, of as many as there are trays.
fn nodes_of_pods(queue: &mut Queue) -> BTreeSet<String> {
    for index in 0..TRAYS.len() {
        queue.feed.pod(pod(&format!("pod-{index}"), 4, 1));
    }
    let releases = queue.releases(NOW);
    let seats = releases.iter().flat_map(|release| &release.seats);
    seats
        .filter_map(|seat| Some(seat.node.as_ref()?.to_string()))
        .collect()
}

/// Returns the nodes on which a gang with a pod of four GPUs on each starts.
fn nodes_of_gang(queue: &mut Queue, size: u32) -> BTreeSet<String> {
    let releases = start(queue, size, 4);
    let seats = releases.iter().flat_map(|release| &release.seats);
    seats
        .filter_map(|seat| Some(seat.node.as_ref()?.to_string()))
        .collect()
}

fn drain(queue: &mut Queue, name: &str) {
    let object = NodeObject {
        spec: json!({"unschedulable": true}),
        status: json!({"allocatable": {"nvidia.com/gpu": "4"}, "conditions": [{"type": "Ready", "status": "True"}]}),
        ..NodeObject::default()
    };
    queue.feed.node(name, Some(Node::of(&object)));
}

/// Puts a pod of a gang, or a single one, onto a node, where it runs.
fn run(queue: &mut Queue, name: &str, gang: Option<(u32, u32)>, node: &str) {
    let mut pod = match gang {
        Some((size, _)) => member(name, size, 4),
        None => pod(name, 4, 1),
    };
    let placement = json!({
        "plan": "7-1", "at": "2026-08-01T10:00:00Z", "node": node, "gpus": [0, 1, 2, 3],
        "rank": gang.map_or(0, |(_, rank)| rank), "gang": "gang train",
    });
    pod["metadata"]["resourceVersion"] = json!("2");
    pod["metadata"]["annotations"][labels::QUEUE_PLACEMENT] = json!(placement.to_string());
    pod["spec"]["schedulingGates"] = json!([]);
    pod["spec"]["nodeName"] = json!(node);
    pod["status"] = json!({"phase": "Running"});
    queue.feed.pod(pod);
}

/// Puts a gang of three pods onto nodes.
fn run_gang(queue: &mut Queue, nodes: [&str; 3]) {
    for (rank, node) in (0..).zip(nodes) {
        run(queue, &format!("train-{rank}"), Some((3, rank)), node);
    }
}

fn set<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
    names.map(str::to_owned).into()
}

#[test]
fn new_jobs_leave_the_last_free_nodes_of_each_fabric() {
    assert_eq!(nodes_of_pods(&mut rack(0)), set(TRAYS));
    assert_eq!(nodes_of_pods(&mut rack(1)), set(["t1", "t2", "t3"]));
    assert_eq!(nodes_of_pods(&mut rack(3)), set(["t1"]));
    assert_eq!(nodes_of_pods(&mut rack(9)), set([]));
    assert_eq!(nodes_of_gang(&mut rack(1), 3), set(["t1", "t2", "t3"]));
    let mut queue = rack(1);
    assert_eq!(nodes_of_gang(&mut queue, 4), set([]));
    let reason = &queue.planner.round(NOW).waiting[0].reason;
    assert_eq!(*reason, Reason::NeverTogether { pods: 4 });
    // Each fabric has its own, and nodes in none have none.
    let mut queue = rack(1);
    publish(&mut queue, "t1", Some(OTHER));
    publish(&mut queue, "t2", None);
    assert_eq!(nodes_of_pods(&mut queue), set(["t2", "t3"]));
}

#[test]
fn nodes_that_nobody_uses_are_spares_before_others() {
    let mut queue = rack(1);
    run(&mut queue, "first", None, "t4");
    assert_eq!(nodes_of_pods(&mut queue), set(["t1", "t2"]));
    // A class that no longer leaves any free.
    queue.class(Some(json!({"whenUnavailable": "Queue"})));
    assert_eq!(nodes_of_pods(&mut queue), set(["t1", "t2", "t3"]));
}

#[test]
fn a_pod_that_takes_the_place_of_a_lost_one_uses_a_spare() {
    let mut queue = rack(1);
    run_gang(&mut queue, ["t1", "t2", "t3"]);
    queue.feed.pod(pod("another", 4, 1));
    assert_eq!(queue.released(NOW), [] as [&str; 0]);
    queue.feed.gone(&"team/train-2".into());
    // It took its node with it, but the node is not known to be broken.
    run(&mut queue, "blocker", None, "t3");
    queue.feed.pod(member("train-2", 3, 4));
    let releases = queue.releases(NOW);
    let [release] = &releases[..] else {
        panic!("only the gang's pod: {releases:?}");
    };
    assert_eq!(&*release.seats[0].pod, "team/train-2");
    assert_eq!(release.seats[0].node.as_deref(), Some("t4"));
}

/// The seat of a lost pod is kept for some time: its node does not become the spare.
#[test]
fn a_node_that_a_gang_has_lost_a_pod_on_is_no_spare() {
    let mut queue = rack(1);
    run_gang(&mut queue, ["t2", "t3", "t4"]);
    queue.feed.pod(pod("another", 4, 1));
    assert_eq!(queue.released(NOW), [] as [&str; 0]);
    queue.feed.gone(&"team/train-2".into());
    assert_eq!(queue.released(NOW), [] as [&str; 0]);
}

/// Others take no spare for a node that a gang uses as long as that runs.
#[test]
fn a_node_that_fails_under_a_gang_counts_when_the_gang_has_left_it() {
    let mut queue = rack(1);
    run(&mut queue, "first", None, "t3");
    drain(&mut queue, "t3");
    assert_eq!(nodes_of_gang(&mut queue, 3), set([]));
    queue.feed.gone(&"team/first".into());
    queue.feed.flush(&mut queue.planner, NOW);
    assert_eq!(queue.releases(NOW).len(), 1, "t1, t2 and the spare t4");
}

/// A gang that has all its pods lost none.
#[test]
fn a_pod_too_many_uses_no_spare() {
    let mut queue = rack(1);
    run_gang(&mut queue, ["t1", "t2", "t3"]);
    queue.feed.pod(member("train-3", 3, 4));
    assert_eq!(queue.released(NOW), [] as [&str; 0]);
}

/// Jobs begin anew as a whole when a pod fails: then the spare takes the place of the broken node.
#[test]
fn a_gang_uses_a_spare_for_each_broken_node_and_a_single_pod_does_not() {
    type Break = fn(&mut Queue);
    let breaks: [Break; 3] = [
        |queue| drain(queue, "t2"),
        |queue| {
            let label = json!({labels::DOMAIN: format!("{RACK}.1")});
            set_node(queue, "t2", label);
            let silent = Err("it is silent".into());
            queue.feed.topology("t2", Some(Arc::new(silent)));
        },
        |queue| queue.feed.node("t4", None),
    ];
    for (at, broken) in breaks.into_iter().enumerate() {
        let gone = at == 2;
        let mut queue = rack(1);
        broken(&mut queue);
        let all = set(if gone {
            ["t1", "t2", "t3"]
        } else {
            ["t1", "t3", "t4"]
        });
        let found = nodes_of_gang(&mut queue, 3);
        // Nobody knows whether a node that was removed is to come back.
        assert_eq!(found, if gone { set([]) } else { all }, "{at}");
        let mut queue = rack(1);
        broken(&mut queue);
        let left = set(if gone { ["t1", "t2"] } else { ["t1", "t3"] });
        assert_eq!(nodes_of_pods(&mut queue), left, "{at}");
    }
}
