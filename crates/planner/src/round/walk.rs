//! Walks the queue.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::{
    Action, Eta, Millis, Name, OnTimeout, Reason, Reject, Release, Round, Waiting, Why,
    assumed_end::FAR,
    queue::Entry,
    round::{
        job::{Free, Outcome, turn},
        plan::{Plan, State},
        reasons::Class,
        rejoin,
        spread::Spread,
        target::Target,
    },
};

/// A place that a job has reserved.
pub(crate) struct Reserved {
    pub(crate) job: Name,
    pub(crate) target: Target,
}

/// A target that a job has taken.
pub(super) struct Taken {
    /// The number of the job.
    pub(super) job: u32,
    pub(super) target: Target,
    /// Where the round says so.
    pub(super) said: Said,
    /// Which other targets it could have.
    pub(super) free: Free,
}

/// What a round says of a job that has taken a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// It starts: the number of the action.
    Starts(usize),
    /// It waits: the number among those that wait.
    Waits(usize),
}

/// What a walk of the queue finds.
#[derive(Default)]
pub(super) struct Walk {
    pub(super) round: Round,
    pub(super) taken: Vec<Taken>,
    /// How often a job was planned again.
    pub(super) work: usize,
    /// The same in the search for other places, which must not use up the proofs.
    work_of_waiting: usize,
    /// The number of places that are reserved, one for each node.
    pub(super) depth: usize,
    /// The number of jobs so far that wait.
    pub(super) waiting: u32,
    in_class: HashMap<u32, u32>,
    /// The sets of jobs beyond the depth that wait: what they may use is blocked.
    blocked: BTreeSet<Vec<Name>>,
    /// Without backfill, the latest start so far by class.
    latest: BTreeMap<Name, Millis>,
    /// From when on all blocked jobs of a kind may start at best.
    starts: HashMap<u32, Option<Millis>>,
    /// Whether a kind is blocked, since how many sets are.
    known: HashMap<u32, (usize, bool)>,
    /// The nodes of sets.
    nodes: HashMap<Vec<Name>, Vec<u64>>,
}

/// Walks the queue at `now`. Returns also the places that were reserved.
pub(crate) fn walk(state: State<'_>, now: Millis) -> (Round, Vec<Reserved>) {
    let mut plan = Plan::new(state, now);
    let mut walk = Walk::default();
    walk.round.actions = rejoin::give_backs(plan.cluster, plan.queue, now);
    let kept = walk.round.actions.iter().filter_map(|action| match action {
        Action::GiveBack(back) => Some(back.until),
        _ => None,
    });
    let kept = kept.filter(|&until| until > now).min();
    let order = plan.queue.order(plan.settings, plan.cluster.projects());
    let order = rejoin::first(order, plan.cluster, plan.queue);
    for number in order {
        if let Some(entry) = plan.queue.entry(number) {
            walk.visit(&mut plan, number, entry);
        }
    }
    let valid = plan.cluster.valid();
    let deadline = plan.queue.next_deadline(now);
    walk.round.wake = [valid, deadline, kept].into_iter().flatten().min();
    let waits = |one: &Taken| matches!(one.said, Said::Waits(_));
    let reserved = walk.taken.into_iter().filter(waits);
    let reserved = reserved.filter_map(|one| {
        Some(Reserved {
            job: plan.queue.entry(one.job)?.id.clone(),
            target: one.target,
        })
    });
    let reserved = reserved.collect();
    plan.finish();
    (walk.round, reserved)
}

impl Walk {
    fn visit(&mut self, plan: &mut Plan<'_>, number: u32, entry: &Entry) {
        let expired = entry.job.deadline.filter(|end| end.at <= plan.now);
        let beyond = self.depth >= plan.settings.depth;
        if beyond && self.is_blocked(plan, entry) && entry.job.complete {
            let (reason, eta) = self.behind(plan, entry);
            match expired {
                Some(deadline) => self.expire(plan, number, entry, deadline.then, reason),
                None => self.wait(entry, reason, eta),
            }
            return;
        }
        let after = self.latest.get(&entry.job.class).copied();
        let after = after.unwrap_or(plan.now).max(plan.now);
        let mut outcome = plan.plan(entry, after, self.waiting);
        // Its expected start, once it has taken its place.
        let mut taken = None;
        if self.can_plan_again(plan) && !self.taken.is_empty() && !beyond {
            // Who waited too long has a place now or never.
            let until = if expired.is_some() { plan.now } else { FAR };
            (outcome, taken) = self.overtake(plan, number, entry, outcome, until);
        }
        match outcome {
            Outcome::Start { release, target } => {
                if taken.is_none() {
                    plan.take(entry, &rejoin::seated(plan.cluster, entry), &target);
                }
                self.starts(plan, number, release, target);
            }
            Outcome::Wait {
                reason,
                target,
                free,
            } => match (expired, target, taken) {
                (Some(deadline), ..) => {
                    self.expire(plan, number, entry, deadline.then, reason);
                }
                (None, Some(target), Some(mean)) => {
                    self.reserved(entry, reason, number, target, free, mean);
                }
                (None, target, _) => self.settle(plan, entry, reason, number, target, free),
            },
        }
    }

