//! Nodes whose GPUs a DRA driver lists.

use std::collections::HashSet;

use nvlink_topology::labels;
use nvlink_webhook::queue::{
    Placement,
    claim::{Asks, Named, asks_for, object},
    feed::{Claim, Slice, id},
};
use serde_json::{Value, json};

use super::{NOW, Queue, placed, pod};

const DRIVER: &str = "gpu.nvidia.com";

/// Lists the GPUs of the node, `tainted` ones among them.
fn slice(queue: &mut Queue, gpus: &[u32], tainted: &[u32]) {
    let device = |gpu: &u32| {
        let mut device = json!({
            "name": format!("gpu-{gpu}"),
            "attributes": {"uuid": {"string": format!("GPU-{gpu}")}},
        });
        if tainted.contains(gpu) {
            device["taints"] = json!([{"key": "bad", "effect": "NoSchedule"}]);
        }
        device
    };
    let devices: Vec<Value> = gpus.iter().map(device).collect();
    let spec = json!({
        "driver": DRIVER, "nodeName": "n1", "devices": devices,
        "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
    });
    queue.feed.slice("s", Slice::of(&spec));
}

/// A claim of somebody else holds a GPU.
fn hold(queue: &mut Queue, gpu: u32) {
    let result = json!({"driver": DRIVER, "pool": "n1", "device": format!("gpu-{gpu}")});
    let claim = json!({
        "metadata": {"namespace": "other", "name": "c"},
        "status": {"allocation": {"devices": {"results": [result]}}},
    });
    queue.feed.claim(&id("other", "c"), Claim::of(&claim));
}

/// Returns the pod `a`, which was released to a place and names a claim.
fn released(place: &Placement) -> Value {
    let mut released = pod("a", u32::try_from(place.gpus.len()).unwrap(), 1);
    released["spec"]["schedulingGates"] = json!([]);
    released["spec"]["resourceClaims"] =
        json!([{"name": "nvlink-domains", "resourceClaimName": "nvlink-domains-a"}]);
    let text = serde_json::to_string(place).unwrap();
    released["metadata"]["annotations"] = json!({ labels::QUEUE_PLACEMENT: text });
    released
}

#[test]
fn gpus_that_cannot_be_allocated_are_missing_once() {
    for (listed, tainted, held) in [
        (&[0, 1, 2, 3][..], &[3][..], None),
        (&[0, 1, 2], &[], None),
        (&[0, 1, 2, 3], &[], Some(3)),
        (&[0, 1, 2, 3], &[3], Some(3)),
    ] {
        let mut queue = Queue::new();
        queue.node(json!({}));
        slice(&mut queue, listed, tainted);
        if let Some(gpu) = held {
            hold(&mut queue, gpu);
        }
        queue.feed.pod(pod("four", 4, 1));
        assert!(queue.released(NOW).is_empty(), "{listed:?} {tainted:?}");
        queue.feed.retain_pods(&HashSet::new());
        queue.feed.pod(pod("three", 3, 2));
        let releases = queue.releases(NOW);
        assert_eq!(releases.len(), 1, "{listed:?} {tainted:?} {held:?}");
        assert_eq!(releases[0].seats[0].gpus, [0, 1, 2]);
    }
}

#[test]
fn a_claim_that_tolerates_nothing_is_not_one_for_broken_gpus() {
    let mut pod = pod("a", 1, 1);
    pod["spec"]["resourceClaims"] = json!([{"name": "nvlink-domains", "resourceClaimName": "c"}]);
    let named = Named::of(&pod).unwrap();
    let claim = |device_class: &str, broken| {
        let device_class = device_class.to_owned();
        let asks = Asks {
            device_class,
            broken,
        };
        object(&pod, &named, &["GPU-0".to_owned()], &asks, 1)
    };
    let first = claim(DRIVER, false);
    assert!(asks_for(&first, &claim(DRIVER, false)));
    assert!(!asks_for(&first, &claim(DRIVER, true)));
    assert!(!asks_for(&first, &claim("other", false)));
}

#[test]
fn a_released_pod_whose_claim_cannot_be_made_fails_after_a_while() {
    let mut queue = Queue::new();
    queue.node(json!({}));
    slice(&mut queue, &[0, 1, 2, 3], &[]);
    queue.feed.pod(released(&placed(&[0], 0)));
    let claim = |deleted: Option<&str>| {
        Claim::of(&json!({"metadata": {
            "namespace": "team", "name": "nvlink-domains-a", "deletionTimestamp": deleted,
        }}))
    };
    let name = id("team", "nvlink-domains-a");
    for missing in [None, claim(Some("2026-08-01T10:00:00Z"))] {
        queue.feed.claim(&name, missing);
        let (lost, due) = queue.feed.lost(NOW);
        assert_eq!((lost, due), (vec![], Some(NOW + 300_000)));
        queue.feed.claim(&name, claim(None));
        assert_eq!(
            queue.feed.lost(NOW + 300_000),
            (vec![], None),
            "it is there"
        );
    }
    queue.feed.claim(&name, None);
    assert_eq!(queue.feed.lost(NOW).0, []);
    let (lost, _) = queue.feed.lost(NOW + 300_000);
    assert!(lost[0].why.contains("ResourceQuota"), "{lost:?}");
}

#[test]
fn other_gpus_are_taken_if_the_scheduler_alone_knows_what_is_wrong() {
    let mut queue = Queue::new();
    queue.node(json!({}));
    slice(&mut queue, &[0, 1, 2, 3], &[]);
    let mut place = placed(&[0, 1], 0);
    place.uuids = vec!["GPU-0".to_owned(), "GPU-1".to_owned()];
    let mut released = released(&place);
    let asks = Asks {
        device_class: DRIVER.to_owned(),
        broken: false,
    };
    let named = Named::of(&released).unwrap();
    let claim = object(&released, &named, &place.uuids, &asks, 1);
    queue
        .feed
    assert!(is_later(&first, 0) && !is_later(&first, 1));
        .claim(&id("team", "nvlink-domains-a"), Claim::of(&claim));
    for (version, message, without) in [
        (2, "0/1 nodes are available: 1 Insufficient cpu.", None),
        (
            3,
            "0/1 nodes are available: 1 cannot allocate all claims.",
            Some(vec![0, 1]),
        ),
    ] {
        let condition = json!({
            "type": "PodScheduled", "status": "False",
            "reason": "Unschedulable", "message": message,
        });
        released["status"]["conditions"] = json!([condition]);
        released["metadata"]["resourceVersion"] = json!(version.to_string());
        queue.feed.pod(released.clone());
        let (found, _) = queue.feed.unclaimed(NOW + 60_000);
        let found = found.first().map(|one| one.without.clone());
        assert_eq!(found, without, "{message}");
    }
}
