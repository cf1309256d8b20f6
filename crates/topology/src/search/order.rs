//! Finds the best rank order of a set of GPUs for a ring or a chain.

use super::{
    bound::{self, Edge},
    instance::{Mask, Weights, members},
    tour::{Kind, Score, Tour},
    tours,
};
use crate::weight::Weight;

/// The number of steps after which a walk that aims at the bound gives up. A regular
/// board needs `k` of them.
const STEPS: u32 = 2_000;

/// Returns the best tour over `set`: least heaviest edge, then least sum, then lowest
/// order. `None` if it is worse than `known`.
pub(super) fn best(
    kind: Kind,
    weights: &Weights,
    edges: &[Edge],
    set: Mask,
    known: Score,
) -> Option<Tour> {
    let order: Vec<usize> = members(set).collect();
    match order[..] {
        [] | [_] => {
            return Some(Tour::one(order, Score::ZERO));
        }
        [a, b] => {
            let heaviest = weights[a][b];
            let sum = heaviest * Weight::from(kind.edges(2));
            return Some(Tour::one(order, Score { heaviest, sum }));
        }
        _ => {}
    }
    let soon_tried = order.len() <= tours::FEW;
    let reached = if soon_tried {
        None
    } else {
        at_bound(kind, weights, edges, set)
    };
    reached.or_else(|| tours::best(kind, weights, edges, set, known))
}

/// Returns the lowest order among the tours that reach the bound; `None` if there is none
/// or it is not found quickly.
pub(super) fn at_bound(kind: Kind, weights: &Weights, edges: &[Edge], set: Mask) -> Option<Tour> {
    let mut allowance = Vec::with_capacity(8);
    let note = |weight, heavier| allowance.push((weight, heavier));
    let score = bound::levels(kind, edges, set, Weight::MAX, note)?;
    let mut walk = Walk {
        kind,
        weights,
        score,
        allowance,
        order: Vec::with_capacity(16),
        steps: STEPS,
    };
    for first in members(set) {
        walk.order.push(first);
        match walk.on(set & !(1 << first)) {
            Step::Arrived => {
                return Some(Tour::one(walk.order, score));
            }
            Step::GivenUp => return None,
            // A ring passes through every GPU, so no other start can be better.
            Step::DeadEnd if kind == Kind::Ring => return None,
            Step::DeadEnd => walk.order.pop(),
        };
    }
    None
}

/// A walk through the GPUs in lexicographic order, with a limited number of heavy edges
/// left to use.
struct Walk<'a> {
    kind: Kind,
    weights: &'a Weights,
    score: Score,
    /// For each weight, the number of heavier edges that may still be used.
    allowance: Vec<(Weight, u32)>,
    order: Vec<usize>,
    steps: u32,
}

enum Step {
    Arrived,
    DeadEnd,
    GivenUp,
}

impl Walk<'_> {
    fn on(&mut self, rest: Mask) -> Step {
        let (Some(&first), Some(&here)) = (self.order.first(), self.order.last()) else {
            return Step::DeadEnd;
        };
        if rest == 0 {
            let closes = self.kind == Kind::Chain || self.fits(self.weights[here][first]);
            return if closes { Step::Arrived } else { Step::DeadEnd };
        }
        for next in members(rest) {
            if self.steps == 0 {
                return Step::GivenUp;
            }
            self.steps -= 1;
            let weight = self.weights[here][next];
            if !self.fits(weight) {
                continue;
            }
            self.charge(weight, false);
            self.order.push(next);
            match self.on(rest & !(1 << next)) {
                Step::DeadEnd => {}
                end => return end,
            }
            self.order.pop();
            self.charge(weight, true);
        }
        Step::DeadEnd
    }

    fn fits(&self, weight: Weight) -> bool {
        let spare = |&(light, left): &(Weight, u32)| weight <= light || left > 0;
        weight <= self.score.heaviest && self.allowance.iter().all(spare)
    }

    fn charge(&mut self, weight: Weight, back: bool) {
        for (light, left) in &mut self.allowance {
            if weight > *light {
                *left = if back { *left + 1 } else { *left - 1 };
            }
        }
    }
}
