//! Recordings with what moves: written, read back, replayed, changed and broken.

#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod support;

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::{Command, Output, Stdio},
    sync::LazyLock,
    time::{Duration, Instant},
};

use nvlink_exporter::source::{
    FabricHealth, FabricState, GpuHealth, Reading, Source, SourceSpec, file, recording::Recorder,
    sim,
};
use proptest::prelude::*;

/// A node of `source`, read at each of `seconds`, as a recording.
fn record(source: &mut dyn Source, seconds: &[u64]) -> String {
    let mut recorder: Option<Recorder> = None;
    for &second in seconds {
        let at = Duration::from_secs(second);
        let reading = source.read(at).unwrap();
        let new = || Recorder::new(&reading.topology).unwrap();
        assert!(recorder.get_or_insert_with(new).add(at, &reading).unwrap());
    }
    recorder.unwrap().text()
}

fn simulated(profile: &str) -> Box<dyn Source> {
    let spec: SourceSpec = format!("sim:{profile}").parse().unwrap();
    spec.open(Some("node-a")).unwrap()
}

/// The source `file` of `text`, in `directory`.
fn replayed(directory: &Path, text: &str) -> file::FileSource {
    let path = directory.join("node.json");
    fs::write(&path, text).unwrap();
    file::FileSource::new(path.display().to_string(), None)
}

fn parse(bytes: &[u8]) -> Result<Reading, String> {
    file::parse("x", bytes, None).map_err(|error| {
        let text = error.to_string();
        assert!(text.starts_with("x: ") && !text.contains('\n'), "{text}");
        text
    })
}

#[test]
fn a_recording_of_a_recording_is_the_same() {
    let directory = tempfile::tempdir().unwrap();
    for name in sim::names() {
        for seconds in [&[0][..], &[0, 5, 10, 60]] {
            let text = record(simulated(name).as_mut(), seconds);
            let again = record(&mut replayed(directory.path(), &text), seconds);
            assert!(text == again, "{name} {seconds:?} differs");
        }
    }
}

#[test]
fn a_replay_has_the_rates_of_the_recording_and_never_falls() {
    let seconds: Vec<_> = (0..=12).map(|n| 5 * n).collect();
    let text = record(simulated("h200-degraded").as_mut(), &seconds);
    let directory = tempfile::tempdir().unwrap();
    let mut source = replayed(directory.path(), &text);
    let mut real = simulated("h200-degraded");
    let total = |reading: &Reading| -> u64 {
        reading
            .counters
            .iter()
            .filter_map(|link| link.transmit_bytes)
            .sum()
    };
    let mut before = BTreeMap::new();
    for second in (0..=300).step_by(5) {
        let now = Duration::from_secs(second);
        let (replay, real) = (source.read(now).unwrap(), real.read(now).unwrap());
        assert_eq!(replay.counters.len(), real.counters.len());
        // The simulated job repeats itself each minute, and so does the recording.
        let (replayed, real) = (total(&replay) as f64, total(&real) as f64);
        assert!(
            (replayed - real).abs() <= real * 1e-6,
            "at {second} s: {replayed}, not {real}"
        );
        for link in replay.counters {
            let key = (link.gpu, link.link);
            let now = (link.transmit_bytes, link.receive_bytes, link.errors);
            let then = before.insert(key, now.clone()).unwrap_or_default();
            assert!(
                now.0 >= then.0 && now.1 >= then.1 && now.2 >= then.2,
                "{key:?} at {second} s"
            );
        }
    }
}

#[test]
fn health_is_kept() {
    let mut reading = support::reading("sim:rtx-a6000-pairs");
    let fabric = FabricHealth {
        state: FabricState::Failed,
        conditions: Vec::new(),
    };
    reading.health = vec![GpuHealth {
        gpu: 1,
        fabric: Some(fabric),
        xids: Some(vec![(74, 2)]),
    }];
    let mut recorder = Recorder::new(&reading.topology).unwrap();
    recorder.add(Duration::ZERO, &reading).unwrap();
    let again = parse(recorder.text().as_bytes()).unwrap();
    assert_eq!(
        (again.health, again.counters),
        (reading.health, reading.counters)
    );
}

