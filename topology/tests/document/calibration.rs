//! What measurements change in a document.

use nvlink_topology::{
    Calibration, PathClass, Via,
    calibration::{MAX_AGE, Run},
};
use proptest::prelude::*;

use super::{gpu, spec, switch};

pub(crate) const H100: &str = "NVIDIA H100 80GB HBM3";
pub(crate) const NOW: u64 = 1_800_000_000;

pub(crate) fn run(path: PathClass, factor: f64, age: u64) -> Run {
    Run {
        model: H100.to_owned(),
        path,
        gpus: 8,
        factor,
        ended_at: NOW - age,
    }
}

pub(crate) fn runs(factors: &[f64]) -> Vec<Run> {
    let one = |&factor: &f64| run(PathClass::Nvlink, factor, 60);
    factors.iter().map(one).collect()
}

fn factor(runs: &[Run]) -> Option<f64> {
    let entries = Calibration::of(runs, NOW).entries;
    entries.first().map(|entry| entry.factor)
}

#[test]
fn the_median_of_young_runs_without_outliers() {
    assert_eq!(factor(&runs(&[0.96, 0.98, 0.97])), Some(0.97));
    assert_eq!(factor(&runs(&[0.96, 0.98, 0.97, 0.95])), Some(0.965));
    // A job that shared the machine.
    let calibration = Calibration::of(&runs(&[0.96, 0.98, 0.97, 0.2]), NOW);
    assert_eq!(calibration.entries[0].factor, 0.97);
    assert_eq!(calibration.entries[0].runs, 3);
    // Equal runs: what differs a little is no outlier.
    assert_eq!(
        Calibration::of(&runs(&[1.0, 1.0, 1.0, 1.001]), NOW).entries[0].runs,
        4
    );
}

#[test]
fn too_few_old_or_impossible_runs_say_nothing() {
    assert_eq!(factor(&runs(&[0.96, 0.98])), None);
    assert_eq!(factor(&runs(&[0.96, 0.98, 0.0])), None);
    assert_eq!(factor(&runs(&[0.96, 0.98, f64::NAN])), None);
    assert_eq!(factor(&runs(&[0.96, 0.98, 50.0])), None);
    let mut old = runs(&[0.96, 0.98]);
    old.push(run(PathClass::Nvlink, 0.97, MAX_AGE + 1));
    assert_eq!(factor(&old), None);
    // Another class is another group.
    let mut mixed = runs(&[0.96, 0.98]);
    mixed.push(run(PathClass::Phb, 0.97, 0));
    assert_eq!(factor(&mixed), None);
}

#[test]
fn runs_of_as_many_gpus_are_summed_up_apart() {
    let mut mixed = runs(&[1.2, 1.3, 1.25]);
    let pairs = runs(&[0.94, 0.95, 0.96, 0.95]);
    mixed.extend(pairs.into_iter().map(|run| Run { gpus: 2, ..run }));
    mixed.push(Run {
        gpus: 4,
        ..run(PathClass::Nvlink, 0.9, 0)
    });
    let sets = &Calibration::of(&mixed, NOW).entries[0].sets;
    let sets: Vec<_> = sets
        .iter()
        .map(|set| (set.gpus, set.factor, set.runs))
        .collect();
    assert_eq!(
        sets,
        [(2, 0.95, 4), (8, 1.25, 3)],
        "one run of 4 says nothing"
    );
}

#[test]
fn a_clock_that_was_ahead_makes_no_entry_of_the_future() {
    let mut ahead = runs(&[0.96, 0.97, 0.98]);
    ahead[0].ended_at = NOW + 3600;
    assert_eq!(Calibration::of(&ahead, NOW).entries[0].measured_at, NOW);
}

/// Two H100 behind switches, a third GPU of another model.
fn node() -> nvlink_topology::NodeTopologySpec {
    let links = [switch(), switch()];
    let mut spec = spec(vec![
        gpu(0, H100, 26_562_500_000, &links),
        gpu(1, H100, 26_562_500_000, &links),
        gpu(2, "NVIDIA H200", 26_562_500_000, &links),
    ]);
    spec.complete("n").unwrap();
    spec
}

#[test]
fn only_paths_between_gpus_of_the_model_change() {
    let before = node();
    let mut after = before.clone();
    let calibration = Calibration::of(&runs(&[0.5, 0.5, 0.5]), NOW);
    calibration.apply(&mut after);
    let rate = |spec: &nvlink_topology::NodeTopologySpec, n: usize| {
        assert_eq!(spec.edges[n].via, Via::Switch);
        (
            spec.edges[n].bytes_per_second,
            spec.paths[n].bytes_per_second,
        )
    };
    let (edge, path) = rate(&before, 0);
    assert_eq!(rate(&after, 0), (edge / 2, path / 2));
    assert_eq!(
        (rate(&after, 1), rate(&after, 2)),
        (rate(&before, 1), rate(&before, 2))
    );
    assert_eq!(after.calibration, calibration.entries);
    // A recording of it is not calibrated again, whatever reads it.
    let text = serde_json::to_string(&after).unwrap();
    let mut again = serde_json::from_str(&text).unwrap();
    calibration.apply(&mut again);
    assert_eq!(again, after);
    again.complete("n").unwrap();
    assert_eq!(again, after);
}

#[test]
fn entries_that_a_document_does_not_need_are_not_noted() {
    let mut spec = node();
    let phb = [0.9; 3].map(|factor| run(PathClass::Phb, factor, 0));
    Calibration::of(&phb, NOW).apply(&mut spec);
    assert_eq!(spec, node());
}

#[test]
fn a_file_that_contradicts_itself_is_refused() {
    let good = Calibration::of(&runs(&[0.9; 3]), NOW);
    assert!(good.check().is_ok());
    let mut twice = good.clone();
    twice.entries.push(twice.entries[0].clone());
    let error = twice.check().unwrap_err().to_string();
    assert!(
        error.starts_with("entries[1].path: a second entry for NVLINK"),
        "{error}"
    );
    let mut impossible = good.clone();
    impossible.entries[0].factor = -1.0;
    let error = impossible.check().unwrap_err().to_string();
    assert!(
        error.starts_with("entries[0].factor: -1; possible are"),
        "{error}"
    );
    let mut impossible = good.clone();
    impossible.entries[0].sets[0].factor = 40.0;
    let error = impossible.check().unwrap_err().to_string();
    assert!(
        error.starts_with("entries[0].sets: 40 for 8 GPUs"),
        "{error}"
    );
    let foreign = Calibration {
        kind: "NodeTopology".to_owned(),
        ..good
    };
    assert!(foreign.check().is_err());
}

proptest! {
    /// The order of runs does not matter, the factor is between those of the runs, and what
    /// `of` makes passes `check`.
    #[test]
    fn a_calibration_is_a_fact_about_the_set_of_runs(
        factors in proptest::collection::vec(0.0..5.0, 0..20),
        ages in proptest::collection::vec(0..2 * MAX_AGE, 20),
    ) {
        let one = |(&factor, &age): (&f64, &u64)| run(PathClass::Pix, factor, age);
        let mut runs: Vec<_> = factors.iter().zip(&ages).map(one).collect();
        let calibration = Calibration::of(&runs, NOW);
        prop_assert!(calibration.check().is_ok());
        for entry in &calibration.entries {
            let least = factors.iter().copied().fold(f64::INFINITY, f64::min);
            let most = factors.iter().copied().fold(0.0, f64::max);
            prop_assert!((least..=most).contains(&entry.factor));
        }
        runs.reverse();
        prop_assert_eq!(Calibration::of(&runs, NOW), calibration);
    }
}
