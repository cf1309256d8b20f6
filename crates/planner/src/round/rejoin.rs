//! Gangs that were released and lost members.
//!
//! A pod that was released cannot be gated again, so a gang cannot be taken back. What is
//! possible: its lost members' seats stay reserved for a while ([`Seats::until`]), and
//! members that its owner creates in their place get these seats. After that the seats
//! are free for others, and a new member gets its seat, or another place within the
//! gang's scope, once there is room.
//!
//! Members that come back while their seats are reserved are before all other jobs, however
//! old and important those are, and need no quota: the GPUs are held for them anyway. Later
//! they are under order and quota like all others. Otherwise one small pod that stays alive
//! would let whatever its author creates much later pass everybody.

use std::collections::BTreeSet;

use nvlink_topology::multi_node::{local, plain};

use crate::{
    Action, GiveBack, Member, Millis, Name, Reason, Release, Seat, Why,
    cluster::{Cluster, Seats},
    gang_kind::{LEVELS, group_of},
    job::total,
    job_kind::{Bar, JobSpec},
    node_entry::Node,
    profile::{Owner, Starts},
    queue::{Entry, Queue},
    round::{
        gang::sets,
        job::{Free, Outcome, seats},
        plan::{Plan, length},
        target::{Part, Target},
    },
    search::{Ask, Found},
    seats::{Ranked, ranked},
};

/// Returns what to report of gangs that lost members before all their pods were bound,
/// and whose members are not back yet.
pub(crate) fn give_backs(cluster: &Cluster, queue: &Queue, now: Millis) -> Vec<Action> {
    let give_back = |(job, gang): (&Name, &Seats)| {
        let back = queue.get(job).is_some_and(|entry| entry.job.complete);
        if back || !cluster.is_partial(gang) {
            return None;
        }
        let there = |seat: &&Seat| cluster.pod(&seat.pod).is_some();
        let remaining: Vec<Name> = gang
            .seats
            .iter()
            .filter(there)
            .map(|seat| seat.pod.clone())
            .collect();
        let bound = |pod: &Name| cluster.pod(pod).is_some_and(|pod| pod.bound);
        if remaining.iter().all(bound) {
            return None;
        }
        let until = gang.until();
        Some(Action::GiveBack(GiveBack {
            job: job.clone(),
            vacant: gang
                .seats
                .iter()
                .filter(|seat| !there(seat))
                .cloned()
                .collect(),
            remaining,
            until,
            free: until <= now,
        }))
    };
    cluster.gangs().filter_map(give_back).collect()
}

/// Puts the jobs whose members come back to seats that are kept for them first in the order of
/// the queue.
pub(crate) fn first(
    mut order: Vec<u32>,
    cluster: &Cluster,
    queue: &Queue,
    now: Millis,
) -> Vec<u32> {
    let back = cluster.gangs().filter_map(|(job, gang)| {
        let number = queue.number(job)?;
        (now < gang.until() && cluster.is_partial(gang)).then_some(number)
    });
    let back: BTreeSet<u32> = back.collect();
    if !back.is_empty() {
        order.sort_by_key(|number| !back.contains(number));
    }
    order
}

/// Whether a member may take a seat.
type Rule<'a> = &'a dyn Fn(&Member, &Seat) -> bool;

/// Returns the members of a job that a round plans, in the order of its target's parts: those
/// that rejoin a gang, else all.
pub(crate) fn seated<'e>(cluster: &Cluster, entry: &'e Entry) -> Ranked<'e> {
    match pairs(cluster, entry) {
        Some(pairs) => Ranked {
            members: pairs.into_iter().map(|(member, _)| member).collect(),
            in_doubt: false,
        },
        None => ranked(&entry.job.members),
    }
}