    fn starts(&mut self, plan: &Plan<'_>, job: u32, release: Release, target: Target) {
        // A class that pays for the best placement weighed this target, not others.
        let class = plan
            .queue
            .entry(job)
            .and_then(|entry| plan.class(&entry.job.class));
        let weighs = class.is_some_and(|class| class.waiting_factor.is_some());
        // Why others start holds only for this target.
        let free = match release.why {
            Why::Turn | Why::Backfill { .. } if !weighs => Free::Any,
            _ => Free::None,
        };
        self.taken.push(Taken {
            job,
            target,
            said: Said::Starts(self.round.actions.len()),
            free,
        });
        self.round.actions.push(Action::Release(release));
    }

    /// Lets a job wait for its target, if it has one: with a reservation up to the depth, and
    /// blocking what it may use beyond.
    fn settle(
        &mut self,
        plan: &mut Plan<'_>,
        entry: &Entry,
        reason: Reason,
        job: u32,
        target: Option<Target>,
        free: Free,
    ) {
        let Some(target) = target else {
            return self.wait(entry, reason, None);
        };
        if self.depth >= plan.settings.depth {
            self.blocked.insert(super::gang::sets(&entry.job));
            return self.wait(entry, reason, at_least(target.start));
        }
        self.reserve(plan, entry, reason, job, target, free);
    }

    /// Proves that a job that overtakes delays nobody, or finds it the earliest place up to
    /// `until` where it does not. Returns also its expected start if it has taken its place.
    fn overtake(
        &mut self,
        plan: &mut Plan<'_>,
        job: u32,
        entry: &Entry,
        outcome: Outcome,
        until: Millis,
    ) -> (Outcome, Option<Millis>) {
        let (outcome, planned) = match outcome {
            // It takes seats that its gang was given before.
            Outcome::Start { ref release, .. } if release.why == Why::Rejoin => {
                return (outcome, None);
            }
            Outcome::Start { ref target, .. } => {
                if self.waiting == 0 {
                    return (outcome, None);
                }
                if self.try_start(plan, job, target) {
                    return (outcome, Some(plan.now));
                }
                // Without another place, it is tried again in the next round.
                let reason = Reason::Behind {
                    ahead: self.waiting,
                };
                (wait(reason, None), FAR)
            }
            Outcome::Wait {
                ref reason,
                ref target,
                free: Free::Any,
            } if !matches!(reason, Reason::Quota { .. } | Reason::Incomplete) => {
                let planned = target.as_ref().map_or(FAR, |target| target.start);
                (outcome, planned)
            }
            Outcome::Wait { .. } => return (outcome, None),
        };
        let before = planned.min(until.saturating_add(1));
        std::mem::swap(&mut self.work, &mut self.work_of_waiting);
        let made = self.make_room(plan, job, before);
        std::mem::swap(&mut self.work, &mut self.work_of_waiting);
        let Some((target, mean)) = made else {
            return (outcome, None);
        };
        let outcome = match outcome {
            Outcome::Wait { reason, .. } if target.start > plan.now => wait(reason, Some(target)),
            _ => {
                let least = plan.kinds.least(entry.kind, plan.cluster, plan.search);
                let release = plan.release(entry, &target, least, turn(self.waiting));
                Outcome::Start { release, target }
            }
        };
        (outcome, Some(mean))
    }

    fn reserve(
        &mut self,
        plan: &mut Plan<'_>,
        entry: &Entry,
        reason: Reason,
        job: u32,
        target: Target,
        free: Free,
    ) {
        let ranked = rejoin::seated(plan.cluster, entry);
        let mean = plan.take(entry, &ranked, &target);
        if !plan.settings.backfill {
            let latest = self
                .latest
                .entry(entry.job.class.clone())
                .or_insert(plan.now);
            *latest = target.start.max(*latest);
        }
        self.reserved(entry, reason, job, target, free, mean);
    }

