//! The virtual clock, and the account of which job holds which GPU.

use std::{cmp::Reverse, collections::BinaryHeap};

use nvlink_planner::Millis;
use nvlink_topology::GpuSet;

use crate::{
    cluster::Cluster,
    scheduler::{Entry, Policy, Scheduler, Seat, Start},
};

/// How many rounds without an event in between may start nothing while jobs wait and none runs.
const MOST_IDLE_ROUNDS: u32 = 1_000;

/// A rule of the simulation that a policy broke.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the simulation of {} is wrong, please report this: {problem}", .policy.map_or("a policy", Into::into))]
pub struct Inconsistent {
    policy: Option<Policy>,
    problem: String,
}

impl Inconsistent {
    fn new(problem: String) -> Self {
        Self {
            policy: None,
            problem,
        }
    }

    pub(crate) fn of(self, policy: Policy) -> Self {
        Self {
            policy: Some(policy),
            ..self
        }
    }
}

/// When and where a job ran.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Started {
    pub(crate) at: Millis,
    /// How long it ran.
    pub(crate) length: Millis,
    pub(crate) seats: Vec<Seat>,
}

/// Replays all jobs. Returns the start of each; `None` for those that the scheduler rejected. `length` says how long a job runs on the GPUs that it
/// got, and `progress` gets the number of ended jobs.
pub(crate) fn replay(
    entries: &[Entry<'_>],
    cluster: &Cluster,
    scheduler: &mut dyn Scheduler,
    length: &mut dyn FnMut(usize, &[Seat]) -> Millis,
    progress: &mut dyn FnMut(usize),
) -> Result<Vec<Option<Started>>, Inconsistent> {
    let mut account = Account::new(entries, cluster);
    let (mut arrived, mut ended, mut rejected, mut idle) = (0, 0, 0, 0);
    let mut ends = BinaryHeap::new();
    let mut woken = None;
    while ended < entries.len() {
        let arrival = entries.get(arrived).map(|entry| entry.job.time);
        let end = ends.peek().map(|&Reverse((at, _))| at);
        let Some(now) = [arrival, end, woken].into_iter().flatten().min() else {
            let waiting = entries.len() - ended;
            return Err(Inconsistent::new(format!("{waiting} jobs wait forever")));
        };
        while let Some(&Reverse((_, entry))) = ends.peek().filter(|one| one.0.0 == now) {
            ends.pop();
            let ran = account.end(entry);
            scheduler.end(entry, ran);
            ended += 1;
        }
        while entries
            .get(arrived)
            .is_some_and(|entry| entry.job.time == now)
        {
            scheduler.arrive(arrived);
            arrived += 1;
        }
        let starts = scheduler.round(now);
        let gone = scheduler.rejected().len();
        ended += gone;
        rejected += gone;
        let is_idle = starts.is_empty() && gone == 0 && ends.is_empty();
        idle = if is_idle { idle + 1 } else { 0 };
        for start in starts {
            if start.entry >= arrived {
                return Err(Inconsistent::new(
                    "a job starts before it arrives".to_owned(),
                ));
            }
            let (entry, length) = (start.entry, length(start.entry, &start.seats));
            account.start(start, now, length)?;
            ends.push(Reverse((now + length, entry)));
        }
        woken = scheduler
            .wake()
            .filter(|&at| at > now && idle < MOST_IDLE_ROUNDS);
        progress(ended);
    }
    let started = account.started;
    match started.iter().filter(|start| start.is_none()).count() {
        never if never == rejected => Ok(started),
        _ => Err(Inconsistent::new("a job never ran".to_owned())),
    }
}

/// Who holds what.
struct Account<'a> {
    entries: &'a [Entry<'a>],
    cluster: &'a Cluster,
    held: Vec<GpuSet>,
    started: Vec<Option<Started>>,
}

impl<'a> Account<'a> {
    fn new(entries: &'a [Entry<'a>], cluster: &'a Cluster) -> Self {
        Self {
            entries,
            cluster,
            held: vec![GpuSet::EMPTY; cluster.nodes()],
            started: vec![None; entries.len()],
        }
    }

    fn start(
        &mut self,
        Start { entry, seats }: Start,
        now: Millis,
        length: Millis,
    ) -> Result<(), Inconsistent> {
        let job = self.entries[entry].job;
        let wrong = |what: &str| {
            let (time, gpus) = (job.time, job.gpus);
            Err(Inconsistent::new(format!(
                "a job of {gpus} GPUs from {time} ms {what}"
            )))
        };
        if self.started[entry].is_some() {
            return wrong("starts twice");
        }
        let given: usize = seats.iter().map(|seat| seat.gpus.len()).sum();
        if given != job.gpus as usize {
            return wrong(&format!("gets {given} GPUs"));
        }
        for seat in &seats {
            let held = &mut self.held[seat.node];
            let has = self.cluster.graph(seat.node).all().is_superset(seat.gpus);
            if !has || !held.intersection(seat.gpus).is_empty() {
                return wrong("gets a GPU that is not free");
            }
            *held = held.union(seat.gpus);
        }
        self.started[entry] = Some(Started {
            at: now,
            length,
            seats,
        });
        Ok(())
    }

    /// Gives back the GPUs of a job, and returns how long it ran.
    fn end(&mut self, entry: usize) -> Millis {
        let Some(started) = &self.started[entry] else {
            return 0;
        };
        for seat in &started.seats {
            let held = &mut self.held[seat.node];
            *held = held.difference(seat.gpus);
        }
        started.length
    }
}

#[cfg(test)]
mod tests;
