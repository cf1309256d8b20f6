//! Faults at run time, and recovery from them.

use std::collections::BTreeSet;

use nvlink_tests::{FakeNvml, check_metrics, http, nvml::recording};
use serde_json::{Value, json};

use super::scrape::{good, series, start, succeeded, those, value, values, wait};

const NOT_SUPPORTED: u32 = 3;
const NO_PERMISSION: u32 = 4;
const DRIVER_NOT_LOADED: u32 = 9;
const VERSION_MISMATCH: u32 = 18;
const UNKNOWN: u32 = 999;

/// Returns the number of GPUs in the metrics.
fn gpus(text: &str) -> usize {
    series(text, "nvlink_gpu_info").len()
}

#[test]
fn a_lost_gpu_is_reported_and_the_others_stay() {
    let recorded = recording("dgx-h100").unwrap();
    let mut fake = FakeNvml::new(&recorded).unwrap();
    let exporter = start(&fake, &[]);
    let text = good(&exporter);
    assert_eq!(series(&text, "nvlink_gpu_lost"), []);
    let uuid = recorded["spec"]["gpus"][3]["uuid"].as_str().unwrap();
    let total = |text: &str| value(text, "nvlink_gpu_transmit_bytes_total", &[("UUID", uuid)]);
    let before = total(&text).unwrap();
    // The GPU does not answer, or is no longer listed. In the second case the others move up.
    for key in ["lost", "removed"] {
        fake.put(key, json!([3])).unwrap();
        let lost = |text: &str| !series(text, "nvlink_gpu_lost").is_empty();
        // A collection during which the others move up reports one of them as lost.
        let text = wait(&exporter, "the GPU to be lost", |text| {
            !those(text, "nvlink_gpu_lost", &[("UUID", uuid)]).is_empty() && gpus(text) == 7
        });
        assert!(succeeded(&text), "{key}");
        let told = series(&text, "nvlink_gpu_lost");
        assert_eq!((told.len(), told[0].0["gpu"].as_str()), (1, "3"), "{key}");
        assert_eq!(told[0].0["UUID"], uuid, "{key}");
        assert_eq!(gpus(&text), 7, "{key}");
        assert_eq!(series(&text, "nvlink_link_up").len(), 7 * 18, "{key}");
        assert_eq!(
            those(&text, "nvlink_transmit_bytes_total", &[("UUID", uuid)]),
            [],
            "{key}"
        );
        assert_eq!(total(&text), None, "{key}");
        assert_eq!(series(&text, "nvlink_peer_links").len(), 7 * 6, "{key}");
        check_metrics(&text).unwrap();
        let page = http::text(&exporter.url("/")).unwrap();
        assert_eq!(page.matches("</b>: lost: ").count(), 1, "{key}");
        assert!(page.contains("1 item needs attention"), "{key}");
        fake.put(key, json!([])).unwrap();
        let text = wait(&exporter, "the GPU to be back", |text| !lost(text));
        assert_eq!(gpus(&text), 8, "{key}");
        assert!(total(&text).unwrap() >= before, "{key}");
    }
    let log = exporter.process.log();
    let told = log.lines().filter(|line| line.contains(uuid));
    let told: Vec<_> = told.filter(|line| line.contains("lost")).collect();
    assert_eq!(told.len(), 2, "once each time: {told:?}");
    assert!(told[0].contains("GPU 3: lost: "), "{told:?}");
    assert!(told[1].contains("the driver no longer lists it"));
}

#[test]
fn a_gpu_that_was_replaced_is_not_lost() {
    let mut fake = FakeNvml::of_profile("hgx-a100-4").unwrap();
    let exporter = start(&fake, &[]);
    good(&exporter);
    fake.put("removed", json!([2])).unwrap();
    let lost = |text: &str| series(text, "nvlink_gpu_lost");
    wait(&exporter, "the GPU to be lost", |text| {
        !lost(text).is_empty()
    });
    let new = "GPU-99999999-9999-9999-9999-999999999999";
    fake.set(|config| {
        config["removed"] = json!([]);
        config["board"]["spec"]["gpus"][2]["uuid"] = json!(new);
    })
    .unwrap();
    // A collection during the exchange may see both.
    let text = wait(&exporter, "the new GPU alone", |text| {
        text.contains(new) && lost(text).is_empty()
    });
    assert_eq!(gpus(&text), 4);
    let log = exporter.process.log();
    assert!(log.contains("GPU 2 (0000"), "{log}");
    assert!(log.contains(&format!("is now {new}")), "{log}");
}

