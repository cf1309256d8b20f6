//! What is kept of runs, and the baseline.

use std::{collections::BTreeMap, fs};

use nvlink_collectives::{
    Collective, Expected, SizeClass, State,
    model::Nvls,
    run::{Failure, Known, Level, Origin, Reason},
    state::{Class, KEPT_CLASSES, KEPT_RUNS, Kept},
    store::{self, FILE},
};
use nvlink_topology::PathClass;
use proptest::{prelude::*, sample::Index};
use serde_json::{Value, json};

fn class(gpus: u32) -> Class {
    Class {
        collective: Collective::AllReduce,
        model: Some("NVIDIA H100 80GB HBM3".to_owned()),
        gpus,
        nodes: Some(1),
        path: Some(PathClass::Nvlink),
    }
}

/// Returns what the model says where switches add up nothing.
fn rings(bytes_per_second: u64) -> Expected {
    Expected {
        bytes_per_second,
        nvls: None,
    }
}

/// Returns a run that ended at `at` with `gbps` GB/s, or failed.
fn kept(at: u64, gbps: Option<u64>) -> Kept {
    let level = |gbps: u64| json!({"large": {"size": 1 << 30, "bytesPerSecond": gbps * 1_000_000_000, "seconds": 0.01}});
    let mut run = json!({"id": format!("run-{at}"), "at": at, "index": 0});
    match gbps {
        Some(gbps) => run["levels"] = level(gbps),
        None => run["failure"] = json!({"reason": "truncated", "line": 7, "text": "x"}),
    }
    serde_json::from_value(run).unwrap()
}

fn baseline(state: &State) -> Option<u64> {
    let entry = state.entry(&class(8)).unwrap();
    entry
        .baseline(SizeClass::Large)
        .map(|one| one / 1_000_000_000)
}

#[test]
fn the_baseline_is_the_median_of_earlier_good_runs() {
    let mut state = State::default();
    for (at, gbps, expected) in [
        (1, Some(300), None),
        (2, Some(310), None),
        (3, None, None),
        (4, Some(350), None),
        (5, Some(100), Some(310)),
        (6, Some(100), Some(305)),
    ] {
        assert!(state.add(&class(8), kept(at, gbps), Some(rings(370))));
        assert_eq!(baseline(&state), expected, "{at}");
    }
    let entry = state.entry(&class(8)).unwrap();
    assert_eq!(
        (entry.total, entry.failures.clone()),
        (6, [(Reason::Truncated, 1)].into())
    );
    assert!(entry.latest(SizeClass::Large).is_some());
    assert!(entry.latest(SizeClass::Small).is_none());
    state.add(&class(8), kept(7, None), None);
    let entry = state.entry(&class(8)).unwrap();
    assert!(
        entry.latest(SizeClass::Large).is_none(),
        "the latest run failed"
    );
    assert_eq!(entry.expected_bytes_per_second, Some(370));
}

#[test]
fn a_run_counts_once() {
    let mut state = State::default();
    assert!(state.add(&class(8), kept(1, Some(300)), None));
    assert!(!state.add(&class(8), kept(1, Some(300)), Some(rings(370))));
    let entry = state.entry(&class(8)).unwrap();
    assert_eq!((entry.total, entry.runs.len()), (1, 1));
    assert_eq!(entry.expected_bytes_per_second, Some(370));
}

