//! Claims that ask for the NICs of their GPUs.

use std::{collections::HashSet, sync::Arc};

use nvlink_api::class::Class;
use nvlink_cluster::gpus::{Claim, DeviceClass, Slice};
use nvlink_queue::{
    Placement,
    claim::{asks_for, object},
    notice::{About, Notice},
    placement::id,
};
use serde_json::{Value, json};

use super::{
    NOW, Queue,
    dra::{claiming, read},
    placed,
};

const ROOTS: [&str; 4] = ["pci0000:00", "pci0000:00", "pci0000:80", "pci0000:80"];

/// Returns a queue whose class gives each GPU a NIC. GPUs 0 and 1 share a PCIe root, GPUs 2 and 3 another one.
fn queue() -> Queue {
    let mut queue = Queue::new();
    queue.node(json!({}));
    let text = |text: &str| json!({"string": text});
    let gpu = |at: usize| {
        json!({"name": format!("gpu-{at}"), "attributes": {
            "uuid": text(&format!("GPU-{at}")),
            "resource.kubernetes.io/pcieRoot": text(ROOTS[at]),
            "resource.kubernetes.io/pciBusID": text(&format!("0000:{at}0:00.0")),
        }})
    };
    list(
        &mut queue,
        "gpus",
        "gpu.nvidia.com",
        (0..4).map(gpu).collect(),
    );
    nics(&mut queue, &[0, 1, 2, 3], &[]);
    for class in ["gpu.nvidia.com", "rdma"] {
        let class_spec = DeviceClass::of(&read(json!({})));
        queue.feed.device_class(class, Some(class_spec));
    }
    let spec = json!({
        "placement": {"whenUnavailable": "Queue", "queueTimeout": "1h"},
        "environment": {"fabric": "RoCE"},
        "devices": {"mapping": "Claim", "nics": {"deviceClassName": "rdma"}},
    });
    let class = Class::new("line", &read(spec)).unwrap();
    queue.feed.class("line", Some(Ok(Arc::new(class))));
    queue
}

fn list(queue: &mut Queue, name: &str, driver: &str, devices: Vec<Value>) {
    let spec = json!({
        "driver": driver, "nodeName": "n1", "devices": devices,
        "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
    });
    queue.feed.slice(name, Slice::of(&read(spec)));
}

/// Lists the NICs next to these GPUs as DRANET does: it sees no RDMA device of one that a pod has.
fn nics(queue: &mut Queue, gpus: &[usize], in_use: &[usize]) {
    let text = |text: &str| json!({"string": text});
    let nic = |at: &usize| {
        let mut nic = json!({"name": format!("pci-{at}"), "attributes": {
            "dra.net/pciAddress": text(&format!("0000:{at}1:00.0")),
            "resource.kubernetes.io/pcieRoot": text(ROOTS[*at]),
        }});
        if !in_use.contains(at) {
            nic["attributes"]["dra.net/rdmaDevice"] = text(&format!("mlx5_{at}"));
        }
        nic
    };
    list(queue, "nics", "dra.net", gpus.iter().map(nic).collect());
}

/// Returns a pod that waits for GPUs and their NICs.
fn waiting(name: &str, gpus: u32, version: u64) -> Value {
    let mut pod = claiming(name, gpus, version);
    let claims = &mut pod["spec"]["containers"][0]["resources"]["claims"];
    for rank in 0..gpus {
        let nics = json!({"name": "nvlink-domains", "request": format!("nics-{rank}")});
        claims.as_array_mut().unwrap().push(nics);
    }
    pod
}

/// A claim of others has these devices, by driver and name, for the pods that it is reserved for.
fn hold(queue: &mut Queue, reserved: &Value, devices: &[(&str, &str)]) {
    let result =
        |(driver, device): &(&str, &str)| json!({"driver": driver, "pool": "n1", "device": device});
    let results: Vec<Value> = devices.iter().map(result).collect();
    let claim = json!({
        "metadata": {"namespace": "team", "name": "c"},
        "status": {"reservedFor": reserved, "allocation": {"devices": {"results": results}}},
    });
    queue.feed.claim(&id("team", "c"), Claim::of(&read(claim)));
}

/// Returns where the pod starts, as the controller finds out.
fn place(queue: &mut Queue, pod: &str) -> Result<Placement, &'static str> {
    let release = queue.releases(NOW).remove(0);
    let seat = &release.seats[0];
    let name = id("team", pod);
    let node = "n1".into();
    let uuids = queue.feed.uuids(&node, &seat.gpus).unwrap();
    Ok(Placement {
        nics: queue.feed.nics(&name, &node, &uuids)?,
        uuids,
        ..placed(&seat.gpus, 0)
    })
}

