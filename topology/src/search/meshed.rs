//! Rings and chains over one set of GPUs, where direct links may join them.
//!
//! An all-reduce over direct links runs as many rings as they allow
//! ([`crate::rings`]): its score is that of all of them together. Elsewhere, and
//! for a chain, it is that of one tour. The ways through a third GPU depend on
//! who else has the job, so each set is looked at by its own weights.

use super::{
    bound::{self, Edge},
    instance::{FORBIDDEN, Instance, Mask, Weights},
    order, shape, subsets,
    tour::{Kind, Score, Tour},
};
use crate::{
    cost::Volumes,
    flows::Loads,
    graph::Weight,
    rings::{self, Mesh, Rings},
};

/// Tours over sets of one instance.
pub(super) struct Tours<'a> {
    pub(super) instance: &'a Instance<'a>,
    pub(super) kind: Kind,
    /// By [`Instance::weights`].
    pub(super) edges: Vec<Edge>,
    /// The lightest path that is no direct link.
    lightest_apart: Weight,
    /// Hops that may still be tried to count rings.
    steps: u32,
}

impl<'a> Tours<'a> {
    pub(super) fn new(instance: &'a Instance<'a>, kind: Kind) -> Self {
        let apart = |a: usize, b: usize| !instance.joined_directly(a, b);
        let pairs = (0..instance.len()).flat_map(|a| (0..a).map(move |b| (a, b)));
        let weights = pairs
            .filter(|&(a, b)| apart(a, b))
            .map(|(a, b)| instance.plain[a][b]);
        Self {
            instance,
            kind,
            edges: bound::sorted_edges(&instance.weights, instance.len()),
            lightest_apart: weights.min().unwrap_or(FORBIDDEN),
            // Twice what is spent on one set, so that some are left where the first takes all.
            steps: 2 * rings::steps(instance.len()),
        }
    }
}

impl Tours<'_> {
    /// The links on which rings are counted.
    fn mesh(&self) -> Option<&Mesh> {
        let mesh = self.instance.mesh.as_ref();
        mesh.filter(|_| self.kind == Kind::Ring)
    }

    /// The sets that can be best, by their bound, best first.
    pub(super) fn worth_trying(&self) -> Vec<(Score, Mask)> {
        if self.instance.mesh.is_none() {
            return subsets::worth_trying(self.instance, self.kind, &self.edges);
        }
        subsets::ranked(self.instance, |set| {
            let one = || bound::bound(self.kind, &self.edges, set, FORBIDDEN);
            let Some(links) = self.mesh().and_then(|mesh| mesh.bound(set as u16)) else {
                return one();
            };
            let rings = self.score_of(Rings::at_most(links));
            if rings.heaviest <= self.lightest_apart {
                // A tour that leaves the links is no better, and one that does not is one of the rings.
                return Some(rings);
            }
            Some(one()?.min(rings))
        })
    }

    /// Steps that may be spent on sets whose bound is not reached.
    pub(super) fn patience(&self) -> u64 {
        match (&self.instance.mesh, self.instance.len()) {
            // All sets of a real board are looked at if need be.
            (Some(_), ..=8) => u64::MAX,
            (_, gpus) => subsets::effort(gpus),
        }
    }

    fn score_of(&self, rings: Rings) -> Score {
        let heaviest = rings.weight(self.instance.graph);
        Score {
            heaviest,
            sum: rings.total(heaviest, self.instance.k),
        }
    }

    /// The best of one set, unless it is worse than `known`, and whether that is
    /// proven. Where rings are counted, the GPUs come in the order of one of them.
    pub(super) fn of_set(&mut self, set: Mask, known: Score) -> (Option<Tour>, bool) {
        let floor = self.rings_within(known);
        let mut proven = true;
        if let (Some(mesh), Kind::Ring) = (&self.instance.mesh, self.kind) {
            let allowance = self.steps.min(rings::steps(self.instance.k));
            let mut left = allowance;
            let rings = mesh.most(set as u16, floor, &mut left);
            self.steps -= allowance - left;
            proven = rings.proven;
            if rings.number > 0 {
                let score = self.score_of(rings);
                let order = rings.one[..self.instance.k]
                    .iter()
                    .map(|&gpu| gpu.into())
                    .collect();
                return ((score <= known).then_some(Tour { order, score }), proven);
            }
        }
        let (tour, sure) = self.tour(set, known);
        (tour, proven && sure)
    }

    /// The fewest rings that are no worse than `known`. Any, where a tour that
    /// leaves the links might be.
    fn rings_within(&self, known: Score) -> u32 {
        if known == Score::UNKNOWN || self.lightest_apart <= known.heaviest {
            return 1;
        }
        let enough =
            |&number: &u32| self.score_of(Rings::at_most(number)).heaviest <= known.heaviest;
        (1..=u32::from(u16::MAX)).find(enough).unwrap_or(1)
    }

    /// The best single tour of a set. That of the least heaviest hop is it,
    /// unless its hops share something: then all orders are tried.
    fn tour(&self, set: Mask, known: Score) -> (Option<Tour>, bool) {
        let instance = self.instance;
        let tour = if instance.relayed && set.count_ones() > 2 {
            self.tour_by(&instance.relay_weights(set), set, known)
        } else {
            order::best(self.kind, &instance.plain, &self.edges, set, known)
        };
        let shared =
            |tour: &Tour| tour.score < Score::FORBIDDEN && self.score(&tour.order) != tour.score;
        if !tour.as_ref().is_some_and(shared) {
            return (tour, true);
        }
        let volumes = Volumes::tour(instance.k, self.kind == Kind::Ring);
        shape::of_set(instance, &volumes, set, known)
    }

    /// What the hops of a tour cost together.
    fn score(&self, order: &[usize]) -> Score {
        let instance = self.instance;
        let volumes = Volumes::tour(order.len(), self.kind == Kind::Ring);
        let order = instance.positions(order);
        instance.score(&Loads::of(instance.graph, &order, &volumes))
    }

    fn tour_by(&self, weights: &Weights, set: Mask, known: Score) -> Option<Tour> {
        let edges = bound::sorted_edges(weights, self.instance.len());
        order::best(self.kind, weights, &edges, set, known)
    }
}
