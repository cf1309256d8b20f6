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
        gain: 1.0,
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

/// What switches gain by adding up the data is no speed of links, but siblings are compared with it:
/// a node that lost it is slow.
#[test]
fn a_gain_of_switches_is_in_no_path_but_in_what_sets_measure() {
    let mut mixed = runs(&[1.28, 1.3, 1.32]);
    mixed.iter_mut().for_each(|run| run.gain = 1.3);
    let entry = Calibration::of(&mixed, NOW).entries.remove(0);
    assert!((entry.factor - 1.0).abs() < 1e-9, "{entry:?}");
    assert_eq!(entry.sets[0].factor, 1.3);
    // Runs without it say the same about the paths.
    mixed.extend(runs(&[0.98, 1.0, 0.99]));
    let entry = Calibration::of(&mixed, NOW).entries.remove(0);
    assert!((0.98..=1.0).contains(&entry.factor), "{entry:?}");
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

/// A calibration of an earlier version has what switches gained in its factors.
#[test]
fn no_path_is_faster_than_its_links() {
    let rates = |model: &str, line_rate, factor| {
        let links = [switch(), switch()];
        let gpus = vec![
            gpu(0, model, line_rate, &links),
            gpu(1, model, line_rate, &links),
        ];
        let mut spec = spec(gpus);
        spec.complete("n").unwrap();
        let mut one = runs(&[factor; 3]);
        one.iter_mut().for_each(|run| run.model = model.to_owned());
        Calibration::of(&one, NOW).apply(&mut spec);
        let (edge, path) = (&spec.edges[0], &spec.paths[0]);
        assert_eq!(edge.bytes_per_second, path.bytes_per_second);
        edge.bytes_per_second / 1_000_000
    };
    assert_eq!(rates(H100, 26_562_500_000, 1.3), 2 * 25_000);
    assert_eq!(rates(H100, 26_562_500_000, 1.1), 2 * 22_660);
    // A link that runs below the data sheet, and a product without one.
    assert_eq!(rates(H100, 21_000_000_000, 1.3), 2 * 21_000);
    assert_eq!(rates("Something new", 60_000_000_000, 1.3), 2 * 60_000);
}

/// NCCL's constants are three quarters of the line rate of PCIe.
#[test]
fn no_path_is_faster_than_its_pcie_link() {
    let mut spec = node();
    spec.edges.clear();
    for path in &mut spec.paths {
        (path.class, path.bytes_per_second, path.assumed) = (PathClass::Sys, 12_000_000_000, false);
    }
    spec.paths[0].assumed = true;
    spec.gpus[2].model = Some(H100.to_owned());
    let sys = [4.0; 3].map(|factor| run(PathClass::Sys, factor, 0));
    Calibration::of(&sys, NOW).apply(&mut spec);
    let rates: Vec<_> = spec
        .paths
        .iter()
        .map(|path| path.bytes_per_second / 1_000_000)
        .collect();
    // PCIe 4.0 x16, of which a path between sockets has half; nothing is known of the first one.
    assert_eq!(rates, [48_000, 31_508, 31_508]);
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
