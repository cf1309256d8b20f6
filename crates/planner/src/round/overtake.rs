//! Gives a job a place that others ahead have reserved, if none of them starts later by it.
//!
//! A reservation takes the best GPUs that there are at its time, and which ones are best
//! depends on what else is free. So a job that overtakes may change where the jobs ahead
//! are planned, although it takes none of their GPUs; and it may have GPUs that they have
//! reserved, if they can be as early elsewhere. Either way the jobs ahead are planned
//! again with it, which is what the next round will do. It has the place only if none of
//! them starts later.
//!
//! A job that waits is planned in the same way. Otherwise the plan would say 20 for a job
//! that could be squeezed in at 19, and another could overtake it that starts at 18 and
//! leaves no place at 19.
//!
//! That takes time, so a round does it only for its first [`MOST_TAKEN`] jobs, and at most
//! for [`MOST_WORK`] of them. Beyond, a job starts on GPUs that no reservation needs,
//! without further proof.

use std::{
    collections::{BTreeSet, HashSet, VecDeque},
    iter,
    sync::Arc,
};

use nvlink_topology::GpuSet;

use crate::{
    Action, Millis, Name, Release, Why,
    assumed_end::FAR,
    preference::Preference,
    profile::{Interval, Need, Owner, Profile, Starts},
    queue::Entry,
    round::{
        job::Free,
        plan::{Plan, length, resources},
        rejoin::seated,
        target::Target,
        walk::{Said, Taken, Walk, eta},
    },
    search::Found,
};

/// With more jobs that start or have a reservation than this, they are not planned again.
const MOST_TAKEN: usize = 64;
/// How often a round plans a job again, over all tries.
const MOST_WORK: usize = 4096;
/// The most nodes on which a job is tried.
const MOST_NODES: usize = 16;
/// The most reservations of one node of which all combinations are tried.
const MOST_MOVED: usize = 4;
/// How often a job's placement is searched for on a node for one time.
const MOST_SEARCHES: usize = 64;

/// The numbers of jobs that are planned before those ahead of them, and where.
type Fixed = Vec<(u32, Target)>;
/// Where jobs ahead are planned again, by their number among those taken, and their expected
/// starts.
type Moved = Vec<(usize, Target, Millis)>;

impl Walk {
    /// Reports whether the jobs so far can be planned again.
    pub(super) fn can_plan_again(&self, plan: &Plan<'_>) -> bool {
        let fixed = |one: &Taken| matches!(one.said, Said::Waits(_)) && one.free == Free::None;
        let few = self.taken.len() <= MOST_TAKEN && self.work < MOST_WORK;
        few && plan.settings.backfill && !self.taken.iter().any(fixed)
    }

    /// Returns the earliest place before `before` that a job can have if reservations of jobs
    /// ahead move, and its expected start. It has taken it then.
    pub(super) fn make_room(
        &mut self,
        plan: &mut Plan<'_>,
        job: u32,
        before: Millis,
    ) -> Option<(Target, Millis)> {
        let count = self.taken.len();
        if self.work >= MOST_WORK {
            return None;
        }
        let (moved, target, mean) = self.place(plan, job, before, &mut Vec::new(), count)?;
        self.keep(plan, moved);
        Some((target, mean))
    }

    /// Plans all jobs ahead again with this job on its target. If none of them starts
    /// later, keeps that plan, with the job's target taken.
    pub(super) fn try_start(&mut self, plan: &mut Plan<'_>, job: u32, target: &Target) -> bool {
        let mut fixed = vec![(job, target.clone())];
        let found = self.plan_again(plan, &mut fixed, self.taken.len());
        found.map(|(moved, _)| self.keep(plan, moved)).is_some()
    }

    /// Makes the round say where the moved jobs are now.
    fn keep(&mut self, plan: &mut Plan<'_>, moved: Moved) {
        for (at, target, mean) in moved {
            let taken = &mut self.taken[at];
            match taken.said {
                Said::Waits(at) => self.round.waiting[at].eta = eta(mean, target.start),
                Said::Starts(_) if target.is_on(&taken.target) => {}
                Said::Starts(at) => {
                    let release = match &self.round.actions[at] {
                        Action::Release(release) => plan.moved(taken.job, &target, &release.why),
                        _ => None,
                    };
                    if let Some(release) = release {
                        self.round.actions[at] = Action::Release(release);
                    }
                }
            }
            taken.target = target;
        }
    }

    /// Finds a place for a job before the first `count` of those taken.
    fn place(
        &mut self,
        plan: &mut Plan<'_>,
        job: u32,
        before: Millis,
        fixed: &mut Fixed,
        count: usize,
    ) -> Option<(Moved, Target, Millis)> {
        let immovable = self.taken.iter().filter(|one| one.free == Free::None);
        let immovable = immovable.map(|one| one.job);
        let fixed_jobs = fixed.iter().map(|(job, _)| *job);
        let held: Vec<u32> = immovable.chain(fixed_jobs).collect();
        for target in places(plan, job, before, &held) {
            if self.work >= MOST_WORK {
                return None;
            }
            fixed.push((job, target));
            let found = self.plan_again(plan, fixed, count);
            let (_, target) = fixed.pop()?;
            if let Some((moved, mean)) = found {
                return Some((moved, target, mean));
            }
        }
        None
    }