#[test]
fn without_moving_parts_it_is_the_document_alone() {
    let reading = file::parse("x", support::PAIRS.as_bytes(), Some("n")).unwrap();
    let mut recorder = Recorder::new(&reading.topology).unwrap();
    recorder.add(Duration::ZERO, &reading).unwrap();
    let document = nvlink_exporter::output::json(&reading.topology).unwrap();
    assert_eq!(recorder.text(), document);
    assert!(!recorder.is_moving());
}

#[test]
fn a_recording_that_could_not_be_read_back_takes_no_more() {
    let reading = support::reading("sim:gb200-nvl72");
    let mut recorder = Recorder::new(&reading.topology).unwrap();
    let added = (0..2000).take_while(|&n| recorder.add(Duration::from_secs(n), &reading).unwrap());
    assert!((2..2000).contains(&added.count()));
    assert!(parse(recorder.text().as_bytes()).is_ok());
}

#[test]
fn contradictions_name_their_place() {
    let text = record(simulated("rtx-a6000-pairs").as_mut(), &[0, 1]);
    let case = |change: &dyn Fn(&mut serde_json::Value), expected: &str| {
        let mut document: serde_json::Value = serde_json::from_str(&text).unwrap();
        change(&mut document["samples"]);
        let error = parse(document.to_string().as_bytes()).unwrap_err();
        assert!(error.starts_with(&format!("x: {expected}")), "{error}");
    };
    case(
        &|samples| *samples = 1.into(),
        "samples: invalid type: integer",
    );
    case(
        &|samples| samples[1]["seconds"] = 0.into(),
        "samples[1].seconds: not later",
    );
    case(
        &|samples| samples[0]["seconds"] = (-1).into(),
        "samples[0].seconds: no time",
    );
    case(
        &|samples| samples[0]["counters"][2]["gpu"] = 9.into(),
        "samples[0].counters[2].gpu: GPU 9 is not in",
    );
    case(
        &|samples| samples[1]["counters"][3]["link"] = "a".into(),
        "samples[1].counters[3].link: invalid type",
    );
    case(
        &|samples| samples[1]["counters"][1] = samples[1]["counters"][0].clone(),
        "samples[1].counters[1]: a second link 0 of GPU 0",
    );
    case(
        &|samples| {
            samples[0]["counters"][0]["errors"] = serde_json::json!([["replay", 1], ["replay", 2]])
        },
        "samples[0].counters[0].errors[1]: a second one",
    );
    case(
        &|samples| samples[0]["counters"][0]["errors"] = serde_json::json!([["tea", 1]]),
        "samples[0].counters[0].errors[0]",
    );
    case(
        &|samples| {
            samples[0]["counters"][0]["bitErrorRatios"] = serde_json::json!([["symbol", -1.0]])
        },
        "samples[0].counters[0].bitErrorRatios: below 0",
    );
    case(
        &|samples| samples[0]["health"] = serde_json::json!([{"gpu": 7}]),
        "samples[0].health[0].gpu: GPU 7",
    );
    // Keys of later versions are no contradiction.
    let later = text.replacen("{\"seconds\":", "{\"weather\":{\"wet\":1},\"seconds\":", 1);
    assert_eq!(parse(later.as_bytes()).unwrap().counters.len(), 16);
}

fn program(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nvlink-exporter"));
    command
        .args(args)
        .env_remove("NODE_NAME")
        .stdin(Stdio::null());
    command
}

