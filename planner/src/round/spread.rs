//! Jobs whose deadline passed, released without the constraint to a domain.

use std::sync::Arc;

use nvlink_topology::{Scope, multi_node::plain};

use crate::{
    Member, Release, Seat, Why,
    kind::Spec,
    queue::Entry,
    round::{
        gang::sets,
        job::seats,
        plan::{Plan, length},
        target::{Chosen, Part, Target},
    },
    seats::{Ranked, ranked},
};

impl Plan<'_> {
    /// Releases a job anywhere: on one node if one has room for it now, else each pod for
    /// itself. A pod for which no node has room that nobody ahead needs gets a seat
    /// without a node, and the scheduler decides.
    pub(crate) fn spread(&mut self, entry: &Entry) -> Release {
        let best = self.kinds.least(entry.kind, self.cluster, self.search);
        let ranked = ranked(&entry.job.members);
        let kind = self.kinds.get(entry.kind).map(|kind| kind.spec.clone());
        let whole = kind.and_then(|spec| self.now(entry, Spec::clone(&spec)));
        let (seats, scope, cost) = match whole {
            Some(chosen) => {
                let target = self.target(entry, &chosen);
                self.take(entry, &ranked, &target);
                (
                    seats(self.cluster, &ranked, &target),
                    target.within,
                    target.cost,
                )
            }
            None => self.one_by_one(entry, &ranked),
        };
        let best_cost = best.unwrap_or(cost);
        Release {
            job: entry.id.clone(),
            seats,
            cost,
            quality: if cost > 0.0 {
                (best_cost / cost).min(1.0)
            } else {
                1.0
            },
            scope,
            why: Why::Spread { best_cost },
            ranks_in_doubt: ranked.in_doubt,
        }
    }

    /// Returns the best node that has room now without a domain.
    fn now(&mut self, entry: &Entry, mut spec: Spec) -> Option<Chosen> {
        spec.ask.scope = Scope::Node;
        let kind = self.join(spec);
        let chosen = self.choose(kind, false, self.now, length(&entry.job));
        chosen.filter(|chosen| chosen.key.start <= self.now)
    }

    fn one_by_one(&mut self, entry: &Entry, ranked: &Ranked<'_>) -> (Vec<Seat>, Scope, f64) {
        let mut seats = Vec::with_capacity(ranked.members.len());
        let mut nodes = Vec::new();
        let mut cost: f64 = 0.0;
        for (rank, member) in (0..).zip(&ranked.members) {
            let Some(chosen) = self.one(entry, member) else {
                seats.push(nowhere(member, rank));
                continue;
            };
            cost = cost.max(chosen.found.cost);
            nodes.push(chosen.node);
            if let Some(node) = self.cluster.node(chosen.node) {
                seats.push(node.seat(&member.pod, rank, &chosen.found.order));
            }
            let one = Ranked {
                members: vec![member],
                in_doubt: false,
            };
            let target = Target {
                start: self.now,
                parts: vec![Part {
                    node: chosen.node,
                    members: 1,
                    found: Arc::clone(&chosen.found),
                }],
                within: Scope::Node,
                cost: chosen.found.cost,
            };
            self.take(entry, &one, &target);
        }
        if nodes.len() < ranked.members.len() {
            return (seats, Scope::Zone, cost);
        }
        let scope = self.scope_over(&nodes);
        (seats, scope, cost.max(self.leaving(entry, &nodes, scope)))
    }

    fn one(&mut self, entry: &Entry, member: &Member) -> Option<Chosen> {
        let spec = Spec {
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
        self.now(entry, spec)
    }

    /// Returns the time of what leaves the slowest of these nodes, seconds per byte.
    fn leaving(&self, entry: &Entry, nodes: &[u32], within: Scope) -> f64 {
        use nvlink_topology::multi_node::{Gang, leaving, outward};
        let gang = Gang {
            pods: entry.job.members.len(),
            gpus: (entry.gpus as usize / entry.job.members.len().max(1)).max(1),
            pattern: entry.job.pattern,
            scope: entry.job.scope,
        };
        let outward = nodes.iter().filter_map(|&node| {
            let node = self.cluster.node(node)?;
            let network = node.state.network_bytes_per_second;
            Some(outward(&node.shared.graph, network, within))
        });
        #[allow(clippy::cast_precision_loss)] // far below 2^53
        let slowest = outward.min().unwrap_or(1).max(1) as f64;
        leaving(&gang) / slowest
    }
}

fn nowhere(member: &Member, rank: u32) -> Seat {
    Seat {
        pod: member.pod.clone(),
        rank,
        node: None,
        gpus: Vec::new(),
        domain: None,
    }
}
