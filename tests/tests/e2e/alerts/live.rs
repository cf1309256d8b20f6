//! From a fault to the notification: the real exporter, Prometheus and Alertmanager, with the
//! rules sixty times as fast.

use std::time::Instant;

use nvlink_tests::{
    Kubelet, http,
    kubelet::{Container, Mood},
    wait_until,
};
use serde_json::{Value, json};

use super::watch::{SOON, Wanted, Watch, set, start};

/// Faults of a simulated machine, and the alerts that they cause.
struct Case {
    node: &'static str,
    profile: &'static str,
    arguments: &'static [&'static str],
    faults: &'static str,
    alerts: &'static [&'static str],
}

const CASES: &[Case] = &[
    Case {
        node: "link",
        profile: "dgx-h100",
        arguments: &[],
        faults: r#"[{"link-down": {"gpu": 3, "link": 7}}]"#,
        alerts: &["NvlinkLinkDown"],
    },
    Case {
        node: "stateless",
        profile: "dgx-h100",
        arguments: &["--no-collector.link"],
        faults: r#"[{"link-down": {"gpu": 3, "link": 7}}]"#,
        alerts: &["NvlinkLinkDown"],
    },
    Case {
        node: "one-sided",
        profile: "dgx1-v100",
        arguments: &[],
        faults: r#"[{"link-down": {"gpu": 0, "link": 0, "oneSided": true}}]"#,
        alerts: &["NvlinkLinkDown"],
    },
    Case {
        node: "network",
        profile: "dgx-h100",
        arguments: &[],
        faults: r#"[{"nic-down": {"nic": "mlx5_0"}}]"#,
        alerts: &["NvlinkLinkDown"],
    },
    Case {
        node: "errors",
        profile: "dgx-h100",
        arguments: &[],
        faults: r#"[{"errors": {"gpu": 5, "link": 2, "kind": "replay", "perHour": 36000000}}]"#,
        alerts: &["NvlinkErrorsRising"],
    },
    Case {
        node: "xid",
        profile: "dgx2-v100",
        arguments: &[],
        faults: r#"[{"xid": {"gpu": 2, "xid": 74}}]"#,
        alerts: &["NvlinkGpuFault"],
    },
    Case {
        node: "asking-for-reset",
        profile: "hgx-b200",
        arguments: &[],
        faults: r#"[{"recovery-action": {"gpu": 2, "action": "gpu_reset"}}]"#,
        alerts: &["NvlinkGpuFault"],
    },
    Case {
        node: "remapping",
        profile: "dgx-a100",
        arguments: &[],
        faults: r#"[{"row-remap": {"gpu": 2, "state": "pending"}}]"#,
        alerts: &["NvlinkGpuFault"],
    },
    Case {
        node: "lacking",
        profile: "hgx-b200",
        arguments: &[],
        faults: r#"[{"gpu-absent": {"gpu": 5}}]"#,
        alerts: &["NvlinkGpusMissing"],
    },
    Case {
        node: "lost",
        profile: "dgx-a100",
        arguments: &[],
        faults: r#"[{"gpu-lost": {"gpu": 1}}]"#,
        alerts: &["NvlinkGpuFault"],
    },
    Case {
        node: "fabric",
        profile: "dgx-h100",
        arguments: &[],
        faults: r#"[{"fabric-down": {}}]"#,
        alerts: &["NvlinkFabricDown"],
    },
    // The links of this generation are up, and lead nowhere.
    Case {
        node: "unrouted",
        profile: "dgx-a100",
        arguments: &[],
        faults: r#"[{"fabric-down": {}}]"#,
        alerts: &["NvlinkFabricDown"],
    },
    Case {
        node: "degraded",
        profile: "dgx-h100",
        arguments: &[],
        faults: r#"[{"fabric-condition": {"gpu": 0, "condition": "degraded_bandwidth"}}]"#,
        alerts: &["NvlinkFabricDegraded"],
    },
    // A switch is dead: each GPU of the tray lacks its link to it.
    Case {
        node: "switch",
        profile: "gb200-nvl72",
        arguments: &[],
        faults: r#"[{"link-down": {"gpu": 0, "link": 3}}, {"link-down": {"gpu": 1, "link": 3}},
            {"link-down": {"gpu": 2, "link": 3}}, {"link-down": {"gpu": 3, "link": 3}}]"#,
        alerts: &["NvlinkFabricDegraded"],
    },
    Case {
        node: "hang",
        profile: "dgx-h100",
        arguments: &[],
        faults: r#"["hang"]"#,
        alerts: &["NvlinkExporterFailing"],
    },
];

