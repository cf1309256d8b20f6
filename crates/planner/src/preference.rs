//! How good a node is for a job.

use nvlink_topology::multi_node::Harm;

use crate::{Millis, Name, node_entry::Node, search::Found};

/// How good a node is for a job; less is better: the earliest start, then the fewest broken
/// GPUs, then a placement that is as fast as any ([`Found::is_as_fast`]), else the least cost, then no
/// slow node, then the least harm to other jobs, then the least cost.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Preference {
    /// [`Millis::MIN`] where the job could start now if nobody else waited.
    pub(crate) start: Millis,
    pub(crate) worth: Worth,
    harm: Harm,
    /// Its cost, which is not in `worth` for a placement that is as fast as any.
    cost: (Cost, Cost),
    name: Name,
}

/// How good a placement is for the job itself. More free GPUs never make it worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Worth {
    broken: u8,
    /// `None` if it is as fast as any.
    cost: Option<(Cost, Cost)>,
    slow: u8,
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

impl Preference {
    /// Returns the preference for a placement of `found` on `free` GPUs at `start`. `least` is the least
    /// cost of such a job on an empty node.
    pub(crate) fn new(
        node: &Node,
        start: Millis,
        free: usize,
        found: &Found,
        least: Option<f64>,
    ) -> Self {
        let fast = found.is_as_fast(least);
        let cost = (Cost::of(found.cost), Cost::of(found.total_cost));
        Self {
            start,
            worth: Worth {
                broken: found.broken,
                cost: (!fast).then_some(cost),
                slow: node.state.slow,
            },
            cost,
            harm: Harm {
                interconnect: node.interconnect(),
                breaks: found.breaks,
                free,
            },
            name: node.name.clone(),
        }
    }
}
