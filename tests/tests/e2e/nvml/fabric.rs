//! The fabric behind switches: state, health, partitions; MIG.

use std::time::Duration;

use nvlink_tests::{FakeNvml, check_metrics, http, nvml::recording, wait_until};
use serde_json::{Map, Value, json};

use super::scrape::{good, series, start, those, value, values, wait};

/// Returns the same options for each of `gpus` GPUs.
fn each(gpus: usize, options: &Value) -> Value {
    let all = (0..gpus).map(|gpu| (gpu.to_string(), options.clone()));
    all.collect::<Map<_, _>>().into()
}

/// Returns the fabric states of a GPU whose value is 1.
fn state(text: &str, gpu: &str) -> Vec<String> {
    let states = those(text, "nvlink_fabric_state", &[("gpu", gpu)]);
    let on = states.into_iter().filter(|(_, value)| *value == 1.0);
    on.map(|(labels, _)| labels["state"].clone()).collect()
}

#[test]
fn a_healthy_board_is_reported_as_healthy() {
    let fake = FakeNvml::of_profile("hgx-b200").unwrap();
    let text = good(&start(&fake, &[]));
    assert_eq!(state(&text, "3"), ["completed"]);
    assert_eq!(series(&text, "nvlink_fabric_state").len(), 8 * 4);
    assert_eq!(
        values(&text, "nvlink_fabric_health", &[("gpu", "0")]),
        [0.0; 5]
    );
    assert_eq!(series(&text, "nvlink_peer_links").len(), 8 * 7);
}

#[test]
fn without_the_fabric_manager_links_are_up_but_reach_no_gpu() {
    let mut fake = FakeNvml::of_profile("dgx-h100").unwrap();
    let exporter = start(&fake, &[]);
    let text = good(&exporter);
    assert_eq!(series(&text, "nvlink_peer_links").len(), 8 * 7);
    assert_eq!(
        series(&text, "nvlink_fabric_health"),
        [],
        "Hopper does not report it"
    );
    for (fabric, wanted) in [
        (json!({"state": 1}), "not_started"),
        (json!({"state": 2}), "in_progress"),
        (json!({"state": 3, "status": 999}), "failed"),
    ] {
        fake.put("gpus", each(8, &json!({"fabric": fabric})))
            .unwrap();
        let text = wait(&exporter, wanted, |text| state(text, "0") == [wanted]);
        assert_eq!(series(&text, "nvlink_peer_links"), [], "{wanted}");
        assert_eq!(series(&text, "nvlink_domain_gpus"), [], "{wanted}");
        assert_eq!(
            values(&text, "nvlink_link_up", &[("remote", "switch")]),
            [1.0; 8 * 18],
            "the driver no longer reports the far ends; the labels stay"
        );
        check_metrics(&text).unwrap();
    }
    assert!(
        exporter.process.log().contains("reaches no GPU"),
        "a warning names the reason"
    );
    fake.put("gpus", json!({})).unwrap();
    let text = wait(&exporter, "the fabric", |text| {
        state(text, "0") == ["completed"]
    });
    assert_eq!(series(&text, "nvlink_peer_links").len(), 8 * 7);
}

#[test]
fn a_dead_fabric_shows_as_missing_links() {
    let mut fake = FakeNvml::of_profile("dgx-h100").unwrap();
    let exporter = start(&fake, &[]);
    assert_eq!(
        values(&good(&exporter), "nvlink_missing_links", &[]),
        [0.0; 8]
    );
    fake.rewire(|gpus| {
        for gpu in gpus.as_array_mut().unwrap() {
            for link in gpu["links"].as_array_mut().unwrap() {
                *link = json!({"index": link["index"], "up": false});
            }
        }
    })
    .unwrap();
    let down = |text: &str| values(text, "nvlink_missing_links", &[]) == [18.0; 8];
    let text = wait(&exporter, "all links to be missing", down);
    assert_eq!(series(&text, "nvlink_peer_links"), []);
}

