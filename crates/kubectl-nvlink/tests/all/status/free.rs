//! Which GPUs are shown as free: those that the queue would give to such a job.

use kubectl_nvlink::status::{Explained, Kind, Objects, Query, Status};
use nvlink_topology::labels;
use serde_json::{Value, json};

use super::{
    cluster::{NOW, class, held, node, pairs, pod, running, switched, waiting},
    explained, report,
};

/// Returns a class whose pods get their GPUs by claims.
fn claims(name: &str, pool: &str) -> Value {
    class(name, pool, json!({"devices": {"mapping": "Claim"}}))
}

/// Returns what a node of eight GPUs with UUIDs publishes: one domain.
fn published(name: &str, allocations: &[Value]) -> Value {
    let mut topology = switched(name, allocations);
    for (index, gpu) in topology["spec"]["gpus"]
        .as_array_mut()
        .unwrap()
        .iter_mut()
        .enumerate()
    {
        gpu["uuid"] = json!(format!("GPU-{name}-{index}"));
    }
    topology
}

/// Returns what a DRA driver lists of a node whose last GPUs, from `parts` on, are divided by MIG.
fn slice(name: &str, parts: u32) -> Value {
    let device = |gpu: u32| {
        let uuid = json!({"string": format!("GPU-{name}-{gpu}")});
        match gpu < parts {
            true => json!({"name": format!("gpu-{gpu}"), "attributes": {"uuid": uuid}}),
            false => json!({"name": format!("gpu-{gpu}-mig-0"), "attributes": {
                "uuid": {"string": format!("MIG-{name}-{gpu}")}, "parentUUID": uuid,
            }}),
        }
    };
    json!({
        "metadata": {"name": format!("{name}-gpus")},
        "spec": {
            "driver": "gpu.nvidia.com", "nodeName": name,
            "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
            "devices": (0..8).map(device).collect::<Vec<_>>(),
        },
    })
}

/// Lets a pod get its GPUs by a claim of the queue.
fn claiming(mut pod: Value, gpus: u32) -> Value {
    let request = |rank| json!({"name": labels::CLAIM, "request": format!("gpu-{rank}")});
    pod["spec"]["resourceClaims"] =
        json!([{"name": labels::CLAIM, "resourceClaimName": "nvlink-domains-train"}]);
    pod["spec"]["containers"][0]["resources"] =
        json!({"claims": (0..gpus).map(request).collect::<Vec<_>>()});
    pod
}

/// Two nodes of a class with claims: one whose last two GPUs are divided by MIG, and one that no
/// driver lists. A pod waits for more than there is.
fn claimed() -> Objects {
    let train = pod("ml", "train", "claims", 8, NOW);
    Objects {
        classes: Kind::of([claims("claims", "nvswitch")]),
        nodes: Kind::of([node("mig", "nvswitch"), node("bare", "nvswitch")]),
        topologies: Kind::of([published("mig", &[]), published("bare", &[])]),
        slices: Kind::of([slice("mig", 6)]),
        device_classes: Kind::of([json!({"metadata": {"name": "gpu.nvidia.com"}, "spec": {}})]),
        pods: Kind::of([waiting(claiming(train, 8))]),
        ..Objects::default()
    }
}

/// Returns node, free GPUs, those that no job can get, and who holds the others.
fn rows(status: &Status) -> Vec<(&str, Option<u32>, u32, Vec<&str>)> {
    let rows = status.domains.iter().flatten();
    let row = rows.map(|row| {
        let held = row.held_by.iter().map(|one| one.pod.as_str()).collect();
        (row.node.as_str(), row.free, row.unavailable, held)
    });
    row.collect()
}

/// Returns the nodes that could hold a pod, with their free GPUs.
fn could(explained: &Explained) -> Vec<(&str, Option<u32>)> {
    let rows = explained.domains.iter();
    rows.map(|row| (row.node.as_str(), row.free)).collect()
}

#[test]
fn gpus_that_no_claim_can_get_are_not_free() {
    let objects = claimed();
    let all = report(&objects, &Query::default());
    let expected = [("bare", Some(0), 8, vec![]), ("mig", Some(6), 2, vec![])];
    assert_eq!(rows(&all), expected);
    let class = &all.classes.as_ref().unwrap()[0];
    assert_eq!((class.free, class.largest_free), (Some(6), Some(6)));
    let text = all.text(Some(80));
    assert!(text.contains("     6  2 that no job can get\n"), "{text}");
    let train = explained(&objects, "ml", "train");
    assert_eq!(could(&train), [("mig", Some(6))]);
    assert!(train.messages[0].contains("at most 6"), "{train:?}");
}

/// Whatever is free on its nodes, no pod of the class gets a GPU.
#[test]
fn a_class_whose_claims_get_no_gpus_has_none_free() {
    let without = |objects: Objects, why: &str| {
        let all = report(&objects, &Query::default());
        let class = &all.classes.as_ref().unwrap()[0];
        assert_eq!((class.free, class.largest_free), (Some(0), Some(0)));
        let text = all.text(Some(120));
        assert!(
            text.contains(&format!("no pod gets a GPU: {why}\n")),
            "{text}"
        );
    };
    let no_class = Objects {
        device_classes: Kind::of([]),
        ..claimed()
    };
    without(no_class, "the queue sees no DeviceClass gpu.nvidia.com");
    let no_slice = Objects {
        slices: Kind::of([]),
        ..claimed()
    };
    without(no_slice, "no ResourceSlice lists a GPU");
}