/// The node whose fault only a reset of the GPU ends.
const LASTING: &str = "xid";
const PAGED: &[Wanted<'_>] = &[("critical", "NvlinkGpuFault")];
const OF_EXPORTERS: &[Wanted<'_>] = &[
    ("asking", "NvlinkExporterFailing"),
    ("ending", "NvlinkExporterFailing"),
];
const OF_PLACEMENTS: &[Wanted<'_>] = &[("careless", "NvlinkPlacementPoor")];

/// Returns the alerts of this file.
pub(super) fn alerts() -> impl Iterator<Item = &'static str> {
    let of_cases = CASES.iter().flat_map(|case| case.alerts).copied();
    let others = OF_EXPORTERS.iter().chain(OF_PLACEMENTS).chain(PAGED);
    of_cases.chain(others.map(|(_, alert)| *alert))
}

#[test]
fn a_fault_is_notified_and_resolved() {
    let exporters: Vec<_> = CASES
        .iter()
        .map(|case| start(case.node, case.profile, case.arguments))
        .collect();
    let pairs = CASES.iter().zip(&exporters);
    let targets: Vec<_> = pairs
        .clone()
        .map(|(case, exporter)| (case.node, &*exporter.address))
        .collect();
    let watch = Watch::start(&targets);
    // A network card is compared with what it was at a quarter of an hour.
    let cards = r#"max_over_time(node:nvlink_nic_speed:max{node="network"}[6m:15s])"#;
    let known = watch
        .prometheus
        .wait_for(cards, SOON, |found| !found.is_empty());
    known.unwrap();
    let begin = Instant::now();
    for (case, exporter) in pairs.clone() {
        set(exporter, case.faults);
    }
    let one = |case: &'static Case| case.alerts.iter().map(|alert| (case.node, *alert));
    let mut wanted: Vec<_> = CASES.iter().flat_map(one).collect();
    watch.wait_until_firing(begin, &wanted);
    for (_, exporter) in pairs {
        set(exporter, "");
    }
    wanted.retain(|(node, _)| *node != LASTING);
    watch.wait_until_resolved(&wanted);
}

/// A broken GPU is a ticket, and wakes somebody while a pod holds it.
#[test]
fn a_pod_on_a_broken_gpu_wakes_somebody() {
    let kubelet = Kubelet::start().unwrap();
    let socket = kubelet.socket().to_str().unwrap().to_owned();
    let exporter = start("held", "hgx-b200", &["--kubelet-socket", &socket]);
    let watch = Watch::start(&[("held", &exporter.address)]);
    let text = http::text(&exporter.url("/api/v1/topology")).unwrap();
    let topology: Value = serde_json::from_str(&text).unwrap();
    let uuid = topology["spec"]["gpus"][2]["uuid"].as_str().unwrap();
    let container = Container::named("main").holding("nvidia.com/gpu", &[uuid]);
    kubelet.run_pod("ci", "hanging", [container]);
    let begin = Instant::now();
    set(
        &exporter,
        r#"[{"recovery-action": {"gpu": 2, "action": "gpu_reset"}}]"#,
    );
    watch.wait_until_firing(begin, PAGED);
    assert_eq!(watch.received(PAGED[0])[0].receiver, "platform-pager");
    kubelet.remove_pod("ci", "hanging");
    watch.wait_until_resolved(PAGED);
}

#[test]
fn a_kubelet_that_fails_and_an_exporter_that_ends_are_notified() {
    let kubelet = Kubelet::start().unwrap();
    let socket = kubelet.socket().to_str().unwrap().to_owned();
    let asking = start("asking", "dgx-h100", &["--kubelet-socket", &socket]);
    let ending = start("ending", "dgx-h100", &[]);
    let watch = Watch::start(&[("asking", &asking.address), ("ending", &ending.address)]);
    let begin = Instant::now();
    kubelet.set_mood(Mood::Fails);
    drop(ending);
    watch.wait_until_firing(begin, OF_EXPORTERS);
    kubelet.set_mood(Mood::Answers);
    watch.wait_until_resolved(&OF_EXPORTERS[..1]);
}

/// One pod gets a GPU of each of two pairs although a pair was free, which is told, and another because
/// no pair was.
#[test]
fn a_job_that_is_placed_badly_is_notified() {
    let kubelet = Kubelet::start().unwrap();
    let socket = kubelet.socket().to_str().unwrap().to_owned();
    let exporter = start("pairs", "a100-pcie-pairs", &["--kubelet-socket", &socket]);
    let watch = Watch::start(&[("pairs", &exporter.address)]);
    let text = http::text(&exporter.url("/api/v1/topology")).unwrap();
    let topology: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(topology["spec"]["domains"][0]["gpus"], json!([0, 1]));
    let gpus = topology["spec"]["gpus"].as_array().unwrap();
    let run = |pod: &str, held: &[usize]| {
        let held: Vec<_> = held
            .iter()
            .map(|&gpu| gpus[gpu]["uuid"].as_str().unwrap())
            .collect();
        let container = Container::named("main").holding("nvidia.com/gpu", &held);
        kubelet.run_pod("ci", pod, [container]);
        wait_until("the exporter to see the pod", SOON, || {
            Ok(exporter
                .metrics()?
                .contains(&format!("pod=\"{pod}\""))
                .then_some(()))
        })
        .unwrap();
    };
    let begin = Instant::now();
    run("careless", &[0, 2]);
    run("others", &[4, 5, 6, 7]);
    run("unlucky", &[1, 3]);
    watch.wait_until_firing(begin, OF_PLACEMENTS);
    for note in watch.receiver.received() {
        assert_eq!(
            (note.label("pod"), &*note.receiver),
            ("careless", "ci-chat"),
            "{note:#?}"
        );
    }
    kubelet.remove_pod("ci", "careless");
    watch.wait_until_resolved(OF_PLACEMENTS);
}
