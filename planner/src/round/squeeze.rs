//! Starts a job that overtakes others, if none of them starts later by it.
//!
//! A reservation takes the best GPUs that there are at its time, and which ones are best
//! depends on what else is free. So a job that overtakes may change where the jobs ahead
//! are planned, although it takes none of their GPUs; and it may have GPUs that they have
//! reserved, if they can be as early elsewhere. Either way the jobs ahead are planned
//! again as if it ran, which is what the next round will do. It starts only if none of
//! them starts later.
//!
//! That takes time, so a round does it only for its first [`MOST_TAKEN`] jobs, and at most
//! for [`MOST_WORK`] of them. Beyond, a job starts on GPUs that no reservation needs,
//! without further proof.

use std::sync::Arc;

use nvlink_topology::GpuSet;

use crate::{
    Millis, Why,
    ends::FAR,
    profile::{Owner, Profile},
    queue::Entry,
    round::{
        job::{Free, Outcome},
        plan::{Plan, length, scope_of},
        rejoin::seated,
        target::{Part, Target},
        walk::{Taken, Walk, eta},
    },
    search::Found,
};

/// With more jobs that start or have a reservation than this, they are not planned again.
const MOST_TAKEN: usize = 64;
/// How often a round plans a job again, over all tries.
const MOST_WORK: usize = 1024;
/// The most nodes on which a job is tried.
const MOST_NODES: usize = 16;
/// The most reservations of one node of which all combinations are tried.
const MOST_MOVED: usize = 4;

impl Walk {
    /// Reports whether the jobs so far can be planned again.
    pub(super) fn can_plan_again(&self, plan: &Plan<'_>) -> bool {
        let fixed = |one: &Taken| one.waits.is_some() && one.free == Free::None;
        let few = self.taken.len() <= MOST_TAKEN && self.work < MOST_WORK;
        few && plan.settings.backfill && !self.taken.iter().any(fixed)
    }

    /// Tries to start a job on GPUs that jobs ahead have reserved. If it starts, it has
    /// taken them, and the reservations have moved.
    pub(super) fn squeeze(&mut self, plan: &mut Plan<'_>, entry: &Entry) -> Option<Outcome> {
        for number in free_now(plan, entry) {
            for found in placements(plan, entry, number) {
                if self.work >= MOST_WORK {
                    return None;
                }
                let target = Target {
                    start: plan.now,
                    within: scope_of(plan.cluster, number, &found),
                    cost: found.cost,
                    parts: vec![Part {
                        node: number,
                        members: entry.job.members.len(),
                        found,
                    }],
                };
                if self.try_start(plan, entry, &target) {
                    let least = plan.kinds.least(entry.kind, plan.cluster, plan.search);
                    let why = Why::Backfill {
                        ahead: self.waiting,
                    };
                    let release = plan.release(entry, &target, least, why);
                    return Some(Outcome::Start { release, target });
                }
            }
        }
        None
    }

    /// Plans all jobs ahead again with this job on its target. If none of them starts
    /// later, keeps that plan, with the job's target taken.
    pub(super) fn try_start(
        &mut self,
        plan: &mut Plan<'_>,
        entry: &Entry,
        target: &Target,
    ) -> bool {
        self.work += self.taken.len() + 1;
        let before = std::mem::take(&mut plan.overlay);
        plan.take(entry, &seated(plan.cluster, entry), target);
        let Some(moved) = self.again(plan) else {
            plan.overlay = before;
            return false;
        };
        for (at, target, mean) in moved {
            let taken = &mut self.taken[at];
            taken.target = target;
            if let Some(at) = taken.waits {
                self.round.waiting[at].eta = eta(mean, taken.target.start);
            }
        }
        true
    }

