//! What goes wrong between a kubelet and a device plugin.

use std::{fs, time::Instant};

use nvlink_tests::{Allocator, Choice, DevicePlugin, LabNode, nvml, workdir};

use super::watch::{Wanted, Watch, start};

const AWAY: &[Wanted<'_>] = &[
    ("ending", "NvlinkDevicePluginAway"),
    ("without", "NvlinkDevicePluginAway"),
];
const OTHERS: &[Wanted<'_>] = &[
    ("blind", "NvlinkDevicePluginGraphUnknown"),
    ("flapping", "NvlinkDevicePluginRestarting"),
    ("ignoring", "NvlinkDevicePluginIgnored"),
];

/// Returns the alerts of this file.
pub(super) fn alerts() -> impl Iterator<Item = &'static str> {
    AWAY.iter().chain(OTHERS).map(|(_, alert)| *alert)
}

const PROFILE: &str = "hgx-a100-4";

fn between(node: &str) -> Allocator {
    let node = LabNode::new(node, PROFILE).choosing(Choice::Scattered);
    Allocator::start(&node.preferring()).unwrap()
}

fn address(allocator: &Allocator) -> &str {
    &allocator.between().unwrap().address
}

/// Gives a container other GPUs than those that were preferred.
fn ignore(allocator: &Allocator) {
    let all = allocator.devices().unwrap();
    let preferred = allocator.prefer(&all, 2).unwrap();
    let others: Vec<String> = all
        .into_iter()
        .filter(|id| !preferred.contains(id))
        .collect();
    allocator.allocate(&others).unwrap();
}

#[test]
fn device_plugins_that_are_away_or_blind_or_ignored_are_notified() {
    let exporters = ["ending", "without"].map(|node| start(node, PROFILE, &[]));
    let [ending, mut without, mut flapping, ignoring] =
        ["ending", "without", "flapping", "ignoring"].map(between);
    ignore(&ignoring);
    let directory = workdir::fresh("blind").unwrap();
    let (kubelet, vendor) = (directory.join("kubelet"), directory.join("vendor"));
    fs::create_dir(&kubelet).unwrap();
    let file = directory.join("node.json");
    let recording = nvml::recording_of(PROFILE, "blind").unwrap().to_string();
    fs::write(&file, &recording).unwrap();
    let source = format!("file:{}", file.display());
    let arguments = ["--source", &source, "--collection-interval", "1s"];
    let arguments = [&arguments[..], &["--stale-after", "2s"]].concat();
    let blind = DevicePlugin::start((&kubelet, &vendor), &kubelet, &[], &arguments).unwrap();

    let watch = Watch::start(&[
        ("exporter-1", &exporters[0].address),
        ("exporter-2", &exporters[1].address),
        ("plugin-1", address(&ending)),
        ("plugin-2", address(&without)),
        ("plugin-3", address(&flapping)),
        ("plugin-4", address(&ignoring)),
        ("plugin-5", &blind.address),
    ]);
    let begin = Instant::now();
    drop(ending);
    without.stop_plugin().unwrap();
    fs::remove_file(&file).unwrap();
    for _ in 0..8 {
        flapping.stop_plugin().unwrap();
        flapping.start_plugin().unwrap();
        ignore(&ignoring);
    }
    watch.wait_until_firing(begin, &[AWAY, OTHERS].concat());
    without.start_plugin().unwrap();
    fs::write(&file, &recording).unwrap();
    watch.wait_until_resolved(&[AWAY[1], OTHERS[0]]);
}
