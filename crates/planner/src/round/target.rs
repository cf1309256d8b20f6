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