    /// Says that a job waits for the target that it has taken.
    fn reserved(
        &mut self,
        entry: &Entry,
        reason: Reason,
        job: u32,
        target: Target,
        free: Free,
        mean: Millis,
    ) {
        self.depth += target.parts.len();
        self.wait(entry, reason, eta(mean, target.start));
        self.taken.push(Taken {
            job,
            target,
            said: Said::Waits(self.round.waiting.len() - 1),
            free,
        });
    }

    fn wait(&mut self, entry: &Entry, reason: Reason, eta: Option<Eta>) {
        self.waiting += 1;
        let in_class = self.in_class.entry(entry.class).or_default();
        *in_class += 1;
        self.round.waiting.push(Waiting {
            job: entry.id.clone(),
            position: self.waiting,
            class_position: *in_class,
            eta,
            reason,
        });
    }

    fn expire(
        &mut self,
        plan: &mut Plan<'_>,
        job: u32,
        entry: &Entry,
        then: OnTimeout,
        reason: Reason,
    ) {
        // A gang that is not complete cannot be spread: some of its pods do not exist.
        let spread = if then == OnTimeout::Spread && entry.job.complete {
            plan.spread(entry, reason, self.waiting)
        } else {
            Spread::Reject(reason)
        };
        match spread {
            Spread::Start { release, target } => self.starts(plan, job, release, target),
            Spread::Wait { reason, target } => {
                self.settle(plan, entry, reason, job, target, Free::Spread);
            }
            Spread::Reject(reason) => {
                let pods = entry.job.members.iter().map(|member| member.pod.clone());
                self.round.actions.push(Action::Reject(Reject {
                    job: entry.id.clone(),
                    pods: pods.collect(),
                    reason,
                }));
            }
        }
    }

    /// Returns why a job waits that is too far back, and from when on it may start at best.
    fn behind(&mut self, plan: &mut Plan<'_>, entry: &Entry) -> (Reason, Option<Eta>) {
        let class = plan.classify(entry);
        let start = self.starts.entry(entry.kind);
        let start = *start.or_insert_with(|| plan.lower_bound(entry.kind));
        let eta = match class {
            Class::Never | Class::Silent => None,
            _ => start.and_then(at_least),
        };
        (class.reason(entry, self.waiting), eta)
    }

    /// Reports whether a job that waits beyond the depth may use a node that this one may
    /// use too.
    fn is_blocked(&mut self, plan: &Plan<'_>, entry: &Entry) -> bool {
        if self.blocked.is_empty() {
            return false;
        }
        let sets = self.blocked.len();
        if let Some(&(at, blocked)) = self.known.get(&entry.kind)
            && (blocked || at == sets)
        {
            return blocked;
        }
        let own = super::gang::sets(&entry.job);
        let own = bits(&mut self.nodes, plan, &own).to_vec();
        let nodes = &mut self.nodes;
        let blocked = self.blocked.iter().any(|sets| {
            let theirs = bits(nodes, plan, sets);
            own.iter()
                .zip(theirs)
                .any(|(own, theirs)| own & theirs != 0)
        });
        self.known.insert(entry.kind, (sets, blocked));
        blocked
    }
}

/// Returns the outcome of a job that may have any other target.
fn wait(reason: Reason, target: Option<Target>) -> Outcome {
    Outcome::Wait {
        reason,
        target,
        free: Free::Any,
    }
}

/// Returns the nodes that are in all of these sets, one bit each.
fn bits<'a>(
    known: &'a mut HashMap<Vec<Name>, Vec<u64>>,
    plan: &Plan<'_>,
    sets: &[Name],
) -> &'a [u64] {
    known.entry(sets.to_vec()).or_insert_with(|| {
        let mut bits = vec![0; plan.cluster.numbers().div_ceil(64)];
        for (number, node) in plan.cluster.nodes() {
            if node.is_ready() && node.is_in(sets) {
                bits[number as usize / 64] |= 1 << (number % 64);
            }
        }
        bits
    })
}

/// Returns the expected start of a job with a reservation; `None` if it is unknown.
pub(super) fn eta(mean: Millis, upper: Millis) -> Option<Eta> {
    (upper < crate::assumed_end::FAR).then_some(Eta {
        mean,
        upper,
        at_least: false,
    })
}

/// Returns a start as a lower bound; `None` if it is unknown.
fn at_least(start: Millis) -> Option<Eta> {
    (start < crate::assumed_end::FAR).then_some(Eta {
        mean: start,
        upper: start,
        at_least: true,
    })
}
