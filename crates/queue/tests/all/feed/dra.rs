//! Nodes whose GPUs a DRA driver lists.

use std::{collections::HashSet, sync::Arc};

use nvlink_api::class::Class;
use nvlink_cluster::gpus::{Claim, DeviceClass, Slice};
use nvlink_queue::{
    Placement,
    claim::{Asks, Named, asks_for, is_later, object},
    notice::{About, Notice},
    placement::id,
};
use nvlink_topology::{Allocation, labels};
use serde_json::{Value, json};

use super::{
    NOW, Queue, Reason, placed, pod,
    resources::{asking, plain},
};

const DRIVER: &str = "gpu.nvidia.com";

pub(super) fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

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
    queue.feed.slice("s", Slice::of(&read(spec)));
}

/// The scheduler serves plain requests for this resource by claims of a DeviceClass.
fn serve(queue: &mut Queue, resource: &str) {
    let class = DeviceClass::of(&read(json!({"extendedResourceName": resource})));
    queue.feed.device_class("gpus", Some(class));
}

/// A claim of somebody else holds a GPU.
fn hold(queue: &mut Queue, gpu: u32) {
    let result = json!({"driver": DRIVER, "pool": "n1", "device": format!("gpu-{gpu}")});
    let claim = json!({
        "metadata": {"namespace": "other", "name": "c"},
        "status": {"allocation": {"devices": {"results": [result]}}},
    });
    queue.feed.claim(&id("other", "c"), Claim::of(&read(claim)));
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

/// Returns a pod that waits for a claim of the queue.
pub(super) fn claiming(name: &str, gpus: u32, version: u64) -> Value {
    let mut pod = pod(name, 0, version);
    let ranks =
        (0..gpus).map(|rank| json!({"name": "nvlink-domains", "request": format!("rank-{rank}")}));
    pod["spec"]["containers"][0]["resources"] = json!({"claims": ranks.collect::<Vec<_>>()});
    pod["spec"]["resourceClaims"] =
        json!([{"name": "nvlink-domains", "resourceClaimName": format!("nvlink-domains-{name}")}]);
    pod
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
        serve(&mut queue, "nvidia.com/gpu");
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
fn plain_requests_go_where_something_serves_them() {
    let mut queue = Queue::new();
    queue.node(json!({"nvidia.com/gpu": "0"}));
    queue.feed.pod(pod("a", 1, 1));
    slice(&mut queue, &[0, 1, 2, 3], &[]);
    assert!(queue.released(NOW).is_empty(), "a driver, and no plugin");
    let waiting = queue.planner.round(NOW).waiting.remove(0);
    assert_eq!(waiting.reason, Reason::Never);
    serve(&mut queue, "example.com/gpu");
    assert!(queue.released(NOW).is_empty(), "another resource");
    serve(&mut queue, "nvidia.com/gpu");
    assert_eq!(queue.released(NOW), ["team/a"]);
    queue.feed.retain_device_classes(&HashSet::new());
    assert!(queue.released(NOW).is_empty());
    queue.node(json!({"nvidia.com/gpu": "4"}));
    assert_eq!(queue.released(NOW), ["team/a"], "a plugin as well");
}

#[test]
fn a_class_of_claims_without_a_driver_names_what_is_missing() {
    let why = |queue: &mut Queue| {
        assert!(queue.released(NOW).is_empty());
        let waiting = queue.planner.round(NOW).waiting.remove(0);
        let obstacle = queue.feed.obstacle_to(&waiting.job, &waiting.reason);
        let notice = Notice::new(&waiting, obstacle.as_ref());
        assert_eq!((notice.word(), notice.is_warning()), ("Impossible", true));
        let member = queue.feed.member(&"team/a".into()).unwrap();
        notice.why(About::from(member))
    };
    let mut queue = Queue::new();
    let class = json!({
        "placement": {"whenUnavailable": "Queue", "queueTimeout": "1h"},
        "devices": {"mapping": "Claim"},
    });
    let class = Class::new("line", &read(class)).unwrap();
    queue.feed.class("line", Some(Ok(Arc::new(class))));
    queue.feed.pod(claiming("a", 1, 1));
    let said = why(&mut queue);
    assert!(
        said.contains("but the queue sees no DeviceClass gpu.nvidia.com: unless"),
        "{said}"
    );
    let class = DeviceClass::of(&read(json!({})));
    queue.feed.device_class(DRIVER, Some(class));
    let said = why(&mut queue);
    assert!(said.contains("but no ResourceSlice lists a GPU"), "{said}");
    slice(&mut queue, &[0, 1, 2, 3], &[]);
    assert_eq!(queue.released(NOW), ["team/a"]);
}

#[test]
fn a_claim_is_for_one_partition_of_the_fabric_manager() {
    let listed = |partitioned: bool| {
        let device = |gpu: u32| {
            let int = |number: u32| json!({"int": number});
            let mut attributes = json!({"uuid": {"string": format!("GPU-{gpu}")}});
            if partitioned {
                // Neighbours are in different partitions. The driver may write its domain, too.
                attributes["partition2"] = int(2 + gpu % 2);
                attributes["gpu.nvidia.com/partition4"] = int(1);
                attributes["gpuModuleID"] = int(gpu + 1);
            }
            json!({"name": format!("gpu-{gpu}"), "attributes": attributes})
        };
        Slice::of(&read(json!({
            "driver": DRIVER, "nodeName": "n1", "devices": (0..4).map(device).collect::<Vec<_>>(),
            "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
        })))
    };
    let mut queue = Queue::new();
    queue.node(json!({}));
    let gpus = |queue: &mut Queue| {
        let releases = queue.releases(NOW);
        releases.first().map(|one| one.seats[0].gpus.clone())
    };
    queue.feed.pod(claiming("a", 2, 1));
    for (partitioned, expected) in [(false, [0, 1]), (true, [0, 2])] {
        queue.feed.slice("s", listed(partitioned));
        assert_eq!(gpus(&mut queue), Some(expected.to_vec()));
    }
    hold(&mut queue, 2);
    assert_eq!(gpus(&mut queue), Some(vec![1, 3]));
    queue.feed.retain_pods(&HashSet::new());
    queue.feed.pod(claiming("one", 1, 2));
    assert_eq!(gpus(&mut queue), None, "no partition has one GPU");
    // The scheduler makes claims for any GPUs.
    queue.feed.retain_pods(&HashSet::new());
    queue.feed.pod(pod("plain", 2, 3));
    serve(&mut queue, "nvidia.com/gpu");
    assert_eq!(gpus(&mut queue), None);
    queue.feed.slice("s", listed(false));
    assert_eq!(gpus(&mut queue), Some(vec![0, 1]));
}

#[test]
fn what_other_pods_take_of_a_node_with_a_driver_counts() {
    let mut queue = Queue::new();
    queue.node(json!({"cpu": "4"}));
    slice(&mut queue, &[0, 1, 2, 3], &[]);
    serve(&mut queue, "nvidia.com/gpu");
    let mut busy = plain("busy", json!({"cpu": "3"}));
    busy["spec"]["nodeName"] = json!("n1");
    queue.feed.pod(busy);
    queue.feed.pod(asking("a", 1, json!({"cpu": "2"})));
    assert!(queue.released(NOW).is_empty());
    queue.feed.pod(asking("b", 2, json!({"cpu": "1"})));
    assert_eq!(queue.released(NOW), ["team/b"]);
}

#[test]
fn a_pod_that_only_looks_holds_nothing_although_its_exporter_says_so() {
    let mut queue = Queue::new();
    queue.node(json!({}));
    slice(&mut queue, &[0, 1, 2, 3], &[]);
    serve(&mut queue, "nvidia.com/gpu");
    let mut monitor = pod("monitor", 0, 1);
    monitor["metadata"]["annotations"] = json!({});
    monitor["metadata"]["labels"] = json!({});
    monitor["spec"]["schedulingGates"] = json!([]);
    monitor["spec"]["nodeName"] = json!("n1");
    monitor["spec"]["resourceClaims"] = json!([{"name": "all", "resourceClaimName": "all"}]);
    let uid = monitor["metadata"]["uid"].clone();
    queue.feed.pod(monitor);
    queue.report(Some(vec![Allocation {
        namespace: "team".to_owned(),
        pod: "monitor".to_owned(),
        pod_uid: uid.as_str().map(str::to_owned),
        container: "main".to_owned(),
        gpus: vec![0, 1, 2, 3],
        ..Allocation::default()
    }]));
    queue.feed.pod(pod("a", 4, 2));
    assert!(queue.released(NOW).is_empty(), "nothing is known of claims");
    let claim = |admin: bool| {
        let result = |gpu: u32| json!({"driver": DRIVER, "pool": "n1", "device": format!("gpu-{gpu}"), "adminAccess": admin});
        let results: Vec<Value> = (0..4).map(result).collect();
        Claim::of(&read(json!({
            "metadata": {"namespace": "team", "name": "all"},
            "status": {
                "allocation": {"devices": {"results": results}},
                "reservedFor": [{"resource": "pods", "name": "monitor", "uid": uid}],
            },
        })))
    };
    queue.feed.claim(&id("team", "all"), claim(true));
    assert_eq!(queue.released(NOW), ["team/a"]);
    queue.feed.claim(&id("team", "all"), claim(false));
    assert!(queue.released(NOW).is_empty(), "without admin access");
}

#[test]
fn a_claim_of_an_earlier_pod_of_the_same_name_says_nothing_about_this_one() {
    let mut queue = Queue::new();
    queue.node(json!({}));
    slice(&mut queue, &[0, 1, 2, 3], &[]);
    serve(&mut queue, "nvidia.com/gpu");
    let result = json!({"driver": DRIVER, "pool": "n1", "device": "gpu-0"});
    let earlier = Claim::of(&read(json!({
        "metadata": {"namespace": "team", "name": "nvlink-domains-old"},
        "status": {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": "a", "uid": "earlier"}],
        },
    })));
    queue.feed.claim(&id("team", "nvlink-domains-old"), earlier);
    queue.feed.pod(released(&placed(&[1, 2], 0)));
    queue.feed.pod(pod("b", 2, 2));
    let releases = queue.releases(NOW);
    // What is reserved for a pod that is gone is about to be free.
    assert_eq!(releases[0].seats[0].gpus, [0, 3]);
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
        let mut place = placed(&[0], 0);
        place.uuids = vec!["GPU-0".to_owned()];
        object(&pod, &named, &place, &asks, 1)
    };
    let first = claim(DRIVER, false);
    assert!(asks_for(&first, &claim(DRIVER, false)));
    assert!(!asks_for(&first, &claim(DRIVER, true)));
    assert!(!asks_for(&first, &claim("other", false)));
    assert!(is_later(&first, 0) && !is_later(&first, 1));
}

#[test]
fn a_released_pod_whose_claim_cannot_be_made_fails_after_a_while() {
    let mut queue = Queue::new();
    queue.node(json!({}));
    slice(&mut queue, &[0, 1, 2, 3], &[]);
    queue.feed.pod(released(&placed(&[0], 0)));
    let claim = |deleted: Option<&str>| {
        Claim::of(&read(json!({"metadata": {
            "namespace": "team", "name": "nvlink-domains-a", "deletionTimestamp": deleted,
        }})))
    };
    let name = id("team", "nvlink-domains-a");
    for missing in [None, claim(Some("2026-08-01T10:00:00Z"))] {
        queue.feed.claim(&name, missing);
        let (lost, due) = queue.feed.lost(NOW);
        assert_eq!((lost, due), (vec![], Some(NOW + 300_000)));
        queue.feed.claim(&name, claim(None));
        assert_eq!(queue.feed.lost(NOW + 300_000).0, [], "it is there");
    }
    queue.feed.claim(&name, None);
    assert_eq!(queue.feed.lost(NOW).0, []);
    let (lost, _) = queue.feed.lost(NOW + 300_000);
    assert!(lost[0].why.contains("ResourceQuota"), "{lost:?}");
}

#[test]
fn a_claim_that_was_made_for_an_earlier_pod_of_the_name_is_not_its_own() {
    let mut queue = Queue::new();
    queue.node(json!({}));
    slice(&mut queue, &[0, 1, 2, 3], &[]);
    let mut place = placed(&[0], 0);
    place.uuids = vec!["GPU-0".to_owned()];
    let released = released(&place);
    let asks = Asks {
        device_class: DRIVER.to_owned(),
        broken: false,
    };
    let named = Named::of(&released).unwrap();
    let made_for = |pod: &Value| object(pod, &named, &place, &asks, 1);
    let mut namesake = released.clone();
    namesake["metadata"]["uid"] = json!("namesake");
    let mut earlier = made_for(&released);
    let result = json!({"driver": DRIVER, "pool": "n1", "device": "gpu-0", "request": "rank-0"});
    let status = json!({"allocation": {"devices": {"results": [result]}}});
    earlier.status = Some(read(status));
    let claim = id("team", "nvlink-domains-a");
    queue.feed.claim(&claim, Claim::of(&earlier));
    queue.feed.pod(namesake.clone());
    let again = |queue: &Queue| queue.feed.unclaimed(NOW + 60_000).0.len();
    assert_eq!(
        again(&queue),
        1,
        "the scheduler allocates it to nobody else"
    );
    queue.feed.claim(&claim, Claim::of(&made_for(&namesake)));
    assert_eq!(again(&queue), 0);
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
    let claim = object(&released, &named, &place, &asks, 1);
    queue
        .feed
        .claim(&id("team", "nvlink-domains-a"), Claim::of(&claim));
    let cpu = "0/1 nodes are available: 1 Insufficient cpu.";
    let claims = "0/1 nodes are available: 1 cannot allocate all claims.";
    for (version, reason, message, without) in [
        (2, "Unschedulable", cpu, None),
        (3, "Unschedulable", claims, Some(vec![0, 1])),
        (4, "SchedulingGated", claims, None),
        (5, "SchedulerError", claims, Some(vec![0, 1])),
    ] {
        let condition = json!({
            "type": "PodScheduled", "status": "False",
            "reason": reason, "message": message,
        });
        released["status"]["conditions"] = json!([condition]);
        released["metadata"]["resourceVersion"] = json!(version.to_string());
        queue.feed.pod(released.clone());
        let (found, _) = queue.feed.unclaimed(NOW + 60_000);
        let found = found.first().map(|one| one.without.clone());
        assert_eq!(found, without, "{message}");
    }
}

#[test]
fn a_device_class_of_gpus_with_a_name_that_admission_does_not_know_is_named() {
    let mut queue = Queue::new();
    let mut set = |name: &str, resource: &str, selectors: Value| {
        let spec = json!({"extendedResourceName": resource, "selectors": selectors});
        let class = DeviceClass::of(&read(spec));
        queue.feed.device_class(name, Some(class));
        queue.feed.others()
    };
    let of =
        |driver: &str| json!([{"cel": {"expression": format!("device.driver == '{driver}'")}}]);
    // Names that admission knows, and devices that are no GPUs.
    for (name, resource, selectors) in [
        ("gpu.nvidia.com", "nvidia.com/gpu", of(DRIVER)),
        ("mig.nvidia.com", "nvidia.com/mig-1g.10gb", of(DRIVER)),
        ("nics", "example.com/nic", of("dra.net")),
    ] {
        assert!(set(name, resource, selectors).is_empty(), "{name}");
    }
    let others = set("fast", "example.com/gpu", of(DRIVER));
    assert_eq!(others["line"], ["fast (example.com/gpu)"]);
    // Without a selector, it is for all devices.
    let others = set("all", "example.com/device", json!([]));
    assert_eq!(others["line"].len(), 2);
    queue.feed.device_class("all", None);
    queue.feed.device_class("fast", None);
    assert!(queue.feed.others().is_empty());
}
