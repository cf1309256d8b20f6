//! How long jobs are expected to run: all that the planner gets to know of durations.

use std::collections::{HashMap, VecDeque};

use nvlink_planner::{Estimate, Millis, Name};

use crate::trace::Job;

/// The number of past jobs that an estimate is based on.
const REMEMBERED: usize = 32;
/// The fewest past jobs for an estimate.
const FEWEST: usize = 3;

/// Durations of jobs that ended, by project and number of GPUs: a trace does not tell more
/// about which jobs are alike.
#[derive(Debug, Default)]
pub(crate) struct Estimates(HashMap<(Name, u32), VecDeque<Millis>>);

impl Estimates {
    /// Remembers a job that ended, and how long it ran.
    pub(crate) fn ended(&mut self, job: &Job, ran: Millis) {
        let past = self.0.entry((job.project.clone(), job.gpus)).or_default();
        past.push_back(ran);
        if past.len() > REMEMBERED {
            past.pop_front();
        }
    }

    /// Returns the median of the latest jobs that are alike; `None` if there were too few. It
    /// has no spread: that of unlike jobs says nothing about one of them, and a planner that
    /// allowed for it would keep GPUs idle.
    pub(crate) fn of(&self, job: &Job) -> Option<Estimate> {
        let past = self.0.get(&(job.project.clone(), job.gpus))?;
        if past.len() < FEWEST {
            return None;
        }
        let mut sorted: Vec<Millis> = past.iter().copied().collect();
        sorted.sort_unstable();
        Some(Estimate::exact(sorted[sorted.len().div_ceil(2) - 1]))
    }
}
