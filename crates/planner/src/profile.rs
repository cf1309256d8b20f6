//! Which GPUs of a node are held from when to when.

use nvlink_topology::GpuSet;

use crate::{Millis, Name};

/// Who holds GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// Nobody in the cluster, as far as is known.
    Outside,
    /// A pod.
    Pod(Name),
    /// The seat of a lost member of this job.
    Vacant(Name),
    /// A job that waits, or that starts in this round.
    Job(Name),
}

/// GPUs that are held for a time.
#[derive(Clone, Debug)]
pub(crate) struct Interval {
    pub(crate) owner: Owner,
    pub(crate) set: GpuSet,
    /// The number of GPUs; more than `set` has if not all of them are known.
    pub(crate) count: u32,
    pub(crate) from: Millis,
    pub(crate) until: Millis,
    /// The expected end.
    pub(crate) mean: Millis,
    /// Other resources.
    pub(crate) used: Vec<u64>,
}

/// What is held from one time to the next.
#[derive(Clone, Debug, PartialEq)]
struct Step {
    from: Millis,
    busy: GpuSet,
    count: u32,
    used: Vec<u64>,
}

/// The starts of a job that count, and how long it holds its GPUs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Starts {
    /// The first.
    pub(crate) after: Millis,
    /// The last.
    pub(crate) until: Millis,
    pub(crate) length: Millis,
}

impl Starts {
    /// Returns all starts from `after` on.
    pub(crate) const fn from(after: Millis, length: Millis) -> Self {
        Self {
            after,
            until: Millis::MAX,
            length,
        }
    }
}

/// A start, and how long GPUs are held from then on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stay {
    pub(crate) start: Millis,
    pub(crate) length: Millis,
}

/// What a pod or job needs on one node, besides a placement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need<'a> {
    pub(crate) gpus: u32,
    pub(crate) resources: &'a [u64],
}

/// The use of one node over time.
#[derive(Clone, Debug)]
pub(crate) struct Profile {
    all: GpuSet,
    capacity: u32,
    resources: Vec<u64>,
    intervals: Vec<Interval>,
    /// Ascending; the first begins at the beginning of time, the last has no end.
    steps: Vec<Step>,
}

impl Profile {
    /// Returns the profile of an empty node.
    pub(crate) fn new(all: GpuSet, capacity: u32, resources: &[u64]) -> Self {
        Self {
            all,
            capacity,
            resources: resources.to_vec(),
            intervals: Vec::new(),
            steps: vec![Step {
                from: Millis::MIN,
                busy: GpuSet::EMPTY,
                count: 0,
                used: vec![0; resources.len()],
            }],
        }
    }

    /// Adds what somebody holds.
    pub(crate) fn add(&mut self, interval: Interval) {
        if interval.from < interval.until {
            let first = self.split(interval.from);
            let last = self.split(interval.until);
            for step in &mut self.steps[first..last] {
                step.busy = step.busy.union(interval.set);
                step.count = step.count.saturating_add(interval.count);
                let used = step.used.iter_mut().zip(&interval.used);
                used.for_each(|(used, more)| *used = used.saturating_add(*more));
            }
        }
        self.intervals.push(interval);
    }

    /// Makes a step begin at `at`, and returns its number.
    fn split(&mut self, at: Millis) -> usize {
        if at == Millis::MAX {
            return self.steps.len();
        }
        let next = self.steps.partition_point(|step| step.from < at);
        if self.steps.get(next).is_none_or(|step| step.from != at) {
            // The first step begins at the beginning of time, so there is one before.
            let mut step = self.steps[next.saturating_sub(1)].clone();
            step.from = at;
            self.steps.insert(next, step);
        }
        next
    }

    /// Returns what `need` may use from `at` for `length`; `None` if that is too little.
    pub(crate) fn window(&self, need: Need<'_>, at: Millis, length: Millis) -> Option<GpuSet> {
        let first = self.steps.partition_point(|step| step.from <= at);
        self.usable(need, first.saturating_sub(1), at.saturating_add(length))
    }

    /// Returns what `need` may use from step `first` until `end`.
    fn usable(&self, need: Need<'_>, first: usize, end: Millis) -> Option<GpuSet> {
        let mut busy = GpuSet::EMPTY;
        for (at, step) in self.steps[first..].iter().enumerate() {
            if at > 0 && step.from >= end {
                break;
            }
            busy = busy.union(step.busy);
            if step.count.saturating_add(need.gpus) > self.capacity || !self.has(step, need) {
                return None;
            }
        }
        let free = self.all.difference(busy);
        (free.len() >= need.gpus as usize).then_some(free)
    }

    fn has(&self, step: &Step, need: Need<'_>) -> bool {
        let room = self.resources.iter().zip(&step.used);
        let mut asked = room.zip(need.resources);
        // As kube-scheduler: who asks for none fits, also where more is used than there is.
        asked.all(|((have, used), asked)| *asked == 0 || used.saturating_add(*asked) <= *have)
    }

