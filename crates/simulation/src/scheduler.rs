//! Who starts jobs, and what is started.

use nvlink_planner::Millis;
use nvlink_topology::GpuSet;
use strum::{IntoStaticStr, VariantArray};

use crate::{cluster::Demand, trace::Job};

/// Who decides which job starts when, and on which GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case", const_into_str)]
pub enum Policy {
    /// The planner.
    NvlinkDomains,
    /// kube-scheduler that prefers empty nodes (LeastAllocated, its default), and a device
    /// plugin that hands out any free GPUs.
    Spread,
    /// kube-scheduler that prefers full nodes (MostAllocated), and the lowest free indices.
    Packed,
    /// The nodes of [`Policy::Packed`], and the best free GPUs of the node.
    Aligned,
}

impl Policy {
    /// All policies, in the order of reports.
    pub const ALL: &[Self] = Self::VARIANTS;
}

/// GPUs of one node that a pod holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seat {
    /// The node's position in the cluster.
    pub(crate) node: usize,
    pub(crate) gpus: GpuSet,
}

/// A job that the cluster can hold.
#[derive(Clone, Debug)]
pub(crate) struct Entry<'a> {
    pub(crate) job: &'a Job,
    pub(crate) demand: Demand,
}

/// What a policy starts.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Start {
    /// The job's position among the entries.
    pub(crate) entry: usize,
    pub(crate) seats: Vec<Seat>,
}

/// A scheduler on the virtual clock. It gets all ends and arrivals of a moment, then a round.
pub(crate) trait Scheduler {
    /// A job arrived.
    fn arrive(&mut self, entry: usize);
    /// A job ended that ran for `ran`.
    fn end(&mut self, entry: usize, ran: Millis);
    /// Returns what starts now.
    fn round(&mut self, now: Millis) -> Vec<Start>;
    /// Returns the jobs that will never start, since the latest call.
    fn rejected(&mut self) -> Vec<usize> {
        Vec::new()
    }
    /// Returns how many of all rejected jobs had waited for as long as they may.
    fn timed_out(&self) -> usize {
        0
    }
    /// Returns when the answer may change although no job arrives or ends.
    fn wake(&self) -> Option<Millis> {
        None
    }
}
