//! The figures of a simulation.

use serde::Serialize;

use nvlink_planner::Millis;

use crate::{cluster::Cluster, scheduler::Policy, trace::Trace};

/// Payload of the communication time, bytes per GPU.
const PAYLOAD: f64 = 1_073_741_824.0;

/// What one job got.
#[derive(Clone, Debug, PartialEq)]
pub struct Ran {
    /// When it arrived.
    pub time: Millis,
    /// When it started.
    pub start: Millis,
    /// How long it ran, milliseconds.
    pub duration: Millis,
    /// The number of its GPUs.
    pub gpus: u32,
    /// Whether its GPUs communicate.
    pub communicates: bool,
    /// How long it communicated, seconds; 0 if no share of its time is said to.
    pub communicated: f64,
    /// Communication time, seconds per byte of payload; 0 if it does not communicate.
    pub cost: f64,
    /// Best possible cost over `cost`, in (0, 1]: on its node when empty, or on the empty
    /// cluster if it spans nodes.
    pub quality: f64,
    /// Whether its GPUs are not in one NVLink domain, although some domain could hold them.
    pub across_domains: bool,
}

impl Ran {
    /// Returns how long it waited, seconds.
    #[must_use]
    pub fn wait(&self) -> f64 {
        seconds(self.start - self.time)
    }

    /// Returns the time from its arrival to its end, seconds.
    #[must_use]
    pub fn turnaround(&self) -> f64 {
        seconds(self.start + self.duration - self.time)
    }

    /// Returns how many GPU-hours it took longer than on the best GPUs.
    #[must_use]
    pub fn lost_gpu_hours(&self) -> f64 {
        f64::from(self.gpus) * self.communicated * (1.0 - self.quality) / 3600.0
    }

    /// Returns the time that it takes to communicate 1 GiB per GPU, seconds; `None` if it
    /// does not communicate.
    #[must_use]
    pub fn communication(&self) -> Option<f64> {
        self.communicates.then_some(self.cost * PAYLOAD)
    }
}

/// What all jobs got under one policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The policy.
    pub policy: Policy,
    /// The jobs, in the order of their arrival; those that were rejected are not there.
    pub ran: Vec<Ran>,
    /// The number of jobs that the class never lets start on this cluster.
    pub rejected: usize,
    /// The number of jobs that waited for as long as the class lets them, and never ran.
    pub timed_out: usize,
}

/// What a simulation found.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The number of jobs of the trace.
    pub jobs: usize,
    /// The number of jobs that the empty cluster could not hold.
    pub rejected: usize,
    /// The cluster, as its specification says it.
    pub cluster: String,
    /// The number of nodes.
    pub nodes: usize,
    /// The number of GPUs.
    pub gpus: usize,
    /// The policies, in the order of [`Policy::ALL`].
    pub outcomes: Vec<Outcome>,
}

/// The figures of one policy. What no job gave rise to is absent.
///
/// Percentiles are by nearest rank: the 95th is the least value that at least 95 % of the
/// values do not exceed.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// The name of the policy.
    pub name: &'static str,
    /// The number of jobs of the trace.
    pub jobs: usize,
    /// The number of them that the empty cluster could not hold, or that the class never lets start
    /// on it.
    pub rejected: usize,
    /// The number of them that waited for as long as the class lets them, and never ran.
    pub timed_out: usize,
    /// From arrival to start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_seconds: Option<Waits>,
    /// Time for 1 GiB per GPU by the cost model, over the jobs that communicate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub communication_seconds: Option<Communication>,
    /// [`Ran::quality`], over the jobs that communicate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quality: Option<Quality>,
    /// The number of jobs with [`Ran::across_domains`].
    pub cross_domain_jobs: usize,
    /// From arrival to end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turnaround_seconds: Option<Turnaround>,
    /// GPU-hours of the jobs.
    pub gpu_hours: f64,
    /// Those of them that the jobs would not have taken on the best GPUs; 0 if no share of their
    /// time is said to be communication.
    pub lost_gpu_hours: f64,
    /// The figures by the number of GPUs of the jobs.
    pub by_size: Vec<OfSize>,
    /// GPU-seconds of the jobs over GPUs times the makespan, in [0, 1].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub utilization: Option<f64>,
    /// From the first arrival to the last end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub makespan_seconds: Option<f64>,
}

/// Waits, seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Waits {
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: f64,
    /// The 95th percentile.
    pub p95: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The longest.
    pub max: f64,
}

impl Summary {
    /// Returns the number of jobs that no figure of waits and communication counts.
    pub(crate) const fn never_ran(&self) -> usize {
        self.rejected + self.timed_out
    }
}

impl Waits {
    pub(crate) fn of(all: &Sorted) -> Self {
        Self {
            mean: all.mean(),
            p50: all.percentile(50),
            p95: all.percentile(95),
            p99: all.percentile(99),
            max: all.percentile(100),
        }
    }
}

/// Times from arrival to end, seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Turnaround {
    /// The mean.
    pub mean: f64,
    /// The 95th percentile.
    pub p95: f64,
}

/// Communication times, seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Communication {
    /// The mean.
    pub mean: f64,
    /// The 95th percentile.
    pub p95: f64,
}

impl Communication {
    pub(crate) fn of(all: &Sorted) -> Self {
        Self {
            mean: all.mean(),
            p95: all.percentile(95),
        }
    }
}

/// Qualities, in (0, 1].
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Quality {
    /// The mean.
    pub mean: f64,
    /// The 5th percentile.
    pub p5: f64,
}