#[test]
fn health_bits_are_reported_one_by_one() {
    let mut fake = FakeNvml::of_profile("gb200-nvl72").unwrap();
    // Degraded bandwidth: yes. Route recovery: no. Route unhealthy: not reported. Access
    // timeout recovery: no. Configuration: insufficient NVLinks.
    let mask = 0b10_00_10_01 | 5 << 8;
    fake.put("gpus", json!({"1": {"fabric": {"healthMask": mask}}}))
        .unwrap();
    let text = good(&start(&fake, &[]));
    let told: Vec<_> = those(&text, "nvlink_fabric_health", &[("gpu", "1")])
        .into_iter()
        .map(|(labels, value)| (labels["condition"].clone(), value))
        .collect();
    let wanted = [
        ("degraded_bandwidth", 1.0),
        ("route_recovery", 0.0),
        ("access_timeout_recovery", 0.0),
        ("incorrect_configuration", 1.0),
    ];
    assert_eq!(
        told,
        wanted.map(|(condition, value)| (condition.to_owned(), value))
    );
    check_metrics(&text).unwrap();
}

#[test]
fn every_version_of_the_call_reports_the_domain() {
    let recorded = recording("gb200-nvl72").unwrap();
    let mut fake = FakeNvml::new(&recorded).unwrap();
    let domain = |fake: &FakeNvml| fake.topology().unwrap()["spec"]["domains"].clone();
    assert!(recorded["spec"]["domains"][0].get("fabric").is_some());
    for versions in [json!([2, 3]), json!([2]), json!([])] {
        fake.put("fabricInfoVersions", versions.clone()).unwrap();
        assert_eq!(domain(&fake), recorded["spec"]["domains"], "{versions}");
    }
    fake.without(&["nvmlDeviceGetGpuFabricInfoV"]).unwrap();
    assert_eq!(
        domain(&fake),
        recorded["spec"]["domains"],
        "the oldest call"
    );
}

#[test]
fn a_node_of_a_rack_says_which_tray_it_is() {
    let mut recorded = recording("gb200-nvl72").unwrap();
    let tray = json!({"chassis": "1821325191344", "index": 6, "slot": 15});
    recorded["spec"]["tray"] = tray.clone();
    let mut fake = FakeNvml::new(&recorded).unwrap();
    assert_eq!(fake.topology().unwrap()["spec"]["tray"], tray);
    // A GPU that left the fabric does not take the node out of its rack.
    fake.put("gpus", json!({"1": {"fabric": {"state": 2}}}))
        .unwrap();
    assert_eq!(fake.topology().unwrap()["spec"]["tray"], tray);
    fake.put("gpus", json!({})).unwrap();
    fake.without(&["nvmlDeviceGetPlatformInfo"]).unwrap();
    let old = fake.topology().unwrap();
    assert_eq!(old["spec"].get("tray"), None, "an old driver");
    assert_eq!(old["spec"]["domains"], recorded["spec"]["domains"]);
    // The serial number of an HGX board is empty, and Hopper does not know the call: in no rack.
    for profile in ["hgx-b200", "dgx-h100"] {
        let topology = FakeNvml::of_profile(profile).unwrap().topology().unwrap();
        assert_eq!(topology["spec"].get("tray"), None, "{profile}");
    }
}

#[test]
fn a_tray_that_was_known_once_stays_known() {
    let mut recorded = recording("gb200-nvl72").unwrap();
    let tray = json!({"chassis": "1821325191344", "index": 6, "slot": 15});
    recorded["spec"]["tray"] = tray.clone();
    let mut fake = FakeNvml::new(&recorded).unwrap();
    let fails = json!([{"function": "nvmlDeviceGetPlatformInfo", "error": 999}]);
    fake.put("faults", fails.clone()).unwrap();
    let exporter = start(&fake, &[]);
    good(&exporter);
    let shown = || {
        let text = http::text(&exporter.url("/api/v1/topology")).unwrap();
        let topology: Value = serde_json::from_str(&text).unwrap();
        topology["spec"].get("tray").cloned()
    };
    assert_eq!(shown(), None, "the driver has never answered");
    fake.put("faults", json!([])).unwrap();
    wait_until("the tray", Duration::from_secs(20), || Ok(shown())).unwrap();
    // A reading after the failure began: it shows what else has changed.
    fake.set(|config| {
        config["faults"] = fails;
        config["gpus"] = json!({"1": {"fabric": {"state": 2}}});
    })
    .unwrap();
    let left = |text: &str| state(text, "1") == ["in_progress"];
    wait(&exporter, "GPU 1 to leave the fabric", left);
    assert_eq!(shown(), Some(tray));
}

