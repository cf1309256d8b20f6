//! Broken GPUs, which stay unhealthy whatever restarts.

use std::fs;

use nvlink_tests::{Allocator, FakeNvml, LabNode, Shares, nvml, wait_until};
use serde_json::json;

use super::{PROFILE, SOON, metrics, node, uuids, wait_for};

#[test]
fn a_broken_gpu_stays_unhealthy_through_restarts_until_it_is_reset() {
    let recording = nvml::recording_of(PROFILE, "broken").unwrap();
    let mut machine = FakeNvml::new(&recording).unwrap();
    let mut allocator = Allocator::start(&node("broken").reading(&machine)).unwrap();
    let uuids = uuids(&allocator);
    wait_for(&allocator, &uuids);
    // An XID of GPU 3; the plugin also calls GPU 5 unhealthy, for another reason.
    machine
        .put(
            "xids",
            json!([{"gpu": 3, "xid": 79}, {"gpu": 5, "xid": 31}]),
        )
        .unwrap();
    let plugin = allocator.plugin().unwrap();
    plugin.break_gpu(&uuids[3]).unwrap();
    plugin.break_gpu(&uuids[5]).unwrap();
    let mut healthy = uuids.clone();
    healthy.remove(5);
    healthy.remove(3);
    wait_for(&allocator, &healthy);
    let (_, vendor) = allocator.directories();
    let file = vendor.join("nvlink-domains.unhealthy.json");
    wait_until("the XID to be read", SOON, || {
        let text = fs::read_to_string(&file).unwrap_or_default();
        Ok(text.contains(&uuids[3]).then_some(()))
    })
    .unwrap();
    healthy.insert(4, uuids[5].clone());

    // Each of the two makes NVIDIA's plugin forget.
    allocator.restart_between().unwrap();
    wait_for(&allocator, &healthy);
    allocator.stop_plugin().unwrap();
    allocator.start_plugin().unwrap();
    wait_for(&allocator, &healthy);
    let unhealthy =
        "nvlink_device_plugin_devices{resource=\"nvidia.com/gpu\",health=\"Unhealthy\"} 1";
    assert!(metrics(&allocator).contains(unhealthy));
    let preferred = allocator.prefer(&healthy, 4).unwrap();
    assert!(!preferred.contains(&uuids[3]));

    // A reset of the GPU: the counters of its links start anew.
    let links: serde_json::Map<_, _> = (0..6)
        .map(|link| (link.to_string(), json!({"transmitKib": 1, "receiveKib": 1})))
        .collect();
    machine.put("gpus", json!({"3": {"links": links}})).unwrap();
    wait_for(&allocator, &uuids);
}

/// NVIDIA's plugin marks one share of a GPU that had an XID, and goes on offering the others.
#[test]
fn no_share_of_a_broken_gpu_is_offered() {
    let recording = nvml::recording_of(PROFILE, "broken-shares").unwrap();
    let mut machine = FakeNvml::new(&recording).unwrap();
    let shares = Shares {
        of_each: 3,
        packed: false,
        single: false,
    };
    let node = node("broken-shares").reading(&machine).sharing(shares);
    let mut allocator = Allocator::start(&node).unwrap();
    let uuids = uuids(&allocator);
    machine.put("xids", json!([{"gpu": 3, "xid": 79}])).unwrap();
    allocator.plugin().unwrap().break_gpu(&uuids[3]).unwrap();
    let mut healthy: Vec<&String> = uuids.iter().collect();
    healthy.remove(3);
    let share = |uuid: &&String| [0, 1, 2].map(|share| format!("{uuid}::{share}"));
    let healthy: Vec<String> = healthy.iter().flat_map(share).collect();
    wait_for(&allocator, &healthy);
    allocator.restart_between().unwrap();
    wait_for(&allocator, &healthy);
}

/// The driver says when the GPU works again: not the counters of its links, which go on.
#[test]
fn a_broken_gpu_stays_unhealthy_until_the_driver_asks_for_nothing() {
    let recording = nvml::recording_of("dgx-h100", "asking").unwrap();
    let mut machine = FakeNvml::new(&recording).unwrap();
    let node = LabNode::new("asking", "dgx-h100").preferring();
    let mut allocator = Allocator::start(&node.reading(&machine)).unwrap();
    let uuids = uuids(&allocator);
    wait_for(&allocator, &uuids);
    // XID 79 of GPU 3 asks for a reset; GPU 5 survived the same.
    machine
        .put("gpus", json!({"3": {"recoveryAction": 1}}))
        .unwrap();
    machine
        .put(
            "xids",
            json!([{"gpu": 3, "xid": 79}, {"gpu": 5, "xid": 79}]),
        )
        .unwrap();
    let plugin = allocator.plugin().unwrap();
    plugin.break_gpu(&uuids[3]).unwrap();
    plugin.break_gpu(&uuids[5]).unwrap();
    let (_, vendor) = allocator.directories();
    let file = vendor.join("nvlink-domains.unhealthy.json");
    wait_until("the action to be read", SOON, || {
        let text = fs::read_to_string(&file).unwrap_or_default();
        Ok(text.contains(&uuids[3]).then_some(()))
    })
    .unwrap();
    allocator.restart_between().unwrap();
    let mut healthy = uuids.clone();
    healthy.remove(3);
    wait_for(&allocator, &healthy);
    machine.put("gpus", json!({})).unwrap();
    wait_for(&allocator, &uuids);
}
