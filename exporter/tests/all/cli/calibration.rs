//! Measured bandwidths in place of constants.

use std::{fs, path::Path};

use serde_json::{Value, json};

use super::{failure, run, text};

/// Writes a calibration of the pairs' NVLinks, and returns its path.
fn file(directory: &Path, factor: f64) -> String {
    let entry = json!({
        "model": "NVIDIA A100 80GB PCIe", "path": "NVLINK", "factor": factor, "runs": 12,
        "measuredAt": 1_700_000_000, "laterVersions": "may have more keys",
    });
    let calibration = json!({
        "apiVersion": "nvlink-domains.io/v1alpha1", "kind": "Calibration", "entries": [entry],
    });
    let path = directory.join("calibration.json");
    fs::write(&path, calibration.to_string()).unwrap();
    path.to_str().unwrap().to_owned()
}

const PLACE: [&str; 5] = ["place", "--source", "sim:a100-pcie-pairs", "--gpus", "2"];

#[test]
fn a_placement_uses_and_names_what_was_measured() {
    let directory = tempfile::tempdir().unwrap();
    let place = |args: &[&str]| text(run(&[&PLACE[..], args].concat()));
    let json = |args: &[&str]| -> Value {
        serde_json::from_str(&place(&[&["--output", "json"], args].concat())).unwrap()
    };
    let path = file(directory.path(), 0.5);
    let (constant, measured) = (json(&[]), json(&["--calibration", &path]));
    let rate = |placement: &Value| placement["bottleneckBytesPerSecond"].as_u64().unwrap();
    assert_eq!(rate(&measured), rate(&constant) / 2);
    assert_eq!(constant.get("calibration"), None);
    assert_eq!(measured["calibration"][0]["factor"], 0.5);
    let table = place(&["--calibration", &path]);
    assert!(
        table.contains("bandwidths               measured: NVLINK × 0.50 (12 runs)\n"),
        "{table}"
    );
}

#[test]
fn a_calibration_that_cannot_be_used_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = file(directory.path(), 50.0);
    let fails = |path: &str| failure(&run(&[&PLACE[..], &["--calibration", path]].concat()));
    let (status, error) = fails(&path);
    assert_eq!(status, 1);
    assert!(
        error.ends_with("entries[0].factor: 50; possible are 0.02 to 4"),
        "{error}"
    );
    fs::write(&path, "{\"kind\": 3}").unwrap();
    let (_, error) = fails(&path);
    assert!(error.contains("kind: invalid type: integer `3`"), "{error}");
    fs::write(&path, "nccl-tests").unwrap();
    let (_, error) = fails(&path);
    assert!(
        error.contains("not a calibration, which `nvlink-exporter calibration make` writes"),
        "{error}"
    );
    // A device never ends, and a pipe may never begin.
    let (_, error) = fails("/dev/zero");
    assert!(error.contains("not a regular file"), "{error}");
    let (_, error) = fails("/nonexistent/calibration.json");
    assert!(
        error.contains("/nonexistent/calibration.json: cannot be read"),
        "{error}"
    );
}

/// Keeps a run of all_reduce on all eight GPUs of a simulated DGX in `state`.
fn keep(directory: &Path, number: usize, bus: f64) {
    let alg = bus / 1.75;
    let time = 8_589_934_592.0 / alg / 1000.0;
    let text = format!(
        "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n\
         #        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)\n\
         8589934592    2147483648     float     sum      -1    {time:.0}  {alg:.2}  {bus:.2}      0    {time:.0}  {alg:.2}  {bus:.2}      0\n\
         # Out of bounds values : 0 OK\n# Avg bus bandwidth    : {bus:.3}\n"
    );
    let path = directory.join(format!("run-{number}.txt"));
    fs::write(&path, text).unwrap();
    let state = directory.join("state");
    let place = ["--collective", "all_reduce", "--gpus", "8", "--nodes", "1"];
    let arguments = [
        "ingest",
        path.to_str().unwrap(),
        "--source",
        "sim:dgx-h100",
        "--state",
    ];
    let state = [state.to_str().unwrap()];
    text_of(&[&arguments[..], &state, &place].concat());
}

fn text_of(args: &[&str]) -> String {
    text(run(args))
}

