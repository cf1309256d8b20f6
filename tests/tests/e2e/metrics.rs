//! The exporter's metrics, checked by promtool and by a real Prometheus.

use std::time::Duration;

use nvlink_tests::{Exporter, Prometheus, check_metrics, programs};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(30);

const PROFILES: [&str; 11] = [
    "dgx-h100",
    "hgx-b200",
    "dgx-a100",
    "hgx-a100-4",
    "dgx1-v100",
    "dgx2-v100",
    "a100-pcie-pairs",
    "rtx-a6000-pairs",
    "l40s",
    "gb200-nvl72",
    "h200-degraded",
];

fn topology(profile: &str) -> Value {
    let source = format!("sim:{profile}");
    let arguments = ["topology", "--source", &source, "--output", "json"];
    let text = programs::run(programs::EXPORTER, &arguments, "").unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn promtool_accepts_the_metrics_of_every_profile() {
    for profile in PROFILES {
        let exporter = Exporter::start(&["--source", &format!("sim:{profile}")]).unwrap();
        let text = exporter.metrics().unwrap();
        let gpus = topology(profile)["spec"]["gpus"].as_array().unwrap().len();
        let infos = text
            .lines()
            .filter(|line| line.starts_with("nvlink_gpu_info{"))
            .count();
        assert_eq!(infos, gpus, "{profile}: one info per GPU");
        check_metrics(&text).unwrap_or_else(|error| panic!("{profile}: {error:#}"));
    }
}

#[test]
fn prometheus_can_query_the_graph() {
    let dgx = Exporter::start(&["--source", "sim:dgx-h100", "--node-name", "dgx"]).unwrap();
    let pairs =
        Exporter::start(&["--source", "sim:a100-pcie-pairs", "--node-name", "pairs"]).unwrap();
    let targets = [
        (dgx.address.as_str(), "dgx"),
        (pairs.address.as_str(), "pairs"),
    ];
    let prometheus = Prometheus::start(&targets).unwrap();
    prometheus
        .wait_for("count(up == 1)", SOON, |samples| {
            samples.first().is_some_and(|one| one.value == 2.0)
        })
        .unwrap();

    // Every ordered pair of connected GPUs is one series.
    for (profile, instance) in [("dgx-h100", "dgx"), ("a100-pcie-pairs", "pairs")] {
        let edges = topology(profile)["spec"]["edges"].as_array().unwrap().len();
        let query = format!("count(nvlink_peer_links{{instance=\"{instance}\"}})");
        let answer = prometheus.query(&query).unwrap();
        assert_eq!(answer[0].value, 2.0 * edges as f64, "{query}");
    }

    // The join of the graph with the models: how many pairs of each model have NVLink.
    let join = r#"count by (model) (nvlink_peer_links * on (instance, gpu, UUID) group_left (model) nvlink_gpu_info)"#;
    let answer = prometheus.query(join).unwrap();
    let models: Vec<&str> = answer
        .iter()
        .map(|one| one.labels["model"].as_str())
        .collect();
    assert_eq!(models.len(), 2, "{models:?}");
    assert!(
        models.iter().any(|model| model.contains("H100")),
        "{models:?}"
    );

    let moving = "sum by (instance) (rate(nvlink_transmit_bytes_total[10s])) > 0";
    prometheus
        .wait_for(moving, SOON, |samples| samples.len() == 2)
        .unwrap();
}

#[test]
fn broken_links_are_reported() {
    let exporter = Exporter::start(&["--source", "sim:h200-degraded"]).unwrap();
    let prometheus = Prometheus::start(&[(&exporter.address, "degraded")]).unwrap();
    let dead = prometheus.wait_for("count(nvlink_link_up == 0)", SOON, |samples| {
        !samples.is_empty()
    });
    assert!(dead.unwrap()[0].value >= 1.0);
    prometheus
        .wait_for("sum(nvlink_missing_links) > 0", SOON, |samples| {
            !samples.is_empty()
        })
        .unwrap();
}