/// A file was read while it was written again: a part of a run that is known, or a run of which a
/// part is known.
#[test]
fn a_run_of_which_a_part_was_read_counts_once() {
    let read = |id: &str, at, gbps, first: &str| {
        let mut run = kept(at, gbps);
        (run.id, run.first) = (id.to_owned(), Some(first.to_owned()));
        run
    };
    let part = || read("part", 5, None, "one");
    let whole = || read("whole", 6, Some(300), "one");
    for (runs, news, failures) in [
        ([part(), whole()], [true, true], 1),
        ([whole(), part()], [true, false], 0),
        ([part(), part()], [true, false], 1),
    ] {
        let mut state = State::default();
        let ended = runs.iter().any(|run| run.failure.is_none());
        for (run, new) in runs.into_iter().zip(news) {
            assert_eq!(state.add(&class(8), run, None), new);
        }
        let entry = state.entry(&class(8)).unwrap();
        let counted = entry.failures.get(&Reason::Truncated).copied();
        // A counter that has been served does not fall.
        assert_eq!((entry.total, counted.unwrap_or(0)), (1, failures));
        assert_eq!(entry.runs.len(), 1);
        assert_eq!(entry.latest(SizeClass::Large).is_some(), ended);
        assert_eq!(entry.failed_at(Reason::Truncated).is_none(), ended);
    }
    let mut state = State::default();
    for run in [part(), read("other", 6, None, "two")] {
        assert!(state.add(&class(8), run, None), "two runs were cut");
    }
    assert_eq!(state.entry(&class(8)).unwrap().total, 2);
}

#[test]
fn runs_and_classes_are_bounded() {
    let mut state = State::default();
    for at in 100..100 + 2 * KEPT_RUNS as u64 {
        assert!(state.add(&class(8), kept(at, Some(300)), None));
    }
    assert!(
        !state.add(&class(8), kept(1, Some(300)), None),
        "older than all"
    );
    let entry = state.entry(&class(8)).unwrap();
    assert_eq!(
        (entry.runs.len(), entry.total),
        (KEPT_RUNS, 2 * KEPT_RUNS as u64)
    );
    for gpus in 9..9 + KEPT_CLASSES as u32 {
        state.add(&class(gpus), kept(1000 + u64::from(gpus), Some(300)), None);
    }
    assert_eq!(state.collectives.len(), KEPT_CLASSES);
    assert!(
        state.entry(&class(8)).is_none(),
        "its latest run is the oldest"
    );
}

#[test]
fn the_largest_file_can_be_served() {
    let mut state = State::default();
    let level = Level {
        size: u64::MAX,
        bytes_per_second: u64::MAX,
        seconds: 1.234_567_890_123_456_7e-5,
    };
    let longest = Expected {
        nvls: Some(Nvls {
            bytes_per_second: u64::MAX,
            expected: Known::new(false, Origin::Bandwidths),
        }),
        ..rings(u64::MAX)
    };
    for gpus in 0..KEPT_CLASSES as u32 {
        for at in 0..KEPT_RUNS as u64 {
            let mut run = kept(1_763_800_000 + at, None);
            run.id = "0123456789abcdef".to_owned() + &at.to_string();
            run.first = Some("0123456789abcdef".to_owned());
            run.failure = (at % 2 == 0).then(|| Failure {
                reason: Reason::WrongResults,
                line: u64::MAX,
                text: "x".repeat(120),
            });
            let levels = SizeClass::ALL.map(|class| (class, level));
            run.levels = if at % 2 == 0 {
                BTreeMap::new()
            } else {
                levels.into()
            };
            run.setup_seconds = Some(1.234_567_890_123);
            state.add(&class(gpus), run, Some(longest.clone()));
        }
    }
    let text = serde_json::to_string(&state).unwrap();
    assert!(text.len() < 1 << 20, "{}", text.len());
}

#[test]
fn keys_of_other_versions_survive() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(FILE);
    let mut document = json!({"version": 9, "collectives": [{
        "collective": "all_reduce", "gpus": 8, "model": "NVIDIA H100 80GB HBM3", "nodes": 1, "path": "NVLINK",
        "note": {"a": [1]}, "total": 5, "failures": {}, "runs": [
            {"id": "run-1", "at": 1, "index": 0, "levels": {}, "weather": "rain"}]}]});
    fs::write(&path, document.to_string()).unwrap();
    let updated = store::update(directory.path(), |state| {
        state.add(&class(8), kept(1, Some(300)), None);
        state.add(&class(8), kept(2, Some(300)), None)
    });
    let updated = updated.unwrap();
    assert!(updated.result && updated.warning.is_none());
    let written: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    document["collectives"][0]["total"] = json!(6);
    for key in ["version", "note", "total"] {
        let of = |document: &Value| match key {
            "version" => document[key].clone(),
            _ => document["collectives"][0][key].clone(),
        };
        assert_eq!(of(&written), of(&document), "{key}");
    }
    assert_eq!(written["collectives"][0]["runs"][0]["weather"], "rain");
}