/// Pairs members with the ranks of lost ones: of the same name, else of their own rank, else
/// any. `None` if nobody rejoins.
///
/// A seat that is kept is what exempts a member from order and quota. So
/// each seat is for one member, and for no more GPUs than it has. The other members wait until
/// no seat is left for any member; then they are a job of their own, under quota and order.
fn pairs<'e>(cluster: &Cluster, entry: &'e Entry) -> Option<Vec<(&'e Member, u32)>> {
    let gang = cluster.seats(&entry.id)?;
    if !cluster.is_partial(gang) {
        return None;
    }
    // The seats on a node that is not described name no GPUs: none of them has more than the
    // largest member that is there.
    let there = cluster.pods_of(&entry.id).map(|(_, pod)| pod.gpus);
    let largest = there.max().unwrap_or(0);
    let room = |seat: &Seat| match seat.gpus.len() {
        0 => largest,
        known => u32::try_from(known).unwrap_or(u32::MAX),
    };
    let lost = |seat: &&Seat| cluster.pod(&seat.pod).is_none();
    let mut vacant: Vec<&Seat> = gang.seats.iter().filter(lost).collect();
    let mut pairs = Vec::with_capacity(vacant.len());
    let mut rest: Vec<&Member> = entry.job.members.iter().collect();
    rest.sort_by(|a, b| a.pod.cmp(&b.pod));
    let same_name = |member: &Member, seat: &Seat| seat.pod == member.pod;
    let same_rank = |member: &Member, seat: &Seat| member.rank == Some(seat.rank);
    let any = |_: &Member, _: &Seat| true;
    let rules: [Rule<'_>; 3] = [&same_name, &same_rank, &any];
    for rule in rules {
        rest.retain(|&member| {
            let fits = |seat: &Seat| rule(member, seat) && member.gpus <= room(seat);
            let fitting = (0..vacant.len()).filter(|&at| fits(vacant[at]));
            let found = fitting.min_by_key(|&at| room(vacant[at]));
            if let Some(at) = found {
                pairs.push((member, vacant.remove(at).rank));
            }
            found.is_none()
        });
    }
    pairs.sort_by_key(|&(_, rank)| rank);
    (!pairs.is_empty()).then_some(pairs)
}

impl Plan<'_> {
    /// Plans the members of a gang that come back while others are there; `None` if no member
    /// does.
    pub(crate) fn rejoin(&mut self, entry: &Entry) -> Option<Outcome> {
        let pairs = pairs(self.cluster, entry)?;
        let gang = self.cluster.seats(&entry.id)?;
        let free = match self.now < gang.until() {
            true => Free::None,
            false => Free::Near,
        };
        if free == Free::Near
            && let Some(reason) = self.over_quota(entry)
        {
            let target = None;
            return Some(Outcome::Wait {
                reason,
                target,
                free,
            });
        }
        let asked = total(pairs.iter().map(|(member, _)| member.gpus));
        let mut after = self.now;
        // The second time, all parts are asked for at the time of the last one.
        for _ in 0..2 {
            let starts = self.parts(entry, gang, &pairs, after);
            let Some((start, target)) = starts else { break };
            if start > after {
                after = start;
                continue;
            }
            if start > self.now {
                return Some(self.rejoins_later(asked, Some(target), free));
            }
            return Some(self.rejoins(entry, &pairs, target));
        }
        Some(self.rejoins_later(asked, None, free))
    }

    fn rejoins(&self, entry: &Entry, pairs: &[(&Member, u32)], target: Target) -> Outcome {
        let ranked = Ranked {
            members: pairs.iter().map(|(member, _)| *member).collect(),
            in_doubt: false,
        };
        let mut seats = seats(self.cluster, &ranked, &target);
        let ranks = seats.iter_mut().zip(pairs);
        ranks.for_each(|(seat, (_, rank))| seat.rank = *rank);
        let release = Release {
            job: entry.id.clone(),
            seats,
            cost: target.cost,
            quality: 1.0,
            scope: target.within,
            why: Why::Rejoin,
            ranks_in_doubt: false,
        };
        Outcome::Start { release, target }
    }

    fn rejoins_later(&self, asked: u32, target: Option<Target>, free: Free) -> Outcome {
        let part = target.as_ref().and_then(|target| target.parts.first());
        let profile = part.and_then(|part| self.profile(part.node));
        let now = profile.map_or(0, |profile| profile.free(self.now).0.len());
        Outcome::Wait {
            reason: Reason::Insufficient {
                asked,
                free: u32::try_from(now).unwrap_or(u32::MAX),
            },
            target,
            free,
        }
    }

    /// Finds a part for each member from `after` on, and returns the latest of their starts.
    fn parts(
        &mut self,
        entry: &Entry,
        gang: &Seats,
        pairs: &[(&Member, u32)],
        after: Millis,
    ) -> Option<(Millis, Target)> {
        let nodes = self.near(entry, gang);
        let mut target = Target {
            start: after,
            parts: Vec::with_capacity(pairs.len()),
            within: entry.job.gang_scope,
            cost: 0.0,
        };
        for (member, rank) in pairs {
            let seat = gang.seats.iter().find(|seat| seat.rank == *rank);
            let taken = std::mem::take(&mut target.parts);
            let own = seat.and_then(|seat| self.own(entry, member, seat, after, &taken));
            // The closest nodes come first, and the first of equals is kept.
            let mut found = own;
            if found.is_none() {
                for &node in &nodes {
                    let part = self.elsewhere(entry, member, node, after, &taken);
                    let earlier = |(start, _): &(Millis, Part)| {
                        found.as_ref().is_none_or(|(first, _)| start < first)
                    };
                    found = part.filter(earlier).or(found);
                }
            }
            target.parts = taken;
            let (start, part) = found?;
            target.start = target.start.max(start);
            target.cost = target.cost.max(part.found.cost);
            target.parts.push(part);
        }
        Some((target.start, target))
    }

    /// Returns the nodes on which a gang's new members may be, those closest to the others first,
    /// then in the order of their names.
    fn near(&self, entry: &Entry, gang: &Seats) -> Vec<u32> {
        let there = self.cluster.pods_of(&entry.id);
        let there: Vec<u32> = there
            .filter_map(|(_, pod)| self.cluster.number_of(&pod.node))
            .collect();
        let scope = entry.job.gang_scope;
        let groups = there.iter().flat_map(|&node| {
            let node = self.cluster.node(node);
            LEVELS.map(|level| group_of(node?, level))
        });
        let groups: BTreeSet<_> = groups.flatten().collect();
        let closeness = |node: &Node| {
            LEVELS.iter().position(|&level| {
                group_of(node, level).is_some_and(|group| groups.contains(&group))
            })
        };
        let seats = gang.seats.iter().filter_map(|seat| seat.node.as_ref());
        let own: Vec<u32> = seats
            .filter_map(|node| self.cluster.number_of(node))
            .collect();
        let sets = sets(&entry.job);
        let near = self.cluster.nodes().filter(|(number, node)| {
            let same = group_of(node, scope).is_some_and(|group| groups.contains(&group));
            let usable = node.is_ready() && node.is_in(&sets);
            usable && (same || own.contains(number))
        });
        let mut near: Vec<_> = near.collect();
        near.sort_by_cached_key(|(_, node)| (closeness(node).unwrap_or(usize::MAX), &node.name));
        near.into_iter().map(|(number, _)| number).collect()
    }

    /// Returns the member's own seat if nobody else has it.
    fn own(
        &mut self,
        entry: &Entry,
        member: &Member,
        seat: &Seat,
        at: Millis,
        taken: &[Part],
    ) -> Option<(Millis, Part)> {
        let number = self.cluster.number_of(seat.node.as_ref()?)?;
        let node = self.cluster.node(number).filter(|node| node.is_ready())?;
        let set = node.positions(&seat.gpus);
        if set.len() != member.gpus as usize {
            return None;
        }
        let spec = self.member(entry, member);
        let profile = self.for_member(entry, number, taken)?;
        let free = profile.window(spec.need(), at, length(&entry.job))?;
        if !free.is_superset(set) {
            return None;
        }
        // The GPUs keep the order in which the gang was told to use them.
        let order = seat.gpus.iter();
        let order = order.flat_map(|&gpu| node.positions(&[gpu]).iter().collect::<Vec<_>>());
        let found = self.search.find(&node.case(set), spec.ask);
        let found = Found {
            order: order.filter_map(|at| u8::try_from(at).ok()).collect(),
            set,
            cost: found.as_ref().map_or(0.0, |found| found.cost),
            total_cost: found.as_ref().map_or(0.0, |found| found.total_cost),
            quality: found.as_ref().map_or(1.0, |found| found.quality),
            broken: 0,
            breaks: false,
            full_speed: false,
        };
        let part = Part {
            node: number,
            members: 1,
            found: found.into(),
        };
        Some((at, part))
    }

    /// Returns another place for a member on a node.
    fn elsewhere(
        &mut self,
        entry: &Entry,
        member: &Member,
        number: u32,
        after: Millis,
        taken: &[Part],
    ) -> Option<(Millis, Part)> {
        let spec = self.member(entry, member);
        let profile = self.for_member(entry, number, taken)?;
        let node = self.cluster.node(number)?;
        let starts = Starts::from(after, length(&entry.job));
        // Only one node is asked for.
        let bar = Bar {
            least: None,
            best: false,
        };
        let (key, found) = spec.rate(self.search, node, &profile, starts, bar)?;
        let part = Part {
            node: number,
            members: 1,
            found,
        };
        Some((key.start, part))
    }

    /// Reports whether a pod is of a job.
    fn is_of(&self, pod: &Name, entry: &Entry) -> bool {
        let pod = self.cluster.pod(pod);
        pod.is_some_and(|pod| pod.job.as_ref() == Some(&entry.id))
    }

    fn member(&self, entry: &Entry, member: &Member) -> JobSpec {
        let class = self.class(&entry.job.class);
        JobSpec {
            sets: sets(&entry.job),
            ask: Ask {
                gpus: member.gpus,
                pattern: plain(entry.job.pattern),
                scope: local(entry.job.scope),
                broken: class.map(|class| class.broken).unwrap_or_default(),
            },
            resources: member.resources.clone(),
        }
    }

    /// Returns a node's profile for a member of a gang: without the gang's own vacant
    /// seats, and without the parts of the members before it. The rest of the gang waits for the
    /// member, so it does not end before.
    fn for_member(
        &self,
        entry: &Entry,
        number: u32,
        taken: &[Part],
    ) -> Option<crate::profile::Profile> {
        let known = self.profile(number)?;
        let mut profile = known.empty();
        for interval in known.intervals() {
            let mut interval = interval.clone();
            match &interval.owner {
                Owner::Vacant(job) if *job == entry.id => continue,
                Owner::Pod(id) if self.is_of(id, entry) => interval.until = Millis::MAX,
                _ => {}
            }
            profile.add(interval);
        }
        for part in taken.iter().filter(|part| part.node == number) {
            let gpus = u32::try_from(part.found.set.len()).unwrap_or(u32::MAX);
            let mut interval = super::plan::occupancy(&entry.job, gpus, self.now, self.now);
            interval.set = part.found.set;
            profile.add(interval);
        }
        Some(profile)
    }
}
