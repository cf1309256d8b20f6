//! Nodes that are slower than the class's minimum bandwidth, for the message that names the best.

use std::{cmp::Reverse, collections::BTreeSet, sync::Arc};

/// The nodes of a class that are slower than its minimum: the fastest first, then by name. Empty
/// for a class without a minimum.
#[derive(Clone, Debug, Default)]
pub(super) struct Slow(BTreeSet<(Reverse<u32>, Arc<str>)>);

impl Slow {
    /// Adds a node with its bandwidth in GB/s.
    pub(super) fn add(&mut self, node: Option<(u32, Arc<str>)>) {
        if let Some((bandwidth, name)) = node {
            self.0.insert((Reverse(bandwidth), name));
        }
    }

    /// Undoes [`Self::add`].
    pub(super) fn remove(&mut self, node: Option<(u32, Arc<str>)>) {
        if let Some((bandwidth, name)) = node {
            self.0.remove(&(Reverse(bandwidth), name));
        }
    }

    pub(super) fn fastest(&self) -> Option<Fastest<'_>> {
        let (Reverse(bandwidth), name) = self.0.first()?;
        Some(Fastest {
            node: name,
            bandwidth: *bandwidth,
        })
    }
}

/// The fastest node of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fastest<'a> {
    pub node: &'a str,
    /// Its NVLink bandwidth per GPU in one direction, GB/s.
    pub bandwidth: u32,
}
