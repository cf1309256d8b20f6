//! From a fault to the notification: the real exporter, Prometheus and Alertmanager, with the
//! rules sixty times as fast.

use std::time::{Duration, Instant};

use anyhow::Context;
use nvlink_tests::{
    Alertmanager, Exporter, Kubelet, Notification, Prometheus, Receiver, Rules, http,
    kubelet::{Container, Mood},
    wait_until,
};
use serde_json::{Value, json};

/// A minute of the rules is a second of the test.
const FACTOR: u32 = 60;
const SOON: Duration = Duration::from_secs(120);

/// Faults of a simulated machine, and the alerts that they cause.
struct Case {
    node: &'static str,
    profile: &'static str,
    faults: &'static str,
    alerts: &'static [&'static str],
}

const CASES: &[Case] = &[
    Case {
        node: "link",
        profile: "dgx-h100",
        faults: r#"[{"link-down": {"gpu": 3, "link": 7}}]"#,
        alerts: &["NvlinkLinkDown"],
    },
    Case {
        node: "one-sided",
        profile: "dgx1-v100",
        faults: r#"[{"link-down": {"gpu": 0, "link": 0, "oneSided": true}}]"#,
        alerts: &["NvlinkLinksAsymmetric"],
    },
    Case {
        node: "errors",
        profile: "dgx-h100",
        faults: r#"[{"errors": {"gpu": 5, "link": 2, "kind": "replay", "perHour": 36000000}}]"#,
        alerts: &["NvlinkErrorsRising"],
    },
    Case {
        node: "bits",
        profile: "hgx-b200",
        faults: r#"[{"errors": {"gpu": 1, "link": 0, "kind": "effective", "perHour": 1000000000000}}]"#,
        alerts: &["NvlinkBitErrorRatioHigh"],
    },
    Case {
        node: "xid",
        profile: "dgx-h100",
        faults: r#"[{"xid": {"gpu": 2, "xid": 74}}]"#,
        alerts: &["NvlinkXid"],
    },
    Case {
        node: "lost",
        profile: "dgx-a100",
        faults: r#"[{"gpu-lost": {"gpu": 1}}]"#,
        alerts: &["NvlinkGpuLost"],
    },
    Case {
        node: "fabric",
        profile: "dgx-h100",
        faults: r#"[{"fabric-down": {}}]"#,
        alerts: &["NvlinkFabricDown"],
    },
    Case {
        node: "degraded",
        profile: "dgx-h100",
        faults: r#"[{"fabric-condition": {"gpu": 0, "condition": "degraded_bandwidth"}}]"#,
        alerts: &["NvlinkFabricDegraded"],
    },
    Case {
        node: "hang",
        profile: "dgx-h100",
        faults: r#"["hang"]"#,
        alerts: &["NvlinkExporterStale"],
    },
];

/// Prometheus and Alertmanager over running exporters.
struct Watch {
    receiver: Receiver,
    _alertmanager: Alertmanager,
    _prometheus: Prometheus,
}

impl Watch {
    fn start(targets: &[(&str, &str)]) -> Self {
        let receiver = Receiver::start().unwrap();
        let alertmanager = Alertmanager::start(&receiver).unwrap();
        let group = |(node, address): &(&str, &str)| json!({"targets": [address], "labels": {"instance": node}});
        let groups: Vec<Value> = targets.iter().map(group).collect();
        let job =
            json!({"job_name": "nvlink-exporter", "honor_labels": true, "static_configs": groups});
        // Without a webhook, the rules about it would say that it is down.
        let rules = Rules::read()
            .unwrap()
            .without("webhook.yaml")
            .faster(FACTOR);
        let prometheus = Prometheus::alerting(vec![job], &rules, &alertmanager).unwrap();
        let all = targets.len() as f64;
        let up =
            |samples: &[nvlink_tests::Sample]| samples.first().is_some_and(|one| one.value == all);
        prometheus.wait_for("count(up == 1)", SOON, up).unwrap();
        Self {
            receiver,
            _alertmanager: alertmanager,
            _prometheus: prometheus,
        }
    }

    /// Waits until each `(node, alert)` was delivered, and returns when that was.
    fn wait_until_firing(&self, wanted: &[(&str, &str)]) -> Vec<Instant> {
        self.wait_for(wanted, |received| {
            received.iter().find(|note| note.status == "firing")
        })
    }

    /// Waits until the last word about each `(node, alert)` is that it is resolved.
    fn wait_until_resolved(&self, wanted: &[(&str, &str)]) {
        self.wait_for(wanted, |received| {
            received.last().filter(|note| note.status == "resolved")
        });
    }