#[test]
fn data_of_a_failed_driver_disappear_and_return_with_it() {
    let mut fake = FakeNvml::of_profile("hgx-a100-4").unwrap();
    let exporter = start(&fake, &["--stale-after", "1s"]);
    assert_eq!(gpus(&good(&exporter)), 4);
    let everywhere = |code: u32| json!([{"error": code}]);
    // The first matching fault applies.
    let mismatch = json!([
        {"function": "nvmlInitWithFlags", "error": VERSION_MISMATCH},
        {"error": UNKNOWN},
    ]);
    for (faults, reason) in [
        (everywhere(DRIVER_NOT_LOADED), "modprobe nvidia"),
        (everywhere(UNKNOWN), ""),
        (mismatch, "version"),
    ] {
        fake.put("faults", faults).unwrap();
        let text = wait(&exporter, "a failed collection", |text| !succeeded(text));
        let left = text.lines().filter(|line| line.starts_with("nvlink_"));
        let left: Vec<_> = left
            .filter(|line| !line.starts_with("nvlink_exporter_"))
            .collect();
        assert_eq!(left, [""; 0], "no stale data");
        check_metrics(&text).unwrap();
        let not_ready = || {
            let answer = http::get(&exporter.url("/readyz"), &[], "*/*")?;
            Ok((answer.status == 503).then_some(answer.body))
        };
        let limit = std::time::Duration::from_secs(10);
        let said = exporter
            .process
            .wait_until("/readyz to fail", limit, not_ready)
            .unwrap();
        assert!(said.contains(reason), "{said}");
        fake.put("faults", json!([])).unwrap();
        assert_eq!(gpus(&good(&exporter)), 4, "recovered without a restart");
        http::text(&exporter.url("/readyz")).unwrap();
    }
}

#[test]
fn a_driver_that_loads_late_is_found() {
    let mut fake = FakeNvml::of_profile("l40s").unwrap();
    fake.put("faults", json!([{"error": DRIVER_NOT_LOADED}]))
        .unwrap();
    let exporter = start(&fake, &[]);
    wait(&exporter, "a failed collection", |text| {
        value(
            text,
            "nvlink_exporter_collector_success",
            &[("collector", "topology")],
        ) == Some(0.0)
    });
    fake.put("faults", json!([])).unwrap();
    let text = good(&exporter);
    assert!(gpus(&text) > 0);
    // Cards without NVLink have no links, and no series with the value 0.
    assert_eq!(series(&text, "nvlink_link_up"), []);
    assert_eq!(series(&text, "nvlink_missing_links"), []);
}

#[test]
fn values_that_an_older_driver_lacks_are_absent() {
    let recorded = recording("dgx-h100").unwrap();
    let mut fake = FakeNvml::new(&recorded).unwrap();
    fake.without(&[
        "nvmlInitWithFlags",
        "nvmlDeviceGetArchitecture",
        "nvmlDeviceGetGpuFabricInfo",
        "nvmlDeviceGetGpuFabricInfoV",
        "nvmlDeviceGetMemoryAffinity",
        "nvmlDeviceGetNumaNodeId",
        "nvmlDeviceGetNvLinkErrorCounter",
        "nvmlDeviceGetNvLinkRemoteDeviceType",
        "nvmlDeviceGetP2PStatus",
        "nvmlDeviceGetPciInfoExt",
        "nvmlDeviceGetTopologyCommonAncestor",
        "nvmlDeviceRegisterEvents",
        "nvmlEventSetCreate",
        "nvmlEventSetFree",
        "nvmlEventSetWait_v2",
        "nvmlGpmMetricsGet",
        "nvmlGpmQueryDeviceSupport",
        "nvmlGpmSampleAlloc",
        "nvmlGpmSampleFree",
        "nvmlGpmSampleGet",
    ])
    .unwrap();
    let text = good(&start(&fake, &[]));
    assert_eq!(gpus(&text), 8);
    assert_eq!(values(&text, "nvlink_link_up", &[]), [1.0; 8 * 18]);
    assert_eq!(series(&text, "nvlink_transmit_bytes_total").len(), 8 * 18);
    for absent in ["nvlink_fabric_state", "nvlink_xid_errors_total"] {
        assert_eq!(series(&text, absent), [], "{absent}");
    }
    check_metrics(&text).unwrap();
}

