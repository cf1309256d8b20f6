//! How long the same job ran before, and what the claims of its project were worth. The stores are
//! bounded: the latest runs of the jobs and projects that ended last.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use nvlink_planner::{Millis, UsualRun};

/// The most runs of one job that are kept.
const MOST_RUNS: usize = 32;
/// The most jobs that are kept, and the most projects.
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

/// How many times as long as it says a job of a project runs, in percent: at least 100.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Worth(u32);

impl Worth {
    /// Nothing is known against the claim.
    pub const FULL: Self = Self(100);

    /// Returns what a claim of `expected` means.
    #[must_use]
    pub fn of(self, expected: Duration) -> Duration {
        expected.saturating_mul(self.0) / 100
    }
}

/// Past runs, by job, and past claims, by project.
#[derive(Clone, Debug, Default)]
pub struct Past {
    /// Whole seconds.
    jobs: Latest<Key>,
    /// How long runs took, in percent of what their authors had claimed. By project, so that a new
    /// name of a job is no new beginning.
    claims: Latest<String>,
    /// By class.
    usual: BTreeMap<String, UsualRun>,
}

impl Past {
    /// Adds a run of `duration` on so many GPUs.
    pub fn add(&mut self, key: Key, duration: Duration, gpus: u32) {
        let ran = Millis::try_from(duration.as_millis()).unwrap_or(Millis::MAX);
        let usual = self.usual.entry(key.class.clone()).or_default();
        usual.add(ran, gpus);
        let seconds = u32::try_from(duration.as_secs()).unwrap_or(u32::MAX);
        self.jobs.add(key, seconds);
    }

    /// Adds a run of a project that took `ran`, and was to take `claimed`.
    pub fn claimed(&mut self, project: &str, ran: Duration, claimed: Duration) {
        let percent = ran.as_millis() * 100 / claimed.as_millis().max(1);
        let percent = u32::try_from(percent).unwrap_or(u32::MAX);
        self.claims.add(project.to_owned(), percent);
    }

    /// Returns what the claims of a project are worth: eight of ten of its latest runs took at most
    /// so many times as long as they claimed.
    #[must_use]
    pub fn worth(&self, project: &str) -> Worth {
        let known = self.claims.sorted(project);
        known.map_or(Worth::FULL, |known| Worth(known.at(8).max(100)))
    }

    /// Returns how long the pods of a class usually run.
    #[must_use]
    pub fn usual(&self, class: &str) -> Option<Millis> {
        self.usual.get(class)?.get()
    }

    /// Returns how long the runs of a job took; `None` if there are too few.
    #[must_use]
    pub fn spread(&self, key: &Key) -> Option<Spread> {
        let sorted = self.jobs.sorted(key)?;
        let at = |tenths| Duration::from_secs(sorted.at(tenths).into());
        Some(Spread {
            runs: sorted.0.len(),
            median: at(5),
            most: at(9),
        })
    }
}

/// The latest values by key.
#[derive(Clone, Debug)]
struct Latest<K> {
    values: BTreeMap<K, Values>,
    /// The keys by the number of the value that came last.
    order: BTreeMap<u64, K>,
    /// The number of the next value.
    next: u64,
}

impl<K> Default for Latest<K> {
    fn default() -> Self {
        Self {
            values: BTreeMap::new(),
            order: BTreeMap::new(),
            next: 0,
        }
    }
}

#[derive(Clone, Debug, Default)]
struct Values {
    /// In the order in which they came.
    latest: VecDeque<u32>,
    /// The number of the last one.
    last: u64,
}

/// Values in ascending order, at least [`FEWEST`].
struct Sorted(Vec<u32>);

impl Sorted {
    /// Returns the nearest rank: the smallest value that is not below that share of all values.
    fn at(&self, tenths: usize) -> u32 {
        let rank = (self.0.len() * tenths).div_ceil(10);
        self.0
            .get(rank.saturating_sub(1))
            .copied()
            .unwrap_or_default()
    }
}

impl<K: Ord + Clone> Latest<K> {
    fn add(&mut self, key: K, value: u32) {
        let number = self.next;
        self.next += 1;
        let values = self.values.entry(key.clone()).or_default();
        if !values.latest.is_empty() {
            self.order.remove(&values.last);
        }
        values.last = number;
        values.latest.push_back(value);
        if values.latest.len() > MOST_RUNS {
            values.latest.pop_front();
        }
        self.order.insert(number, key);
        if self.values.len() > MOST_JOBS
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.values.remove(&oldest);
        }
    }

    fn sorted<Q: Ord + ?Sized>(&self, key: &Q) -> Option<Sorted>
    where
        K: std::borrow::Borrow<Q>,
    {
        let mut sorted: Vec<u32> = self.values.get(key)?.latest.iter().copied().collect();
        sorted.sort_unstable();
        (sorted.len() >= FEWEST).then_some(Sorted(sorted))
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
    fn the_claims_of_a_project_are_worth_what_its_earlier_ones_were() {
        let mut past = Past::default();
        let second = Duration::from_secs(1);
        for _ in 0..2 {
            past.claimed("p", 30 * second, 10 * second);
        }
        assert_eq!(past.worth("p"), Worth::FULL, "two runs say nothing");
        past.claimed("p", 30 * second, 10 * second);
        assert_eq!(past.worth("p").of(10 * second), 30 * second);
        assert_eq!(past.worth("other"), Worth::FULL);
        // A few claims that are short are no habit, and long ones make no short one true.
        for _ in 0..MOST_RUNS {
            past.claimed("p", second, 10 * second);
        }
        for _ in 0..6 {
            past.claimed("p", 30 * second, 10 * second);
        }
        assert_eq!(past.worth("p"), Worth::FULL);
        past.claimed("p", 30 * second, 10 * second);
        assert_eq!(past.worth("p").of(10 * second), 30 * second);
        past.claimed("q", second, Duration::ZERO);
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
        assert_eq!(past.jobs.values.len(), MOST_JOBS);
        assert_eq!(past.jobs.order.len(), MOST_JOBS);
        assert!(past.spread(&job(0)).is_some() && past.spread(&job(1)).is_none());
    }
}
