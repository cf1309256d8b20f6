//! Where and when a job would start.

use std::sync::Arc;

use nvlink_topology::Scope;

use crate::{Millis, preference::Preference, search::Found};

/// Where and when a job would start.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) start: Millis,
    /// In the order of the ranks.
    pub(crate) parts: Vec<Part>,
    /// The closest scope that contains all GPUs.
    pub(crate) within: Scope,
    /// Seconds per byte of payload.
    pub(crate) cost: f64,
}

impl Target {
    /// Reports whether it has the same GPUs as another.
    pub(crate) fn is_on(&self, other: &Self) -> bool {
        let gpus = |target: &Self| -> Vec<_> {
            let parts = target.parts.iter();
            parts.map(|part| (part.node, part.found.set)).collect()
        };
        gpus(self) == gpus(other)
    }

    /// Reports whether it is worse for its job than another of the same start. `least` is the least
    /// cost of the job on one empty node.
    pub(crate) fn is_worse(&self, other: &Self, least: Option<f64>) -> bool {
        let fast = |part: &Part| part.found.is_as_fast(least);
        let broken = |target: &Self| -> u32 {
            let parts = target.parts.iter();
            parts.map(|part| u32::from(part.found.broken)).sum()
        };
        let dearer = self.cost > other.cost * (1.0 + 1e-9);
        broken(self) > broken(other)
            || (dearer && (self.parts.len() > 1 || !self.parts.iter().all(fast)))
    }
}

/// The part of a job on one node.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// The number of the node.
    pub(crate) node: u32,
    /// The number of members.
    pub(crate) members: usize,
    pub(crate) found: Arc<Found>,
}

/// A node for a job.
#[derive(Clone, Debug)]
pub(crate) struct Chosen {
    pub(crate) key: Preference,
    pub(crate) node: u32,
    pub(crate) found: Arc<Found>,
}