fn samples(path: &Path) -> Vec<f64> {
    let document: serde_json::Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let samples = document["samples"].as_array().cloned().unwrap_or_default();
    samples
        .iter()
        .map(|sample| sample["seconds"].as_f64().unwrap())
        .collect()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn the_program_takes_samples() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("node.json");
    let to = path.to_str().unwrap();
    let args = [
        "record",
        "--source",
        "sim:rtx-a6000-pairs",
        "--samples",
        "3",
        "--interval",
        "100ms",
        "--to",
        to,
    ];
    let output = program(&args).output().unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
    let times = samples(&path);
    assert!(
        times.len() == 3 && times[0] == 0.0 && times[1] >= 0.1 && times[2] >= 0.2,
        "{times:?}"
    );
    // One reading keeps the counters, too.
    let output = program(&["record", "--source", "sim:rtx-a6000-pairs"])
        .output()
        .unwrap();
    assert!(
        String::from_utf8(output.stdout)
            .unwrap()
            .contains("\"samples\": [\n    {\"seconds\":0.0,")
    );
    // A source without counters says so.
    let capture = directory.path().join("topo.txt");
    fs::write(&capture, support::PAIRS).unwrap();
    let source = format!("file:{}", capture.display());
    let output = program(&[
        "record",
        "--source",
        &source,
        "--samples",
        "2",
        "--interval",
        "100ms",
    ])
    .output()
    .unwrap();
    assert!(
        output.status.success() && stderr(&output).contains("has no counters"),
        "{output:?}"
    );
    for bad in [["--samples", "0"], ["--interval", "1"], ["--samples", "x"]] {
        let output = program(&["record", "--source", "sim:l40s"])
            .args(bad)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{bad:?}");
    }
}

#[test]
fn an_interrupted_recording_keeps_what_there_is() {
    for signal in ["INT", "TERM"] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("node.json");
        let to = path.to_str().unwrap();
        let args = [
            "record",
            "--source",
            "sim:rtx-a6000-pairs",
            "--samples",
            "1000",
            "--interval",
            "200ms",
            "--to",
            to,
        ];
        let child = program(&args).stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(2600));
        assert!(!path.exists(), "nothing is written before the end");
        let id = child.id().to_string();
        let start = Instant::now();
        assert!(
            Command::new("kill")
                .args(["-s", signal, &id])
                .status()
                .unwrap()
                .success()
        );
        let output = child.wait_with_output().unwrap();
        assert!(
            output.status.success() && start.elapsed() < Duration::from_secs(2),
            "{output:?}"
        );
        let taken = samples(&path).len();
        assert!((5..20).contains(&taken), "{taken}");
        let said = stderr(&output);
        assert!(
            said.contains(&format!("{taken} of 1000 samples are recorded")),
            "{said}"
        );
        assert!(said.contains(" of 1000, 2 of 199 s"), "progress: {said}");
        assert_eq!(
            fs::read_dir(directory.path()).unwrap().count(),
            1,
            "a temporary file is left"
        );
    }
}

/// The paths of all values of a document.
fn places(value: &serde_json::Value, at: String, all: &mut Vec<String>) {
    match value {
        serde_json::Value::Object(map) => {
            for (key, value) in map {
                places(value, format!("{at}/{key}"), all);
            }
        }
        serde_json::Value::Array(list) => {
            for (n, value) in list.iter().enumerate() {
                places(value, format!("{at}/{n}"), all);
            }
        }
        _ => {}
    }
    all.push(at);
}

/// What a value is replaced with.
fn strange() -> impl Strategy<Value = serde_json::Value> {
    use serde_json::json;
    let numbers = prop_oneof![
        any::<i64>().prop_map(|n| json!(n)),
        (0..9_u32).prop_map(|n| json!(n))
    ];
    let others = vec![
        json!(null),
        json!(true),
        json!(""),
        json!("a\nb"),
        json!([]),
        json!({}),
        json!(u64::MAX),
        json!(1e308),
        json!(-1),
        json!(0),
        json!(0.5),
        json!([[["x"]]]),
        json!({"gpu": 0, "link": 0}),
        json!(["replay", 1]),
        json!("switch"),
        json!("NVLINK"),
        json!("00000000:01:00.0"),
    ];
    prop_oneof![numbers, prop::sample::select(others)]
}

