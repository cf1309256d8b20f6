//! How good a ring or a chain over a set of GPUs can be at best.
//!
//! Take the paths of a weight at most `w`. They join the set into components;
//! a component of `s` GPUs holds at most `s - 1` edges of a ring that leaves
//! it, and at most half of the sum over its GPUs of `min(2, degree)`. What
//! the components cannot hold must be heavier than `w`. Over all weights this
//! gives the fewest heavy edges, and with them the least total and the least
//! bottleneck. It is reached on regular boards: switches, meshes, bridged
//! pairs, pairs in sockets.

use super::{
    EXACT_GPUS,
    instance::{Mask, Weights},
    tour::{Kind, Score},
};
use crate::graph::Weight;

/// Two GPUs and the weight between them; edges are compared by weight first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Edge {
    weight: Weight,
    ends: Mask,
    a: u8,
    b: u8,
}

/// Edges of `gpus` GPUs by ascending weight.
pub(super) fn sorted_edges(weights: &Weights, gpus: usize) -> Vec<Edge> {
    let mut edges = Vec::with_capacity(gpus * gpus / 2);
    for (b, at) in (0..).zip(0..gpus) {
        for (a, to) in (0..b).zip(0..at) {
            edges.push(Edge {
                weight: weights[at][to],
                ends: 1 << a | 1 << b,
                a,
                b,
            });
        }
    }
    edges.sort_unstable();
    edges
}

/// The bound for tours of `kind` over `set`; `None` if its heaviest edge must be heavier than `limit`.
pub(super) fn bound(kind: Kind, edges: &[Edge], set: Mask, limit: Weight) -> Option<Score> {
    levels(kind, edges, set, limit, |_, _| {})
}

/// The bound, level by level: `each` gets a weight and the fewest edges that
/// must be heavier, for each different weight while that is not zero.
pub(super) fn levels(
    kind: Kind,
    edges: &[Edge],
    set: Mask,
    limit: Weight,
    mut each: impl FnMut(Weight, u32),
) -> Option<Score> {
    let needed = kind.edges(set.count_ones());
    let mut inside = edges
        .iter()
        .take_while(|edge| edge.weight <= limit)
        .filter(|edge| edge.ends & !set == 0)
        .peekable();
    let mut parts = Components::new(kind, set);
    let mut score = Score::ZERO;
    let mut heavier = needed;
    while heavier > 0 {
        let edge = inside.next()?;
        parts.join(edge.a.into(), edge.b.into());
        if inside.peek().is_some_and(|next| next.weight == edge.weight) {
            continue;
        }
        let heavier_than_this = needed.saturating_sub(parts.capacity()).min(heavier);
        score.sum += edge.weight * Weight::from(heavier - heavier_than_this);
        score.heaviest = edge.weight;
        heavier = heavier_than_this;
        if heavier > 0 {
            each(edge.weight, heavier);
        }
    }
    Some(score)
}

/// Components of the light edges, with the number of tour edges that each can hold.
struct Components {
    kind: Kind,
    /// A member of the component of each GPU, which stands for it.
    of: [u8; EXACT_GPUS],
    degree: [u8; EXACT_GPUS],
    size: [u8; EXACT_GPUS],
    /// Sum of `min(2, degree)`.
    ends: [u8; EXACT_GPUS],
    number: u32,
    gpus: u32,
    /// What all components hold together if the tour leaves each.
    held: u32,
}

impl Components {
    fn new(kind: Kind, set: Mask) -> Self {
        const OWN: [u8; EXACT_GPUS] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
        let zero = [0; EXACT_GPUS];
        let gpus = set.count_ones();
        let size = [1; EXACT_GPUS];
        Self {
            kind,
            of: OWN,
            degree: zero,
            size,
            ends: zero,
            number: gpus,
            gpus,
            held: 0,
        }
    }

    fn holds(&self, part: u8) -> u32 {
        let part = usize::from(part);
        u32::from((self.ends[part] / 2).min(self.size[part] - 1))
    }

    fn join(&mut self, a: usize, b: usize) {
        let (into, from) = (self.of[a], self.of[b]);
        self.held -= self.holds(into);
        if into != from {
            self.held -= self.holds(from);
            self.size[usize::from(into)] += self.size[usize::from(from)];
            self.ends[usize::from(into)] += self.ends[usize::from(from)];
            self.number -= 1;
            for part in &mut self.of {
                *part = if *part == from { into } else { *part };
            }
        }
        for gpu in [a, b] {
            self.degree[gpu] = (self.degree[gpu] + 1).min(3);
            self.ends[usize::from(into)] += u8::from(self.degree[gpu] <= 2);
        }
        self.held += self.holds(into);
    }

    /// The most edges of a tour that are light.
    fn capacity(&self) -> u32 {
        let ring_in_one = self.kind == Kind::Ring && self.number == 1;
        match self.gpus {
            // A ring of two passes its one path both ways.
            2 if ring_in_one => 2,
            // One component holds the whole ring, so nothing needs to leave it.
            _ if ring_in_one => self
                .ends
                .iter()
                .zip(&self.size)
                .filter(|(_, size)| u32::from(**size) == self.gpus)
                .map(|(ends, _)| u32::from(ends / 2))
                .max()
                .unwrap_or(0),
            _ => self.held,
        }
    }
}
