//! GPUs that disappear and return while jobs hold them, with a fake driver.

use nvlink_tests::{FakeNvml, Kubelet};
use serde_json::json;

use super::{Bench, held, of_pod, quality, topology, values};

/// Starts a bench whose GPUs 0 and 1, 2 and 3, 4 and 5, 6 and 7 are joined in pairs.
fn pairs() -> (FakeNvml, Bench) {
    let fake = FakeNvml::of_profile("a100-pcie-pairs").unwrap();
    let kubelet = Kubelet::start().unwrap();
    let socket = kubelet.socket().to_str().unwrap().to_owned();
    let arguments = [
        "--collection-interval",
        "100ms",
        "--kubelet-socket",
        &socket,
    ];
    let exporter = fake.exporter(&arguments).unwrap();
    let bench = Bench::of(exporter, kubelet);
    bench.wait_for("the first answer", |text| {
        super::succeeded(text) == Some(1.0)
    });
    (fake, bench)
}

/// Starts a bench where one pod holds one GPU of each pair, and then another pod gets the
/// other GPUs of two pairs.
fn crowded() -> (FakeNvml, Bench) {
    let (fake, bench) = pairs();
    bench.run_pod("old", &[0, 2, 5, 7]);
    bench.wait_for_pod("old", 4);
    bench.run_pod("new", &[1, 3]);
    let text = bench.wait_for_pod("new", 2);
    assert_eq!(quality(&text, "new").1, Some(1.0), "no pair was free");
    (fake, bench)
}

#[test]
fn the_record_of_free_gpus_is_kept_when_indices_move() {
    let (mut fake, bench) = crowded();
    fake.put("removed", json!([0])).unwrap();
    let text = bench.wait_for("other indices", |text| {
        // GPU 0 is gone; the kubelet still reports it for `old`.
        held(text, "new") == [0, 2] && quality(text, "new").1.is_some()
    });
    assert_eq!(quality(&text, "new").1, Some(1.0));
    fake.put("removed", json!([])).unwrap();
    let text = bench.wait_for("the old indices", |text| {
        held(text, "new") == [1, 3] && quality(text, "new").1.is_some()
    });
    assert_eq!(quality(&text, "new").1, Some(1.0));
}

#[test]
fn a_job_whose_gpus_are_lost_is_reported_and_unchanged_when_they_return() {
    let (mut fake, bench) = crowded();
    fake.put("lost", json!([1, 3])).unwrap();
    let text = bench.wait_for("the loss", |text| {
        values(text, "nvlink_gpu_lost", &[]).len() == 2 && quality(text, "new").0.is_none()
    });
    assert_eq!(held(&text, "new"), [1, 3], "the affected job is reported");
    for gpu in [1, 3] {
        let uuid = &bench.uuids[gpu];
        let labels = [("pod", "new"), ("UUID", uuid)];
        assert_eq!(values(&text, "nvlink_allocation_info", &labels), [1.0]);
    }
    assert_eq!(of_pod(&text, "nvlink_placement_gpus", "new"), Some(2.0));
    assert_eq!(of_pod(&text, "nvlink_placement_domains", "new"), None);
    let document = topology(&bench.exporter);
    let allocations = document["status"]["allocations"].as_array().unwrap();
    assert!(
        allocations.iter().all(|one| one["pod"] != "new"),
        "{allocations:?}"
    );
    bench.kubelet.remove_pod("ci", "old");
    bench.wait_for_pod("old", 0);
    fake.put("lost", json!([])).unwrap();
    let text = bench.wait_for("their return", |text| quality(text, "new").1.is_some());
    assert_eq!(
        quality(&text, "new").1,
        Some(1.0),
        "the record is from the start of the pod, not from the return of its GPUs"
    );
}
