//! Finds exact tours.
//!
//! A few GPUs are tried in every order. For more GPUs it is dynamic programming over sets
//! (Bellman 1962, Held and Karp 1962), in two passes: the least heaviest edge, then the
//! least sum among tours without a heavier one. One pass over both at once would be
//! wrong: a part with a lighter heaviest edge does not help if the rest has a heavier
//! one.

use super::{
    EXACT_GPUS,
    bound::{self, Edge},
    instance::{Mask, Weights, members, within},
    tour::{Kind, Score, Tour},
};
use crate::weight::Weight;

/// Up to this number of GPUs, trying every order is faster than dynamic programming.
pub(super) const FEW: usize = 6;

/// Tries all orders from the lowest up, and stops each one that is no better than the best.
struct EveryOrder<'a> {
    kind: Kind,
    weights: &'a Weights,
    order: Vec<usize>,
    best: Tour,
}

impl<'a> EveryOrder<'a> {
    fn best(kind: Kind, weights: &'a Weights, set: Mask, known: Score) -> Option<Tour> {
        // A tour as good as the known one is accepted.
        let score = Score {
            sum: known.sum.saturating_add(1),
            ..known
        };
        let order = Vec::new();
        let best = Tour::one(order, score);
        let order = Vec::with_capacity(FEW);
        let mut every = Self {
            kind,
            weights,
            order,
            best,
        };
        let starts = if kind == Kind::Ring { 1 } else { usize::MAX };
        for first in members(set).take(starts) {
            every.order.push(first);
            every.walk(first, set & !(1 << first), Score::ZERO);
            every.order.pop();
        }
        Some(every.best).filter(|tour| !tour.order.is_empty())
    }

    fn walk(&mut self, here: usize, rest: Mask, score: Score) {
        if score >= self.best.score {
            return;
        }
        let weights = &self.weights[here];
        let along = |to: usize| Score {
            heaviest: score.heaviest.max(weights[to]),
            sum: score.sum + weights[to],
        };
        if rest == 0 {
            let score = if self.kind == Kind::Ring {
                along(self.order[0])
            } else {
                score
            };
            if score < self.best.score {
                self.best = Tour::one(self.order.clone(), score);
            }
            return;
        }
        for next in members(rest) {
            self.order.push(next);
            self.walk(next, rest & !(1 << next), along(next));
            self.order.pop();
        }
    }
}

/// The GPUs of one set, numbered from 0 without gaps.
struct Compact {
    kind: Kind,
    gpus: Vec<usize>,
    weights: Weights,
}

/// Returns the best tour over `set`, which has at least two GPUs; `None` if it is worse
/// than `known`.
pub(super) fn best(
    kind: Kind,
    weights: &Weights,
    edges: &[Edge],
    set: Mask,
    known: Score,
) -> Option<Tour> {
    if set.count_ones() as usize <= FEW {
        return EveryOrder::best(kind, weights, set, known);
    }
    let gpus: Vec<usize> = members(set).collect();
    let mut compact = Compact {
        kind,
        weights: [[0; _]; _],
        gpus,
    };
    for (a, &at) in compact.gpus.iter().enumerate() {
        for (b, &to) in compact.gpus.iter().enumerate() {
            compact.weights[a][b] = weights[at][to];
        }
    }
    let least = bound::bound(kind, edges, set, known.heaviest)?.heaviest;
    let mut limits = weights_between(weights, set, least);
    limits.retain(|&limit| limit <= known.heaviest);
    if known != Score::UNKNOWN && !compact.has_tour(*limits.last()?) {
        return None;
    }
    let heaviest = lightest(limits, |limit| compact.has_tour(limit));
    let (sum, order) = compact.least_sum(heaviest);
    let order = order.into_iter().map(|gpu| compact.gpus[gpu]).collect();
    let score = Score { heaviest, sum };
    (score <= known).then_some(Tour::one(order, score))
}

/// Returns the least of the sums of two numbers at the same index.
fn least_of_sums(a: &[f64; EXACT_GPUS], b: &[f64; EXACT_GPUS]) -> f64 {
    let lesser = |a: f64, b: f64| if a < b { a } else { b };
    // Four at a time: their order does not matter.
    let mut least = [f64::INFINITY; 4];
    for (a, b) in a.chunks_exact(4).zip(b.chunks_exact(4)) {
        for (least, (a, b)) in least.iter_mut().zip(a.iter().zip(b)) {
            *least = lesser(a + b, *least);
        }
    }
    lesser(lesser(least[0], least[1]), lesser(least[2], least[3]))
}