#[test]
fn a_claim_asks_for_the_nic_next_to_each_gpu() {
    let mut queue = queue();
    let pod = waiting("a", 2, 1);
    queue.feed.pod(pod.clone());
    let place = place(&mut queue, "a").unwrap();
    assert_eq!(place.uuids, ["GPU-0", "GPU-1"]);
    // A later leader reads the same.
    let text = serde_json::to_string(&place).unwrap();
    assert_eq!(serde_json::from_str::<Placement>(&text).unwrap(), place);
    let name = id("team", "a");
    let (named, asks) = (
        queue.feed.named(&name).unwrap(),
        queue.feed.asks(&name, &place),
    );
    let annotations = named.annotations(&place);
    let told = |key: &str| &*annotations[&format!("nvlink-domains.io/{key}.0-1-2")];
    assert_eq!(told("queue-hcas"), "=mlx5_0,mlx5_1");
    assert_eq!(told("queue-hca-ports"), "mlx5_0:1,mlx5_1:1");
    let claim = object(&pod, named, &place, &asks, 1);
    let devices = serde_json::to_value(&claim.spec).unwrap()["devices"].clone();
    let second = json!({"name": "nics-1", "exactly": {
        "deviceClassName": "rdma", "count": 1,
        "selectors": [{"cel": {"expression":
            "device.driver == \"dra.net\" && device.attributes[\"dra.net\"].?pciAddress.orValue(\"\") in [\"0000:11:00.0\"]"
        }}],
    }});
    assert_eq!(devices["requests"][3], second);
    let constraint = |rank: u32| {
        json!({
            "requests": [format!("rank-{rank}"), format!("nics-{rank}")],
            "matchAttribute": "resource.kubernetes.io/pcieRoot",
        })
    };
    assert_eq!(
        devices["constraints"],
        json!([constraint(0), constraint(1)])
    );
    // One without NICs, or for others, is another claim.
    let mut other = place.clone();
    other.nics.as_mut().unwrap().of_gpus[0][0].at = "0000:31:00.0".to_owned();
    assert!(asks_for(&claim, &object(&pod, named, &place, &asks, 2)));
    assert!(!asks_for(&claim, &object(&pod, named, &other, &asks, 1)));
    other.nics = None;
    assert!(!asks_for(&claim, &object(&pod, named, &other, &asks, 1)));
}

#[test]
fn the_nics_of_pods_that_run_keep_the_others_what_they_are() {
    let mut queue = queue();
    let own = [("gpu.nvidia.com", "gpu-0"), ("dra.net", "pci-0")];
    hold(&mut queue, &json!([]), &own);
    nics(&mut queue, &[0, 1, 2, 3], &[0]);
    queue.feed.pod(waiting("b", 3, 1));
    let found = place(&mut queue, "b").unwrap();
    let own = found.nics.unwrap().of_gpus;
    let own: Vec<&str> = own.iter().flatten().map(|nic| &*nic.rdma).collect();
    assert_eq!(own, ["mlx5_1", "mlx5_2", "mlx5_3"]);
}

/// Returns why the only job waits.
fn why(queue: &mut Queue) -> String {
    assert!(queue.released(NOW).is_empty());
    let waiting = queue.planner.round(NOW).waiting.remove(0);
    let obstacle = queue.feed.obstacle_to(&waiting.job, &waiting.reason);
    let notice = Notice::new(&waiting, obstacle.as_ref());
    let member = queue.feed.member(&"team/a".into()).unwrap();
    notice.why(About::from(member))
}

#[test]
fn a_gpu_whose_nic_somebody_else_has_is_not_free() {
    let mut queue = queue();
    hold(&mut queue, &json!([]), &[("dra.net", "pci-1")]);
    queue.feed.pod(waiting("a", 4, 1));
    assert!(queue.released(NOW).is_empty());
    queue.feed.pod(waiting("b", 3, 2));
    let releases = queue.releases(NOW);
    assert_eq!(releases[0].seats[0].gpus, [0, 2, 3]);
    // DRANET sees no RDMA device of it. When the claim is gone, DRANET looks again, and the scheduler waits for that.
    queue.feed.retain_pods(&HashSet::new());
    queue.feed.pod(waiting("a", 4, 3));
    nics(&mut queue, &[0, 1, 2, 3], &[1]);
    assert!(queue.released(NOW).is_empty());
    queue.feed.claim(&id("team", "c"), None);
    let all = place(&mut queue, "a").unwrap().nics.unwrap().of_gpus;
    assert_eq!(all[1][0].rdma, "mlx5_1");
}

