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

use std::collections::HashMap;

use baseline::Baseline;
use nvlink_planner::Millis;
use nvlink_topology::Pattern;
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
    /// The share of its traced duration that a job communicates at the mean cost of the jobs with as
    /// many GPUs and the same pattern under [`Policy::Packed`], from 0 to 1. Where its own cost differs,
    /// this part takes longer or shorter in proportion, under every policy; the rest takes as long.
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
        ratings: Ratings::new(cluster, &options.rules.class),
        usual: HashMap::new(),
    };
    if options.communication_share > 0.0 {
        // Its jobs last as the trace says.
        let packed = simulation.replay(Policy::Packed, progress)?;
        simulation.usual = usual(&entries, &packed);
    }
    let mut outcomes = Vec::new();
    for &policy in Policy::ALL {
        outcomes.push(simulation.replay(policy, progress)?);
    }
    Ok(Report::new(trace, cluster, rejected, outcomes))
}

struct Simulation<'a> {
    cluster: &'a Cluster,
    entries: &'a [Entry<'a>],
    options: &'a Options,
    ratings: Ratings<'a>,
    /// The mean costs of alike jobs under [`Policy::Packed`], if a share of their time is
    /// communication.
    usual: HashMap<(u32, Pattern), f64>,
}

/// Returns the mean cost of the jobs with as many GPUs and the same pattern.
fn usual(entries: &[Entry<'_>], outcome: &Outcome) -> HashMap<(u32, Pattern), f64> {
    let mut sums: HashMap<_, (f64, f64)> = HashMap::new();
    for (entry, ran) in entries.iter().zip(&outcome.ran) {
        let (sum, jobs) = sums.entry(alike(entry)).or_default();
        *sum += ran.cost;
        *jobs += 1.0;
    }
    let means = sums.into_iter().map(|(key, (sum, jobs))| (key, sum / jobs));
    means.collect()
}

const fn alike(entry: &Entry<'_>) -> (u32, Pattern) {
    (entry.job.gpus, entry.job.pattern)
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
        let (ratings, usual) = (&mut self.ratings, &self.usual);
        let mut length = |number: usize, seats: &[Seat]| {
            let entry = &entries[number];
            match usual.get(&alike(entry)) {
                Some(&usual) if usual > 0.0 => {
                    let (cost, _) = ratings.cost(entry, seats);
                    scaled(entry.job.duration, share, cost / usual)
                }
                _ => entry.job.duration,
            }
        };
        let ran = clock::replay(entries, cluster, &mut *scheduler, &mut length, &mut report);
        let ran = ran.map_err(|error| error.of(policy))?;
        let timed_out = scheduler.timed_out();
        let never = ran.iter().filter(|start| start.is_none()).count();
        let ran = ran.iter().zip(entries);
        let ran = ran.filter_map(|(start, entry)| {
            let mut ran = self.ratings.rate(entry, start.as_ref()?);
            let usual = self.usual.get(&alike(entry)).filter(|&&usual| usual > 0.0);
            if let Some(usual) = usual {
                ran.communicated = seconds(entry.job.duration) * share * ran.cost / usual;
            }
            Some(ran)
        });
        let ran = ran.collect();
        Ok(Outcome {
            policy,
            ran,
            rejected: never.saturating_sub(timed_out),
            timed_out,
        })
    }
}

/// Returns how long a job runs of whose `duration` this share takes `times` as long.
fn scaled(duration: Millis, share: f64, times: f64) -> Millis {
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)] // far below 2^53
    let scaled = (duration as f64 * (1.0 - share + share * times)).round() as Millis;
    scaled.max(1)
}