    /// Takes what must not move and the fixed targets, and plans the others of the first
    /// `count` of those taken again. Returns also the expected start of the last fixed
    /// target. If one of them started later, the plan is as it was.
    fn plan_again(
        &mut self,
        plan: &mut Plan<'_>,
        fixed: &mut Fixed,
        count: usize,
    ) -> Option<(Moved, Millis)> {
        self.work += count + 1;
        let before = std::mem::take(&mut plan.overlay);
        let mut mean = plan.now;
        let immovable = self.taken.iter().filter(|one| one.free == Free::None);
        let immovable = immovable.map(|one| (one.job, &one.target));
        let fixed_jobs = fixed.iter().map(|(job, target)| (*job, target));
        for (job, target) in immovable.chain(fixed_jobs) {
            if let Some(entry) = plan.queue.entry(job) {
                mean = plan.take(entry, &seated(plan.cluster, entry), target);
            }
        }
        let moved = self.moved(plan, fixed, count);
        if moved.is_none() {
            plan.overlay = before;
        }
        Some((moved?, mean))
    }

    /// Plans the first `count` of those taken again, but for what must not move.
    fn moved(&mut self, plan: &mut Plan<'_>, fixed: &mut Fixed, count: usize) -> Option<Moved> {
        let last = fixed.last().map_or(plan.now, |(_, last)| last.start);
        let mut moved = Vec::with_capacity(count);
        for at in 0..count {
            let (job, free, said) = match &self.taken[at] {
                one if one.free == Free::None => continue,
                one => (one.job, one.free, one.said),
            };
            let old = self.taken[at].target.clone();
            let entry = plan.queue.entry(job)?;
            let stays = matches!(said, Said::Starts(_)) && plan.is_open(entry, &old);
            let new = match stays {
                true => Some(old.clone()),
                false => plan.target_of(entry, free),
            };
            match new.filter(|new| new.start <= old.start) {
                Some(new) => {
                    let mean = plan.take(entry, &seated(plan.cluster, entry), &new);
                    moved.push((at, new, mean));
                }
                // It has its place only if those ahead of it move.
                None if free == Free::Any => {
                    let before = old.start.saturating_add(1);
                    let (others, new, mean) = self.place(plan, job, before, fixed, at)?;
                    moved = others;
                    moved.push((at, new, mean));
                }
                None => return None,
            }
            let (_, new, _) = moved.last()?;
            // Who starts no later than the job that moves it takes the better place all the same.
            let least = plan.kinds.least(entry.kind, plan.cluster, plan.search);
            let refuses = new.start <= last && new.is_worse(&old, least);
            let bad = match said {
                Said::Starts(_) => false,
                // Which GPUs wait for pods of unknown end must not change, or they might
                // wait in vain.
                Said::Waits(_) => new.start <= plan.now || (old.start >= FAR && !new.is_on(&old)),
            };
            if bad || refuses {
                return None;
            }
        }
        Some(moved)
    }
}

