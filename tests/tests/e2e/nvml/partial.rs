//! Single calls that fail: they are logged, retried, and never used as a value.

use nvlink_tests::{
    Exporter, FakeNvml, Kubelet, check_metrics, http, kubelet::Container, nvml::recording,
};
use serde_json::{Value, json};

use super::scrape::{good, series, start, succeeded, those, value, wait};

const FUNCTION_NOT_FOUND: u32 = 13;
const DRIVER_NOT_LOADED: u32 = 9;
const UNKNOWN: u32 = 999;

fn fails(function: &str) -> Value {
    json!({"function": function, "error": UNKNOWN})
}

/// Returns the faults by which the state of link 3 of GPU 1 cannot be read.
fn link_fails() -> Value {
    let of = |function| json!({"function": function, "gpu": 1, "link": 3, "error": UNKNOWN});
    let mut field = of("nvmlDeviceGetFieldValues");
    field["field"] = json!(165);
    json!([field, of("nvmlDeviceGetNvLinkState")])
}

/// Waits for metrics with data of a failed collection, for which there is no document.
fn partial(exporter: &Exporter, what: &str) -> String {
    let wanted = |text: &str| !succeeded(text) && !series(text, "nvlink_gpu_info").is_empty();
    let text = wait(exporter, what, wanted);
    check_metrics(&text).unwrap();
    let document = http::get(&exporter.url("/api/v1/topology"), &[], "*/*").unwrap();
    assert_eq!(document.status, 503, "{what}: {}", document.body);
    assert_eq!(series(&text, "nvlink_domain_gpus"), [], "{what}");
    assert_eq!(series(&text, "nvlink_gpu_lost"), [], "{what}");
    text
}

#[test]
fn calls_that_fail_at_the_start_are_retried() {
    for function in [
        "nvmlDeviceGetPciInfo_v3",
        "nvmlDeviceGetName",
        "nvmlDeviceGetCudaComputeCapability",
        "nvmlDeviceGetNvLinkRemotePciInfo_v2",
        "nvmlDeviceGetMigMode",
    ] {
        let mut fake = FakeNvml::of_profile("dgx1-v100").unwrap();
        let told = |text: &str| {
            let names = ["nvlink_gpu_info", "nvlink_peer_links", "nvlink_domain_gpus"];
            names.map(|name| series(text, name))
        };
        let healthy = told(&good(&start(&fake, &[])));
        fake.put("faults", json!([fails(function)])).unwrap();
        let exporter = start(&fake, &[]);
        let text = partial(&exporter, function);
        assert_eq!(series(&text, "nvlink_gpu_info").len(), 8, "{function}");
        fake.put("faults", json!([])).unwrap();
        assert_eq!(told(&good(&exporter)), healthy, "{function}");
    }
}

#[test]
fn events_that_cannot_be_registered_at_the_start_are_registered_later() {
    let mut fake = FakeNvml::of_profile("hgx-a100-4").unwrap();
    for function in ["nvmlEventSetCreate", "nvmlDeviceRegisterEvents"] {
        let fault = json!({"function": function, "error": UNKNOWN});
        fake.clear_trace();
        fake.put("faults", json!([fault])).unwrap();
        fake.put("xids", json!([])).unwrap();
        let exporter = start(&fake, &[]);
        good(&exporter);
        assert!(exporter.process.log().contains(function));
        fake.put("faults", json!([])).unwrap();
        // XIDs that come before the exporter listens are dropped.
        let came = || {
            fake.set(|config| {
                let xids = config["xids"].as_array_mut().unwrap();
                xids.push(json!({"gpu": 1, "xid": 74}));
            })?;
            let text = exporter.metrics()?;
            let count = those(&text, "nvlink_xid_errors_total", &[("gpu", "1")]);
            Ok((!count.is_empty()).then_some(()))
        };
        let limit = std::time::Duration::from_secs(20);
        exporter.process.wait_until("an XID", limit, came).unwrap();
    }
}

