//! A library that hangs does not delay scrapes.

use std::{collections::BTreeSet, time::Duration};

use nvlink_tests::{Exporter, FakeNvml, http, wait_until};
use serde_json::json;

use super::{
    scrape::{good, series, start, succeeded, value, wait},
    wiring::{Board, Wiring},
};

const SOON: Duration = Duration::from_secs(20);
const DRIVER_NOT_LOADED: u32 = 9;

/// Returns a board of two GPUs whose traffic only GPM reports, so that the exporter calls
/// every function.
fn board() -> FakeNvml {
    let board = Board {
        model: "NVIDIA H100 80GB HBM3",
        gpus: 2,
        rate: 26_562,
        wiring: Wiring::Switches(&[5, 5, 4, 4]),
    };
    let mut fake = FakeNvml::new(&board.recording()).unwrap();
    let gpm = json!({"counters": ["gpm"]});
    fake.put("gpus", json!({"0": gpm, "1": gpm})).unwrap();
    fake
}

/// Returns all functions that the exporter calls, including those that close the library.
fn functions(fake: &mut FakeNvml, exporter: &Exporter) -> BTreeSet<String> {
    wait(exporter, "rates", |text| {
        !series(text, "nvlink_transmit_bytes_per_second").is_empty()
    });
    fake.put(
        "faults",
        json!([{"function": "nvmlDeviceGetCount_v2", "error": DRIVER_NOT_LOADED}]),
    )
    .unwrap();
    wait(exporter, "a failed collection", |text| !succeeded(text));
    fake.put("faults", json!([])).unwrap();
    good(exporter);
    let lines = fake.trace();
    let calls = lines.iter().filter_map(|line| line.strip_prefix("call "));
    calls.map(str::to_owned).collect()
}

/// Makes the exporter hang in `function`: while it reads, closes the library, or reopens it.
fn hang(fake: &mut FakeNvml, exporter: &Exporter, function: &str) {
    let hangs = |fake: &FakeNvml| fake.trace().contains(&format!("hang {function}"));
    let this = json!({"function": function, "hang": true});
    let gone = json!({"function": "nvmlDeviceGetCount_v2", "error": DRIVER_NOT_LOADED});
    fake.clear_trace();
    fake.put("faults", json!([gone, this])).unwrap();
    let closed = || {
        let over = hangs(fake) || !succeeded(&exporter.metrics()?);
        Ok(over.then_some(()))
    };
    exporter
        .process
        .wait_until("the library to be closed", SOON, closed)
        .unwrap();
    if !hangs(fake) {
        fake.put("faults", json!([this])).unwrap();
    }
    let what = format!("a call of {function} to hang");
    let probe = || Ok(hangs(fake).then_some(()));
    exporter.process.wait_until(&what, SOON, probe).unwrap();
}

fn age(text: &str) -> f64 {
    value(text, "nvlink_exporter_snapshot_age_seconds", &[]).unwrap()
}

#[test]
fn metrics_are_served_during_a_hang_in_any_function_and_recover_after_it() {
    let mut fake = board();
    let exporter = start(&fake, &[]);
    let functions = functions(&mut fake, &exporter);
    for expected in [
        "nvmlShutdown",
        "nvmlGpmSampleFree",
        "nvmlEventSetFree",
        "nvmlDeviceGetP2PStatus",
    ] {
        assert!(
            functions.contains(expected),
            "{expected} is not among {functions:?}"
        );
    }
    for function in &functions {
        hang(&mut fake, &exporter, function);
        // If the metrics waited for the library, they would not be served before the call
        // is released.
        let before = age(&exporter.metrics().unwrap());
        let what = format!("the data to age while {function} hangs");
        wait(&exporter, &what, |text| age(text) > before);
        fake.put("faults", json!([])).unwrap();
        let recovered = |text: &str| succeeded(text) && age(text) < before;
        wait(
            &exporter,
            &format!("the recovery from {function}"),
            recovered,
        );
    }
}

#[test]
fn data_from_before_a_hang_are_not_served_when_stale() {
    let mut fake = board();
    let exporter = start(&fake, &["--stale-after", "1s"]);
    good(&exporter);
    is_ready(&exporter);
    hang(&mut fake, &exporter, "nvmlDeviceGetFieldValues");
    let stale = |text: &str| age(text) > 1.0;
    let text = wait(&exporter, "the data to be old", stale);
    assert_eq!(series(&text, "nvlink_gpu_info"), []);
    assert_eq!(series(&text, "nvlink_link_up"), []);
    assert!(!succeeded(&text));
    for path in ["/readyz", "/api/v1/topology"] {
        let answer = http::get(&exporter.url(path), &[], "*/*").unwrap();
        assert_eq!(answer.status, 503, "{path}: {}", answer.body);
    }
    http::text(&exporter.url("/livez")).unwrap();
    fake.put("faults", json!([])).unwrap();
    assert_eq!(series(&good(&exporter), "nvlink_gpu_info").len(), 2);
    is_ready(&exporter);
}

/// Waits until the exporter is ready: on a busy machine, data may be a second old for a moment.
fn is_ready(exporter: &Exporter) {
    wait_until("readiness", SOON, || {
        http::text(&exporter.url("/readyz")).map(Some)
    })
    .unwrap();
}

#[test]
fn data_read_before_a_hang_are_stale_after_it() {
    let mut fake = board();
    // The interval is long enough to see the result of the hung collection before the next one.
    let arguments = ["--collection-interval", "2s", "--stale-after", "2500ms"];
    let exporter = fake.exporter(&arguments).unwrap();
    fake.put(
        "faults",
        json!([{"function": "nvmlDeviceGetFieldValues", "gpu": 1, "hang": true}]),
    )
    .unwrap();
    wait(&exporter, "the data to be old", |text| {
        series(text, "nvlink_exporter_snapshot_age_seconds")
            .iter()
            .any(|(_, age)| *age > 5.0)
    });
    // The next collection hangs at its first call, so that it does not replace the result of this one.
    let next = json!([{"function": "nvmlDeviceGetCount_v2", "hang": true}]);
    fake.put("faults", next).unwrap();
    let took = |text: &str| {
        value(
            text,
            "nvlink_exporter_collection_duration_seconds",
            &[("collector", "topology")],
        )
    };
    let ended = |text: &str| took(text).is_some_and(|took| took > 2.5);
    let text = wait(&exporter, "the hung collection to end", ended);
    assert_eq!(series(&text, "nvlink_gpu_info"), []);
    assert!(age(&text) > 2.5 && !succeeded(&text));
    fake.put("faults", json!([])).unwrap();
    assert_eq!(series(&good(&exporter), "nvlink_gpu_info").len(), 2);
}

#[test]
fn a_library_that_hangs_from_the_start_is_reported() {
    let mut fake = board();
    fake.put(
        "faults",
        json!([{"function": "nvmlInitWithFlags", "hang": true}]),
    )
    .unwrap();
    let exporter = start(&fake, &[]);
    let old = |text: &str| age(text) > 0.3;
    let text = wait(&exporter, "the wait to be reported", old);
    let success = "nvlink_exporter_collector_success";
    let success = value(&text, success, &[("collector", "topology")]);
    assert_eq!(success, Some(0.0));
    fake.put("faults", json!([])).unwrap();
    assert_eq!(series(&good(&exporter), "nvlink_gpu_info").len(), 2);
}
