//! Measured bandwidths in place of constants.

use std::{fs, path::Path};

use serde_json::{Value, json};

use super::{failure, run, text};

/// Writes a calibration of the pairs' NVLinks, and returns its path.
fn file(directory: &Path, factor: f64) -> String {
    let entry = json!({
        "model": "NVIDIA A100-PCIE-40GB", "path": "NVLINK", "factor": factor, "runs": 12,
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
    // Links that measure worse than PCIe are not preferred to it.
    let path = file(directory.path(), 0.02);
    let slow = json(&["--calibration", &path]);
    assert_eq!(slow["quality"]["node"], 1.0);
    assert_eq!(slow["domain"], Value::Null, "{slow}");
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
    let (_, error) = fails("/nonexistent/calibration.json");
    assert!(
        error.contains("/nonexistent/calibration.json: cannot be read"),
        "{error}"
    );
}