#[test]
fn a_calibration_is_made_of_benchmarks_and_used() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    let state = state.to_str().unwrap();
    // 370.8 GB/s is what 18 links of NVLink 4 carry, by NCCL's constant.
    keep(directory.path(), 0, 333.7);
    keep(directory.path(), 1, 333.8);
    let (status, error) = failure(&run(&["calibration", "make", state]));
    assert_eq!(status, 1);
    assert!(error.contains("has 3 good runs of all_reduce"), "{error}");
    keep(directory.path(), 2, 333.6);
    let made = text_of(&["calibration", "make", state]);
    let file = directory.path().join("calibration.json");
    fs::write(&file, &made).unwrap();
    let file = file.to_str().unwrap();
    let shown = text_of(&["calibration", "show", file]);
    let row: Vec<_> = shown.lines().nth(1).unwrap().split_whitespace().collect();
    let expected = "NVIDIA H100 80GB HBM3 NVLINK 0.90 3 today";
    assert_eq!(row.join(" "), expected);
    let place = ["place", "--source", "sim:dgx-h100", "--gpus", "8"];
    let table = text_of(&[&place[..], &["--calibration", file]].concat());
    assert!(
        table.contains("334 GB/s") && table.contains("× 0.90 (3 runs)"),
        "{table}"
    );

    // A benchmark is compared with the constants, not with earlier benchmarks.
    let record = directory.path().join("node.json");
    let record = record.to_str().unwrap();
    text_of(&[
        "record",
        "--source",
        "sim:dgx-h100",
        "--calibration",
        file,
        "--to",
        record,
    ]);
    let source = format!("file:{record}");
    let output = run(&["ingest", record, "--source", &source]);
    let (_, error) = failure(&output);
    assert!(error.contains("record it without --calibration"), "{error}");
    let (_, error) = failure(&run(&["calibration", "make", "/nonexistent"]));
    assert!(error.contains("/nonexistent/collectives.json"), "{error}");
}

/// 478 GB/s are what the switches make of links that carry no more than without them.
#[test]
fn what_switches_gain_makes_no_path_faster() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    for (number, bus) in [477.9, 478.0, 478.1].into_iter().enumerate() {
        keep(directory.path(), number, bus);
    }
    let made = text_of(&["calibration", "make", state.to_str().unwrap()]);
    let calibration: Value = serde_json::from_str(&made).unwrap();
    let entry = &calibration["entries"][0];
    let near = |value: &Value, expected: f64| (value.as_f64().unwrap() - expected).abs() < 0.01;
    assert!(near(&entry["factor"], 1.0), "{entry}");
    assert!(
        near(&entry["sets"][0]["factor"], 1.29),
        "as siblings are compared: {entry}"
    );
    let file = directory.path().join("calibration.json");
    let file = file.to_str().unwrap();
    let rate = |calibration: &str, pattern: &str| {
        fs::write(file, calibration).unwrap();
        let gpus = [
            "place",
            "--source",
            "sim:dgx-h100",
            "--gpus",
            "8",
            "--output",
            "json",
        ];
        let with = ["--pattern", pattern, "--calibration", file];
        let placed: Value = serde_json::from_str(&text_of(&[&gpus[..], &with].concat())).unwrap();
        placed["bottleneckBytesPerSecond"].as_u64().unwrap()
    };
    for pattern in ["all-reduce", "pipeline", "all-to-all"] {
        let usable = rate(&made, pattern);
        assert!(
            (369_000_000_000..372_000_000_000).contains(&usable),
            "{pattern}: {usable}"
        );
        // A file of an earlier version says 1.3: the links of an H100 carry 450 GB/s.
        let mut earlier = calibration.clone();
        earlier["entries"][0]["factor"] = json!(1.3);
        assert_eq!(
            rate(&earlier.to_string(), pattern),
            450_000_000_000,
            "{pattern}"
        );
    }
}

/// An earlier version kept runs without what the model expects of each.
#[test]
fn runs_that_an_earlier_version_kept_are_still_used() {
    let directory = tempfile::tempdir().unwrap();
    for (number, bus) in [477.9, 478.0, 478.1].into_iter().enumerate() {
        keep(directory.path(), number, bus);
    }
    let state = directory.path().join("state");
    let file = state.join("collectives.json");
    let mut kept: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let entry = &mut kept["collectives"][0];
    entry["expectedBytesPerSecond"] = json!(370_800_000_000_u64);
    for run in entry["runs"].as_array_mut().unwrap() {
        run.as_object_mut().unwrap().remove("model").unwrap();
    }
    fs::write(&file, kept.to_string()).unwrap();
    let make = || -> Value {
        serde_json::from_str(&text_of(&["calibration", "make", state.to_str().unwrap()])).unwrap()
    };
    let factor = |made: &Value| (made["entries"][0]["factor"].as_f64().unwrap() * 100.0).round();
    assert_eq!(factor(&make()), 129.0);
    // The next run says what the switches add, for all.
    keep(directory.path(), 3, 478.2);
    assert_eq!(factor(&make()), 100.0);
}
