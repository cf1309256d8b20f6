//! What `serve` exports of the results.

use std::{
    fs,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use nvlink_collectives::{
    Given, Inbox,
    follow::{Follower, Message},
    place,
    state::{Class, Kept},
    store, summary,
    verdict::Report,
};
use nvlink_exporter::{
    collect::collect,
    metrics::{self, Group, Groups},
    page,
    snapshot::Latest,
};
use nvlink_source::{Opener, SourceSpec};
use nvlink_topology::labels;
use serde_json::json;

use super::{
    runs,
    samples::{LOG, Test},
};
use crate::support::golden;

/// Returns an exporter's state with the readings of a simulated node.
fn latest() -> Arc<Latest> {
    let spec: SourceSpec = "sim:dgx-h100".parse().unwrap();
    let mut source = spec.open(Some("node-a")).unwrap();
    let latest = Arc::new(Latest::default());
    latest.publish(collect("sim:dgx-h100", source.as_mut(), Duration::ZERO));
    latest
}

/// Starts to follow a directory and termination messages.
fn follow(directory: Option<PathBuf>, inbox: &Inbox, latest: &Arc<Latest>) {
    let follower = Follower {
        directory,
        inbox: inbox.clone(),
        node: latest.clone(),
        interval: Duration::from_millis(10),
    };
    tokio::spawn(follower.run());
}

/// Waits until the metrics fulfil a condition, and returns those of the results.
async fn metrics(latest: &Latest, until: impl Fn(&str) -> bool) -> String {
    for _ in 0..1000 {
        let view = latest.view(Instant::now());
        let text = metrics::render(&view, Groups::NONE.with(Group::Collective)).unwrap();
        let lines = text.lines().filter(|line| line.contains("collective"));
        let text: String = lines.map(|line| format!("{line}\n")).collect();
        if until(&text) {
            return text;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("not in 10 s");
}

/// Returns the reports of an input that ended at `at`.
fn reports(text: &str, at: u64) -> Vec<Report> {
    let report = |(index, run)| Report {
        input: "x".to_owned(),
        kept: Kept::new(&run, "x", index, at),
        placed: place(run, &Given::default(), None),
        baseline: Default::default(),
    };
    (0..).zip(runs(text)).map(report).collect()
}

/// Keeps runs of 200 to 203 GB/s, a failed one, and one of another class.
fn keep(directory: &std::path::Path) {
    let spec = crate::support::reading("sim:dgx-h100").topology.spec;
    let wrong = Test {
        wrong: 7,
        ..Test::all_reduce(4, 100.0)
    };
    let texts = (0..4).map(|n| LOG.to_owned() + &Test::all_reduce(8, 200.0 + f64::from(n)).text());
    let texts = texts.chain([wrong.text()]);
    store::update(directory, |state| {
        for (at, text) in (1_800_000_000..).zip(texts) {
            for run in runs(&text) {
                let kept = Kept::new(&run, "x", 0, at);
                let placed = place(run, &Given::default(), Some(&spec));
                state.add(&Class::of(&placed).unwrap(), kept, placed.expected);
            }
        }
    })
    .unwrap();
}

#[tokio::test]
async fn the_state_becomes_metrics() {
    let directory = tempfile::tempdir().unwrap();
    keep(directory.path());
    let latest = latest();
    follow(
        Some(directory.path().to_owned()),
        &Inbox::default(),
        &latest,
    );
    let text = metrics(&latest, |text| text.contains("runs_total")).await;
    golden("ingest/metrics.prom", &text);
    // A file that becomes unreadable costs no results.
    let file = directory.path().join(store::FILE);
    let bytes = fs::read(&file).unwrap();
    fs::write(&file, "no JSON").unwrap();
    let broken = metrics(&latest, |text| text.contains(&success(0))).await;
    assert_eq!(broken.replace(&success(0), &success(1)), text);
    fs::write(&file, bytes).unwrap();
    metrics(&latest, |text| text.contains(&success(1))).await;
}

fn success(value: u8) -> String {
    format!("collector_success{{collector=\"collectives\"}} {value}")
}

#[tokio::test]
async fn a_directory_without_results_is_no_failure_but_it_must_exist() {
    let directory = tempfile::tempdir().unwrap();
    for (path, expected) in [
        (directory.path().to_owned(), 1),
        (directory.path().join("x"), 0),
    ] {
        let latest = latest();
        follow(Some(path), &Inbox::default(), &latest);
        let text = metrics(&latest, |text| text.contains(&success(expected))).await;
        assert!(!text.contains("runs_total"), "{text}");
    }
}

#[tokio::test]
async fn termination_messages_become_metrics() {
    let (latest, inbox) = (latest(), Inbox::default());
    follow(None, &inbox, &latest);
    let message = |text: String, at| Message { at, text };
    let summary = summary::write(&reports(&Test::all_reduce(8, 200.0).text(), 0));
    inbox.put(
        "uid-2/other".to_owned(),
        message("OOMKilled".to_owned(), 1_800_000_000),
    );
    let runs = |count: u8| {
        let series = "runs_total{collective=\"all_reduce\",model=\"NVIDIA H100 80GB HBM3\",gpus=\"8\",nodes=\"1\",path=\"NVLINK\"}";
        move |text: &str| text.contains(&format!("{series} {count}\n"))
    };
    for (uid, count) in [("uid-1", 1), ("uid-1", 1), ("uid-3", 2)] {
        inbox.put(
            format!("{uid}/ingest"),
            message(summary.clone(), 1_800_000_000),
        );
        metrics(&latest, |text| inbox.is_empty() && runs(count)(text)).await;
    }
    let text = metrics(&latest, runs(2)).await;
    for line in [
        "nvlink_collective_model_bytes_per_second{collective=\"all_reduce\",model=\"NVIDIA H100 80GB HBM3\",gpus=\"8\",nodes=\"1\",path=\"NVLINK\"} 478800000000\n",
        "size_class=\"large\"} 350000000000\n",
        "nvlink_collective_timestamp_seconds{collective=\"all_reduce\",model=\"NVIDIA H100 80GB HBM3\",gpus=\"8\",nodes=\"1\",path=\"NVLINK\"} 1800000000\n",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
}

#[tokio::test]
async fn a_termination_message_carries_what_the_log_says_of_nvls() {
    let (latest, inbox) = (latest(), Inbox::default());
    follow(None, &inbox, &latest);
    let test = Test::all_reduce(8, 200.0);
    let log = "gpu-0:4000:4010 [0] NCCL INFO 24 coll channels, 24 collnet channels, 0 nvls channels, 32 p2p channels, 32 p2p channels per peer\n";
    let text = test.head() + log + &test.table() + &test.foot();
    let text = summary::write(&reports(&text, 0));
    let at = 1_800_000_000;
    inbox.put("uid-1/ingest".to_owned(), Message { at, text });
    let rings = "nvlink_collective_model_bytes_per_second{collective=\"all_reduce\",model=\"NVIDIA H100 80GB HBM3\",gpus=\"8\",nodes=\"1\",path=\"NVLINK\"} 370800000000\n";
    metrics(&latest, |text| text.contains(rings)).await;
}

/// Publishes a reading of a node whose siblings measure `factor` of the constants.
fn calibrate(latest: &Latest, factor: f64) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("calibration.json");
    let calibration = json!({
        "apiVersion": "nvlink-domains.io/v1alpha1", "kind": "Calibration", "entries": [{
            "model": "NVIDIA H100 80GB HBM3", "path": "NVLINK", "factor": factor, "runs": 12,
            "measuredAt": 1_800_000_000, "sets": [{"gpus": 8, "factor": factor, "runs": 12}],
        }],
    });
    fs::write(&file, calibration.to_string()).unwrap();
    let opener = Opener::new("sim:dgx-h100".parse().unwrap(), Some("node-a".to_owned()));
    let mut source = opener.calibrated(Some(file)).open().unwrap();
    latest.publish(collect("sim:dgx-h100", source.as_mut(), Duration::ZERO));
}

#[tokio::test]
async fn a_node_is_compared_with_its_siblings() {
    let (latest, inbox) = (latest(), Inbox::default());
    calibrate(&latest, 1.0);
    follow(None, &inbox, &latest);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    // Three runs of 297 GB/s, where the constants say 370.8.
    let text = summary::write(&reports(&Test::all_reduce(8, 169.5).text(), 0));
    for n in 0..3 {
        let (at, text) = (now.as_secs() - n, text.clone());
        inbox.put(format!("uid-{n}/ingest"), Message { at, text });
    }
    let ratio = |value: &str| {
        let series = "nvlink_collective_siblings_ratio{model=\"NVIDIA H100 80GB HBM3\",gpus=\"8\",path=\"NVLINK\"}";
        let line = format!("{series} {value}\n");
        move |text: &str| text.contains(&line)
    };
    metrics(&latest, ratio("0.8")).await;
    let label = || {
        let document = latest.view(Instant::now()).document().unwrap();
        labels::node_labels(&document).remove(labels::SLOW)
    };
    assert_eq!(label().as_deref(), Some("true"));
    let page = page::render(&latest.view(Instant::now()), "/metrics");
    assert!(page.contains("benchmarks reach 80 % of what"), "{page}");
    // Its siblings are as slow. The runs are compared with the constants still.
    calibrate(&latest, 0.8);
    metrics(&latest, ratio("1.0")).await;
    assert_eq!(label(), None);
    let more = |n| {
        (
            format!("uid-{n}/ingest"),
            Message {
                at: now.as_secs(),
                text: text.clone(),
            },
        )
    };
    for (id, message) in [more(3), more(4)] {
        inbox.put(id, message);
    }
    let text = metrics(&latest, |text| text.contains("path=\"NVLINK\"} 5\n")).await;
    assert!(ratio("1.0")(&text), "{text}");
}
