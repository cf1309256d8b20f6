//! Which alerts a real fault raises in these tests, and why promtool alone tests the others.

use std::collections::BTreeSet;

use super::{collectives, devices, live, names, speed, webhook};
use crate::queue;

/// Alerts that no fault of the simulator or of our programs can cause here, and why.
const BY_PROMTOOL_ALONE: &[(&str, &str)] = &[
    (
        "NvlinkExporterRestarting",
        "a part restarts after a panic, which no fault causes on purpose; the restarts of containers are counted by \
         kube-state-metrics",
    ),
    (
        "NvlinkExporterPublishFailing",
        "attempts are up to a minute apart in real time, so in rules that are 60 times as fast no 5 minutes have one; \
         the rule compares with 900 real seconds",
    ),
    (
        "NvlinkWebhookRestarting",
        "a part restarts after a panic, which no fault causes on purpose; the restarts of containers are counted by \
         kube-state-metrics",
    ),
    (
        "NvlinkGpusFewerThanSiblings",
        "boards of the simulator are known, so that NvlinkGpuMissing has the verdict",
    ),
    (
        "NvlinkFabricGpusMissing",
        "the rule compares with most of a week, of which a sixtieth is hours",
    ),
    (
        "NvlinkQueueStarving",
        "the rule compares with 4 real hours, which no pod waits here",
    ),
    (
        "NvlinkQueueRoundsSlow",
        "no fault of the simulator makes graphs that no machine has; the tests of the planner have one",
    ),
];

#[test]
fn each_alert_is_raised_by_a_fault_or_has_a_reason() {
    let others = [
        collectives::ALERTS,
        speed::ALERTS,
        webhook::ALERTS,
        queue::alerts::ALERTS,
        queue::placed::ALERTS,
    ];
    let others = others.concat();
    let others = others.into_iter().map(|(_, alert)| alert);
    let live = live::alerts().chain(devices::alerts()).chain(others);
    let live: BTreeSet<_> = live.map(str::to_owned).collect();
    let alone = BY_PROMTOOL_ALONE
        .iter()
        .map(|(alert, _)| (*alert).to_owned());
    let alone: BTreeSet<_> = alone.collect();
    let both: Vec<_> = live.intersection(&alone).collect();
    assert!(both.is_empty(), "{both:?} are raised by faults");
    assert_eq!(&live | &alone, names(), "alerts in one of the two lists");
}
