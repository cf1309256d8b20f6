//! Recordings that contradict themselves, and randomly changed ones.

use std::{
    path::Path,
    sync::LazyLock,
    time::{Duration, Instant},
};

use nvlink_source::{GpuHealth, Reading, Source, recording::Recorder};
use proptest::prelude::*;

use super::{parse, record, replayed, simulated};
use crate::support;

/// A path in the samples, the value that is written there, and the error.
const CONTRADICTIONS: &[(&str, &str, &str)] = &[
    ("", "1", "samples: invalid type: integer"),
    ("/1/seconds", "0", "samples[1].seconds: not later"),
    ("/0/seconds", "-1", "samples[0].seconds: not a valid time"),
    (
        "/0/counters/2/gpu",
        "9",
        "samples[0].counters[2].gpu: GPU 9 is not in",
    ),
    (
        "/1/counters/3/link",
        r#""a""#,
        "samples[1].counters[3].link: invalid type",
    ),
    (
        "/1/counters/1",
        r#"{"gpu": 0, "link": 0}"#,
        "samples[1].counters[1]: a second link 0 of GPU 0",
    ),
    (
        "/0/counters/0/errors",
        r#"[["replay", 1], ["replay", 2]]"#,
        "samples[0].counters[0].errors[1]: a second entry",
    ),
    (
        "/0/counters/0/errors",
        r#"[["tea", 1]]"#,
        "samples[0].counters[0].errors[0]",
    ),
    (
        "/0/counters/0/bitErrorRatios",
        r#"[["symbol", -1.0]]"#,
        "samples[0].counters[0].bitErrorRatios: below 0",
    ),
    (
        "/0/health",
        r#"[{"gpu": 7}]"#,
        "samples[0].health[0].gpu: GPU 7",
    ),
];

#[test]
fn contradictions_are_refused_with_their_path() {
    let text = record(simulated("rtx-a6000-pairs").as_mut(), &[0, 1]);
    for (place, value, expected) in CONTRADICTIONS {
        let mut document: serde_json::Value = serde_json::from_str(&text).unwrap();
        let value: serde_json::Value = serde_json::from_str(value).unwrap();
        let (parent, key) = place.rsplit_once('/').unwrap_or_default();
        match document["samples"].pointer_mut(parent).unwrap() {
            serde_json::Value::Object(object) => {
                object.insert(key.to_owned(), value);
            }
            list if !key.is_empty() => list[key.parse::<usize>().unwrap()] = value,
            samples => *samples = value,
        }
        let error = parse(document.to_string().as_bytes()).unwrap_err();
        assert!(error.starts_with(&format!("x: {expected}")), "{error}");
    }
    // Keys of later versions are ignored.
    let later = text.replacen("{\"seconds\":", "{\"weather\":{\"wet\":1},\"seconds\":", 1);
    assert_eq!(parse(later.as_bytes()).unwrap().counters.len(), 16);
}

/// Collects the paths of all values of a document.
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

/// Values that replace others.
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

/// A recording of one pair of GPUs, so that many cases can be tested.
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
fn the_small_recording_is_valid() {
    assert_eq!(
        parse(small().to_string().as_bytes())
            .unwrap()
            .counters
            .len(),
        4
    );
}

/// A recording with values replaced, duplicated, moved or removed.
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

/// Checks that an accepted recording is a valid reading at any time: it can be exported,
/// and recorded and read again.
fn check(text: &str, reading: &Reading, directory: &Path) {
    use nvlink_exporter::{metrics, snapshot::Latest};
    let now = Instant::now();
    let latest = Latest::default();
    latest.publish(support::snapshot("x", reading.clone(), now));
    let exported = metrics::render(&latest.view(now), metrics::Groups::ALL).unwrap();
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

/// The directory of all cases.
static DIRECTORY: LazyLock<tempfile::TempDir> = LazyLock::new(|| tempfile::tempdir().unwrap());

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changed_recordings_are_harmless(text in changed()) {
        if let Ok(reading) = parse(text.as_bytes()) {
            check(&text, &reading, DIRECTORY.path());
        }
    }
}
