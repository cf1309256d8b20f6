//! Replays a trace of jobs on a virtual clock: under the planner, and under what clusters
//! without it do.
//!
//! Under every [`Policy`] a job that spans nodes starts whole, although kube-scheduler
//! would start its pods one by one; and every policy gets the best rank order of the GPUs
//! that it hands out, as NCCL finds it. Both favour the policies that the planner is
//! compared with.

mod baseline;
mod clock;
mod cluster;
mod estimates;
mod plot;
mod queue;
mod rating;
mod row;
mod summary;
mod table;
mod trace;
mod waiting;
mod words;

use nvlink_topology::GpuSet;

use crate::Millis;
use baseline::Baseline;
use cluster::Demand;
use queue::Queue;
use rating::Ratings;

pub use clock::Inconsistent;
pub use cluster::{BadCluster, Cluster, ClusterSpec};
pub use plot::plot;
pub use summary::{Outcome, Ran, Report, Summary};
pub use table::table;
pub use trace::{Job, Trace, TraceError};

/// Who decides which job starts when, and on which GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    pub const ALL: [Self; 4] = [
        Self::NvlinkDomains,
        Self::Spread,
        Self::Packed,
        Self::Aligned,
    ];

    /// Returns the name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NvlinkDomains => "nvlink-domains",
            Self::Spread => "spread",
            Self::Packed => "packed",
            Self::Aligned => "aligned",
        }
    }
}

/// How far a simulation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The policy that runs.
    pub policy: Policy,
    /// The number of jobs that have ended under it.
    pub ended: usize,
    /// The number of jobs that it runs.
    pub jobs: usize,
}

/// GPUs of one node that a pod holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seat {
    /// The node's position in the cluster.
    node: usize,
    gpus: GpuSet,
}

/// A job that the cluster can hold.
#[derive(Clone, Debug)]
struct Entry<'a> {
    job: &'a Job,
    demand: Demand,
}

/// What a policy starts.
#[derive(Clone, Debug, PartialEq)]
struct Start {
    /// The job's position among the entries.
    entry: usize,
    seats: Vec<Seat>,
}

/// A scheduler on the virtual clock. It gets all ends and arrivals of a moment, then a round.
trait Scheduler {
    /// A job arrived.
    fn arrive(&mut self, entry: usize);
    /// A job ended.
    fn end(&mut self, entry: usize);
    /// Returns what starts now.
    fn round(&mut self, now: Millis) -> Vec<Start>;
    /// Returns when the answer may change although no job arrives or ends.
    fn wake(&self) -> Option<Millis> {
        None
    }
}

/// Replays `trace` on `cluster` under each policy. `seed` decides what is arbitrary; equal
/// arguments give equal reports. `progress` is called after each moment of the clock.
///
/// # Errors
/// When a policy breaks a rule of the simulation, such as using a GPU twice: a defect.
pub fn run(
    trace: &Trace,
    cluster: &Cluster,
    seed: u64,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report, Inconsistent> {
    let demanded = trace.jobs.iter().map(|job| (job, cluster.demand(job)));
    let entries = demanded.filter_map(|(job, demand)| {
        Some(Entry {
            job,
            demand: demand?,
        })
    });
    let entries: Vec<Entry<'_>> = entries.collect();
    let rejected = trace.jobs.len() - entries.len();
    let mut ratings = Ratings::new(cluster);
    let mut outcomes = Vec::new();
    for policy in Policy::ALL {
        let mut scheduler: Box<dyn Scheduler> = match policy {
            Policy::NvlinkDomains => Box::new(Queue::new(cluster, &entries)),
            _ => Box::new(Baseline::new(policy, cluster, &entries, seed)),
        };
        let mut report = |ended| {
            progress(Progress {
                policy,
                ended,
                jobs: entries.len(),
            });
        };
        let ran = clock::replay(&entries, cluster, &mut *scheduler, &mut report);
        let ran = ran.map_err(|error| error.of(policy))?;
        let ran = ran.iter().zip(&entries);
        let ran = ran
            .map(|(start, entry)| ratings.rate(entry, start))
            .collect();
        outcomes.push(Outcome { policy, ran });
    }
    Ok(Report::new(trace, cluster, rejected, outcomes))
}

#[cfg(test)]
mod tests;
