//! How good a node is for a job.

use nvlink_topology::Interconnect;

use crate::{Millis, Name, node_entry::Node, search::Found};

/// How good a node is for a job; less is better: the earliest start, then the fewest broken
/// GPUs, then no slow node, then a placement at full speed, the one of the least harm to
/// other jobs, then the least cost and the least harm.
///
/// A placement is at full speed if it is within one NVLink domain and no other on that
/// node is faster. Among these, harm counts before cost: two GPUs are nearly as fast over
/// an NVLink bridge as over NVSwitches, and a job of eight that finds the switches taken
/// by pairs communicates over PCIe, an order of magnitude slower.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    /// [`Millis::MIN`] where the job could start now if nobody else waited.
    pub(crate) start: Millis,
    pub(crate) worth: Worth,
    harm: Harm,
    /// Its cost, which is not in `worth` for a placement at full speed.
    cost: (Cost, Cost),
    name: Name,
}

/// How good a placement is for the job itself. More free GPUs never make it worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Worth {
    broken: u8,
    slow: u8,
    /// `None` at full speed.
    cost: Option<(Cost, Cost)>,
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
        let cost = (Cost::of(found.cost), Cost::of(found.total_cost));
        Self {
            start,
            worth: Worth {
                broken: found.broken,
                slow: node.state.slow,
                cost: (!found.full_speed).then_some(cost),
            },
            cost,
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
