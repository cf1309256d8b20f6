//! Walks the queue.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::{
    Action, Eta, Millis, Name, OnTimeout, Reason, Reject, Release, Round, Waiting, Why,
    queue::Entry,
    round::{
        job::{Free, Outcome},
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
    /// Where it is among the jobs that wait; `None` if it starts now.
    pub(super) waits: Option<usize>,
    pub(super) free: Free,
}

/// What a walk of the queue finds.
#[derive(Default)]
pub(super) struct Walk {
    pub(super) round: Round,
    pub(super) taken: Vec<Taken>,
    /// How often a job was planned again.
    pub(super) work: usize,
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
    let reserved = walk.taken.into_iter().filter(|one| one.waits.is_some());
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
                Some(deadline) => self.expire(plan, (number, entry), deadline.then, reason),
                None => self.wait(entry, reason, eta),
            }
            return;
        }
        let after = self.latest.get(&entry.job.class).copied();
        let after = after.unwrap_or(plan.now).max(plan.now);
        let mut outcome = plan.plan(entry, after, self.waiting);
        let mut taken = false;
        if self.can_plan_again(plan) && self.waiting > 0 && !beyond {
            (outcome, taken) = self.overtake(plan, entry, outcome);
        }
        match outcome {
            Outcome::Start { release, target } => {
                if !taken {
                    plan.take(entry, &rejoin::seated(plan.cluster, entry), &target);
                }
                self.starts(number, release, target);
            }
            Outcome::Wait {
                reason,
                target,
                free,
            } => match expired {
                Some(deadline) => self.expire(plan, (number, entry), deadline.then, reason),
                None => self.settle(plan, entry, reason, (number, target, free)),
            },
        }
    }

    fn starts(&mut self, job: u32, release: Release, target: Target) {
        self.round.actions.push(Action::Release(release));
        self.taken.push(Taken {
            job,
            target,
            waits: None,
            free: Free::None,
        });
    }

    /// Lets a job wait for its target, if it has one: with a reservation up to the depth, and
    /// blocking what it may use beyond.
    fn settle(
        &mut self,
        plan: &mut Plan<'_>,
        entry: &Entry,
        reason: Reason,
        (number, target, free): (u32, Option<Target>, Free),
    ) {
        let Some(target) = target else {
            return self.wait(entry, reason, None);
        };
        if self.depth >= plan.settings.depth {
            self.blocked.insert(super::gang::sets(&entry.job));
            return self.wait(entry, reason, at_least(target.start));
        }
        self.reserve(plan, entry, reason, (number, target, free));
    }

    /// Proves that a job that overtakes delays nobody, or finds it a place where it does
    /// not. Returns also whether it has taken its place.
    fn overtake(
        &mut self,
        plan: &mut Plan<'_>,
        entry: &Entry,
        outcome: Outcome,
    ) -> (Outcome, bool) {
        match &outcome {
            Outcome::Start { release, target } => {
                // It takes seats that its gang was given before.
                if release.why == Why::Rejoin {
                    return (outcome, false);
                }
                if self.try_start(plan, entry, target) {
                    return (outcome, true);
                }
            }
            Outcome::Wait { reason, .. } if !matches!(reason, Reason::Behind { .. }) => {
                return (outcome, false);
            }
            Outcome::Wait { .. } => {}
        }
        if let Some(start) = self.squeeze(plan, entry) {
            return (start, true);
        }
        let outcome = match outcome {
            // It is tried again in the next round.
            Outcome::Start { .. } => Outcome::Wait {
                reason: Reason::Behind {
                    ahead: self.waiting,
                },
                target: None,
                free: Free::Any,
            },
            wait @ Outcome::Wait { .. } => wait,
        };
        (outcome, false)
    }

    fn reserve(
        &mut self,
        plan: &mut Plan<'_>,
        entry: &Entry,
        reason: Reason,
        (job, target, free): (u32, Target, Free),
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
        self.depth += target.parts.len();
        self.wait(entry, reason, eta(mean, target.start));
        self.taken.push(Taken {
            job,
            target,
            waits: Some(self.round.waiting.len() - 1),
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
        (number, entry): (u32, &Entry),
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
            Spread::Start { release, target } => self.starts(number, release, target),
            Spread::Wait { reason, target } => {
                self.settle(plan, entry, reason, (number, target, Free::Spread));
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
    (upper < crate::ends::FAR).then_some(Eta {
        mean,
        upper,
        at_least: false,
    })
}

/// Returns a start as a lower bound; `None` if it is unknown.
fn at_least(start: Millis) -> Option<Eta> {
    (start < crate::ends::FAR).then_some(Eta {
        mean: start,
        upper: start,
        at_least: true,
    })
}
