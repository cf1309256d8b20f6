//! A kubelet that fails, hangs, stops and restarts.

use nvlink_tests::{
    Exporter,
    kubelet::{Container, Mood},
    wait_until,
};

use super::{Bench, GPU, SOON, held, succeeded, topology, values};

/// Asserts that allocations are reported only as unknown.
fn assert_unknown(text: &str) {
    assert_eq!(succeeded(text), Some(0.0));
    for name in [
        "nvlink_allocation_info",
        "nvlink_placement_",
        "nvlink_domain_free_gpus",
        "nvlink_largest_free_set_gpus",
    ] {
        let series = text.lines().find(|line| line.starts_with(name));
        assert_eq!(series, None, "stale");
    }
    assert!(
        !values(text, "nvlink_gpu_info", &[]).is_empty(),
        "other metrics are served"
    );
}

#[test]
fn a_kubelet_that_fails_or_restarts_is_queried_again() {
    let mut bench = Bench::start("sim:dgx1-v100");
    bench.run_pod("job", &[0, 1]);
    let before = bench.wait_for_pod("job", 2);

    bench.kubelet.set_mood(Mood::Fails);
    assert_unknown(&bench.wait_for("the failure", |text| succeeded(text) == Some(0.0)));
    let document = topology(&bench.exporter);
    assert!(document.get("status").is_none(), "{}", document["status"]);
    bench.kubelet.set_mood(Mood::Answers);
    let after = bench.wait_for_pod("job", 2);
    assert_eq!(
        super::quality(&after, "job"),
        super::quality(&before, "job")
    );
    let log = bench.exporter.process.log();
    assert_eq!(log.matches("the checkpoint is corrupt").count(), 1, "{log}");

    bench.kubelet.stop();
    assert_unknown(&bench.wait_for("its absence", |text| succeeded(text) == Some(0.0)));
    bench.kubelet.restart().unwrap();
    let after = bench.wait_for_pod("job", 2);
    assert_eq!(
        super::quality(&after, "job"),
        super::quality(&before, "job")
    );
    // The kubelet has a new socket, and the exporter still runs. It reports a pod that
    // started in between.
    bench.kubelet.restart().unwrap();
    bench.run_pod("next", &[4]);
    assert_eq!(held(&bench.wait_for_pod("next", 1), "job"), [0, 1]);
}

#[test]
fn a_kubelet_that_hangs_does_not_delay_scrapes() {
    let bench = Bench::start("sim:dgx1-v100");
    bench.run_pod("job", &[0, 1]);
    bench.wait_for_pod("job", 2);
    bench.kubelet.set_mood(Mood::Hangs);
    let text = wait_until("the deadline", SOON, || {
        let text = bench.exporter.metrics().unwrap();
        Ok((succeeded(&text) == Some(0.0)).then_some(text))
    })
    .unwrap();
    assert_unknown(&text);
    let log = bench.exporter.process.log();
    assert!(log.contains("has not answered within 3 s"), "{log}");
    bench.kubelet.set_mood(Mood::Answers);
    bench.wait_for_pod("job", 2);
}

#[test]
fn unrecognised_device_names_make_the_free_gpus_unknown() {
    let bench = Bench::start("sim:dgx1-v100");
    bench.run_pod("job", &[0, 1]);
    bench.wait_for_pod("job", 2);
    let free = |text: &str| {
        let names = ["nvlink_domain_free_gpus", "nvlink_largest_free_set_gpus"];
        names.map(|name| values(text, name, &[]))
    };
    let six = [vec![6.0], vec![6.0]];
    let run = |id: &str| {
        let main = Container::named("main").holding(GPU, &[id]);
        bench.kubelet.run_pod("ci", "odd", [main]);
    };
    // A UUID that is not of this node does not affect its free GPUs.
    run("GPU-99999999-9999-9999-9999-999999999999");
    let log = || bench.exporter.process.log();
    let told = || Ok(log().contains("GPU-99999999").then_some(()));
    wait_until("the warning", SOON, told).unwrap();
    assert_eq!(free(&bench.exporter.metrics().unwrap()), six);
    run(&format!("vfio-17{}", "x".repeat(1 << 20)));
    let text = bench.wait_for("no metrics of free GPUs", |text| free(text)[0].is_empty());
    assert!(free(&text).iter().all(Vec::is_empty), "{:?}", free(&text));
    assert_eq!(held(&text, "job"), [0, 1], "other allocations stay");
    let longest = log().lines().map(str::len).max();
    assert!(longest < Some(1000), "{longest:?}");
    bench.kubelet.remove_pod("ci", "odd");
    bench.wait_for("the free GPUs", |text| free(text) == six);
}

#[test]
fn a_missing_kubelet_that_is_required_is_a_failure() {
    let arguments = [
        "--source",
        "sim:l40s",
        "--kubelet-socket",
        "/nowhere/kubelet.sock",
    ];
    let exporter = Exporter::start(&arguments).unwrap();
    let text = wait_until("the failure", SOON, || {
        let text = exporter.metrics()?;
        Ok(succeeded(&text).map(|_| text))
    })
    .unwrap();
    assert_unknown(&text);
    let log = exporter.process.log();
    assert!(
        log.contains("/nowhere/kubelet.sock") && log.contains("--kubelet-socket none"),
        "{log}"
    );
}