/// A cluster in the document of `--output json`.
#[derive(Serialize)]
struct Document<'a> {
    cluster: &'a str,
    nodes: usize,
    gpus: usize,
    policies: Vec<Summary>,
}

impl Report {
    pub(crate) fn new(
        trace: &Trace,
        cluster: &Cluster,
        rejected: usize,
        outcomes: Vec<Outcome>,
    ) -> Self {
        Self {
            jobs: trace.jobs.len(),
            rejected,
            cluster: cluster.spec.to_string(),
            nodes: cluster.nodes(),
            gpus: cluster.gpus(),
            outcomes,
        }
    }

    /// Returns the figures of all policies.
    #[must_use]
    pub fn summaries(&self) -> Vec<Summary> {
        let summary = |outcome| self.summary(outcome);
        self.outcomes.iter().map(summary).collect()
    }

    /// Returns the report for programs: an object with the cluster and, for each of the
    /// `policies`, its figures.
    #[must_use]
    pub fn document(&self) -> impl Serialize {
        Document {
            cluster: &self.cluster,
            nodes: self.nodes,
            gpus: self.gpus,
            policies: self.summaries(),
        }
    }

    pub(crate) fn summary(&self, outcome: &Outcome) -> Summary {
        let (policy, ran) = (outcome.policy, &outcome.ran);
        let waits = Sorted::of(ran.iter().map(Ran::wait));
        let communication = Sorted::of(ran.iter().filter_map(Ran::communication));
        let communicating = ran.iter().filter(|one| one.communicates);
        let quality = Sorted::of(communicating.map(|one| one.quality));
        let first = ran.iter().map(|one| one.time).min();
        let last = ran.iter().map(|one| one.start + one.duration).max();
        let makespan = first.zip(last).map(|(first, last)| seconds(last - first));
        let used = ran
            .iter()
            .map(|one| f64::from(one.gpus) * seconds(one.duration));
        let capacity = |makespan| count(self.gpus) * makespan;
        let busy = makespan.filter(|&makespan| makespan > 0.0);
        Summary {
            name: policy.into_str(),
            jobs: self.jobs,
            rejected: self.rejected + outcome.rejected,
            timed_out: outcome.timed_out,
            wait_seconds: waits.as_ref().map(Waits::of),
            communication_seconds: communication.as_ref().map(Communication::of),
            turnaround_seconds: Sorted::of(ran.iter().map(Ran::turnaround)).map(|all| Turnaround {
                mean: all.mean(),
                p95: all.percentile(95),
            }),
            gpu_hours: used.clone().sum::<f64>() / 3600.0,
            lost_gpu_hours: ran.iter().map(Ran::lost_gpu_hours).sum(),
            by_size: by_size(ran),
            quality: quality.map(|all| Quality {
                mean: all.mean(),
                p5: all.percentile(5),
            }),
            cross_domain_jobs: ran.iter().filter(|one| one.across_domains).count(),
            utilization: busy.map(|makespan| used.sum::<f64>() / capacity(makespan)),
            makespan_seconds: makespan,
        }
    }
}

/// Sizes of jobs that are summed up together (means hide who pays for what others gain), by the most GPUs of each.
const SIZES: [(&str, u32); 4] = [("1", 1), ("2-4", 4), ("5-8", 8), ("9+", u32::MAX)];

/// What the jobs of similar size got.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OfSize {
    /// The numbers of GPUs: `1`, `2-4`, `5-8` or `9+`.
    pub gpus: &'static str,
    /// The number of jobs that ran.
    pub jobs: usize,
    /// From arrival to start.
    pub wait_seconds: Waits,
    /// Time for 1 GiB per GPU, over the jobs that communicate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub communication_seconds: Option<Communication>,
}

/// Returns the figures of each size that the jobs have, smallest first.
fn by_size(ran: &[Ran]) -> Vec<OfSize> {
    let least = [0].into_iter().chain(SIZES.map(|(_, most)| most));
    let sizes = SIZES.into_iter().zip(least);
    let of_size = |((gpus, most), before): ((&'static str, u32), u32)| {
        let jobs = || {
            ran.iter()
                .filter(|one| one.gpus > before && one.gpus <= most)
        };
        let waits = Sorted::of(jobs().map(Ran::wait))?;
        let communication = Sorted::of(jobs().filter_map(Ran::communication));
        Some(OfSize {
            gpus,
            jobs: jobs().count(),
            wait_seconds: Waits::of(&waits),
            communication_seconds: communication.as_ref().map(Communication::of),
        })
    };
    sizes.filter_map(of_size).collect()
}

/// One or more values in ascending order.
pub(crate) struct Sorted(Vec<f64>);

impl Sorted {
    pub(crate) fn of(values: impl Iterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        (!values.is_empty()).then_some(Self(values))
    }

    fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / count(self.0.len())
    }

    /// Returns a percentile by nearest rank: the value of rank `percent / 100 × n`, rounded up.
    fn percentile(&self, percent: usize) -> f64 {
        let rank = (percent * self.0.len()).div_ceil(100).max(1);
        self.0.get(rank - 1).copied().unwrap_or_default()
    }

    pub(crate) fn values(&self) -> &[f64] {
        &self.0
    }
}

#[allow(clippy::cast_precision_loss)] // far below 2^53
fn count(number: usize) -> f64 {
    number as f64
}

#[allow(clippy::cast_precision_loss)] // 2^53 milliseconds are 285,000 years
pub(crate) fn seconds(time: Millis) -> f64 {
    time as f64 / 1000.0
}
