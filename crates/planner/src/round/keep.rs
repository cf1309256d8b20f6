//! Keeps a place for a job that others have passed for too long.
//!
//! A job that cannot start is passed by all jobs behind it that can. That costs nobody
//! anything, as long as it is not passed for ever. So once a job has waited for its
//! [`Patience`], a place is kept for it: no job behind it starts there, whatever is known of
//! how long that one runs.
//!
//! Pods that run are taken to last as long again as they have run. Nothing that users say of
//! run times counts here, only how long pods ran: so nobody can move the bound by what they say.

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
/// While a place is kept, what is free of it is idle until the last pod there has ended: see the
/// comparison in docs/simulate-reference.md.
pub(crate) const LONGEST: Millis = 48 * 3_600_000;
/// A place is kept at the earliest after this for each node: ten minutes.
const SHORTEST: Millis = 600_000;
/// A place is kept once the job has waited so many times as long as the pods of its class
/// usually run ([`crate::Class::usual_run`]), for each node that it needs: 20, see the comparison
/// in docs/simulate-reference.md.
const TIMES: Millis = 20;

/// How long jobs wait before a place is kept for them: by the nodes that they may use, the most
/// GPUs of one of these.
#[derive(Default)]
pub(crate) struct Patience(HashMap<Vec<Name>, u32>);

impl Patience {
    /// Returns from when on a place is kept for a job, and from when on at the latest.
    pub(crate) fn of(&mut self, plan: &Plan<'_>, entry: &Entry) -> (Millis, Millis) {
        let largest = self.0.entry(sets(&entry.job));
        let largest = *largest.or_insert_with_key(|sets| largest_node(plan.cluster, sets));
        let nodes = Millis::from(entry.gpus.div_ceil(largest).max(1));
        let class = plan.class(&entry.job.class);
        let usual = class.and_then(|class| class.usual_run);
        let own = usual.map_or(LONGEST, |run| {
            run.saturating_mul(TIMES).clamp(SHORTEST, LONGEST)
        });
        let after = |each: Millis| entry.job.created.saturating_add(each.saturating_mul(nodes));
        (after(own), after(LONGEST))
    }
}

fn largest_node(cluster: &Cluster, sets: &[Name]) -> u32 {
    let nodes = cluster.nodes().map(|(_, node)| node);
    let nodes = nodes.filter(|node| node.is_ready() && node.is_in(sets));
    nodes
        .map(|node| node.state.capacity)
        .max()
        .unwrap_or(1)
        .max(1)
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
