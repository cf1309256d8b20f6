//! How the benchmarks of a node compare with those of its siblings, which are in a
//! [`crate::Calibration`].

use std::collections::BTreeMap;

use crate::{
    Comparison, NodeTopologySpec, PathClass,
    calibration::{MIN_RUNS, Measured, Run, is_possible, median},
};

/// A node is slow if it measures below this ratio. Large all-reduces repeat within a few percent.
/// One dead link of the 12 of an A100 or the 18 of an H100 costs 8 or 6 %, and marks its GPU as
/// broken anyway. A loss of 10 % is neither.
pub const SLOW: f64 = 0.9;
/// The latest runs of a node that are compared: of daily ones, a node is slow from the third bad
/// one on, and no longer slow from the third good one on.
pub const RECENT_RUNS: usize = 5;
/// Runs that are older than this are not compared: whatever made them slow may have been
/// repaired. 30 days, in seconds.
pub const RECENT: u64 = 30 * 24 * 3600;

/// Compares the latest runs of a node with its siblings: runs of the same model, path and number
/// of GPUs. `calibration` is that of the node's document. Without at least [`MIN_RUNS`] of both,
/// there is nothing to compare. `now` is in seconds since 1970. The result is in ascending order.
#[must_use]
pub fn compare(calibration: &[Measured], runs: &[Run], now: u64) -> Vec<Comparison> {
    let mut groups = BTreeMap::<(&str, PathClass, u32), Vec<&Run>>::new();
    let recent = |run: &&Run| now.saturating_sub(run.ended_at) <= RECENT;
    for run in runs.iter().filter(recent).filter(|run| is_possible(run)) {
        let key = (&*run.model, run.path, run.gpus);
        groups.entry(key).or_default().push(run);
    }
    let compared = groups
        .into_iter()
        .filter_map(|((model, path, gpus), mut runs)| {
            let of_path = |entry: &&Measured| entry.model == model && entry.path == path;
            let siblings = calibration.iter().find(of_path)?;
            let siblings = siblings.sets.iter().find(|set| set.gpus == gpus)?;
            let newest = |a: &&Run, b: &&Run| b.ended_at.cmp(&a.ended_at);
            // The factor orders runs of the same time, so that their order in `runs` means nothing.
            runs.sort_by(|a, b| newest(a, b).then(a.factor.total_cmp(&b.factor)));
            runs.truncate(RECENT_RUNS);
            let own = median(runs.iter().map(|run| run.factor).collect());
            (runs.len() >= MIN_RUNS).then(|| Comparison {
                model: model.to_owned(),
                path,
                gpus,
                ratio: (own / siblings.factor * 100.0).round() / 100.0,
                runs: u32::try_from(runs.len()).unwrap_or(u32::MAX),
            })
        });
    compared.collect()
}

impl Comparison {
    /// Reports whether the node is slower than its siblings.
    #[must_use]
    pub fn is_slow(&self) -> bool {
        self.ratio < SLOW
    }
}

impl NodeTopologySpec {
    /// Returns the worst comparison in which the node is slower than its siblings.
    #[must_use]
    pub fn slow(&self) -> Option<&Comparison> {
        let slow = self.comparisons.iter().filter(|one| one.is_slow());
        slow.min_by(|a, b| a.ratio.total_cmp(&b.ratio))
    }
}
