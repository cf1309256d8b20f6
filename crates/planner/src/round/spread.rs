//! Jobs whose deadline passed, released without the constraint to a domain.

use std::sync::Arc;

use nvlink_topology::{Scope, multi_node::plain};

use crate::{
    Deadline, Job, Member, OnTimeout, Reason, Release, Why,
    job_kind::JobSpec,
    queue::Entry,
    round::{
        gang::sets,
        job::seats,
        plan::{Plan, length},
        reasons::Class,
        rejoin::seated,
        target::{Chosen, Part, Target},
    },
    seats::Ranked,
};

/// What becomes of a job whose deadline passed.
pub(crate) enum Spread {
    /// It starts now.
    Start { release: Release },
    /// It is a single pod, and has no room yet: it waits on, without a domain.
    Wait { reason: Reason },
    /// It fails.
    Reject(Reason),
}

impl Plan<'_> {
    /// Releases a job anywhere, as far as the jobs ahead leave room: on one node if one has
    /// room for it now, else each pod for itself. `ahead` jobs ahead of it wait, and `reason`
    /// is why it waited.
    ///
    /// No pod starts without a place: the scheduler would give it GPUs that a job ahead waits
    /// for, or that the next round gives to another job. And a gang starts whole or not at all.
    pub(crate) fn spread(&mut self, entry: &Entry, reason: Reason, ahead: u32) -> Spread {
        if let Some(quota) = self.over_quota(entry) {
            return Spread::Reject(quota);
        }
        let Some(anywhere) = self.anywhere(entry) else {
            return Spread::Reject(reason);
        };
        let first = self.first(&anywhere, self.now);
        let ranked = seated(self.cluster, entry);
        let now = |target: &Target| {
            target.start <= self.now && ranked.members.len() == entry.job.members.len()
        };
        if let Some(target) = first.filter(now) {
            self.take(entry, &ranked, &target);
            return self.starts(entry, &ranked, &target);
        }
        if entry.job.members.len() > 1 {
            return match self.one_by_one(entry, &ranked) {
                Some(target) => self.starts(entry, &ranked, &target),
                None => Spread::Reject(reason),
            };
        }
        match self.classify(&anywhere) {
            Class::Never => Spread::Reject(Reason::Never),
            class => Spread::Wait {
                reason: class.reason(entry, ahead),
            },
        }
    }

    /// Returns [`Reason::Spreads`] for a job that nothing within its scope can ever hold and that can start
    /// once its deadline has passed, else its `reason`.
    pub(crate) fn or_spreads(&mut self, entry: &Entry, reason: Reason) -> Reason {
        match reason.is_never() && self.can_spread(entry) {
            true => Reason::Spreads,
            false => reason,
        }
    }

    fn can_spread(&mut self, entry: &Entry) -> bool {
        let spreads = |end: Deadline| end.then == OnTimeout::Spread;
        if !entry.job.deadline.is_some_and(spreads) {
            return false;
        }
        let anywhere = self.anywhere(entry);
        anywhere.is_some_and(|anywhere| {
            let class = self.classify(&anywhere);
            !matches!(
                class,
                Class::Never | Class::NeverTogether | Class::Unlabelled
            )
        })
    }

    fn starts(&mut self, entry: &Entry, ranked: &Ranked<'_>, target: &Target) -> Spread {
        let best = self.least(entry);
        let best_cost = best.unwrap_or(target.cost);
        let release = Release {
            job: entry.id.clone(),
            seats: seats(self.cluster, ranked, target),
            cost: target.cost,
            quality: if target.cost > 0.0 {
                (best_cost / target.cost).min(1.0)
            } else {
                1.0
            },
            scope: target.within,
            why: Why::Spread { best_cost },
            ranks_in_doubt: ranked.in_doubt,
        };
        Spread::Start { release }
    }

    /// Returns the job without the constraint to a domain, on one node.
    pub(crate) fn anywhere(&mut self, entry: &Entry) -> Option<Entry> {
        let mut spec = JobSpec::clone(&self.kinds.get(entry.kind)?.spec);
        spec.ask.scope = Scope::Node;
        Some(Entry {
            id: entry.id.clone(),
            job: Job {
                scope: Scope::Node,
                gang_scope: Scope::Cluster,
                ..entry.job.clone()
            },
            kind: self.join(spec),
            gpus: entry.gpus,
            class: entry.class,
        })
    }

    /// Takes a place for each pod; `None`, and nothing taken, if one has none.
    fn one_by_one(&mut self, entry: &Entry, ranked: &Ranked<'_>) -> Option<Target> {
        let mut target = Target {
            start: self.now,
            parts: Vec::with_capacity(ranked.members.len()),
            within: Scope::Cluster,
            cost: 0.0,
        };
        for &member in &ranked.members {
            let Some(chosen) = self.one(entry, member) else {
                let nodes = target.parts.iter().map(|part| part.node);
                self.give_back(entry, nodes);
                return None;
            };
            target.cost = target.cost.max(chosen.found.cost);
            let part = Part {
                node: chosen.node,
                members: 1,
                found: Arc::clone(&chosen.found),
            };
            let one = Ranked {
                members: vec![member],
                in_doubt: false,
            };
            let own = Target {
                parts: vec![part.clone()],
                ..target.clone()
            };
            self.take(entry, &one, &own);
            target.parts.push(part);
        }
        let nodes: Vec<u32> = target.parts.iter().map(|part| part.node).collect();
        target.within = self.scope_over(&nodes);
        let gang = self.gang(entry);
        let between = nodes.iter().filter_map(|&node| {
            let node = self.cluster.node(node)?;
            Some(node.between(gang.as_ref()?, target.within))
        });
        target.cost = between.fold(target.cost, f64::max);
        Some(target)
    }

    fn one(&mut self, entry: &Entry, member: &Member) -> Option<Chosen> {
        let spec = JobSpec {
            sets: sets(&entry.job),
            ask: crate::search::Ask {
                gpus: member.gpus,
                pattern: plain(entry.job.pattern),
                scope: Scope::Node,
                broken: self
                    .class(&entry.job.class)
                    .map(|class| class.broken)
                    .unwrap_or_default(),
            },
            resources: member.resources.clone(),
        };
        let kind = self.join(spec);
        let chosen = self.choose(kind, false, self.now, length(&entry.job));
        chosen.filter(|chosen| chosen.key.start <= self.now)
    }
}