impl Plan<'_> {
    /// Returns the release of a job to another target.
    fn moved(&mut self, job: u32, target: &Target, why: &Why) -> Option<Release> {
        let entry = self.queue.entry(job)?;
        let least = self.least(entry);
        Some(self.release(entry, target, least, why.clone()))
    }

    /// Reports whether nobody has taken a target.
    fn is_open(&self, entry: &Entry, target: &Target) -> bool {
        let (length, ranked) = (length(&entry.job), seated(self.cluster, entry));
        let mut members = ranked.members.iter();
        target.parts.iter().all(|part| {
            let members = members.by_ref().take(part.members);
            let resources = resources(members.map(|member| &*member.resources));
            let need = Need {
                gpus: u32::try_from(part.found.set.len()).unwrap_or(u32::MAX),
                resources: &resources,
            };
            let profile = self.profile(part.node);
            let free = profile.and_then(|profile| profile.window(need, target.start, length));
            free.is_some_and(|free| free.is_superset(part.found.set))
        })
    }

    /// Returns the target that a job that waits would have now.
    fn target_of(&mut self, entry: &Entry, free: Free) -> Option<Target> {
        if free == Free::Best {
            let best = self.choose(entry.kind, true, self.now, length(&entry.job))?;
            return Some(self.chosen(entry, best));
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

/// Returns the places before `before` on one node that a job could have if reservations
/// moved, but for those that are `held`: the earliest first.
fn places(plan: &mut Plan<'_>, job: u32, before: Millis, held: &[u32]) -> Vec<Target> {
    let (Some(entry), before) = (plan.queue.entry(job), before.min(FAR)) else {
        return Vec::new();
    };
    let mut places = Vec::new();
    if !plan.may_share_a_node(entry) {
        return places;
    }
    for crowded in crowded(plan, entry, before, held) {
        for start in crowded.starts(before) {
            if !plan.is_within_quota(entry, start) {
                continue;
            }
            for found in placements(plan, entry, &crowded, start) {
                places.push(plan.target(entry, crowded.node, found, start));
            }
        }
    }
    places.sort_by_key(|place| place.start);
    places
}

/// A node with reservations that may move.
struct Crowded {
    node: u32,
    /// How good it would be if they all did.
    key: Preference,
    held: Profile,
    reserved: Vec<Interval>,
}

impl Crowded {
    /// Returns the times before `before` at which a job may find room.
    fn starts(&self, before: Millis) -> BTreeSet<Millis> {
        let all = self.held.intervals().iter().chain(&self.reserved);
        let ends = all.map(|one| one.until);
        let ends = ends.filter(|&end| end > self.key.start && end < before);
        ends.chain([self.key.start]).collect()
    }
}

/// Returns the nodes where a job could start before `before` if reservations moved, best
/// first.
fn crowded(plan: &mut Plan<'_>, entry: &Entry, before: Millis, held: &[u32]) -> Vec<Crowded> {
    let starts = Starts {
        after: plan.now,
        until: before.saturating_sub(1),
        length: length(&entry.job),
    };
    let Some(spec) = plan.kinds.get(entry.kind).map(|kind| kind.spec.clone()) else {
        return Vec::new();
    };
    let bar = plan.bar(entry.kind);
    let held = held.iter().filter_map(|&job| plan.queue.entry(job));
    let immovable: Vec<&Name> = held.map(|entry| &entry.id).collect();
    let mut all = Vec::new();
    for (&number, planned) in &plan.overlay.touched {
        let Some(node) = plan.cluster.node(number) else {
            continue;
        };
        let (held, reserved) = apart(planned, &immovable);
        if reserved.is_empty() || !node.is_ready() || !node.is_in(&spec.sets) {
            continue;
        }
        if let Some((key, _)) = spec.rate(plan.search, node, &held, starts, bar) {
            all.push(Crowded {
                node: number,
                key,
                held,
                reserved,
            });
        }
    }
    all.sort_by(|a, b| a.key.cmp(&b.key));
    all.truncate(MOST_NODES);
    all
}

/// Returns the placements of a job that starts at `start`, each with other reservations left
/// where they are.
fn placements(
    plan: &mut Plan<'_>,
    entry: &Entry,
    crowded: &Crowded,
    start: Millis,
) -> Vec<Arc<Found>> {
    let (Some(node), Some(kind)) = (plan.cluster.node(crowded.node), plan.kinds.get(entry.kind))
    else {
        return Vec::new();
    };
    let length = length(&entry.job);
    let Some(free) = crowded.held.window(kind.spec.need(), start, length) else {
        return Vec::new();
    };
    let end = start.saturating_add(length);
    let during = |one: &&Interval| one.from < end && one.until > start;
    let reserved: Vec<&Interval> = crowded.reserved.iter().filter(during).collect();
    let kept = reserved.len().min(MOST_MOVED);
    let mut open: VecDeque<GpuSet> = (0..(1_u32 << kept))
        .map(|mask| {
            let chosen = reserved.iter().take(kept).enumerate();
            let chosen = chosen.filter(|(bit, _)| mask >> bit & 1 == 1);
            chosen.fold(free, |free, (_, one)| free.difference(one.set))
        })
        .collect();
    // After the best of each, those without one of its GPUs: other jobs may need just these.
    let mut seen: HashSet<GpuSet> = open.iter().copied().collect();
    let mut found: Vec<Arc<Found>> = Vec::new();
    for _ in 0..MOST_SEARCHES {
        let Some(free) = open.pop_front() else {
            break;
        };
        let Some(one) = plan.search.find(&node.case(free), kind.spec.ask) else {
            continue;
        };
        let without = one
            .set
            .iter()
            .map(|gpu| free.difference(iter::once(gpu).collect()));
        open.extend(without.filter(|&less| seen.insert(less)));
        if found.iter().all(|other| other.set != one.set) {
            found.push(one);
        }
    }
    found
}

/// Returns the profile of what is held, and what jobs were given that may move. GPUs that wait
/// for pods of unknown end count as held.
fn apart(planned: &Profile, immovable: &[&Name]) -> (Profile, Vec<Interval>) {
    let moves = |one: &&Interval| match &one.owner {
        Owner::Job(job) => one.until < FAR && !immovable.contains(&job),
        _ => false,
    };
    let (reserved, others): (Vec<_>, Vec<_>) = planned.intervals().iter().partition(moves);
    let mut held = planned.empty();
    others.into_iter().for_each(|one| held.add(one.clone()));
    (held, reserved.into_iter().cloned().collect())
}
