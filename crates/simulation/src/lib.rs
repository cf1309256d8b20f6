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
mod comparison;
mod error;
mod estimates;
mod plot;
mod queue;
mod rating;
mod row;
mod rules;
mod scheduler;
mod summary;
mod table;
mod trace;
mod waiting;
mod words;

use baseline::Baseline;
use nvlink_planner::Millis;
use queue::Queue;
use rating::Ratings;
use scheduler::{Entry, Scheduler, Seat};
use summary::seconds;

pub use clock::Inconsistent;
pub use cluster::{BadCluster, Cluster, ClusterSpec};
pub use comparison::clusters;
pub use error::TraceError;
pub use plot::plot;
pub use rules::Rules;
pub use scheduler::Policy;
pub use summary::{OfSize, Outcome, Ran, Report, Summary};
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

/// What a simulation depends on, besides the trace and the cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Decides what is arbitrary.
    pub seed: u64,
    /// The share of its traced duration that a job communicates where [`Policy::Packed`] puts it,
    /// from 0 to 1. On other GPUs this part takes longer or shorter by the cost model, under every
    /// policy; the rest takes as long.
    pub communication_share: f64,
    /// The class of all jobs, for [`Policy::NvlinkDomains`].
    pub rules: Rules,
}

/// Replays `trace` on `cluster` under each policy; equal arguments give equal reports. `progress` is
/// called after each moment of the clock.
///
/// # Errors
/// When a policy breaks a rule of the simulation, such as using a GPU twice: a defect.
pub fn run(
    trace: &Trace,
    cluster: &Cluster,
    options: &Options,
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
    let mut simulation = Simulation {
        cluster,
        entries: &entries,
        options,
        ratings: Ratings::new(cluster),
        packed: Vec::new(),
    };
    // Its jobs last as the trace says.
    let packed = simulation.replay(Policy::Packed, progress)?;
    simulation.packed = packed.ran.iter().map(|one| one.cost).collect();
    let mut outcomes = Vec::new();
    for &policy in Policy::ALL {
        outcomes.push(match policy {
            Policy::Packed => packed.clone(),
            _ => simulation.replay(policy, progress)?,
        });
    }
    Ok(Report::new(trace, cluster, rejected, outcomes))
}

struct Simulation<'a> {
    cluster: &'a Cluster,
    entries: &'a [Entry<'a>],
    options: &'a Options,
    ratings: Ratings<'a>,
    /// The costs of the jobs under [`Policy::Packed`], once it has run.
    packed: Vec<f64>,
}

impl Simulation<'_> {
    fn replay(
        &mut self,
        policy: Policy,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Outcome, Inconsistent> {
        let (seed, share) = (self.options.seed, self.options.communication_share);
        let (cluster, entries) = (self.cluster, self.entries);
        let mut scheduler: Box<dyn Scheduler> = match policy {
            Policy::NvlinkDomains => Box::new(Queue::new(cluster, entries, &self.options.rules)),
            _ => Box::new(Baseline::new(policy, cluster, entries, seed)),
        };
        let mut report = |ended| {
            progress(Progress {
                policy,
                ended,
                jobs: entries.len(),
            });
        };
        let (ratings, packed) = (&mut self.ratings, &self.packed);
        let mut length = |number: usize, seats: &[Seat]| {
            let entry = &entries[number];
            match packed.get(number) {
                Some(&packed) if packed > 0.0 && share > 0.0 => {
                    let (cost, _) = ratings.cost(entry, seats);
                    scaled(entry.job.duration, share, cost / packed)
                }
                _ => entry.job.duration,
            }
        };
        let ran = clock::replay(entries, cluster, &mut *scheduler, &mut length, &mut report);
        let ran = ran.map_err(|error| error.of(policy))?;
        let rejected = ran.iter().filter(|start| start.is_none()).count();
        let ran = ran.iter().zip(entries).enumerate();
        let ran = ran.filter_map(|(number, (start, entry))| {
            let mut ran = self.ratings.rate(entry, start.as_ref()?);
            let packed = self.packed.get(number).copied().unwrap_or(ran.cost);
            if packed > 0.0 {
                ran.communicated = seconds(entry.job.duration) * share * ran.cost / packed;
            }
            Some(ran)
        });
        let ran = ran.collect();
        Ok(Outcome {
            policy,
            ran,
            rejected,
        })
    }
}

/// Returns how long a job runs of whose `duration` this share takes `times` as long.
fn scaled(duration: Millis, share: f64, times: f64) -> Millis {
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)] // far below 2^53
    let scaled = (duration as f64 * (1.0 - share + share * times)).round() as Millis;
    scaled.max(1)
}
