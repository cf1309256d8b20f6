//! How long the same job ran before. The store is bounded: the latest runs of the jobs that ended
//! last.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use nvlink_planner::{Millis, UsualRun};

/// The most runs of one job that are kept.
const MOST_RUNS: usize = 32;
/// The most jobs that are kept.
const MOST_JOBS: usize = 4096;
/// With fewer runs, nothing is said about the next one.
const FEWEST: usize = 3;

/// A job that is known again.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Its project.
    pub project: String,
    /// Its name, see `super::job::name`.
    pub job: String,
    /// Its class.
    pub class: String,
}

/// How long the runs of one job took. Plans do not allow for all of it, see
/// [`super::limits::Estimate::allowance`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    /// Number of runs.
    pub runs: usize,
    /// Half of the runs took at most this time.
    pub median: Duration,
    /// Nine tenths of the runs took at most this time.
    pub most: Duration,
}

/// Past runs, by job.
#[derive(Clone, Debug, Default)]
pub struct Past {
    jobs: BTreeMap<Key, Runs>,
    /// By class.
    usual: BTreeMap<String, UsualRun>,
    /// The jobs by the number of the run that ended last.
    order: BTreeMap<u64, Key>,
    /// The number of the next run.
    next: u64,
}

#[derive(Clone, Debug, Default)]
struct Runs {
    /// Whole seconds, in the order in which the runs ended.
    seconds: VecDeque<u32>,
    /// The number of the last run.
    last: u64,
}

impl Past {
    /// Adds a run of `duration` on so many GPUs. Reports whether [`Past::usual`] of its class changed.
    pub fn add(&mut self, key: Key, duration: Duration, gpus: u32) -> bool {
        let ran = Millis::try_from(duration.as_millis()).unwrap_or(Millis::MAX);
        let usual = self.usual.entry(key.class.clone()).or_default();
        let before = usual.get();
        usual.add(ran, gpus);
        let changed = usual.get() != before;
        self.remember(key, duration);
        changed
    }

    fn remember(&mut self, key: Key, duration: Duration) {
        let seconds = u32::try_from(duration.as_secs()).unwrap_or(u32::MAX);
        let number = self.next;
        self.next += 1;
        let runs = self.jobs.entry(key.clone()).or_default();
        if !runs.seconds.is_empty() {
            self.order.remove(&runs.last);
        }
        runs.last = number;
        runs.seconds.push_back(seconds);
        if runs.seconds.len() > MOST_RUNS {
            runs.seconds.pop_front();
        }
        self.order.insert(number, key);
        if self.jobs.len() > MOST_JOBS
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.jobs.remove(&oldest);
        }
    }

    /// Returns how long the pods of a class usually run.
    #[must_use]
    pub fn usual(&self, class: &str) -> Option<Millis> {
        self.usual.get(class)?.get()
    }

    /// Returns how long the runs of a job took; `None` if there are too few.
    #[must_use]
    pub fn spread(&self, key: &Key) -> Option<Spread> {
        let mut sorted: Vec<_> = self.jobs.get(key)?.seconds.iter().copied().collect();
        if sorted.len() < FEWEST {
            return None;
        }
        sorted.sort_unstable();
        // The nearest rank: the smallest run that is not below that share of all runs.
        let at = |tenths: usize| {
            let rank = (sorted.len() * tenths).div_ceil(10);
            let seconds = sorted.get(rank.saturating_sub(1)).copied();
            Duration::from_secs(seconds.unwrap_or_default().into())
        };
        Some(Spread {
            runs: sorted.len(),
            median: at(5),
            most: at(9),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(job: &str) -> Key {
        Key {
            project: "p".to_owned(),
            job: job.to_owned(),
            class: "c".to_owned(),
        }
    }

    #[test]
    fn the_spread_is_that_of_the_latest_runs() {
        let mut past = Past::default();
        let add = |past: &mut Past, seconds: u64| {
            past.add(key("a"), Duration::from_secs(seconds), 1);
        };
        for seconds in [300, 100] {
            add(&mut past, seconds);
        }
        assert_eq!(past.spread(&key("a")), None, "two runs say nothing");
        add(&mut past, 200);
        let of = |runs, median, most| {
            let (median, most) = (Duration::from_secs(median), Duration::from_secs(most));
            Some(Spread { runs, median, most })
        };
        assert_eq!(past.spread(&key("a")), of(3, 200, 300));
        for seconds in 1..=MOST_RUNS as u64 {
            add(&mut past, seconds);
        }
        assert_eq!(past.spread(&key("a")), of(32, 16, 29));
        assert_eq!(past.spread(&key("b")), None);
    }

    #[test]
    fn the_jobs_that_ended_longest_ago_are_forgotten() {
        let mut past = Past::default();
        let job = |number: usize| key(&number.to_string());
        for number in 0..MOST_JOBS {
            for _ in 0..FEWEST {
                past.add(job(number), Duration::from_secs(60), 1);
            }
        }
        past.add(job(0), Duration::from_secs(60), 1);
        past.add(key("new"), Duration::from_secs(60), 1);
        assert_eq!(past.jobs.len(), MOST_JOBS);
        assert_eq!(past.order.len(), MOST_JOBS);
        assert!(past.spread(&job(0)).is_some() && past.spread(&job(1)).is_none());
    }
}