/// A recording of one pair of GPUs, so that many can be tried.
fn small() -> serde_json::Value {
    let mut reading = support::reading("sim:rtx-a6000-pairs");
    let spec = &mut reading.topology.spec;
    spec.gpus.truncate(2);
    for links in spec.gpus.iter_mut().filter_map(|gpu| gpu.links.as_mut()) {
        links.truncate(2);
    }
    spec.edges.retain(|edge| edge.b < 2);
    spec.paths.retain(|path| path.b < 2);
    spec.domains
        .retain(|domain| domain.gpus.iter().all(|&gpu| gpu < 2));
    spec.nics.truncate(1);
    reading
        .counters
        .retain(|link| link.gpu < 2 && link.link < 2);
    let xids = Some(vec![(74, 1)]);
    reading.health = vec![GpuHealth {
        gpu: 0,
        xids,
        ..GpuHealth::default()
    }];
    let mut recorder = Recorder::new(&reading.topology).unwrap();
    for second in 0..3 {
        recorder.add(Duration::from_secs(second), &reading).unwrap();
        for bytes in reading
            .counters
            .iter_mut()
            .filter_map(|link| link.transmit_bytes.as_mut())
        {
            *bytes += 1 << 30;
        }
    }
    serde_json::from_str(&recorder.text()).unwrap()
}

#[test]
fn the_small_recording_is_good() {
    assert_eq!(
        parse(small().to_string().as_bytes())
            .unwrap()
            .counters
            .len(),
        4
    );
}

/// A recording with values replaced, doubled, moved or removed.
fn changed() -> impl Strategy<Value = String> {
    let document = small();
    let mut all = Vec::new();
    places(&document, String::new(), &mut all);
    let change = (prop::sample::select(all), 0..4_u8, strange());
    prop::collection::vec(change, 1..5).prop_map(move |changes| {
        let mut document = document.clone();
        for (place, how, value) in changes {
            change_at(&mut document, &place, how, value);
        }
        document.to_string()
    })
}

fn change_at(document: &mut serde_json::Value, place: &str, how: u8, value: serde_json::Value) {
    let (parent, key) = place.rsplit_once('/').unwrap_or_default();
    match (how, document.pointer_mut(parent)) {
        (0, Some(serde_json::Value::Object(map))) => drop(map.remove(key)),
        (0, Some(serde_json::Value::Array(list))) if !list.is_empty() => drop(list.pop()),
        (1, Some(serde_json::Value::Array(list))) => list.extend(list.first().cloned()),
        (2, Some(serde_json::Value::Array(list))) => list.reverse(),
        _ => {
            if let Some(place) = document.pointer_mut(place) {
                *place = value;
            }
        }
    }
}

/// What was accepted is a valid reading at any time: it can be exported, and
/// recorded and read again.
fn check(text: &str, reading: &Reading, directory: &Path) {
    use nvlink_exporter::{metrics, snapshot::Latest};
    let now = Instant::now();
    let latest = Latest::default();
    latest.publish(support::snapshot("x", reading.clone(), now));
    let exported = metrics::render(
        &latest.view(now),
        metrics::Format::Prometheus,
        metrics::Groups::ALL,
    )
    .unwrap();
    let mut names: Vec<_> = exported
        .lines()
        .filter(|line| !line.starts_with('#'))
        .collect();
    let series = |line: &&str| {
        line.rsplit_once(' ')
            .map_or(String::new(), |(series, _)| series.to_owned())
    };
    names.sort_unstable_by_key(series);
    assert!(
        names
            .windows(2)
            .all(|pair| series(&pair[0]) != series(&pair[1])),
        "a series twice:\n{exported}"
    );
    let mut source = replayed(directory, text);
    for seconds in [0, 1, 7, 1 << 40] {
        source.read(Duration::from_secs(seconds)).unwrap();
    }
    let again = record(&mut replayed(directory, text), &[0]);
    parse(again.as_bytes()).unwrap();
}

/// Of all cases.
static DIRECTORY: LazyLock<tempfile::TempDir> = LazyLock::new(|| tempfile::tempdir().unwrap());

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changed_recordings_do_no_harm(text in changed()) {
        if let Ok(reading) = parse(text.as_bytes()) {
            check(&text, &reading, DIRECTORY.path());
        }
    }
}