    fn wait_for(
        &self,
        wanted: &[(&str, &str)],
        found: impl Fn(&[Notification]) -> Option<&Notification>,
    ) -> Vec<Instant> {
        let times = wait_until("the notifications", SOON, || {
            let received = self.receiver.received();
            let mut times = Vec::new();
            for &(node, alert) in wanted {
                let of = |note: &&Notification| {
                    note.label("node") == node && note.label("alertname") == alert
                };
                let of: Vec<_> = received.iter().filter(of).cloned().collect();
                let last = of.last();
                let note = found(&of)
                    .with_context(|| format!("{alert} of {node}: last came {last:#?}"))?;
                times.push(note.at);
            }
            Ok(Some(times))
        });
        times.unwrap()
    }
}

fn set(exporter: &Exporter, faults: &str) {
    let url = exporter.url("/sim/faults");
    let method = if faults.is_empty() { "DELETE" } else { "PUT" };
    let answer = http::send(method, &url, faults).unwrap();
    assert_eq!(answer.status, 200, "{faults}: {}", answer.body);
}

fn start(node: &str, profile: &str, arguments: &[&str]) -> Exporter {
    let source = format!("sim:{profile}");
    let own = [
        "--source",
        &source,
        "--node-name",
        node,
        "--collection-interval",
        "1s",
    ];
    Exporter::start(&[&own, arguments].concat()).unwrap()
}

#[test]
fn a_fault_is_notified_and_resolved() {
    let exporters: Vec<_> = CASES
        .iter()
        .map(|case| start(case.node, case.profile, &[]))
        .collect();
    let pairs = CASES.iter().zip(&exporters);
    let targets: Vec<_> = pairs
        .clone()
        .map(|(case, exporter)| (case.node, &*exporter.address))
        .collect();
    let watch = Watch::start(&targets);
    let begin = Instant::now();
    for (case, exporter) in pairs.clone() {
        set(exporter, case.faults);
    }
    let one = |case: &'static Case| case.alerts.iter().map(|alert| (case.node, *alert));
    let wanted: Vec<_> = CASES.iter().flat_map(one).collect();
    let times = watch.wait_until_firing(&wanted);
    for ((node, alert), at) in wanted.iter().zip(&times) {
        let seconds = at.duration_since(begin).as_secs_f64();
        eprintln!(
            "{alert}: {seconds:.1} s from the fault of {node} to the receiver, {FACTOR} times as fast"
        );
    }
    for (_, exporter) in pairs {
        set(exporter, "");
    }
    watch.wait_until_resolved(&wanted);
    // By now the broken links are what was there before, and the repaired ones are the change.
    watch.wait_until_firing(&[("link", "NvlinkTopologyChanged")]);
}

#[test]
fn a_kubelet_that_fails_and_an_exporter_that_ends_are_notified() {
    let kubelet = Kubelet::start().unwrap();
    let socket = kubelet.socket().to_str().unwrap().to_owned();
    let asking = start("asking", "dgx-h100", &["--kubelet-socket", &socket]);
    let ending = start("ending", "dgx-h100", &[]);
    let watch = Watch::start(&[("asking", &asking.address), ("ending", &ending.address)]);
    kubelet.set_mood(Mood::Fails);
    drop(ending);
    let wanted = [
        ("asking", "NvlinkExporterCollectorFailing"),
        ("ending", "NvlinkExporterAbsent"),
    ];
    watch.wait_until_firing(&wanted);
    kubelet.set_mood(Mood::Answers);
    watch.wait_until_resolved(&wanted[..1]);
}

/// One pod gets a GPU of each of two pairs although a pair was free, another because no pair was.
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
    run("careless", &[0, 2]);
    run("others", &[4, 5, 6, 7]);
    run("unlucky", &[1, 3]);
    watch.wait_until_firing(&[
        ("pairs", "NvlinkPlacementPoor"),
        ("pairs", "NvlinkPlacementAcrossDomains"),
    ]);
    for note in watch.receiver.received() {
        let poor = note.label("alertname") == "NvlinkPlacementPoor";
        let pod = if poor { "careless" } else { "unlucky" };
        assert_eq!(
            (note.label("pod"), &*note.receiver),
            (pod, "ci-chat"),
            "{note:#?}"
        );
    }
    for pod in ["careless", "unlucky"] {
        kubelet.remove_pod("ci", pod);
    }
    watch.wait_until_resolved(&[
        ("pairs", "NvlinkPlacementPoor"),
        ("pairs", "NvlinkPlacementAcrossDomains"),
    ]);
}
