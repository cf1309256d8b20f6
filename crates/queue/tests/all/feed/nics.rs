//! Claims that ask for the NICs of their GPUs.

use std::sync::Arc;

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
            "device.attributes[\"dra.net\"].?pciAddress.orValue(\"\") in [\"0000:11:00.0\"]"
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
    let result =
        |driver: &str, device: &str| json!({"driver": driver, "pool": "n1", "device": device});
    let held = json!({
        "metadata": {"namespace": "team", "name": "c"},
        "status": {"allocation": {"devices": {"results": [
            result("gpu.nvidia.com", "gpu-0"), result("dra.net", "pci-0"),
        ]}}},
    });
    queue.feed.claim(&id("team", "c"), Claim::of(&read(held)));
    nics(&mut queue, &[0, 1, 2, 3], &[0]);
    queue.feed.pod(waiting("b", 3, 1));
    let found = place(&mut queue, "b").unwrap();
    let own = found.nics.unwrap().of_gpus;
    let own: Vec<&str> = own.iter().flatten().map(|nic| &*nic.rdma).collect();
    assert_eq!(own, ["mlx5_1", "mlx5_2", "mlx5_3"]);
}

#[test]
fn a_nic_that_somebody_else_has_puts_the_release_off() {
    let mut queue = queue();
    let held = json!({
        "metadata": {"namespace": "team", "name": "c"},
        "status": {"allocation": {"devices": {"results": [
            {"driver": "dra.net", "pool": "n1", "device": "pci-0"},
        ]}}},
    });
    queue.feed.claim(&id("team", "c"), Claim::of(&read(held)));
    queue.feed.pod(waiting("a", 4, 1));
    let why = place(&mut queue, "a").unwrap_err();
    assert!(why.contains("are in use"), "{why}");
}

#[test]
fn a_node_needs_nics_for_each_of_its_gpus() {
    let mut queue = queue();
    // That of GPU 3 is missing, or DRANET has not looked again since a pod had it.
    for in_use in [&[][..], &[3]] {
        let listed = if in_use.is_empty() { 0..3 } else { 0..4 };
        nics(&mut queue, &listed.collect::<Vec<_>>(), in_use);
        queue.feed.pod(waiting("a", 1, 1));
        assert!(queue.released(NOW).is_empty());
        let waiting = queue.planner.round(NOW).waiting.remove(0);
        let obstacle = queue.feed.obstacle_to(&waiting.job, &waiting.reason);
        let notice = Notice::new(&waiting, obstacle.as_ref());
        let member = queue.feed.member(&"team/a".into()).unwrap();
        let said = notice.why(About::from(member));
        assert!(said.contains("as many NICs of DeviceClass rdma"), "{said}");
    }
    nics(&mut queue, &[0, 1, 2, 3], &[]);
    assert_eq!(queue.released(NOW), ["team/a"]);
    queue.feed.device_class("rdma", None);
    assert!(queue.released(NOW).is_empty());
    let waiting = queue.planner.round(NOW).waiting.remove(0);
    let obstacle = queue.feed.obstacle_to(&waiting.job, &waiting.reason);
    let member = queue.feed.member(&"team/a".into()).unwrap();
    let said = Notice::new(&waiting, obstacle.as_ref()).why(About::from(member));
    assert!(said.contains("no DeviceClass rdma"), "{said}");
}

#[test]
fn a_class_that_gives_nics_no_more_says_so() {
    let mut queue = queue();
    let spec = json!({
        "placement": {"whenUnavailable": "Queue"}, "devices": {"mapping": "Claim"},
    });
    let class = Class::new("line", &read(spec)).unwrap();
    queue.feed.class("line", Some(Ok(Arc::new(class))));
    queue.feed.pod(waiting("a", 1, 1));
    let why = place(&mut queue, "a").unwrap_err();
    assert!(why.contains("any more: create it anew"), "{why}");
}
