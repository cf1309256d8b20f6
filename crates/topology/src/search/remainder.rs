//! The free sets that a placement leaves, and the NUMA nodes that it spans.

use crate::{GpuSet, Graph};

/// The sizes of the NVLink-connected sets of GPUs that stay free, largest first.
///
/// Greater is better: `[6, 2]` before `[4, 4]`, `[2]` before `[1, 1]`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Remainder(Vec<u8>);

impl Remainder {
    /// Returns the remainder for the GPUs that stay `free`.
    pub(super) fn of(graph: &Graph, free: GpuSet) -> Self {
        let mut rest = free.intersection(graph.all());
        let mut sizes = Vec::with_capacity(8);
        while let Some(first) = rest.iter().next() {
            let joined = joined(graph, first, rest);
            rest = rest.difference(joined);
            // A set has at most 128 GPUs.
            sizes.push(u8::try_from(joined.len()).unwrap_or(u8::MAX));
        }
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        Self(sizes)
    }
}

/// Returns the members of `within` that edges connect to `first`.
fn joined(graph: &Graph, first: usize, within: GpuSet) -> GpuSet {
    let mut reached: GpuSet = [first].into_iter().collect();
    let mut fresh = reached;
    while !fresh.is_empty() {
        let near = fresh
            .iter()
            .fold(GpuSet::EMPTY, |near, gpu| near.union(graph.neighbours(gpu)));
        fresh = near.intersection(within).difference(reached);
        reached = reached.union(fresh);
    }
    reached
}

/// Returns the number of NUMA nodes that a set of GPUs spans.
pub(super) fn numa_nodes(graph: &Graph, set: GpuSet) -> u32 {
    let numbers = set.iter().fold(GpuSet::EMPTY, |mut seen, gpu| {
        seen.insert(graph.numa(gpu).into());
        seen
    });
    u32::try_from(numbers.len()).unwrap_or(u32::MAX)
}
