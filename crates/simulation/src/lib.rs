//! Replays a trace of jobs on a virtual clock: under the planner, and under what clusters
//! without it do.
//!
//! Under every [`Policy`] a job that spans nodes starts whole, although kube-scheduler
//! would start its pods one by one; and every policy gets the best rank order of the GPUs
//! that it hands out, as NCCL finds it. Both favour the policies that the planner is
//! compared with.
//!
//! A [`Trace`] is read (`row`, `trace`), the [`Cluster`] built, and each policy is a scheduler
//! (`scheduler`: `queue` is the planner, `baseline` the others) on one clock (`clock`). What
//! ran is rated (`rating`), summed up (`summary`), and shown (`table`, `plot`).

mod baseline;
mod clock;
mod cluster;
mod error;
mod estimates;
mod plot;
mod queue;
mod rating;
mod row;
mod scheduler;
mod summary;
mod table;
mod trace;
mod waiting;
mod words;

use baseline::Baseline;
use queue::Queue;
use rating::Ratings;
use scheduler::{Entry, Scheduler};

pub use clock::Inconsistent;
pub use cluster::{BadCluster, Cluster, ClusterSpec};
pub use error::TraceError;
pub use plot::plot;
pub use scheduler::Policy;
pub use summary::{Outcome, Ran, Report, Summary};
pub use table::table;
pub use trace::{Job, Trace};

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
    for &policy in Policy::ALL {
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
