//! Walks the queue.

use std::collections::HashMap;

use nvlink_topology::Scope;

use crate::{
    Action, Deadline, Eta, Millis, Name, OnTimeout, Reason, Reject, Round, Waiting,
    assumed_end::FAR,
    queue::Entry,
    round::{
        job::{Free, Outcome},
        keep::Patience,
        plan::{Plan, State, length},
        reasons::Class,
        rejoin,
        spread::Spread,
        target::Target,
    },
};

/// The pause before a round that goes on with searches for which the last one had no steps left,
/// milliseconds.
const PAUSE: Millis = 1_000;
/// For how long after its deadline a job waits for a place that is about to be free, such as that of a
/// pod that is being deleted, milliseconds: most of the 30 seconds that Kubernetes gives such a pod.
/// GitLab Runner gives up 30 seconds after the deadline.
const MOMENT: Millis = 20_000;

/// A place that a job has reserved, or is expected to get.
pub(crate) struct Reserved {
    pub(crate) job: Name,
    pub(crate) target: Target,
    /// The number of the job among those that wait.
    at: usize,
}

/// A job that waits without a reservation.
struct Open {
    /// Its number in the queue.
    number: u32,
    /// Its number among those that wait.
    at: usize,
    free: Free,
}

/// What a walk of the queue finds.
#[derive(Default)]
struct Walk {
    round: Round,
    reserved: Vec<Reserved>,
    open: Vec<Open>,
    /// The number of jobs so far that wait.
    waiting: u32,
    in_class: HashMap<u32, u32>,
    /// The least time for which a job of this kind, with so many members in this scope, found no
    /// place: others that ask for no less find none either.
    stuck: HashMap<(u32, usize, Scope), Millis>,
    patience: Patience,
    /// When a place will be kept for another job, if nothing else happens.
    patient: Option<Millis>,
    /// When a deadline is over that waits for a place.
    late: Option<Millis>,
    /// The nodes that the jobs may use for which a place is kept, one bit each.
    kept: Vec<Vec<u64>>,
    /// The nodes of sets.
    nodes: HashMap<Vec<Name>, Vec<u64>>,
}

/// Walks the queue at `now`. Returns also the places that jobs wait for.
pub(crate) fn walk(state: State<'_>, now: Millis) -> (Round, Vec<Reserved>) {
    let mut plan = Plan::new(state, now);
    let mut walk = Walk::default();
    walk.round.actions = rejoin::give_backs(plan.cluster, plan.queue, now);
    let back = walk.round.actions.iter().filter_map(|action| match action {
        Action::GiveBack(back) => Some(back.until),
        _ => None,
    });
    let back = back.filter(|&until| until > now).min();
    let order = plan.queue.order(plan.settings, plan.cluster.projects());
    let order = rejoin::first(order, plan.cluster, plan.queue, now);
    for number in order {
        if let Some(entry) = plan.queue.entry(number) {
            walk.visit(&mut plan, number, entry);
        }
    }
    let valid = plan.cluster.valid();
    let deadline = plan.queue.next_deadline(now);
    walk.expect(&mut plan);
    let open = plan.search.is_open().then(|| now.saturating_add(PAUSE));
    let wakes = [valid, deadline, back, walk.patient, walk.late, open];
    walk.round.wake = wakes.into_iter().flatten().min();
    walk.reserved.sort_by_key(|one| one.at);
    plan.finish();
    (walk.round, walk.reserved)
}

impl Walk {
    fn visit(&mut self, plan: &mut Plan<'_>, number: u32, entry: &Entry) {
        let expired = entry.job.deadline.filter(|end| end.at <= plan.now);
        if expired.is_none() && self.is_stuck(plan, entry) {
            let reason = plan.over_quota(entry);
            let reason = reason.unwrap_or_else(|| plan.classify(entry).reason(entry, self.waiting));
            return self.waits(plan, number, entry, reason, None, Free::Any);
        }
        match (plan.plan(entry, self.waiting), expired) {
            (Outcome::Start { release, target }, _) => {
                plan.take(entry, &rejoin::seated(plan.cluster, entry), &target);
                self.round.actions.push(Action::Release(release));
            }
            (
                Outcome::Wait {
                    reason,
                    target,
                    free,
                },
                expired,
            ) => match expired.filter(|end| !self.is_about_to_start(plan, *end, target.as_ref())) {
                Some(deadline) => self.expire(plan, number, entry, deadline.then, reason),
                None => self.waits(plan, number, entry, reason, target, free),
            },
        }
    }