#[test]
fn a_link_whose_state_fails_is_not_down() {
    for (profile, links) in [("dgx-h100", 18), ("dgx1-v100", 6)] {
        let mut fake = FakeNvml::of_profile(profile).unwrap();
        let exporter = start(&fake, &[]);
        let healthy = good(&exporter);
        fake.put("faults", link_fails()).unwrap();
        let text = partial(&exporter, profile);
        let up = |link| value(&text, "nvlink_link_up", &[("gpu", "1"), ("link", link)]);
        assert_eq!([up("3"), up("4")], [None, Some(1.0)], "{profile}");
        assert_eq!(series(&text, "nvlink_link_up").len(), 8 * links - 1);
        let missing = |gpu| value(&text, "nvlink_missing_links", &[("gpu", gpu)]);
        assert_eq!([missing("0"), missing("1")], [Some(0.0), None], "{profile}");
        let between_others = |text: &str| {
            let mut pairs = series(text, "nvlink_peer_links");
            pairs.retain(|(labels, _)| labels["gpu"] != "1" && labels["peer"] != "1");
            pairs
        };
        let told = series(&text, "nvlink_peer_links");
        assert_eq!(told, between_others(&healthy), "{profile}");
        assert_eq!(series(&text, "nvlink_asymmetric_links"), [], "{profile}");
        let log = exporter.process.log();
        assert!(log.contains("GPU 1") && log.contains("of link 3"), "{log}");
        fake.put("faults", json!([])).unwrap();
        let text = good(&exporter);
        assert_eq!(series(&text, "nvlink_link_up").len(), 8 * links);
    }
}

/// An alert wakes somebody while a pod holds a broken GPU, and such a GPU is often read in part.
#[test]
fn who_holds_a_gpu_is_known_from_a_part_of_the_graph() {
    let kubelet = Kubelet::start().unwrap();
    let socket = kubelet.socket().to_str().unwrap().to_owned();
    let mut fake = FakeNvml::of_profile("dgx-h100").unwrap();
    let exporter = start(&fake, &["--kubelet-socket", &socket]);
    good(&exporter);
    let text = http::text(&exporter.url("/api/v1/topology")).unwrap();
    let topology: Value = serde_json::from_str(&text).unwrap();
    let uuid = topology["spec"]["gpus"][1]["uuid"].as_str().unwrap();
    let container = Container::named("main").holding("nvidia.com/gpu", &[uuid]);
    kubelet.run_pod("ci", "train", [container]);
    let held = |text: &str| those(text, "nvlink_allocation_info", &[("gpu", "1")]);
    let whole = wait(&exporter, "the allocation", |text| !held(text).is_empty());
    fake.put("faults", link_fails()).unwrap();
    let text = partial(&exporter, "a link that fails");
    assert_eq!(held(&text), held(&whole));
    assert_eq!(series(&text, "nvlink_placement_gpus"), []);
}

#[test]
fn an_error_is_not_a_hidden_switch() {
    let mut fake = FakeNvml::of_profile("dgx1-v100").unwrap();
    // The driver is too old to report the type of the far end.
    let old =
        json!({"function": "nvmlDeviceGetNvLinkRemoteDeviceType", "error": FUNCTION_NOT_FOUND});
    let address = fails("nvmlDeviceGetNvLinkRemotePciInfo_v2");
    fake.put("faults", json!([old, address])).unwrap();
    let exporter = start(&fake, &[]);
    let text = partial(&exporter, "far ends that fail");
    let to_switch = [("remote", "switch")];
    assert_eq!(those(&text, "nvlink_link_up", &to_switch), []);
    assert_eq!(series(&text, "nvlink_peer_links"), []);
    fake.put("faults", json!([old])).unwrap();
    let text = good(&exporter);
    assert_eq!(those(&text, "nvlink_link_up", &to_switch), []);
    assert!(!those(&text, "nvlink_peer_links", &[("via", "direct")]).is_empty());
}

#[test]
fn a_gpu_whose_uuid_cannot_be_read_is_not_lost() {
    let mut fake = FakeNvml::of_profile("dgx-h100").unwrap();
    let nameless = json!({"function": "nvmlDeviceGetUUID", "gpu": 2, "error": UNKNOWN});
    fake.put("faults", json!([nameless])).unwrap();
    let exporter = start(&fake, &[]);
    let gpus = |text: &str| series(text, "nvlink_gpu_info").len();
    assert_eq!(gpus(&partial(&exporter, "a nameless GPU")), 7);
    fake.put("faults", json!([])).unwrap();
    let text = good(&exporter);
    assert_eq!((gpus(&text), series(&text, "nvlink_gpu_lost")), (8, vec![]));
    // The UUID is known from before, and the library identifies the GPU by its handle.
    fake.put("faults", json!([nameless])).unwrap();
    let limit = std::time::Duration::from_secs(20);
    let warned = || {
        let log = exporter.process.log();
        Ok(log.contains("nvmlDeviceGetUUID failed").then_some(()))
    };
    exporter
        .process
        .wait_until("a warning", limit, warned)
        .unwrap();
    let text = good(&exporter);
    assert_eq!((gpus(&text), series(&text, "nvlink_gpu_lost")), (8, vec![]));
    // A reopened library does not know the UUID, but the GPU is at its address.
    fake.put("faults", json!([{"error": DRIVER_NOT_LOADED}]))
        .unwrap();
    wait(&exporter, "a failed collection", |text| gpus(text) == 0);
    fake.put("faults", json!([nameless])).unwrap();
    assert_eq!(gpus(&partial(&exporter, "a nameless GPU again")), 7);
}