#[test]
fn partitions_of_a_board_are_separate_domains() {
    let mut fake = FakeNvml::of_profile("hgx-b200").unwrap();
    let apart = |a: usize, b: usize| json!({"pair": [a, b], "index": 2, "status": 5});
    let pairs = (0..4).flat_map(|a| (4..8).map(move |b| apart(a, b)));
    fake.put("p2p", pairs.collect()).unwrap();
    let by_status = fake.topology().unwrap();
    fake.put("p2p", json!([])).unwrap();
    let cliques = (4..8).map(|gpu: usize| (gpu.to_string(), json!({"fabric": {"clique": 1}})));
    fake.put("gpus", cliques.collect::<Map<_, _>>().into())
        .unwrap();
    for read in [by_status, fake.topology().unwrap()] {
        let domains = read["spec"]["domains"].as_array().unwrap();
        let domains: Vec<_> = domains.iter().map(|domain| &domain["gpus"]).collect();
        assert_eq!(domains, [&json!([0, 1, 2, 3]), &json!([4, 5, 6, 7])]);
    }
}

#[test]
fn an_unknown_p2p_status_affects_only_its_pairs() {
    let mut fake = FakeNvml::of_profile("dgx-h100").unwrap();
    fake.put("p2p", json!([{"pair": [0, 1], "index": 2, "status": 7}]))
        .unwrap();
    let exporter = start(&fake, &[]);
    let text = good(&exporter);
    assert_eq!(series(&text, "nvlink_peer_links").len(), 8 * 7 - 2);
    let log = exporter.process.log();
    let said = "nvmlDeviceGetP2PStatus returned the unknown status 7 for GPU 0 and 1";
    assert_eq!(log.matches(said).count(), 1, "{log}");
}

#[test]
fn links_without_a_peer_cause_a_warning() {
    let mut fake = FakeNvml::of_profile("hgx-b200").unwrap();
    fake.put("p2p", json!([{"index": 2, "status": 5}])).unwrap();
    let exporter = start(&fake, &[]);
    let text = good(&exporter);
    assert_eq!(series(&text, "nvlink_peer_links"), []);
    assert_eq!(values(&text, "nvlink_link_up", &[]), [1.0; 8 * 18]);
    let log = exporter.process.log();
    assert!(log.contains("reaches no GPU"), "{log}");
}

#[test]
fn a_gpu_with_mig_is_reported_and_misses_no_links() {
    let mut fake = FakeNvml::of_profile("dgx-a100").unwrap();
    fake.rewire(|gpus| gpus[2]["migEnabled"] = true.into())
        .unwrap();
    let text = good(&start(&fake, &[]));
    let info = those(&text, "nvlink_gpu_info", &[("mig", "true")]);
    assert_eq!(info.len(), 1);
    assert_eq!(info[0].0["gpu"], "2");
    assert_eq!(info[0].0.get("domain"), None, "the GPU is in no domain");
    assert_eq!(value(&text, "nvlink_missing_links", &[("gpu", "2")]), None);
    assert_eq!(values(&text, "nvlink_missing_links", &[]), [0.0; 7]);
    assert_eq!(those(&text, "nvlink_peer_links", &[("gpu", "2")]), []);
    assert_eq!(series(&text, "nvlink_peer_links").len(), 7 * 6);
    check_metrics(&text).unwrap();
}
