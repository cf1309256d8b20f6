//! The demo, as `make demo` runs it.

use std::process::Command;

use nvlink_tests::assets;

/// Returns the text of the step with this title.
fn step<'a>(said: &'a str, title: &str) -> &'a str {
    let (_, rest) = said
        .split_once(&format!(". {title}\n"))
        .unwrap_or_else(|| panic!("no step {title:?}: {said}"));
    rest.split_once("\n\n\n").map_or(rest, |(step, _)| step)
}

/// Returns the UUIDs of the GPUs that the container got, by the log of its job.
fn visible(step: &str) -> Vec<&str> {
    let (_, list) = step.split_once(" NVIDIA_VISIBLE_DEVICES=").unwrap();
    list.lines().next().unwrap().split(',').collect()
}

/// Runs the demo, and returns what it said.
fn run(arguments: &[&str]) -> String {
    let mut demo = Command::new(env!("CARGO_BIN_EXE_demo"));
    let demo = demo.args(arguments).env_remove("KEEP").output().unwrap();
    let said = String::from_utf8_lossy(&demo.stdout).into_owned();
    let errors = String::from_utf8_lossy(&demo.stderr);
    assert!(demo.status.success(), "{errors}\n{said}");
    said
}

#[test]
fn the_demo_of_the_alerts_shows_them_from_the_fault_to_the_receiver() {
    let said = run(&["observe"]);
    for (title, alert, text) in [
        (
            "A link breaks",
            "NvlinkLinkDown",
            "GPU 3 on node dgx lacks 1 NVLinks",
        ),
        (
            "A job gets the wrong GPUs",
            "NvlinkPlacementPoor",
            "of the quality that was free",
        ),
        (
            "A job does not use its NVLinks",
            "NvlinkJobSlow",
            "The GPUs of pod team/finetune work",
        ),
    ] {
        let step = step(&said, title);
        let delivered = |line: &str| line.contains(alert) && line.ends_with("at the receiver");
        assert!(step.lines().any(delivered) && step.contains(text), "{step}");
    }
    let end = step(&said, "All are repaired");
    assert!(end.contains("all of them are resolved"), "{end}");
}

#[test]
fn the_demo_runs_its_jobs_on_real_nodes() {
    let said = run(&[]);

    shows_devices(&said);
    let without = step(&said, "The job without the webhook");
    assert!(without.contains("chose node l40s."), "{without}");
    assert_eq!(visible(without).len(), 4, "{without}");
    let with = step(&said, "The same job with the webhook");
    assert!(with.contains("chose node dgx."), "{with}");
    assert!(with.contains(" CUDA_VISIBLE_DEVICES=0,1,2,3\n"), "{with}");
    // The exporter reports the GPUs of the log.
    assert_eq!(visible(with).len(), 4, "{with}");
    for uuid in visible(with) {
        assert!(with.contains(&format!("UUID=\"{uuid}\"")), "{uuid}: {with}");
    }
    let end = step(&said, "Both jobs end");
    assert_eq!(end.matches("Complete   1/1").count(), 2, "{end}");
    shows_who_waits(step(&said, "A full cluster, and a job that waits"));
    let starts = step(&said, "The job starts where GPUs come free");
    let released = starts
        .matches("released to node dgx: it was its turn")
        .count();
    assert_eq!(released, 2, "{starts}");
    let restricted = step(&said, "A restricted class");
    assert!(restricted.contains("chose node dgx."), "{restricted}");
    shows_the_logs_of_gitlab(step(&said, "Jobs of GitLab"));
}

fn shows_devices(said: &str) {
    let devices = step(said, "Which GPUs a container gets, and in which order");
    let row = |board: &str, who: &str| {
        let mut lines = devices.lines().map(str::trim);
        let found = lines.find(|line| line.starts_with(board) && line.contains(who));
        found.unwrap_or_else(|| panic!("no {board}, {who}: {devices}"))
    };
    for (board, who, gpus) in [
        ("mesh", "counts links", " 3,5,6,7 "),
        ("mesh", "Preferred", " 2,3,7,6 "),
        ("pairs", "knows no links", " 0,3,5,6 "),
        ("pairs", "Preferred", " 0,1,2,3 "),
    ] {
        assert!(row(board, who).contains(gpus), "{devices}");
    }
    let order = " CUDA_VISIBLE_DEVICES=0,1,3,2";
    assert!(devices.contains(order), "{devices}");
    if !assets::lacks("resource.k8s.io/v1", 34) {
        let claimed = step(said, "Exactly these GPUs, by a claim");
        for part in [order, " gpu-3,gpu-4,gpu-0,gpu-7", " 2,3,7,6 "] {
            assert!(claimed.contains(part), "{claimed}");
        }
        let cards = step(said, "A network card with each GPU");
        for rank in ["rank-0", "rank-1"] {
            let with_card = |line: &str| {
                let card = rank.replace("rank", "nics");
                line.trim_start().starts_with(&card) && line.contains(" dra.net ")
            };
            assert!(cards.contains(rank), "{cards}");
            assert!(cards.lines().any(with_card), "{cards}");
        }
        let rack = step(said, "One job over two trays of a rack");
        for tray in ["tray-1", "tray-2"] {
            let with_channel = |line: &str| line.contains(tray) && line.ends_with("channel-0");
            assert!(rack.lines().any(with_channel), "{rack}");
        }
    }
}

fn shows_who_waits(full: &str) {
    for part in [
        "SchedulingGated",
        "position 1",
        "(7, ends in",
        "The page of the cluster shows",
    ] {
        assert!(full.contains(part), "{part}: {full}");
    }
}

fn shows_the_logs_of_gitlab(gitlab: &str) {
    // The demo wraps long lines.
    let gitlab = gitlab.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "position 1 of class ci-training",
        "rule not-authorized",
        "To grant this right to project 43",
        "trained, too",
        "Job succeeded",
    ] {
        assert!(gitlab.contains(part), "{part} is not in {gitlab}");
    }
    assert!(
        !gitlab.contains("Warning: nvlink-domains"),
        "that is in the runner's log: {gitlab}"
    );
}
