//! Keeps a place for a job that others have passed for too long.
//!
//! A job that cannot start is passed by all jobs behind it that can. That costs nobody
//! anything, as long as it is not passed for ever. So once a job has waited for its
//! [`Patience`], a place is kept for it: no job behind it starts there, whatever is known of
//! how long that one runs.
//!
//! Pods that run are taken to last as long again as they have run. Nothing that users say of
//! run times counts here, so nobody can move the bound by what they say.

use std::collections::HashMap;

use crate::{
    Millis, Name,
    assumed_end::{FAR, FARTHER},
    cluster::Cluster,
    job::total,
    profile::{Interval, Owner, Profile},
    queue::Entry,
    round::{
        gang::sets,
        plan::{Plan, length, resources},
        rejoin::seated,
        target::{Part, Target},
    },
};

/// A place is kept for a job at the latest after so long for each node that it needs: two days.
///
/// While a place is kept, what is free of it is idle until the last pod there has ended. On
/// the traces of docs/simulate.md, a bound of one day made all jobs wait up to twice as long on
/// average, and one of two days changed nothing.
pub(crate) const LONGEST: Millis = 48 * 3_600_000;
/// A place is kept at the earliest after this: ten minutes.
const SHORTEST: Millis = 600_000;
/// It is kept once the job has waited so many times as long as the median of those that passed
/// it had run when the latest of them started, for each node that it needs.
const TIMES: Millis = 10;

/// The pods on the nodes of some sets, by their start.
struct Turnover {
    /// When a pod started, and the number of GPUs of it and of all that started later: the
    /// latest last.
    starts: Vec<(Millis, u64)>,
    /// The most GPUs of one node.
    largest: u32,
}

impl Turnover {
    fn of(cluster: &Cluster, sets: &[Name]) -> Self {
        let nodes = cluster.nodes().map(|(_, node)| node);
        let nodes = nodes.filter(|node| node.is_ready() && node.is_in(sets));
        let (mut starts, mut largest) = (Vec::new(), 1);
        for node in nodes {
            largest = largest.max(node.state.capacity);
            for interval in node.profile.intervals() {
                let Owner::Pod(id) = &interval.owner else {
                    continue;
                };
                if let Some(pod) = cluster.pod(id).filter(|_| interval.count > 0) {
                    starts.push((pod.since, u64::from(interval.count)));
                }
            }
        }
        starts.sort_unstable();
        let mut later = 0;
        for (_, gpus) in starts.iter_mut().rev() {
            later += *gpus;
            *gpus = later;
        }
        Self { starts, largest }
    }

    /// Returns how long those that started after `created` had run when the latest of them
    /// started: the median over their GPUs. `None` if there are none.
    fn age(&self, created: Millis) -> Option<Millis> {
        let passed = self.starts.partition_point(|&(since, _)| since <= created);
        let passed = &self.starts[passed..];
        let (latest, all) = (passed.last()?.0, passed.first()?.1);
        let middle = passed.partition_point(|&(_, later)| later > all / 2);
        let middle = passed.get(middle.saturating_sub(1))?.0;
        Some(latest.saturating_sub(middle))
    }
}

/// How long jobs wait before a place is kept for them.
#[derive(Default)]
pub(crate) struct Patience(HashMap<Vec<Name>, Turnover>);

impl Patience {
    /// Returns from when on a place is kept for a job, and from when on that no longer depends
    /// on others.
    pub(crate) fn of(&mut self, cluster: &Cluster, entry: &Entry) -> (Millis, Millis) {
        let turnover = self.0.entry(sets(&entry.job));
        let turnover = turnover.or_insert_with_key(|sets| Turnover::of(cluster, sets));
        let created = entry.job.created;
        let nodes = Millis::from(entry.gpus.div_ceil(turnover.largest).max(1));
        let longest = LONGEST.saturating_mul(nodes);
        let own = turnover.age(created).map_or(longest, |age| {
            let times = TIMES.saturating_mul(nodes);
            age.saturating_mul(times).clamp(SHORTEST, longest)
        });
        (created.saturating_add(own), created.saturating_add(longest))
    }
}

