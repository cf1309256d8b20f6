//! That a real fault raises each alert in these tests.
//!
//! promtool alone tests these reasons: `publish` of NvlinkExporterFailing, which compares with 900 real seconds; `siblings`
//! of NvlinkGpusMissing, because boards of the simulator are known, and `fabric`, which compares with most of a week;
//! `node` of NvlinkFabricDegraded, which is NvlinkFabricDown without a pod; `no-leader` of NvlinkWebhookDegraded, which is
//! NvlinkQueueNoLeader without jobs.

use std::collections::BTreeSet;

use super::{collectives, devices, live, names, speed, webhook};
use crate::queue;

#[test]
fn a_fault_raises_each_alert() {
    let others = [
        collectives::ALERTS,
        speed::ALERTS,
        webhook::ALERTS,
        queue::alerts::ALERTS,
    ];
    let others = others.concat();
    let others = others.into_iter().map(|(_, alert)| alert);
    let live = live::alerts().chain(devices::alerts()).chain(others);
    let live: BTreeSet<_> = live.map(str::to_owned).collect();
    assert_eq!(live, names(), "alerts that a fault raises");
}