#[test]
fn unknown_links_are_not_reported_as_down() {
    let mut fake = FakeNvml::of_profile("dgx1-v100").unwrap();
    fake.without(&["nvmlDeviceGetFieldValues"]).unwrap();
    let text = good(&start(&fake, &[]));
    assert_eq!(gpus(&text), 8);
    for absent in [
        "nvlink_link_up",
        "nvlink_missing_links",
        "nvlink_peer_links",
    ] {
        assert_eq!(series(&text, absent), [], "{absent}");
    }
}

/// Returns the functions that the exporter calls while it serves a board.
fn called(fake: &FakeNvml) -> BTreeSet<String> {
    let lines = fake.trace();
    let calls = lines.iter().filter_map(|line| line.strip_prefix("call "));
    calls.map(str::to_owned).collect()
}

#[test]
fn no_error_of_any_function_ends_the_exporter() {
    let mut fake = FakeNvml::of_profile("dgx-h100").unwrap();
    let exporter = start(&fake, &[]);
    good(&exporter);
    let functions = called(&fake);
    assert!(functions.len() > 15, "{functions:?}");
    // Without these functions nothing can be reported.
    let essential = [
        "nvmlInit",
        "nvmlDeviceGetCount",
        "nvmlDeviceGetHandleByIndex",
    ];
    for function in &functions {
        for code in [NOT_SUPPORTED, NO_PERMISSION, UNKNOWN] {
            // Some functions are called only when the library is reopened.
            fake.put("faults", json!([{"error": DRIVER_NOT_LOADED}]))
                .unwrap();
            wait(&exporter, "a failed collection", |text| !succeeded(text));
            fake.put("faults", json!([{"function": function, "error": code}]))
                .unwrap();
            let tolerable =
                code == NOT_SUPPORTED && !essential.iter().any(|one| function.starts_with(one));
            if tolerable {
                let what = format!("a collection without {function}");
                let text = wait(&exporter, &what, succeeded);
                assert_eq!(gpus(&text), 8, "{function}");
                check_metrics(&text).unwrap();
            }
        }
    }
    fake.put("faults", json!([])).unwrap();
    assert_eq!(gpus(&good(&exporter)), 8);
}

#[test]
fn each_xid_is_counted_once_and_kept_when_the_library_is_reopened() {
    let mut fake = FakeNvml::of_profile("hgx-a100-4").unwrap();
    let exporter = start(&fake, &[]);
    assert_eq!(series(&good(&exporter), "nvlink_xid_errors_total"), []);
    let xid = |gpu: usize, xid: u64| json!({"gpu": gpu, "xid": xid});
    let count = |text: &str, gpu, xid| {
        value(
            text,
            "nvlink_xid_errors_total",
            &[("gpu", gpu), ("xid", xid)],
        )
    };
    fake.put("xids", json!([xid(1, 74), xid(1, 74), xid(2, 79)]))
        .unwrap();
    let all =
        |text: &str| count(text, "1", "74") == Some(2.0) && count(text, "2", "79") == Some(1.0);
    let text = wait(&exporter, "the XIDs", all);
    assert_eq!(series(&text, "nvlink_xid_errors_total").len(), 2);
    check_metrics(&text).unwrap();
    fake.put("faults", json!([{"error": DRIVER_NOT_LOADED}]))
        .unwrap();
    wait(&exporter, "a failed collection", |text| !succeeded(text));
    fake.put("faults", json!([])).unwrap();
    assert!(all(&good(&exporter)), "neither lost nor counted twice");
    fake.set(|config| config["xids"].as_array_mut().unwrap().push(xid(1, 74)))
        .unwrap();
    wait(&exporter, "the next XID", |text| {
        count(text, "1", "74") == Some(3.0)
    });
}

