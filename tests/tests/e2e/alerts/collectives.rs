//! Results of benchmarks: from the file that `ingest` watches to the notification.

use std::{
    fmt::Write,
    fs::{self, File},
    path::Path,
    time::{Duration, Instant, SystemTime},
};

use nvlink_tests::{Exporter, Process, command, programs, workdir};

use super::watch::{SOON, Targets, Wanted, Watch, rules, start};

pub(super) const ALERTS: &[Wanted<'_>] = &[
    ("wrong_results", "NvlinkCollectiveFailed"),
    ("slow", "NvlinkCollectiveFailed"),
];

/// For how long a failed run is news, and for how much of that the run of the test is.
const NEWS: Duration = Duration::from_secs(3 * 3600);
const LEFT: Duration = Duration::from_secs(60);

/// Returns what all_reduce_perf prints about a run of `gpus` GPUs with `gbps` GB/s and so many wrong
/// values.
fn output(gpus: u32, gbps: f64, wrong: u32) -> String {
    let mut text =
        "# nThread 1 nGpus 1 minBytes 8589934592 maxBytes 8589934592\n#\n# Using devices\n"
            .to_owned();
    let buses = ["1b", "43", "52", "61", "9d", "c3", "d1", "df"];
    for (rank, bus) in (0..gpus).zip(buses) {
        writeln!(
            text,
            "#  Rank {rank:2} Group  0 Pid {:6} on      gpu-0 device {rank:2} [0000:{bus}:00] NVIDIA H100 80GB HBM3",
            4000 + rank
        )
        .unwrap();
    }
    let bus = gbps * 2.0 * f64::from(gpus - 1) / f64::from(gpus);
    let time = 8_589_934_592.0 / gbps / 1e3;
    let values = format!("{time:7.1}  {gbps:6.2}  {bus:6.2}  {wrong:6}");
    let (sum, word) = if wrong > 0 {
        (wrong, "FAILED")
    } else {
        (0, "OK")
    };
    text + "#\n#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)       \n"
        + &format!("  8589934592    2147483648     float     sum      -1  {values}  {values}\n")
        + &format!("# Out of bounds values : {sum} {word}\n# Avg bus bandwidth    : {bus:.3} \n#\n")
}

/// Writes a result that ended at `at` under its final name.
fn write(results: &Path, name: &str, text: &str, at: SystemTime) {
    let path = results.join(format!("{name}.tmp"));
    fs::write(&path, text).unwrap();
    File::open(&path).unwrap().set_modified(at).unwrap();
    fs::rename(&path, results.join(name)).unwrap();
}

/// Starts `ingest --watch`.
fn ingest(results: &Path, state: &Path) -> Process {
    let mut ingest = command(programs::path(programs::EXPORTER).unwrap());
    ingest.args(["ingest", "--interval", "1s", "--source", "sim:dgx-h100"]);
    ingest.arg("--watch").arg(results).arg("--state").arg(state);
    Process::start("ingest", &workdir::fresh("ingest").unwrap(), ingest).unwrap()
}

fn serving(state: &Path) -> Exporter {
    start(
        "bench",
        "dgx-h100",
        &["--collectives", state.to_str().unwrap()],
    )
}

/// Waits until Prometheus has read of the failure from the exporter for a while.
fn wait_until_read(watch: &Watch, exporter: &Exporter) {
    let seen = format!(
        "count_over_time(nvlink_collective_failures_total{{instance=\"{}\", reason=\"wrong_results\"}}[10s]) >= 5 and on () sum(nvlink_collective_failures_total) == 1",
        exporter.address
    );
    let any = |samples: &[nvlink_tests::Sample]| !samples.is_empty();
    watch.prometheus.wait_for(&seen, SOON, any).unwrap();
}

#[test]
fn a_benchmark_that_fails_and_one_that_is_slow_are_notified_once() {
    let results = workdir::fresh("results").unwrap();
    let state = workdir::fresh("collectives").unwrap();
    let _ingest = ingest(&results, &state);
    let exporter = serving(&state);
    let targets = Targets::new();
    targets.set(&[&exporter.address]);
    let watch = Watch::of(
        vec![targets.job("nvlink-exporter")],
        &rules(&["webhook.yaml"]),
        1,
    );
    let begin = Instant::now();
    let now = SystemTime::now();
    write(&results, "slow.txt", &output(8, 90.0, 0), now);
    write(
        &results,
        "wrong.txt",
        &output(4, 200.0, 3),
        now - NEWS + LEFT,
    );
    watch.wait_until_firing(begin, ALERTS);
    let wrong = watch.received(ALERTS[0]);
    assert_eq!(wrong[0].label("gpus"), "4");
    let slow = watch.received(ALERTS[1]);
    assert_eq!(
        (&*slow[0].receiver, slow[0].label("size_class")),
        ("platform-chat", "large")
    );

    // The exporter restarts at another address while the failure is news.
    drop(exporter);
    let exporter = serving(&state);
    targets.set(&[&exporter.address]);
    write(
        &results,
        "good.txt",
        &output(8, 200.0, 0),
        SystemTime::now(),
    );
    watch.wait_until_resolved(ALERTS);

    // It restarts again, and reads of the same failure, which is old now.
    drop(exporter);
    let exporter = serving(&state);
    targets.set(&[&exporter.address]);
    wait_until_read(&watch, &exporter);
    let again = "ALERTS{reason=\"wrong_results\"}";
    assert_eq!(watch.prometheus.query(again).unwrap(), []);
    let told = watch.received(ALERTS[0]);
    let mut told: Vec<_> = told.iter().map(|note| &*note.status).collect();
    // A notification names all alerts of its group, also those that are not news.
    told.dedup();
    assert_eq!(told, ["firing", "resolved"]);
}