/// The claim of a pod that has ended holds its NIC a moment longer, as it does its GPU.
#[test]
fn a_pod_that_has_ended_leaves_gpu_and_nic_together() {
    let mut queue = queue();
    let own = [("gpu.nvidia.com", "gpu-1"), ("dra.net", "pci-1")];
    let gone = json!([{"resource": "pods", "name": "gone", "uid": "1"}]);
    hold(&mut queue, &gone, &own);
    nics(&mut queue, &[0, 1, 2, 3], &[1]);
    queue.feed.pod(waiting("a", 4, 1));
    assert_eq!(place(&mut queue, "a").unwrap().uuids.len(), 4);
}

/// A second class that asks for more NICs takes no GPU away from the first one.
#[test]
fn a_gpu_without_nics_for_one_class_serves_the_others() {
    let mut queue = queue();
    let spec = json!({
        "placement": {"whenUnavailable": "Queue"}, "environment": {"fabric": "RoCE"},
        "devices": {"mapping": "Claim", "nics": {"deviceClassName": "rdma", "perGpu": 2}},
    });
    let class = Class::new("more", &read(spec)).unwrap();
    queue.feed.class("more", Some(Ok(Arc::new(class))));
    queue.feed.pod(waiting("a", 4, 1));
    assert_eq!(place(&mut queue, "a").unwrap().uuids.len(), 4);
}

#[test]
fn gpus_without_nics_are_left_out_and_a_class_without_any_says_so() {
    let mut queue = queue();
    nics(&mut queue, &[0, 1, 2], &[]);
    queue.feed.pod(waiting("a", 1, 1));
    queue.feed.pod(waiting("b", 3, 2));
    let released = queue.releases(NOW);
    let gpus: Vec<_> = released.iter().flat_map(|one| &one.seats[0].gpus).collect();
    assert!(!gpus.is_empty() && !gpus.contains(&&3), "{gpus:?}");
    queue.feed.retain_pods(&HashSet::new());
    queue.feed.pod(waiting("a", 1, 3));
    nics(&mut queue, &[], &[]);
    let said = why(&mut queue);
    assert!(said.contains("NICs of DeviceClass rdma"), "{said}");
    nics(&mut queue, &[0, 1, 2, 3], &[]);
    assert_eq!(queue.released(NOW), ["team/a"]);
    queue.feed.device_class("rdma", None);
    let said = why(&mut queue);
    assert!(said.contains("no DeviceClass rdma"), "{said}");
}

#[test]
fn pods_that_ask_for_no_nics_need_none() {
    let mut queue = queue();
    nics(&mut queue, &[], &[]);
    queue.feed.pod(claiming("a", 4, 1));
    assert_eq!(queue.released(NOW), ["team/a"]);
}

/// Gives the class other NICs.
fn set_nics(queue: &mut Queue, nics: &Value) {
    let mut spec = json!({
        "placement": {"whenUnavailable": "Queue"}, "devices": {"mapping": "Claim"},
    });
    if !nics.is_null() {
        spec["devices"]["nics"] = nics.clone();
        spec["environment"] = json!({"fabric": "RoCE"});
    }
    let class = Class::new("line", &read(spec)).unwrap();
    queue.feed.class("line", Some(Ok(Arc::new(class))));
}

#[test]
fn a_class_that_changes_meanwhile_says_why_it_cannot_start_a_pod() {
    let mut queue = queue();
    queue.feed.pod(waiting("a", 1, 1));
    // What was planned stays what it was.
    let before = place(&mut queue, "a").unwrap();
    set_nics(&mut queue, &Value::Null);
    let name = id("team", "a");
    let (named, asks) = (
        queue.feed.named(&name).unwrap(),
        queue.feed.asks(&name, &before),
    );
    let claim = object(&waiting("a", 1, 1), named, &before, &asks, 1);
    let requests = claim.spec.devices.unwrap().requests.unwrap();
    assert_eq!(requests.len(), 2);
    let why = place(&mut queue, "a").unwrap_err();
    assert!(why.contains("any more: create it anew"), "{why}");
    // Four GPUs with eight NICs each are more devices than a claim can have.
    set_nics(&mut queue, &json!({"deviceClassName": "rdma", "perGpu": 8}));
    let node = "n1".into();
    let four: Vec<String> = (0..4).map(|gpu| format!("GPU-{gpu}")).collect();
    let why = queue.feed.nics(&name, &node, &four).unwrap_err();
    assert!(why.contains("than its claim can ask for"), "{why}");
}