    /// Takes what started, and plans the jobs that wait again. Returns their targets and
    /// expected starts, if none starts later.
    fn again(&self, plan: &mut Plan<'_>) -> Option<Vec<(usize, Target, Millis)>> {
        for taken in self.taken.iter().filter(|one| one.waits.is_none()) {
            let entry = plan.queue.entry(taken.job)?;
            plan.take(entry, &seated(plan.cluster, entry), &taken.target);
        }
        let mut targets = Vec::with_capacity(self.taken.len());
        for (at, taken) in self.taken.iter().enumerate() {
            if taken.waits.is_none() {
                continue;
            }
            let entry = plan.queue.entry(taken.job)?;
            let target = plan.target_of(entry, taken.free)?;
            if target.start > taken.target.start || target.start <= plan.now {
                return None;
            }
            // Which GPUs wait for pods of unknown end must not change, or they might
            // wait in vain.
            if taken.target.start >= FAR && !target.is_on(&taken.target) {
                return None;
            }
            let mean = plan.take(entry, &seated(plan.cluster, entry), &target);
            targets.push((at, target, mean));
        }
        Some(targets)
    }
}

impl Plan<'_> {
    /// Returns the target that a job that waits would have now.
    fn target_of(&mut self, entry: &Entry, free: Free) -> Option<Target> {
        if free == Free::Best {
            let best = self.choose(entry.kind, true, self.now, length(&entry.job))?;
            return Some(self.target(entry, &best));
        }
        if free == Free::Spread {
            let anywhere = self.anywhere(entry)?;
            return self.first(&anywhere, self.now);
        }
        match self.within_quota(entry, self.now) {
            Ok(target) | Err((_, target)) => target,
        }
    }
}

/// Returns the nodes on which a job could start now if nobody else waited, best first.
fn free_now(plan: &mut Plan<'_>, entry: &Entry) -> Vec<u32> {
    let index = plan
        .kinds
        .index(entry.kind, false, plan.cluster, plan.search);
    let nodes = index.into_iter().flat_map(|index| index.order());
    let nodes = nodes.take_while(|(key, _)| key.start == Millis::MIN);
    nodes.map(|(_, &node)| node).take(MOST_NODES).collect()
}

/// Returns the placements of a job on a node on which some reservations have to move.
fn placements(plan: &mut Plan<'_>, entry: &Entry, number: u32) -> Vec<Arc<Found>> {
    let (Some(node), Some(kind)) = (plan.cluster.node(number), plan.kinds.get(entry.kind)) else {
        return Vec::new();
    };
    let Some(planned) = plan.overlay.touched.get(&number) else {
        return Vec::new();
    };
    let length = length(&entry.job);
    let (held, reserved) = apart(planned, plan.now, length);
    let Some(free) = held.window(kind.spec.need(), plan.now, length) else {
        return Vec::new();
    };
    let mut found: Vec<Arc<Found>> = Vec::new();
    let kept = reserved.len().min(MOST_MOVED);
    for mask in 0..(1_u32 << kept) {
        let chosen = reserved.iter().take(kept).enumerate();
        let chosen = chosen.filter(|(bit, _)| mask >> bit & 1 == 1);
        let keep = chosen.fold(GpuSet::EMPTY, |keep, (_, set)| keep.union(*set));
        let case = node.case(free.difference(keep));
        if let Some(one) = plan.search.find(&case, kind.spec.ask)
            && found.iter().all(|other| other.set != one.set)
        {
            found.push(one);
        }
    }
    found
}

/// Returns the profile of what is held now, and the GPUs that are reserved for later but
/// before a job that starts now would end. Those that wait for pods of unknown end count
/// as held.
fn apart(planned: &Profile, now: Millis, length: Millis) -> (Profile, Vec<GpuSet>) {
    let mut held = planned.empty();
    let mut reserved = Vec::new();
    for interval in planned.intervals() {
        let job = matches!(interval.owner, Owner::Job(_));
        if !job || interval.from <= now || interval.until >= FAR {
            held.add(interval.clone());
        } else if interval.from < now.saturating_add(length) {
            reserved.push(interval.set);
        }
    }
    (held, reserved)
}
