//! Walks the queue.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::{
    Action, Eta, Millis, Name, OnTimeout, Reason, Reject, Round, Waiting,
    queue::Entry,
    round::{
        job::Outcome,
        plan::{Plan, State},
        reasons::Class,
        rejoin,
        target::Target,
    },
};

/// A place that a job has reserved.
pub(crate) struct Reserved {
    pub(crate) job: Name,
    pub(crate) target: Target,
}

/// What a walk of the queue finds.
#[derive(Default)]
struct Walk {
    round: Round,
    reserved: Vec<Reserved>,
    /// The number of places that are reserved, one for each node.
    depth: usize,
    /// The number of jobs so far that wait.
    waiting: u32,
    in_class: HashMap<u32, u32>,
    /// The sets of jobs beyond the depth that wait: what they may use is blocked.
    blocked: BTreeSet<Vec<Name>>,
    /// Without backfill, the latest start so far by class.
    latest: BTreeMap<Name, Millis>,
    /// What holds for all blocked jobs of a kind: why they wait, and from when at best.
    kinds: HashMap<u32, (Class, Option<Millis>)>,
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
    let order = plan.queue.order(plan.settings, plan.cluster.projects());
    for number in order {
        if let Some(entry) = plan.queue.entry(number) {
            walk.visit(&mut plan, entry);
        }
    }
    let valid = plan.cluster.valid();
    let deadline = plan.queue.next_deadline(now);
    walk.round.wake = valid.into_iter().chain(deadline).min();
    plan.finish();
    (walk.round, walk.reserved)
}

impl Walk {
    fn visit(&mut self, plan: &mut Plan<'_>, entry: &Entry) {
        let expired = entry.job.deadline.filter(|end| end.at <= plan.now);
        let beyond = self.depth >= plan.settings.depth;
        if beyond && self.is_blocked(plan, entry) && entry.job.complete {
            let (reason, eta) = self.behind(plan, entry);
            match expired {
                Some(deadline) => self.expire(plan, entry, deadline.then, reason),
                None => self.wait(entry, reason, eta),
            }
            return;
        }
        let after = self.latest.get(&entry.job.class).copied();
        let after = after.unwrap_or(plan.now).max(plan.now);
        match plan.plan(entry, after, self.waiting) {
            Outcome::Start { release, target } => {
                let ranked = crate::seats::ranked(&entry.job.members);
                plan.take(entry, &ranked, &target);
                self.round.actions.push(Action::Release(release));
            }
            Outcome::Wait { reason, target } => match expired {
                Some(deadline) => self.expire(plan, entry, deadline.then, reason),
                None if beyond => {
                    if target.is_some() {
                        self.blocked.insert(super::gang::sets(&entry.job));
                    }
                    let start = target.map(|target| target.start);
                    self.wait(entry, reason, start.and_then(at_least));
                }
                None => self.reserve(plan, entry, reason, target),
            },
        }
    }

    fn reserve(
        &mut self,
        plan: &mut Plan<'_>,
        entry: &Entry,
        reason: Reason,
        target: Option<Target>,
    ) {
        let Some(target) = target else {
            self.wait(entry, reason, None);
            return;
        };
        let ranked = crate::seats::ranked(&entry.job.members);
        let mean = plan.take(entry, &ranked, &target);
        if !plan.settings.backfill {
            let latest = self
                .latest
                .entry(entry.job.class.clone())
                .or_insert(plan.now);
            *latest = target.start.max(*latest);
        }
        self.depth += target.parts.len();
        let eta = (target.start < crate::ends::FAR).then_some(Eta {
            mean,
            upper: target.start,
            at_least: false,
        });
        self.wait(entry, reason, eta);
        self.reserved.push(Reserved {
            job: entry.id.clone(),
            target,
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

    fn expire(&mut self, plan: &mut Plan<'_>, entry: &Entry, then: OnTimeout, reason: Reason) {
        // A gang that is not complete cannot be spread: some of its pods do not exist.
        let action = if then == OnTimeout::Spread && entry.job.complete {
            Action::Release(plan.spread(entry))
        } else {
            let pods = entry.job.members.iter().map(|member| member.pod.clone());
            Action::Reject(Reject {
                job: entry.id.clone(),
                pods: pods.collect(),
                reason,
            })
        };
        self.round.actions.push(action);
    }

    /// Returns why a job waits that is too far back, and from when on it may start at best.
    fn behind(&mut self, plan: &mut Plan<'_>, entry: &Entry) -> (Reason, Option<Eta>) {
        let known = self.kinds.entry(entry.kind);
        let &mut (class, start) =
            known.or_insert_with(|| (plan.classify(entry), plan.lower_bound(entry.kind)));
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

/// Returns a start as a lower bound; `None` if it is unknown.
fn at_least(start: Millis) -> Option<Eta> {
    (start < crate::ends::FAR).then_some(Eta {
        mean: start,
        upper: start,
        at_least: true,
    })
}