#[test]
fn an_xid_is_counted_for_the_gpu_that_it_names() {
    let mut fake = FakeNvml::of_profile("dgx-h100").unwrap();
    // The event set of GPU 0 is read first, and returns the event of GPU 6.
    fake.put("eventSetsShared", json!(true)).unwrap();
    let exporter = start(&fake, &[]);
    good(&exporter);
    fake.put("xids", json!([{"gpu": 6, "xid": 79}])).unwrap();
    let text = wait(&exporter, "the XID", |text| {
        !series(text, "nvlink_xid_errors_total").is_empty()
    });
    let told = series(&text, "nvlink_xid_errors_total");
    assert_eq!((told.len(), told[0].0["gpu"].as_str()), (1, "6"));
}

/// Changes the far end of GPU 0's link `link`.
fn end_on(gpus: &mut Value, link: usize, bus_id: &Value) {
    gpus[0]["links"][link]["remote"]["pciBusId"] = bus_id.clone();
}

#[test]
fn links_that_only_one_end_reports_cause_a_warning_and_are_not_counted() {
    let mut fake = FakeNvml::of_profile("hgx-a100-4").unwrap();
    // GPU 0 reports that one of its links to GPU 1 ends on GPU 2.
    fake.rewire(|gpus| {
        let second = gpus[2]["pciBusId"].clone();
        end_on(gpus, 0, &second);
    })
    .unwrap();
    let exporter = start(&fake, &[]);
    let text = good(&exporter);
    let links = |gpu, peer| value(&text, "nvlink_peer_links", &[("gpu", gpu), ("peer", peer)]);
    assert_eq!(
        [links("0", "1"), links("1", "0")],
        [Some(3.0); 2],
        "the smaller count"
    );
    assert_eq!(
        [links("0", "2"), links("2", "0")],
        [Some(4.0); 2],
        "the smaller count"
    );
    let told: Vec<_> = series(&text, "nvlink_asymmetric_links")
        .into_iter()
        .map(|(labels, count)| (labels["gpu"].clone(), labels["peer"].clone(), count))
        .collect();
    let pair = |gpu: &str, peer: &str| (gpu.to_owned(), peer.to_owned(), 1.0);
    assert_eq!(told, [pair("0", "2"), pair("1", "0")]);
    let log = exporter.process.log();
    assert!(log.contains("using the smaller"), "{log}");
    check_metrics(&text).unwrap();
}

#[test]
fn a_link_from_a_gpu_to_itself_is_no_edge() {
    let mut fake = FakeNvml::of_profile("a100-pcie-pairs").unwrap();
    fake.rewire(|gpus| {
        let own = gpus[0]["pciBusId"].clone();
        (0..12).for_each(|link| end_on(gpus, link, &own));
    })
    .unwrap();
    let text = good(&start(&fake, &[]));
    assert_eq!(those(&text, "nvlink_peer_links", &[("gpu", "0")]), []);
    assert_eq!(values(&text, "nvlink_link_up", &[("gpu", "0")]), [1.0; 12]);
}

#[test]
fn an_inactive_link_is_down_and_a_sleeping_link_is_up() {
    let mut fake = FakeNvml::of_profile("dgx-h100").unwrap();
    let exporter = start(&fake, &[]);
    good(&exporter);
    let states = json!({"0": {"links": {"7": {"state": 0}, "8": {"state": 2}}}});
    fake.put("gpus", states).unwrap();
    let up = |text: &str, link| value(text, "nvlink_link_up", &[("gpu", "0"), ("link", link)]);
    let text = wait(&exporter, "the link to go down", |text| {
        up(text, "7") == Some(0.0)
    });
    assert_eq!(up(&text, "8"), Some(1.0), "a sleeping link is up");
    assert_eq!(
        value(&text, "nvlink_missing_links", &[("gpu", "0")]),
        Some(1.0)
    );
    let links = [("gpu", "0"), ("peer", "1")];
    assert_eq!(value(&text, "nvlink_peer_links", &links), Some(17.0));
    let down = [("gpu", "0"), ("link", "7")];
    for absent in [
        "nvlink_link_speed_bytes_per_second",
        "nvlink_transmit_bytes_total",
    ] {
        assert_eq!(those(&text, absent, &down), [], "{absent}");
    }
    fake.put("gpus", json!({})).unwrap();
    let text = wait(&exporter, "the link to come up", |text| {
        up(text, "7") == Some(1.0)
    });
    assert_eq!(value(&text, "nvlink_peer_links", &links), Some(18.0));
    assert_eq!(those(&text, "nvlink_transmit_bytes_total", &down).len(), 1);
}
