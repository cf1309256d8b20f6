//! How good a node is for a job.

use nvlink_topology::Interconnect;

use crate::{Millis, Name, node_entry::Node, search::Found};

/// How good a node is for a job; less is better. The rules are those of the placement
/// search, one level up: the earliest start, then the fewest broken GPUs, then no slow
/// node, then the least cost, then the least harm to other jobs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    /// [`Millis::MIN`] where the job could start now if nobody else waited.
    pub(crate) start: Millis,
    pub(crate) worth: Worth,
    harm: Harm,
    name: Name,
}

/// How good a placement is for the job itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Worth {
    broken: u8,
    slow: u8,
    cost: Cost,
    total: Cost,
}

/// A cost, ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Cost(u64);

impl Cost {
    fn of(cost: f64) -> Self {
        // The bits of numbers that are not negative are in the order of the numbers.
        Self(cost.max(0.0).to_bits())
    }
}

/// How much a placement harms other jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Harm {
    interconnect: Interconnect,
    breaks: bool,
    free: u8,
}

impl Key {
    /// Returns the key of a placement of `found` on `free` GPUs at `start`.
    pub(crate) fn new(node: &Node, start: Millis, free: usize, found: &Found) -> Self {
        Self {
            start,
            worth: Worth {
                broken: found.broken,
                slow: node.state.slow,
                cost: Cost::of(found.cost),
                total: Cost::of(found.total_cost),
            },
            harm: Harm {
                interconnect: node.interconnect(),
                breaks: found.breaks,
                // A graph has at most 128 GPUs.
                free: u8::try_from(free).unwrap_or(u8::MAX),
            },
            name: node.name.clone(),
        }
    }
}