    /// Reports whether a place for a job whose deadline passed becomes free so soon that the deadline
    /// waits for it.
    fn is_about_to_start(
        &mut self,
        plan: &Plan<'_>,
        deadline: Deadline,
        target: Option<&Target>,
    ) -> bool {
        let last = deadline.at.saturating_add(MOMENT);
        let soon = target.is_some_and(|target| target.start <= last) && plan.now < last;
        if soon {
            self.late = [self.late, Some(last)].into_iter().flatten().min();
        }
        soon
    }

    /// Reports whether a job ahead has found no place that asks for no more. Whoever starts
    /// after that one takes more.
    fn is_stuck(&self, plan: &Plan<'_>, entry: &Entry) -> bool {
        let known = self.stuck.get(&key(entry));
        let found_none = known.is_some_and(|&least| least <= length(&entry.job));
        found_none && entry.job.complete && plan.cluster.seats(&entry.id).is_none()
    }

    /// Lets a job wait: for a place that it will have, for one that is kept for it from now on,
    /// or for any.
    fn waits(
        &mut self,
        plan: &mut Plan<'_>,
        number: u32,
        entry: &Entry,
        reason: Reason,
        target: Option<Target>,
        free: Free,
    ) {
        let at = self.round.waiting.len();
        let reason = match reason {
            Reason::Behind { .. } => Reason::Behind {
                ahead: self.rivals(plan, entry),
            },
            reason => plan.or_spreads(entry, reason),
        };
        match (free, target) {
            (Free::Best, Some(target)) => {
                let mean = plan.take(entry, &rejoin::seated(plan.cluster, entry), &target);
                return self.reserve(entry, reason, target, mean);
            }
            (Free::None, Some(target)) => return self.hold(plan, entry, reason, target),
            (Free::Near, Some(target)) => {
                if let Some((own, _)) = self.is_next(plan, entry) {
                    self.kept.push(own);
                    return self.hold(plan, entry, reason, target);
                }
            }
            _ => {}
        }
        let blocked = !matches!(
            reason,
            Reason::Quota { .. } | Reason::Incomplete | Reason::Better { .. }
        );
        if blocked && free == Free::Any {
            if let Some((target, mean)) = self.keep(plan, entry) {
                return self.reserve(entry, reason, target, mean);
            }
            let least = self.stuck.entry(key(entry)).or_insert(Millis::MAX);
            *least = length(&entry.job).min(*least);
        }
        self.open.push(Open { number, at, free });
        self.wait(entry, reason, None);
    }

    /// Returns the number of jobs ahead that have a place on nodes that a job may use.
    fn rivals(&mut self, plan: &Plan<'_>, entry: &Entry) -> u32 {
        let own = bits(&mut self.nodes, plan, &super::gang::sets(&entry.job));
        let is_own = |node: u32| own[node as usize / 64] & 1 << (node % 64) != 0;
        let nodes = |one: &Reserved| one.target.parts.iter().any(|part| is_own(part.node));
        let rivals = self.reserved.iter().filter(|one| nodes(one)).count();
        u32::try_from(rivals).unwrap_or(u32::MAX)
    }

    /// Keeps a place for a job that has waited for so long, unless one is kept for a job ahead
    /// that may use the same nodes: one after the other, so that few GPUs are idle.
    fn keep(&mut self, plan: &mut Plan<'_>, entry: &Entry) -> Option<(Target, Millis)> {
        let (own, strict) = self.is_next(plan, entry)?;
        let found = plan.keep(entry, strict)?;
        self.kept.push(own);
        Some(found)
    }

