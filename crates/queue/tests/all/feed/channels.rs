//! IMEX channels: which gangs get a ComputeDomain, and that no node gives two channels.

use std::sync::Arc;

use nvlink_cluster::{gpus::Marks, kinds::NodeObject};
use nvlink_planner::Release;
use nvlink_queue::{channel, feed::node::Node};
use nvlink_topology::{Fabric, NodeTopologySpec, labels};
use serde_json::{Value, json};

use super::{NOW, Queue, pod};

pub(super) const RACK: &str = "7b5c0000-0000-0000-0000-000000000001";
pub(super) const OTHER: &str = "7b5c0000-0000-0000-0000-000000000002";

/// Returns a queue with trays of four GPUs, each in the fabric of a rack or in none.
pub(super) fn racks(trays: &[(&str, Option<&str>)]) -> Queue {
    let mut queue = Queue::new();
    queue.feed.node("n1", None);
    queue.feed.topology("n1", None);
    for (name, rack) in trays {
        set_node(&mut queue, name, json!({}));
        publish(&mut queue, name, *rack);
    }
    queue
}

pub(super) fn set_node(queue: &mut Queue, name: &str, labels: Value) {
    let status = json!({
        "allocatable": {"nvidia.com/gpu": "4"}, "conditions": [{"type": "Ready", "status": "True"}],
    });
    let mut object = NodeObject {
        status,
        ..NodeObject::default()
    };
    object.metadata.labels = Some(serde_json::from_value(labels).unwrap());
    queue.feed.node(name, Some(Node::of(&object)));
}

pub(super) fn publish(queue: &mut Queue, name: &str, rack: Option<&str>) {
    let gpus: Vec<_> = (0..4)
        .map(|index| json!({"index": index, "uuid": format!("GPU-{name}-{index}")}))
        .collect();
    let edge = |a: u32, b: u32| json!({"a": a, "b": b, "via": "switch", "links": 18, "bytesPerSecond": 900_000_000_000_u64});
    let edges: Vec<_> = (0..4)
        .flat_map(|a| (a + 1..4).map(move |b| edge(a, b)))
        .collect();
    let spec = json!({"source": {"kind": "sim"}, "gpus": gpus, "edges": edges});
    let mut spec: NodeTopologySpec = serde_json::from_value(spec).unwrap();
    spec.complete(name).unwrap();
    for domain in &mut spec.domains {
        domain.fabric = rack.and_then(|rack| Fabric::new(rack, 1));
    }
    let published = queue.hardwares.node(&spec, Marks::default(), None);
    queue.feed.topology(name, Some(Arc::new(Ok(published))));
}

/// Returns a member of a gang of `size` that names a claim for a channel.
pub(super) fn member(name: &str, size: u32, gpus: u32) -> Value {
    let mut pod = pod(name, gpus, 1);
    pod["metadata"]["annotations"] = json!({
        labels::GANG: "train", labels::GANG_SIZE: size.to_string(), labels::GANG_SCOPE: "cluster",
    });
    let claim = json!({"name": labels::CHANNEL, "resourceClaimName": format!("nvlink-domains-{name}-channel")});
    pod["spec"]["resourceClaims"] = json!([claim]);
    pod
}

/// Returns what is released of a gang of this size, whose pods have these GPUs.
pub(super) fn start(queue: &mut Queue, size: u32, gpus: u32) -> Vec<Release> {
    for index in 0..size {
        queue
            .feed
            .pod(member(&format!("train-{index}"), size, gpus));
    }
    queue.releases(NOW)
}

#[test]
fn a_gang_in_one_fabric_gets_a_domain_of_its_own() {
    let mut queue = racks(&[("a1", Some(RACK)), ("a2", Some(RACK)), ("b1", Some(OTHER))]);
    let [release] = &start(&mut queue, 2, 4)[..] else {
        panic!("one gang");
    };
    let name = queue.feed.compute_domain(release).unwrap().unwrap();
    assert!(name.starts_with("nvlink-domains-train-"), "{name}");
    assert_eq!(queue.feed.compute_domain(release), Ok(Some(name)));
}