/// Pods of another class get the GPUs of the node from its device plugin.
#[test]
fn gpus_are_free_for_the_classes_that_can_get_them() {
    let mut objects = claimed();
    let plain = class("plain", "nvswitch", json!({}));
    objects.classes.objects.extend(Kind::of([plain]).objects);
    let of = |class: Option<&str>| {
        let query = Query {
            class: class.map(str::to_owned),
            ..Query::default()
        };
        let status = report(&objects, &query);
        let free = rows(&status).into_iter().map(|(_, free, ..)| free.unwrap());
        free.collect::<Vec<_>>()
    };
    assert_eq!(of(None), [8, 6]);
    assert_eq!(of(Some("plain")), [8, 6]);
    assert_eq!(of(Some("claims")), [0, 6]);
}

/// A claim says that a pod holds GPUs before its node's exporter does.
#[test]
fn gpus_that_a_claim_holds_are_not_free() {
    let mut objects = claimed();
    let mut user = running(claiming(pod("ml", "user", "claims", 2, NOW), 2), "mig", NOW);
    user["spec"]["resourceClaims"][0]["resourceClaimName"] = json!("nvlink-domains-user");
    objects.pods.objects.extend(Kind::of([user]).objects);
    let result = |gpu: u32| json!({"driver": "gpu.nvidia.com", "pool": "mig", "device": format!("gpu-{gpu}")});
    objects.claims = Kind::of([json!({
        "metadata": {"namespace": "ml", "name": "nvlink-domains-user"},
        "status": {
            "reservedFor": [{"resource": "pods", "name": "user", "uid": "uid-user"}],
            "allocation": {"devices": {"results": [result(0), result(5)]}},
        },
    })]);
    let all = report(&objects, &Query::default());
    assert_eq!(rows(&all)[1], ("mig", Some(4), 2, vec!["ml/user"]));
    assert_eq!(
        could(&explained(&objects, "ml", "train")),
        [("mig", Some(4))]
    );
}

/// NVIDIA's device plugin leaves out GPUs that are divided by MIG (`--mig-strategy=mixed`).
#[test]
fn gpus_that_the_scheduler_does_not_hand_out_are_not_free() {
    let mut mixed = node("dgx-1", "nvswitch");
    mixed["status"]["allocatable"]["nvidia.com/gpu"] = json!("6");
    let user = running(pod("ml", "user", "high", 2, NOW), "dgx-1", NOW);
    let objects = Objects {
        classes: Kind::of([class("high", "nvswitch", json!({}))]),
        nodes: Kind::of([mixed]),
        topologies: Kind::of([switched("dgx-1", &[held("ml", "user", &[0, 1])])]),
        pods: Kind::of([user, waiting(pod("ml", "train", "high", 8, NOW))]),
        ..Objects::default()
    };
    let all = report(&objects, &Query::default());
    assert_eq!(rows(&all), [("dgx-1", Some(4), 2, vec!["ml/user"])]);
    assert_eq!(all.classes.unwrap()[0].free, Some(4));
}

/// A node that the pod's own selector leaves out could not hold it.
#[test]
fn explain_leaves_out_nodes_that_the_pod_does_not_want() {
    let mut picky = waiting(pod("ml", "picky", "high", 8, NOW));
    picky["spec"]["nodeSelector"] = json!({"zone": "a"});
    let mut wanted = node("dgx-2", "nvswitch");
    wanted["metadata"]["labels"]["zone"] = json!("a");
    let full = held("ml", "user", &[0, 1, 2, 3, 4]);
    let objects = Objects {
        classes: Kind::of([class("high", "nvswitch", json!({}))]),
        nodes: Kind::of([node("dgx-1", "nvswitch"), wanted]),
        topologies: Kind::of([switched("dgx-1", &[]), switched("dgx-2", &[full])]),
        pods: Kind::of([
            running(pod("ml", "user", "high", 5, NOW), "dgx-2", NOW),
            picky,
        ]),
        ..Objects::default()
    };
    assert_eq!(
        could(&explained(&objects, "ml", "picky")),
        [("dgx-2", Some(3))]
    );
}

/// Who may not read the pods of others sees what exporters say of them.
#[test]
fn pods_that_may_not_be_read_hold_what_is_reported() {
    let own = running(pod("ml", "own", "high", 1, NOW), "a100-1", NOW);
    let held = [held("others", "job", &[0, 1, 2]), held("ml", "gone", &[4])];
    let objects = Objects {
        classes: Kind::of([class("high", "bridged", json!({}))]),
        nodes: Kind::of([node("a100-1", "bridged")]),
        topologies: Kind::of([pairs("a100-1", &held)]),
        pods: Kind::of([own]),
        namespace: Some("ml".to_owned()),
        ..Objects::default()
    };
    let free = |objects: &Objects| {
        let all = report(objects, &Query::default());
        let held = |held: &[&str]| held.join(" ");
        let rows = rows(&all).into_iter();
        let rows = rows.map(|(_, free, _, by)| (free.unwrap(), held(&by)));
        rows.collect::<Vec<_>>()
    };
    let of = |rows: [(u32, &str); 4]| rows.map(|(free, by)| (free, by.to_owned())).to_vec();
    let first = (0, "others/job");
    let expected = of([first, (0, "ml/own others/job"), (1, "ml/gone"), (2, "")]);
    assert_eq!(free(&objects), expected);
    let unseen = Objects {
        nodes: Kind::hidden("you may not list nodes"),
        ..objects
    };
    assert_eq!(free(&unseen), expected);
}