    /// Returns the nodes of a job for which a place is to be kept, one bit each, and from when on
    /// that no longer depends on others.
    fn is_next(&mut self, plan: &Plan<'_>, entry: &Entry) -> Option<(Vec<u64>, Millis)> {
        let own = bits(&mut self.nodes, plan, &super::gang::sets(&entry.job));
        let shares = |kept: &Vec<u64>| kept.iter().zip(own).any(|(kept, own)| kept & own != 0);
        if self.kept.iter().any(shares) {
            return None;
        }
        let (from, strict) = self.patience.of(plan, entry);
        if from > plan.now {
            self.patient = [self.patient, Some(from)].into_iter().flatten().min();
            return None;
        }
        Some((own.to_vec(), strict))
    }

    /// Holds a target for a job that waits for it.
    fn hold(&mut self, plan: &mut Plan<'_>, entry: &Entry, reason: Reason, target: Target) {
        let mean = plan.mean(&target);
        plan.hold_place(entry, &target);
        self.reserve(entry, reason, target, mean);
    }

    /// Says that a job waits for a target that it has.
    fn reserve(&mut self, entry: &Entry, reason: Reason, target: Target, mean: Millis) {
        self.reserved.push(Reserved {
            job: entry.id.clone(),
            at: self.round.waiting.len(),
            target: target.clone(),
        });
        self.wait(entry, reason, eta(mean, target.start));
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
            deadline: entry.job.deadline,
            reason,
        });
    }

    fn expire(
        &mut self,
        plan: &mut Plan<'_>,
        number: u32,
        entry: &Entry,
        then: OnTimeout,
        reason: Reason,
    ) {
        let reason = plan.or_spreads(entry, reason);
        // A gang that is not complete cannot be spread: some of its pods do not exist.
        let spread = if then == OnTimeout::Spread && entry.job.complete {
            plan.spread(entry, reason, self.waiting)
        } else {
            Spread::Reject(reason)
        };
        match spread {
            Spread::Start { release } => self.round.actions.push(Action::Release(release)),
            Spread::Wait { reason } => {
                self.waits(plan, number, entry, reason, None, Free::Spread);
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

    /// Says when the jobs that wait are expected to start, if each one took the first place that
    /// the jobs ahead leave. A guess: it changes nothing of who starts.
    fn expect(&mut self, plan: &mut Plan<'_>) {
        let mut depth = 0;
        let mut starts: HashMap<u32, Option<Millis>> = HashMap::new();
        for open in std::mem::take(&mut self.open) {
            let Some(entry) = plan.queue.entry(open.number) else {
                continue;
            };
            if !entry.job.complete {
                continue;
            }
            if depth >= plan.settings.depth {
                if matches!(plan.classify(entry), Class::Never | Class::Silent) {
                    continue;
                }
                let start = starts.entry(entry.kind);
                let start = *start.or_insert_with(|| plan.lower_bound(entry.kind));
                self.round.waiting[open.at].eta = start.and_then(at_least);
                continue;
            }
            let Some(target) = plan.target_of(entry, open.free) else {
                continue;
            };
            let mean = plan.take(entry, &rejoin::seated(plan.cluster, entry), &target);
            depth += target.parts.len();
            self.round.waiting[open.at].eta = eta(mean, target.start);
            self.reserved.push(Reserved {
                job: entry.id.clone(),
                target,
                at: open.at,
            });
        }
    }
}

/// What jobs have in common that find a place alike.
fn key(entry: &Entry) -> (u32, usize, Scope) {
    (entry.kind, entry.job.members.len(), entry.job.gang_scope)
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

/// Returns the expected start of a job; `None` if it is unknown.
fn eta(mean: Millis, upper: Millis) -> Option<Eta> {
    (upper < FAR).then_some(Eta {
        mean,
        upper,
        at_least: false,
    })
}

/// Returns a start as a lower bound; `None` if it is unknown.
fn at_least(start: Millis) -> Option<Eta> {
    (start < FAR).then_some(Eta {
        mean: start,
        upper: start,
        at_least: true,
    })
}