    /// Returns the earliest time from `after` to `until` at which `accept` takes what
    /// `need` may use for `length`, and what it returned.
    pub(crate) fn earliest<T>(
        &self,
        need: Need<'_>,
        Starts {
            after,
            until,
            length,
        }: Starts,
        mut accept: impl FnMut(GpuSet) -> Option<T>,
    ) -> Option<(Millis, T)> {
        let first = self.steps.partition_point(|step| step.from <= after);
        let mut tried = None;
        for at in first.saturating_sub(1)..self.steps.len() {
            let start = self.steps[at].from.max(after);
            if start > until {
                return None;
            }
            let Some(free) = self.usable(need, at, start.saturating_add(length)) else {
                tried = None;
                continue;
            };
            if tried.is_some_and(|tried: GpuSet| tried.is_superset(free)) {
                continue;
            }
            if let Some(found) = accept(free) {
                return Some((start, found));
            }
            tried = Some(free);
        }
        None
    }

    /// Returns the times after `after` at which something may become usable for `length`,
    /// or cease to be.
    pub(crate) fn changes(&self, after: Millis, length: Millis) -> Vec<Millis> {
        let mut times = Vec::with_capacity(2 * self.steps.len());
        for pair in self.steps.windows(2) {
            let at = pair[1].from;
            // A job of this length that starts by then ends before the step.
            times.push(at.saturating_sub(length).saturating_add(1));
            times.push(at);
        }
        times.retain(|&time| time > after);
        times.sort_unstable();
        times.dedup();
        times
    }

    /// Returns the expected time at which `set` is free for somebody who starts at
    /// `start`: the latest expected end of those who hold some of it before.
    pub(crate) fn mean(&self, set: GpuSet, start: Millis) -> Option<Millis> {
        let holds = |one: &&Interval| {
            one.until <= start && (one.set.is_empty() || !one.set.intersection(set).is_empty())
        };
        let before = self.intervals.iter().filter(holds);
        before.map(|one| one.mean).max()
    }

    /// Reports whether nobody comes after `now`.
    pub(crate) fn is_free_of_plans(&self, now: Millis) -> bool {
        self.intervals.iter().all(|one| one.from <= now)
    }

    /// Returns the profile of the same node without anybody.
    pub(crate) fn empty(&self) -> Self {
        Self::new(self.all, self.capacity, &self.resources)
    }

    /// Returns the profile without what one owner holds.
    pub(crate) fn without(&self, owner: &Owner) -> Self {
        let mut profile = self.empty();
        let others = self.intervals.iter().filter(|one| one.owner != *owner);
        others.for_each(|one| profile.add(one.clone()));
        profile
    }

    /// Returns who holds what.
    pub(crate) fn intervals(&self) -> &[Interval] {
        &self.intervals
    }

    /// Returns the GPUs that nobody holds at `at`, and how many the scheduler may hand out.
    pub(crate) fn free(&self, at: Millis) -> (GpuSet, u32) {
        let next = self.steps.partition_point(|step| step.from <= at);
        let step = &self.steps[next.saturating_sub(1)];
        let free = self.all.difference(step.busy);
        (free, self.capacity.saturating_sub(step.count))
    }

    /// Returns all GPUs.
    pub(crate) fn all(&self) -> GpuSet {
        self.all
    }

    /// Returns the number of GPUs that the scheduler may hand out on the empty node, and
    /// whether its other resources suffice for `need`.
    pub(crate) fn holds_empty(&self, need: Need<'_>) -> bool {
        let mut asked = self.resources.iter().zip(need.resources);
        need.gpus <= self.capacity && asked.all(|(have, asked)| asked <= have)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(gpus: std::ops::Range<usize>, from: Millis, until: Millis) -> Interval {
        Interval {
            owner: Owner::Outside,
            count: u32::try_from(gpus.len()).unwrap(),
            set: gpus.collect(),
            from,
            until,
            mean: until,
            used: vec![1],
        }
    }

    #[test]
    fn the_earliest_window_ends_before_the_next_reservation() {
        let mut profile = Profile::new(GpuSet::first(4), 4, &[2]);
        profile.add(interval(0..2, Millis::MIN, 10));
        profile.add(interval(0..4, 20, 30));
        let resources = [1];
        let at = |gpus: u32, length| {
            let need = Need {
                gpus,
                resources: &resources,
            };
            let found = profile.earliest(need, Starts::from(5, length), Some);
            found.map(|(at, free)| (at, free.len()))
        };
        assert_eq!(at(2, 15), Some((5, 2)));
        assert_eq!(at(2, 16), Some((30, 4)));
        assert_eq!(at(4, 10), Some((10, 4)));
        assert_eq!(at(4, 11), Some((30, 4)));
        assert_eq!(at(5, 1), None);
        assert_eq!(profile.changes(5, 10), [10, 11, 20, 21, 30]);
    }

    #[test]
    fn other_resources_and_the_scheduler_s_count_limit_too() {
        let mut profile = Profile::new(GpuSet::first(4), 3, &[2]);
        profile.add(interval(0..1, Millis::MIN, 10));
        let start = |gpus, asked| {
            let need = Need {
                gpus,
                resources: &[asked],
            };
            profile
                .earliest(need, Starts::from(0, 1), Some)
                .map(|(at, _)| at)
        };
        assert_eq!(start(2, 1), Some(0));
        assert_eq!(start(3, 1), Some(10));
        assert_eq!(start(2, 2), Some(10));
        assert_eq!(start(4, 0), None);
    }
}