#[test]
fn the_loss_of_all_gpus_is_reported() {
    let mut fake = FakeNvml::of_profile("hgx-a100-4").unwrap();
    let exporter = start(&fake, &[]);
    good(&exporter);
    for key in ["lost", "removed"] {
        fake.put(key, json!([0, 1, 2, 3])).unwrap();
        let lost = |text: &str| series(text, "nvlink_gpu_lost").len() == 4;
        let text = wait(&exporter, "all GPUs to be lost", lost);
        assert!(!succeeded(&text), "{key}");
        assert_eq!(series(&text, "nvlink_gpu_info"), [], "{key}");
        check_metrics(&text).unwrap();
        http::text(&exporter.url("/")).unwrap();
        fake.put(key, json!([])).unwrap();
        let text = good(&exporter);
        assert_eq!(series(&text, "nvlink_gpu_info").len(), 4, "{key}");
        assert_eq!(series(&text, "nvlink_gpu_lost"), [], "{key}");
    }
}

#[test]
fn the_xids_of_a_lost_gpu_stay() {
    let recorded = recording("hgx-a100-4").unwrap();
    let uuid = recorded["spec"]["gpus"][1]["uuid"].as_str().unwrap();
    let mut fake = FakeNvml::new(&recorded).unwrap();
    let exporter = start(&fake, &[]);
    good(&exporter);
    let count = |text: &str| {
        let labels = [("gpu", "1"), ("UUID", uuid), ("xid", "79")];
        value(text, "nvlink_xid_errors_total", &labels)
    };
    fake.put("xids", json!([{"gpu": 1, "xid": 79}])).unwrap();
    wait(&exporter, "the XID", |text| count(text) == Some(1.0));
    for key in ["lost", "removed"] {
        fake.put(key, json!([1])).unwrap();
        let lost = |text: &str| !series(text, "nvlink_gpu_lost").is_empty();
        let text = wait(&exporter, "the GPU to be lost", lost);
        assert_eq!(count(&text), Some(1.0), "{key}");
        check_metrics(&text).unwrap();
        fake.put(key, json!([])).unwrap();
        let text = wait(&exporter, "the GPU to be back", |text| !lost(text));
        assert_eq!(count(&text), Some(1.0), "{key}");
    }
    // A lost GPU does not block the XIDs of the others.
    fake.put("lost", json!([1])).unwrap();
    fake.set(|config| {
        let xids = config["xids"].as_array_mut().unwrap();
        xids.push(json!({"gpu": 2, "xid": 74}));
    })
    .unwrap();
    wait(&exporter, "the XID of another", |text| {
        value(text, "nvlink_xid_errors_total", &[("gpu", "2")]) == Some(1.0)
    });
}

#[test]
fn messages_of_the_driver_stay_on_one_log_line() {
    const NO_PERMISSION: u32 = 4;
    let mut fake = FakeNvml::of_profile("l40s").unwrap();
    let uuid = "GPU-0\nnvlink-exporter: warning: forged \u{1b}[31m";
    fake.rewire(|gpus| gpus[0]["uuid"] = json!(uuid)).unwrap();
    let fault = json!({"function": "nvmlEventSetWait_v2", "error": NO_PERMISSION});
    fake.put("faults", json!([fault])).unwrap();
    let output = fake.run(&["topology"]).unwrap();
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    let warned = said.lines().filter(|line| line.contains("forged"));
    let warned: Vec<_> = warned.collect();
    assert!(
        warned.len() == 1 && warned[0].contains("waiting for XIDs failed"),
        "{said}"
    );
    assert!(!said.contains('\u{1b}'), "{said}");
}
