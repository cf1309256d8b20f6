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
    flows::Loads,
    rings::{self, Mesh, Rings},
    volumes::Volumes,
    weight::Weight,
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
    hops: u32,
    /// The number of rank assignments that may still be tried where hops share something.
    assignments: u64,
    /// The number of steps that may still be spent on sets whose bound is not reached.
    patience: u64,
}

/// The number of hops that count the rings of a set after all others are spent: 25
/// microseconds.
const LAST_HOPS: u32 = 1_000;
/// What a hop costs, in steps.
const STEPS_PER_HOP: u64 = 25;

/// The number of sets whose bounds may be missed on boards of more than 8 GPUs. Boards of 12
/// and 16 on bridges of four need more than 8.
const SETS: u64 = 16;

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
            hops: hops(instance),
            assignments: assignments(instance),
            patience: patience(instance),
        }
    }
}

/// Returns the number of hops that may be tried to count rings.
fn hops(instance: &Instance<'_>) -> u32 {
    let all = u64::from(2 * rings::STEPS);
    let least = u64::from(4 * rings::FEW_STEPS);
    u32::try_from((all / instance.share.parts).max(least)).unwrap_or(u32::MAX)
}

/// Returns the number of rank assignments that may be tried. Above 8 GPUs, where they are no
/// proof, a few find good tours.
fn assignments(instance: &Instance<'_>) -> u64 {
    let all = if instance.len() <= 8 {
        shape::STEPS
    } else {
        shape::STEPS / 8
    };
    all / instance.share.parts
}

/// Returns the number of steps that may be spent on sets whose bound is not reached.
fn patience(instance: &Instance<'_>) -> u64 {
    let all = subsets::effort(instance.len());
    let some = SETS * subsets::effort(instance.k);
    let patience = match (&instance.mesh, instance.sharing) {
        // All sets of a board with up to 8 GPUs are tried if necessary.
        (Some(_), _) | (_, true) if instance.len() <= 8 => return u64::MAX,
        (Some(_), _) => some.max(all / 16),
        (None, true) => some.max(all),
        (None, false) => return all,
    };
    patience / instance.share.parts
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

    /// Counts a set whose bound was not reached.
    pub(super) fn miss(&mut self) {
        let effort = subsets::effort(self.instance.k);
        self.patience = self.patience.saturating_sub(effort);
    }

    /// Reports whether the score of every tour is that of its hops, each on its own: no hop
    /// shares anything with another, and no rings are counted.
    pub(super) fn may_pass_over_all_sets(&self) -> bool {
        self.instance.mesh.is_none() && !self.instance.sharing
    }

    /// Reports whether the search should end although it has not tried all sets.
    pub(super) fn is_exhausted(&self) -> bool {
        self.patience == 0 || self.instance.sharing && self.assignments == 0
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
        // However hard the first sets are, some hops are left for the others.
        let allowance = (self.hops / 2).max(LAST_HOPS);
        let allowance = allowance.min(rings::steps(self.instance.k));
        let mut left = allowance;
        let rings = mesh.most(set as u16, floor, &mut left);
        self.hops = self.hops.saturating_sub(allowance - left);
        let hops = u64::from(allowance - left);
        self.instance.share.spend(hops * STEPS_PER_HOP);
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
    fn tour(&mut self, set: Mask, known: Score) -> (Option<Tour>, bool) {
        let instance = self.instance;
        // Four at a time.
        instance.share.spend(subsets::effort(instance.k) / 4);
        let tour = if instance.relayed {
            self.tour_by(&self.weights(set), set, known)
        } else {
            order::best(self.kind, &instance.plain, &self.edges, set, known)
        };
        let shared = |tour: &Tour| {
            instance.sharing && !tour.score.is_forbidden() && self.score(&tour.order) != tour.score
        };
        match tour {
            Some(tour) if shared(&tour) => self.shared(set, tour, known),
            tour => (tour, true),
        }
    }

    /// Returns the best tour of a set, unless it is worse than `known`, and whether it is
    /// proven. `apart` is the best one if its hops did not share anything.
    fn shared(&mut self, set: Mask, mut apart: Tour, known: Score) -> (Option<Tour>, bool) {
        let least = apart.score;
        apart.score = self.score(&apart.order);
        // However hard the first sets are, some assignments are left for the others.
        let parts = if self.instance.len() <= 8 { 1 } else { 8 };
        let allowance = self.assignments.div_ceil(parts);
        let mut left = allowance;
        let known = known.min(apart.score);
        let (tour, proven) =
            shape::tour_of_set(self.instance, self.kind, set, least, known, &mut left);
        self.assignments -= allowance - left;
        let tour = tour.unwrap_or(apart);
        ((tour.score <= known).then_some(tour), proven)
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
