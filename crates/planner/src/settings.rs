//! Settings of the planner and of classes.

use std::collections::BTreeMap;

use nvlink_topology::BrokenGpus;

use crate::{Millis, Name};

/// Settings of the whole queue.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Whether, among jobs of equal priority, the project that holds the least GPUs comes
    /// first. Without it the oldest job comes first.
    pub fair_share: bool,
    /// How many times the share of others a project gets; 1 for a project that is absent.
    pub shares: BTreeMap<Name, u32>,
    /// For how many waiting jobs a round says when and where they are expected to start. A gang
    /// that is planned over several nodes counts once for each. Beyond, expected starts are lower
    /// bounds.
    pub depth: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            fair_share: false,
            shares: BTreeMap::new(),
            depth: Self::DEPTH,
        }
    }
}

impl Settings {
    /// The default of [`Settings::depth`].
    pub const DEPTH: usize = 1_000;
}

/// Settings of a class. A class that was never set has the default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Class {
    /// How many GPUs one project may hold in this class.
    pub max_gpus_per_project: Option<u32>,
    /// What placements do with broken GPUs.
    pub broken: BrokenGpus,
    /// Whether the pods of a gang that are on one node are one host for NCCL
    /// ([`nvlink_topology::multi_node::Gang::one_host`]).
    pub one_host: bool,
    /// Whether NCCL may not use NVLink between hosts
    /// ([`nvlink_topology::multi_node::Gang::without_fabrics`]).
    pub without_fabrics: bool,
    /// How much a second of waiting costs against a second of running. With a factor, a
    /// job waits for a better placement than it could have now, as long as the expected
    /// wait times the factor is at most the run time that the better placement saves; and it
    /// takes the best placement that it can have now, though another may do less harm.
    /// Without one, a job starts as soon as its scope allows.
    pub waiting_factor: Option<f64>,
    /// How long its pods usually run ([`UsualRun`]), milliseconds; `None` if that is unknown.
    pub usual_run: Option<Millis>,
}

/// How long the pods of a class usually run: the mean of the runs that ended, in which each counts
/// as its GPUs, and each later run makes all earlier ones count a 256th less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsualRun {
    /// Milliseconds, once for each thousandth of a GPU.
    sum: u128,
    /// Thousandths of GPUs.
    weight: u128,
}

impl UsualRun {
    /// After so many runs, earlier ones count about a third.
    const FORGETS: u128 = 256;

    /// Adds a run of a pod that ended.
    pub fn add(&mut self, ran: Millis, gpus: u32) {
        let (ran, gpus) = (ran.max(0).unsigned_abs(), u128::from(gpus));
        let kept = |all: u128| all - all / Self::FORGETS;
        self.sum = kept(self.sum).saturating_add(u128::from(ran) * gpus * 1_000);
        self.weight = kept(self.weight).saturating_add(gpus * 1_000);
    }

    /// Returns the mean, rounded up to a power of two of seconds, milliseconds: plans need not change
    /// with each run. `None` if no run with GPUs ended.
    #[must_use]
    pub fn get(&self) -> Option<Millis> {
        let mean = self.sum.checked_div(self.weight)?;
        let seconds = mean.div_ceil(1_000).max(1).checked_next_power_of_two()?;
        Millis::try_from(seconds.saturating_mul(1_000)).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_run_is_the_mean_over_gpus_and_forgets() {
        let mut runs = UsualRun::default();
        assert_eq!(runs.get(), None);
        runs.add(90_000, 0);
        assert_eq!(runs.get(), None, "nobody held a GPU");
        runs.add(100_000, 1);
        assert_eq!(runs.get(), Some(128_000));
        runs.add(1_000_000, 8);
        assert_eq!(runs.get(), Some(1_024_000), "the mean is 900 s");
        for _ in 0..2_000 {
            runs.add(60_000, 8);
        }
        assert_eq!(runs.get(), Some(64_000));
        runs.add(Millis::MAX, u32::MAX);
        runs.add(Millis::MIN, u32::MAX);
        assert!(runs.get().is_some());
    }
}