/// Returns the different weights inside `set` that are at least `least`, ascending.
pub(super) fn weights_between(weights: &Weights, set: Mask, least: Weight) -> Vec<Weight> {
    let of = |a: usize| {
        members(set)
            .filter(move |&b| a < b)
            .map(move |b| weights[a][b])
    };
    let mut all: Vec<_> = members(set)
        .flat_map(of)
        .filter(|&weight| weight >= least)
        .collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Returns the first of `limits`, ascending, that is `enough`. The last one always is.
///
/// The step size doubles from the start, because the bound is mostly exact or nearly so.
pub(super) fn lightest(limits: Vec<Weight>, enough: impl Fn(Weight) -> bool) -> Weight {
    let Some(last) = limits.len().checked_sub(1) else {
        return 0;
    };
    let (mut low, mut high, mut step) = (0, 0, 1);
    while high < last && !enough(limits[high]) {
        low = high + 1;
        high = (high + step).min(last);
        step *= 2;
    }
    while low < high {
        let middle = low.midpoint(high);
        if enough(limits[middle]) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    limits[high]
}

impl Compact {
    /// Returns the GPUs other than the fixed start: a ring starts at GPU 0, a chain anywhere.
    fn others(&self) -> Mask {
        let all = (1 << self.gpus.len()) - 1;
        match self.kind {
            Kind::Ring => all & !1,
            Kind::Chain => all,
        }
    }

    /// Reports whether there is a tour without an edge heavier than `limit`.
    fn has_tour(&self, limit: Weight) -> bool {
        let near = within(&self.weights, self.gpus.len(), limit);
        let others = self.others();
        let first = others.trailing_zeros();
        let full = (others >> first) as usize;
        // For each set of visited GPUs (shifted by `first`), the GPUs at which such a
        // walk can end.
        let mut ends: Vec<u16> = vec![0; full + 1];
        for gpu in members(others) {
            let starts = self.kind == Kind::Chain || near[0] >> gpu & 1 == 1;
            ends[1 << gpu >> first] = u16::from(starts) << gpu;
        }
        for visited in 1..=full {
            let at = Mask::from(ends[visited]);
            if at == 0 {
                continue;
            }
            for next in members(others & !((visited as Mask) << first)) {
                let arrives = u16::from(near[next] & at != 0);
                ends[visited | 1 << next >> first] |= arrives << next;
            }
        }
        let last = Mask::from(ends[full]);
        last != 0 && (self.kind == Kind::Chain || last & near[0] != 0)
    }

    /// Returns the least sum of a tour without an edge heavier than `limit`, and the
    /// lowest such order.
    ///
    /// Sums are below 2⁵³, so `f64` holds them exactly. Every machine compares several
    /// `f64` at once; not all do so with 64-bit integers.
    fn least_sum(&self, limit: Weight) -> (Weight, Vec<usize>) {
        let n = self.gpus.len();
        let others = self.others();
        let first = others.trailing_zeros();
        let full = (others >> first) as usize;
        let mut steps = [[f64::INFINITY; EXACT_GPUS]; EXACT_GPUS];
        for (steps, weights) in steps.iter_mut().zip(&self.weights) {
            for (step, &weight) in steps.iter_mut().zip(weights) {
                if weight <= limit {
                    *step = weight as f64;
                }
            }
        }
        // left[rest][here]: the least sum from `here` through all of `rest` to the end.
        let mut left = vec![f64::INFINITY; (full + 1) * n];
        for here in members(others) {
            left[here] = if self.kind == Kind::Ring {
                steps[here][0]
            } else {
                0.0
            };
        }
        for rest in 1..=full {
            let rest_mask = (rest as Mask) << first;
            // Computed once for all `here`.
            let mut onward = [f64::INFINITY; EXACT_GPUS];
            for next in members(rest_mask) {
                onward[next] = left[(rest & !(1 << next >> first)) * n + next];
            }
            for here in members(others & !rest_mask) {
                left[rest * n + here] = least_of_sums(&steps[here], &onward);
            }
        }
        self.lowest_order(others, |here, rest, next| {
            let onward = left[((rest & !(1 << next)) >> first) as usize * n + next];
            let sum = here.map_or(0.0, |here| steps[here][next]) + onward;
            sum as Weight
        })
    }

    /// Follows the least sums, always to the lowest GPU that keeps the sum.
    fn lowest_order(
        &self,
        others: Mask,
        sum: impl Fn(Option<usize>, Mask, usize) -> Weight,
    ) -> (Weight, Vec<usize>) {
        let mut order = Vec::with_capacity(self.gpus.len());
        order.extend((self.kind == Kind::Ring).then_some(0));
        let mut least = None;
        let mut rest = others;
        while let Some((onward, next)) = members(rest)
            .map(|next| (sum(order.last().copied(), rest, next), next))
            .min()
        {
            least.get_or_insert(onward);
            order.push(next);
            rest &= !(1 << next);
        }
        (least.unwrap_or(0), order)
    }
}