impl Plan<'_> {
    /// Keeps the place for a job where the pod that has run longest has run shortest, and
    /// returns it with the expected start. `None` if the job fits nowhere.
    ///
    /// A pod that started after `strict` is taken never to end. So the place stays the same
    /// from then on, or becomes one where fewer pods are left that started before.
    pub(crate) fn keep(&mut self, entry: &Entry, strict: Millis) -> Option<(Target, Millis)> {
        let before = std::mem::take(&mut self.overlay);
        let sets = sets(&entry.job);
        for (number, node) in self.cluster.nodes() {
            if node.is_ready() && node.is_in(&sets) {
                let planned = before.touched.get(&number).unwrap_or(&node.profile);
                let aged = self.by_age(planned, strict);
                self.overlay.touch(number, node, aged);
            }
        }
        let found = self.first(entry, self.now);
        self.overlay = before;
        let mut target = found?;
        let ends = target.parts.iter().map(|part| self.ends(part));
        let ends = ends.reduce(|a, b| (a.0.max(b.0), a.1.max(b.1)));
        let (mean, until) = ends.unwrap_or((self.now, self.now));
        target.start = until;
        self.hold_place(entry, &target);
        Some((target, mean))
    }

    /// Returns the profile of a node if each pod lasted as long again as it has run.
    fn by_age(&self, planned: &Profile, strict: Millis) -> Profile {
        let mut profile = planned.empty();
        for interval in planned.intervals() {
            let since = match &interval.owner {
                Owner::Pod(id) => self.cluster.pod(id).map(|pod| pod.since),
                // It starts in this round.
                Owner::Job(_) if interval.from <= self.now => Some(self.now),
                _ => None,
            };
            let mut interval = interval.clone();
            if let Some(since) = since.filter(|_| interval.count > 0) {
                let age = self.now.saturating_sub(since);
                interval.until = match since.saturating_sub(strict) {
                    late if late > 0 => FARTHER.saturating_add(late),
                    _ => self.now.saturating_add(age.clamp(1, FAR / 2)),
                };
            }
            profile.add(interval);
        }
        profile
    }

    /// Returns when the GPUs of a part are expected to be free, and by upper estimates.
    fn ends(&self, part: &Part) -> (Millis, Millis) {
        let intervals = self.profile(part.node).map_or(&[][..], Profile::intervals);
        let held = intervals.iter().filter(|one| overlaps(one, part));
        held.fold((self.now, self.now), |(mean, until), one| {
            (mean.max(one.mean), until.max(one.until))
        })
    }

    /// Holds the GPUs of a target from now on, also those that pods still hold, and the other
    /// resources that these pods do not leave.
    pub(crate) fn hold_place(&mut self, entry: &Entry, target: &Target) {
        let ranked = seated(self.cluster, entry);
        let mut members = ranked.members.iter();
        for part in &target.parts {
            let members: Vec<_> = members.by_ref().take(part.members).collect();
            let gpus = total(members.iter().map(|member| member.gpus));
            let mut used = resources(members.iter().map(|member| &*member.resources));
            let intervals = self.profile(part.node).map_or(&[][..], Profile::intervals);
            let mut held = 0_u32;
            for one in intervals.iter().filter(|one| overlaps(one, part)) {
                held = held.saturating_add(one.count);
                let both = used.iter_mut().zip(&one.used);
                both.for_each(|(used, left)| *used = used.saturating_sub(*left));
            }
            let end = target.start.saturating_add(length(&entry.job));
            self.hold(
                part.node,
                Interval {
                    owner: Owner::Job(entry.id.clone()),
                    set: part.found.set,
                    count: gpus.saturating_sub(held),
                    from: self.now,
                    until: if target.start < FAR { end } else { Millis::MAX },
                    mean: end,
                    used,
                },
            );
        }
    }
}

/// Reports whether somebody holds GPUs of a part, as far as is known.
fn overlaps(interval: &Interval, part: &Part) -> bool {
    interval.count > 0
        && (interval.set.is_empty() || !interval.set.intersection(part.found.set).is_empty())
}