#[test]
fn a_broken_file_is_set_aside() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(FILE);
    for (number, broken) in [(1, "{\"collectives\": [{}]}"), (2, "no JSON"), (3, "{} {}")] {
        fs::write(&path, broken).unwrap();
        let add = |state: &mut State| state.add(&class(8), kept(1, Some(300)), None);
        let updated = store::update(directory.path(), add).unwrap();
        let aside = directory.path().join(format!("{FILE}.broken-{number}"));
        let warning = updated.warning.unwrap();
        assert!(warning.contains(&*aside.to_string_lossy()), "{warning}");
        assert_eq!(fs::read_to_string(&aside).unwrap(), broken);
        assert!(store::parse(&fs::read(&path).unwrap()).is_ok());
    }
    let error = store::parse(b"{\"collectives\": [{\"gpus\": \"x\"}]}").unwrap_err();
    assert!(error.contains("collectives[0]"), "{error}");
}

#[test]
fn several_processes_may_write() {
    let directory = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        for part in 0..4 {
            let directory = directory.path();
            scope.spawn(move || {
                for at in 0..5 {
                    let run = kept(part * 100 + at, Some(300));
                    store::update(directory, |state| state.add(&class(8), run, None)).unwrap();
                }
            });
        }
    });
    let state = store::parse(&fs::read(directory.path().join(FILE)).unwrap()).unwrap();
    assert_eq!(state.entry(&class(8)).unwrap().total, 20);
    let names = fs::read_dir(directory.path()).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name());
    assert_eq!(names.count(), 2, "the state and its lock");
}

/// Time of its end, GB/s unless it failed, number of GPUs.
type Measured = (u64, Option<u64>, u32);

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_order_of_runs_does_not_matter(
        runs in proptest::collection::vec((0_u64..40, proptest::option::of(100_u64..400), 1_u32..4), 1..KEPT_RUNS),
        swaps in proptest::collection::vec((any::<Index>(), any::<Index>()), 0..20),
    ) {
        let mut other: Vec<_> = runs.iter().enumerate().collect();
        let in_order = other.clone();
        for (one, two) in swaps {
            let (one, two) = (one.index(other.len()), two.index(other.len()));
            other.swap(one, two);
        }
        let state = |runs: &[(usize, &Measured)]| {
            let mut state = State::default();
            for (number, (at, gbps, gpus)) in runs {
                let mut run = kept(*at, *gbps);
                run.id = format!("{number}");
                state.add(&class(*gpus), run, None);
            }
            state
        };
        let (one, two) = (state(&in_order), state(&other));
        prop_assert_eq!(&one, &two);
        // Reading all of them again changes nothing.
        let again = one.clone().with(&State::default());
        prop_assert_eq!(&one, &again);
        let text = serde_json::to_vec(&one).unwrap();
        prop_assert_eq!(store::parse(&text), Ok(one));
    }
}

/// A run that does not show its place has the model of the others of its class: what rings reach,
/// and what the switches add, whichever of them it used.
#[test]
fn a_run_without_a_place_is_compared_as_the_others_of_its_class() {
    let model = Expected {
        bytes_per_second: 371_000_000_000,
        nvls: Some(Nvls {
            bytes_per_second: 479_000_000_000,
            expected: Known::new(true, Origin::Log),
        }),
    };
    let mut state = State::default();
    state.add(&class(8), kept(1, Some(479)), Some(model));
    state.add(&class(8), kept(2, Some(479)), None);
    state.add(&class(8), kept(3, Some(371)), None);
    let of_paths = state.measured().map(|run| run.factor / run.gain);
    let of_paths: Vec<_> = of_paths.map(|factor| (factor * 1e6).round()).collect();
    assert_eq!(of_paths, [1e6; 3]);
}
