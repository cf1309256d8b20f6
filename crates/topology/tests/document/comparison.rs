//! How the benchmarks of a node compare with those of its siblings, and what follows from it.

use nvlink_topology::{
    Calibration, Comparison, NodeTopology, PathClass,
    calibration::{Measured, Run},
    comparison::{RECENT, compare},
    labels,
};
use proptest::prelude::*;

use super::{
    calibration::{H100, NOW, run, runs},
    h100,
};

/// Siblings whose 8 GPUs measure 0.95 of the constants.
fn siblings() -> Vec<Measured> {
    Calibration::of(&runs(&[0.94, 0.95, 0.96]), NOW).entries
}

fn ratios(runs: &[Run]) -> Vec<(f64, u32)> {
    let compared = compare(&siblings(), runs, NOW);
    compared.iter().map(|one| (one.ratio, one.runs)).collect()
}

#[test]
fn the_median_of_the_latest_runs_counts() {
    assert_eq!(ratios(&runs(&[0.76, 0.2, 0.77])), [(0.8, 3)]);
    // Daily runs: three bad ones make it slow, three good ones end that.
    let daily = |factors: &[f64]| -> Vec<Run> {
        let days = factors.iter().rev().zip(0..);
        let one = |(&factor, day): (&f64, u64)| run(PathClass::Nvlink, factor, day * 24 * 3600);
        days.map(one).collect()
    };
    assert_eq!(ratios(&daily(&[0.95, 0.95, 0.95, 0.5, 0.5])), [(1.0, 5)]);
    assert_eq!(ratios(&daily(&[0.95, 0.95, 0.5, 0.5, 0.5])), [(0.53, 5)]);
    let healed = [0.5, 0.5, 0.5, 0.5, 0.5, 0.95, 0.95, 0.95];
    assert_eq!(ratios(&daily(&healed)), [(1.0, 5)]);
}

#[test]
fn what_is_not_alike_is_not_compared() {
    assert_eq!(ratios(&runs(&[0.5, 0.5])), [], "too few");
    let with = |change: fn(&mut Run)| {
        let mut runs = runs(&[0.5; 3]);
        runs.iter_mut().for_each(change);
        ratios(&runs)
    };
    assert_eq!(with(|run| run.gpus = 4), []);
    assert_eq!(with(|run| run.path = PathClass::Phb), []);
    assert_eq!(with(|run| run.model = "NVIDIA H200".to_owned()), []);
    assert_eq!(with(|run| run.ended_at = NOW - RECENT - 1), []);
    assert_eq!(with(|run| run.factor = 0.0), [], "no bandwidth");
    assert_eq!(with(|run| run.ended_at = NOW - RECENT), [(0.53, 3)]);
    // A calibration of an earlier version.
    let mut earlier = siblings();
    earlier[0].sets.clear();
    assert_eq!(compare(&earlier, &runs(&[0.5; 3]), NOW), []);
}

fn comparison(gpus: u32, ratio: f64) -> Comparison {
    Comparison {
        model: H100.to_owned(),
        path: PathClass::Nvlink,
        gpus,
        ratio,
        runs: 5,
    }
}

#[test]
fn a_node_is_slow_by_its_worst_comparison_and_has_the_label_then() {
    let mut node = NodeTopology::new("n", h100(8));
    let mut slow = |comparisons: Vec<Comparison>| {
        node.spec.comparisons = comparisons;
        let label = labels::node_labels(&node).remove(labels::SLOW);
        (node.spec.slow().map(|one| one.gpus), label)
    };
    let yes = Some("true".to_owned());
    assert_eq!(slow(vec![]), (None, None));
    let good = vec![comparison(4, 0.9), comparison(8, 1.1)];
    assert_eq!(slow(good), (None, None));
    let bad = vec![comparison(2, 0.89), comparison(4, 0.5), comparison(8, 1.0)];
    assert_eq!(slow(bad), (Some(4), yes));
    assert!(
        labels::NODE_LABELS.contains(&labels::SLOW),
        "unpublish removes it"
    );
}

#[test]
fn a_document_keeps_its_comparisons() {
    let mut node = NodeTopology::new("n", h100(8));
    node.spec.comparisons = vec![comparison(8, 0.78)];
    let document = serde_json::to_value(&node).unwrap();
    let expected = serde_json::json!([{
        "model": H100, "path": "NVLINK", "gpus": 8, "ratio": 0.78, "runs": 5,
    }]);
    assert_eq!(document["spec"]["comparisons"], expected);
    let read: NodeTopology = serde_json::from_value(document).unwrap();
    assert_eq!(read, node);
    let without = serde_json::to_value(NodeTopology::new("n", h100(2))).unwrap();
    assert!(without["spec"].get("comparisons").is_none());
}

proptest! {
    /// The order of runs does not matter, and the ratio is between those of the best and the
    /// worst run.
    #[test]
    fn a_comparison_is_a_fact_about_the_set_of_runs(
        factors in proptest::collection::vec(0.05..2.0, 0..12),
        ages in proptest::collection::vec(0..2 * RECENT, 12),
    ) {
        let one = |(&factor, &age): (&f64, &u64)| run(PathClass::Nvlink, factor, age);
        let mut runs: Vec<_> = factors.iter().zip(&ages).map(one).collect();
        let compared = compare(&siblings(), &runs, NOW);
        for one in &compared {
            let least = factors.iter().copied().fold(f64::INFINITY, f64::min) / 0.95;
            let most = factors.iter().copied().fold(0.0, f64::max) / 0.95;
            prop_assert!((least - 0.005..=most + 0.005).contains(&one.ratio));
        }
        runs.reverse();
        prop_assert_eq!(compare(&siblings(), &runs, NOW), compared);
    }

    /// A node whose runs all measure what its siblings do is not slow, whatever that is.
    #[test]
    fn a_sibling_like_the_others_is_never_slow(factor in 0.05..2.0, count in 3_usize..9) {
        let runs = runs(&vec![factor; count]);
        let siblings = Calibration::of(&runs, NOW).entries;
        let compared = compare(&siblings, &runs, NOW);
        prop_assert_eq!(compared.len(), 1);
        prop_assert_eq!(compared[0].ratio, 1.0);
    }
}
