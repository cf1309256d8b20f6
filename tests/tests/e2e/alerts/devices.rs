//! What goes wrong between a kubelet and a device plugin.

use std::time::Instant;

use nvlink_tests::{Allocator, Choice, LabNode};

use super::watch::{Wanted, Watch, start};

const AWAY: &[Wanted<'_>] = &[
    ("ending", "NvlinkDevicePluginAway"),
    ("without", "NvlinkDevicePluginAway"),
    ("flapping", "NvlinkDevicePluginAway"),
];

/// Returns the alerts of this file.
pub(super) fn alerts() -> impl Iterator<Item = &'static str> {
    AWAY.iter().map(|(_, alert)| *alert)
}

const PROFILE: &str = "hgx-a100-4";

fn between(node: &str) -> Allocator {
    let node = LabNode::new(node, PROFILE).choosing(Choice::Scattered);
    Allocator::start(&node.preferring()).unwrap()
}

fn address(allocator: &Allocator) -> &str {
    &allocator.between().unwrap().address
}

#[test]
fn device_plugins_that_are_away_or_come_and_go_are_notified() {
    let exporters = ["ending", "without"].map(|node| start(node, PROFILE, &[]));
    let [ending, mut without, mut flapping] = ["ending", "without", "flapping"].map(between);
    let watch = Watch::start(&[
        ("exporter-1", &exporters[0].address),
        ("exporter-2", &exporters[1].address),
        ("plugin-1", address(&ending)),
        ("plugin-2", address(&without)),
        ("plugin-3", address(&flapping)),
    ]);
    let begin = Instant::now();
    drop(ending);
    without.stop_plugin().unwrap();
    for _ in 0..8 {
        flapping.stop_plugin().unwrap();
        flapping.start_plugin().unwrap();
    }
    watch.wait_until_firing(begin, AWAY);
    without.start_plugin().unwrap();
    watch.wait_until_resolved(&AWAY[1..2]);
}
