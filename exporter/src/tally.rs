//! What the process knows of its own work: for the metrics, and for `/livez`.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

use nvlink_runtime::{connections::CutOffs, supervise::Supervisor};

use crate::release::Release;

/// All of it; clones share what they count.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// The parts of the process.
    pub supervisor: Supervisor,
    /// Whether the source was let go of.
    pub release: Release,
    /// Clients that were cut off.
    pub cut_offs: CutOffs,
    /// What is published, by what it says; empty where nothing is.
    pub publishing: Vec<(&'static str, Publishing)>,
}

#[derive(Clone, Debug, Default)]
pub struct Publishing(Arc<Mutex<Published>>);

#[derive(Debug, Default)]
struct Published {
    at: Option<SystemTime>,
    failures: [u64; Failure::ALL.len()],
}

/// Why something was not published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The rights are missing.
    Forbidden,
    /// There is no such Node.
    NoNode,
    /// The API server refused for another reason.
    Refused,
    /// The API server could not be asked, or did not answer in time.
    Unreachable,
}

impl Failure {
    pub const ALL: [Self; 4] = [
        Self::Forbidden,
        Self::NoNode,
        Self::Refused,
        Self::Unreachable,
    ];

    /// The word used in label values.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Forbidden => "forbidden",
            Self::NoNode => "no_node",
            Self::Refused => "refused",
            Self::Unreachable => "unreachable",
        }
    }
}

impl Publishing {
    fn state(&self) -> MutexGuard<'_, Published> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The cluster says now what it should.
    pub fn succeeded(&self) {
        self.state().at = Some(SystemTime::now());
    }

    /// It could not be brought to.
    pub fn failed(&self, why: Failure) {
        self.state().failures[why as usize] += 1;
    }

    /// When the cluster was last seen to say what it should.
    #[must_use]
    pub fn last_success(&self) -> Option<SystemTime> {
        self.state().at
    }

    /// Failures since the start.
    #[must_use]
    pub fn failures(&self) -> [(Failure, u64); 4] {
        let state = self.state();
        Failure::ALL.map(|why| (why, state.failures[why as usize]))
    }
}
