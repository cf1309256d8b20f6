//! Statistics of the process about itself, for the metrics and for `/livez`.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use nvlink_runtime::{connections::CutOffs, supervise::Supervisor};

use crate::release::Release;

/// All statistics; clones share their counters.
#[derive(Clone, Debug, Default)]
pub struct Statistics {
    /// The parts of the process.
    pub supervisor: Supervisor,
    /// Whether the source is released.
    pub release: Release,
    /// Clients that were cut off.
    pub cut_offs: CutOffs,
    /// The published objects, by the value of the label `what`; empty if nothing is published.
    pub publishing: Vec<(&'static str, Publishing)>,
    /// Whether results of benchmarks are read from a directory.
    pub measures: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Publishing(Arc<Mutex<Published>>);

#[derive(Debug, Default)]
struct Published {
    at: Option<Instant>,
    failures: [u64; Failure::ALL.len()],
}

/// Why something was not published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Failure {
    /// The rights are missing.
    Forbidden,
    /// There is no such Node.
    NoNode,
    /// The API server refused for another reason.
    Refused,
    /// The API server could not be reached, or did not answer in time.
    Unreachable,
}

impl Failure {
    pub const ALL: [Self; 4] = [
        Self::Forbidden,
        Self::NoNode,
        Self::Refused,
        Self::Unreachable,
    ];

    /// Returns the word used in label values.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

impl Publishing {
    fn state(&self) -> MutexGuard<'_, Published> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the cluster is up to date now.
    pub fn succeeded(&self) {
        self.state().at = Some(Instant::now());
    }

    /// Records that publishing failed.
    pub fn failed(&self, why: Failure) {
        self.state().failures[why as usize] += 1;
    }

    /// Returns when the cluster was last seen to be up to date.
    #[must_use]
    pub fn last_success(&self) -> Option<Instant> {
        self.state().at
    }

    /// Returns the numbers of failures since the start.
    #[must_use]
    pub fn failures(&self) -> [(Failure, u64); 4] {
        let state = self.state();
        Failure::ALL.map(|why| (why, state.failures[why as usize]))
    }
}
