//! Rings and chains over one set of GPUs that direct links may connect.
//!
//! An all-reduce over direct links runs as many rings as they allow ([`crate::rings`]);
//! its score is that of all rings together. Elsewhere, and for a chain, it is the score
//! of one tour. The paths through a third GPU depend on which other GPUs the job has, so
//! each set is evaluated with its own weights.

use super::{
    EXACT_GPUS,
    bound::{self, Edge},
    instance::{FORBIDDEN, Instance, Mask, Weights, members, within},
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
    /// All edges, sorted by [`Instance::weights`].
    pub(super) edges: Vec<Edge>,
    /// The weight of the lightest path that is not a direct link.
    lightest_apart: Weight,
    /// The number of hops that may still be tried to count rings.
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
            // Twice the limit of one set, so that some steps are left if the first set
            // uses all of its steps.
            steps: 2 * rings::steps(instance.len()),
        }
    }
}

impl Tours<'_> {
    /// Returns the links on which rings are counted.
    fn mesh(&self) -> Option<&Mesh> {
        let mesh = self.instance.mesh.as_ref();
        mesh.filter(|_| self.kind == Kind::Ring)
    }

    /// Returns the sets whose bound is no worse than the best score met so far, best first.
    pub(super) fn worth_trying(&mut self) -> Vec<(Score, Mask)> {
        let instance = self.instance;
        // The number of walks that may fail: each costs as much as many bounds.
        let mut walks = 8;
        let mut known = Score::UNKNOWN;
        let mut near = within(&instance.weights, instance.len(), known.heaviest);
        let mut sets = Vec::with_capacity(64);
        instance.subsets(|set| {
            let Some(bound) = self.bound(set, known, &near) else {
                return;
            };
            if bound < known && walks > 0 {
                match self.reached(set, bound) {
                    Some(score) => {
                        known = score;
                        near = within(&instance.weights, instance.len(), known.heaviest);
                    }
                    None => walks -= 1,
                }
            }
            sets.push((bound, set));
        });
        // Drops the sets that were met before the best score was.
        sets.retain(|(bound, _)| *bound <= known);
        subsets::by_rank(instance, sets)
    }

    /// Returns a score that no tour over `set` beats; `None` if it is worse than `known`.
    fn bound(&self, set: Mask, known: Score, near: &[Mask; EXACT_GPUS]) -> Option<Score> {
        let k = self.instance.k;
        let one = || {
            // This check is faster than the bound: too few of the other GPUs are near this one.
            if members(set).any(|gpu| self.kind.isolated(k, near[gpu] & set)) {
                return None;
            }
            bound::bound(self.kind, &self.edges, set, known.heaviest)
        };
        let links = self.mesh().and_then(|mesh| mesh.bound(set as u16));
        let rings = links.map(|links| self.score_of(Rings::at_most(links)));
        let bound = match rings {
            // A tour that leaves the links is no better, and a tour that stays on them is
            // one of the rings.
            Some(rings) if rings.heaviest <= self.lightest_apart => Some(rings),
            rings => one().into_iter().chain(rings).min(),
        };
        bound.filter(|bound| *bound <= known)
    }

    /// Returns the score of `set` if it is found quickly and as good as the bound.
    fn reached(&mut self, set: Mask, bound: Score) -> Option<Score> {
        let counted = self
            .mesh()
            .and_then(|mesh| mesh.bound(set as u16))
            .is_some();
        let tour = if counted {
            self.of_set(set, bound).0
        } else {
            let weights = self.weights(set);
            let edges = bound::sorted_edges(&weights, self.instance.len());
            let tour = order::at_bound(self.kind, &weights, &edges, set);
            tour.filter(|tour| !self.instance.sharing || self.score(&tour.order) == tour.score)
        };
        tour.map(|tour| tour.score).filter(|score| *score == bound)
    }

    /// Returns the weights that apply if the job has the GPUs of `set`.
    fn weights(&self, set: Mask) -> Weights {
        if self.instance.relayed && set.count_ones() > 2 {
            self.instance.relay_weights(set)
        } else {
            self.instance.plain
        }
    }

    /// Returns the number of steps that may be spent on sets whose bound is not reached.
    pub(super) fn patience(&self) -> u64 {
        let all = subsets::effort(self.instance.len());
        match (&self.instance.mesh, self.instance.len()) {
            // All sets of a real board are tried if necessary.
            (Some(_), ..=8) => u64::MAX,
            (Some(_), _) => all / 256,
            (None, _) => all,
        }
    }

    fn score_of(&self, rings: Rings) -> Score {
        let heaviest = rings.weight(self.instance.graph);
        Score {
            heaviest,
            sum: rings.total(heaviest, self.instance.k),
        }
    }

    /// Returns the best tour of one set, unless it is worse than `known`, and whether
    /// that is proven. If rings are counted, the GPUs are in the order of one of the
    /// rings.
    pub(super) fn of_set(&mut self, set: Mask, known: Score) -> (Option<Tour>, bool) {
        let bound = self.mesh().and_then(|mesh| mesh.bound(set as u16));
        let (Some(mesh), Some(bound)) = (&self.instance.mesh, bound) else {
            return self.tour(set, known);
        };
        // A tour that leaves the links may be as good as few rings.
        let any = self.lightest_apart <= known.heaviest;
        let enough =
            |&number: &u32| self.score_of(Rings::at_most(number)).heaviest <= known.heaviest;
        let floor = match (1..=bound).find(enough) {
            _ if any => 1,
            Some(floor) => floor,
            None => return (None, true),
        };
        let allowance = self.steps.min(rings::steps(self.instance.k));
        let mut left = allowance;
        let rings = mesh.most(set as u16, floor, &mut left);
        self.steps -= allowance - left;
        if rings.number > 0 {
            let score = self.score_of(rings);
            let order = rings.one[..self.instance.k]
                .iter()
                .map(|&gpu| gpu.into())
                .collect();
            let rings_of_set = Tour {
                order,
                score,
                rings: Some(rings),
            };
            return ((score <= known).then_some(rings_of_set), rings.proven);
        }
        if !any {
            return (None, rings.proven);
        }
        let (tour, proven) = self.tour(set, known);
        (tour, proven && rings.proven)
    }

    /// Returns the best single tour of a set, and whether it is proven. It is the tour
    /// with the least heaviest hop, unless its hops share a resource: then all orders are
    /// tried.
    fn tour(&self, set: Mask, known: Score) -> (Option<Tour>, bool) {
        let instance = self.instance;
        let tour = if instance.relayed {
            self.tour_by(&self.weights(set), set, known)
        } else {
            order::best(self.kind, &instance.plain, &self.edges, set, known)
        };
        let shared = |tour: &Tour| {
            instance.sharing && !tour.score.is_forbidden() && self.score(&tour.order) != tour.score
        };
        if !tour.as_ref().is_some_and(shared) {
            return (tour, true);
        }
        if instance.k > 8 {
            return (tour, false);
        }
        let volumes = Volumes::tour(instance.k, self.kind == Kind::Ring);
        shape::of_set(instance, &volumes, set, known)
    }

    /// Returns the cost of all hops of a tour together.
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
