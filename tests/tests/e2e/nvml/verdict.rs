//! What the driver itself says of a GPU.

use nvlink_tests::{FakeNvml, check_metrics};
use serde_json::json;

use super::scrape::{good, series, start, those, value, wait};

const ACTION: &str = "nvlink_gpu_recovery_action";
const UNHEALTHY: &str = "nvlink_gpu_unhealthy";

/// Reports whether GPU 3 is marked for `reason`.
fn is_marked(text: &str, reason: &str) -> bool {
    value(text, UNHEALTHY, &[("gpu", "3"), ("reason", reason)]) == Some(1.0)
}

#[test]
fn the_verdict_of_the_driver_marks_a_gpu_until_it_ends() {
    let mut fake = FakeNvml::of_profile("dgx-h100").unwrap();
    let exporter = start(&fake, &[]);
    let text = good(&exporter);
    assert_eq!(those(&text, ACTION, &[("action", "none")]).len(), 8);
    assert_eq!(
        value(&text, ACTION, &[("gpu", "3"), ("action", "none")]),
        Some(1.0)
    );
    assert_eq!(series(&text, UNHEALTHY), []);
    let words = ["gpu_reset", "node_reboot", "drain_p2p", "drain_and_reset"];
    for (number, word) in (1..).zip(words) {
        fake.put("gpus", json!({"3": {"recoveryAction": number}}))
            .unwrap();
        let reason = format!("recovery-{}", word.replace('_', "-"));
        let text = wait(&exporter, "the action", |text| is_marked(text, &reason));
        assert_eq!(
            value(&text, ACTION, &[("gpu", "3"), ("action", word)]),
            Some(1.0)
        );
        assert_eq!(series(&text, UNHEALTHY).len(), 1, "{word}");
        check_metrics(&text).unwrap();
    }
    let rows = json!({"3": {"recoveryAction": 5, "rowRemapPending": true, "rowRemapFailed": true}});
    fake.put("gpus", rows).unwrap();
    let text = wait(&exporter, "the rows", |text| {
        is_marked(text, "row-remap-failed")
    });
    assert!(is_marked(&text, "row-remap-pending"));
    assert_eq!(series(&text, UNHEALTHY).len(), 2, "not for the IMEX domain");
    let imex = [("gpu", "3"), ("action", "recover_imex_domain")];
    assert_eq!(value(&text, ACTION, &imex), Some(1.0));
    // Neither an XID that the GPU survived nor the past marks it.
    fake.put("xids", json!([{"gpu": 3, "xid": 64}])).unwrap();
    fake.put("gpus", json!({})).unwrap();
    let text = wait(&exporter, "the XID", |text| {
        !series(text, "nvlink_xid_errors_total").is_empty() && series(text, UNHEALTHY).is_empty()
    });
    assert_eq!(
        value(
            &text,
            "nvlink_gpu_row_remap",
            &[("gpu", "3"), ("state", "failed")]
        ),
        Some(0.0)
    );
}

#[test]
fn an_older_driver_has_only_xids_and_rows() {
    let mut fake = FakeNvml::of_profile("dgx-h100").unwrap();
    fake.put("driverVersion", json!("550.54.15")).unwrap();
    let exporter = start(&fake, &[]);
    let text = good(&exporter);
    assert_eq!(series(&text, ACTION), []);
    assert_eq!(series(&text, "nvlink_gpu_row_remap").len(), 16);
    fake.put(
        "xids",
        json!([{"gpu": 3, "xid": 64}, {"gpu": 4, "xid": 145}]),
    )
    .unwrap();
    let text = wait(&exporter, "the XID", |text| is_marked(text, "xid-64"));
    assert_eq!(series(&text, "nvlink_xid_errors_total").len(), 2);
    assert_eq!(
        series(&text, UNHEALTHY).len(),
        1,
        "the event of 145 does not say whether it was fatal"
    );
}