#[test]
fn a_gang_in_several_fabrics_or_in_none_gets_none() {
    for trays in [
        [("a1", Some(RACK)), ("b1", Some(OTHER))],
        [("a1", Some(RACK)), ("b1", None)],
        [("a1", None), ("b1", None)],
    ] {
        let mut queue = racks(&trays);
        let releases = start(&mut queue, 2, 4);
        assert_eq!(releases.len(), 1, "{trays:?}");
        assert_eq!(
            queue.feed.compute_domain(&releases[0]),
            Ok(None),
            "{trays:?}"
        );
    }
    // Its pods handle their channels themselves.
    let mut queue = racks(&[("a1", Some(RACK)), ("a2", Some(RACK))]);
    for name in ["train-0", "train-1"] {
        let mut pod = member(name, 2, 4);
        pod["spec"]["resourceClaims"] = json!([]);
        queue.feed.pod(pod);
    }
    let releases = queue.releases(NOW);
    assert_eq!(queue.feed.compute_domain(&releases[0]), Ok(None));
}

/// The driver gives one channel on each node.
#[test]
fn two_pods_with_channels_share_no_node_of_a_fabric() {
    let two = [("a1", Some(RACK)), ("a2", Some(RACK))];
    assert_eq!(start(&mut racks(&two), 2, 2)[0].seats.len(), 2);
    let mut queue = racks(&two);
    let seats = start(&mut queue, 2, 2)[0].seats.clone();
    assert_ne!(seats[0].node, seats[1].node);
    assert!(
        start(&mut racks(&two), 3, 1).is_empty(),
        "a third one waits"
    );
    // Where there is no fabric, a pod needs no channel.
    assert_eq!(start(&mut racks(&[("a1", None)]), 3, 1)[0].seats.len(), 3);
}

/// Whoever made the ComputeDomain, the driver labels the node as long as a pod there has its channel.
#[test]
fn a_node_whose_channel_others_have_gives_none() {
    let mut queue = racks(&[("a1", Some(RACK)), ("a2", Some(RACK))]);
    set_node(&mut queue, "a2", json!({channel::OF: "a UID"}));
    assert!(start(&mut queue, 2, 2).is_empty());
    let waiting = queue.planner.round(NOW).waiting;
    let reason = &waiting[0].reason;
    assert!(!reason.is_never(), "it can start later: {reason:?}");
    // A pod without a channel may share the node.
    for index in 0..2 {
        queue.feed.pod(pod(&format!("plain-{index}"), 4, 1));
    }
    let released = queue.released(NOW);
    assert!(
        released.contains(&"team/plain-1".to_owned()),
        "{released:?}"
    );
}

#[test]
fn a_pod_that_takes_the_place_of_another_one_gets_the_domain_of_its_gang() {
    let mut queue = racks(&[("a1", Some(RACK)), ("a2", Some(RACK))]);
    let release = start(&mut queue, 2, 4).remove(0);
    let domain = queue.feed.compute_domain(&release).unwrap().unwrap();
    let place = |at: usize, compute_domain: Option<&str>| {
        let seat = &release.seats[at];
        let mut placement = json!({
            "plan": "7-1", "at": "2026-08-01T10:00:00Z", "node": seat.node.as_deref().unwrap(),
            "gpus": seat.gpus, "rank": seat.rank, "gang": "gang train",
        });
        if let Some(domain) = compute_domain {
            placement["computeDomain"] = json!(domain);
        }
        let name = seat.pod.rsplit('/').next().unwrap().to_owned();
        let mut pod = member(&name, 2, 4);
        pod["metadata"]["resourceVersion"] = json!("2");
        pod["metadata"]["annotations"][labels::QUEUE_PLACEMENT] = json!(placement.to_string());
        pod["spec"]["schedulingGates"] = json!([]);
        pod
    };
    for (domain, expected) in [(Some(&*domain), Some(&*domain)), (None, None)] {
        let mut queue = racks(&[("a1", Some(RACK)), ("a2", Some(RACK))]);
        queue.feed.pod(place(0, domain));
        let mut new = release.clone();
        new.seats.remove(0);
        let pod = new.seats[0].pod.rsplit('/').next().unwrap().to_owned();
        queue.feed.pod(member(&pod, 2, 4));
        queue.releases(NOW);
        let found = queue.feed.compute_domain(&new).unwrap();
        assert_eq!(found.as_deref(), expected);
        // It must not start where the channels of its gang do not reach.
        publish(
            &mut queue,
            new.seats[0].node.as_deref().unwrap(),
            Some(OTHER),
        );
        assert_eq!(queue.feed.compute_domain(&new).is_err(), domain.is_some());
    }
}
