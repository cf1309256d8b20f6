//! A lower bound on the cost of a ring or a chain over a set of GPUs.
//!
//! Consider the paths with a weight of at most `w`. They divide the set into components.
//! A component of `s` GPUs holds at most `s - 1` edges of a ring that leaves it, and at
//! most half of the sum over its GPUs of `min(2, degree)`. The edges that the components
//! cannot hold must be heavier than `w`. Over all weights this gives the fewest heavy
//! edges, and with them the least total and the least bottleneck. Regular boards reach
//! the bound: switches, meshes, bridged pairs, pairs in sockets.

use super::{
    EXACT_GPUS,
    instance::{Mask, Weights},
    tour::{Kind, Score},
};
use crate::weight::Weight;

/// Two GPUs and the weight between them; edges are compared by weight first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Edge {
    weight: Weight,
    ends: Mask,
    a: u8,
    b: u8,
}

/// Returns the edges of `gpus` GPUs by ascending weight.
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

/// Returns the bound for tours of `kind` over `set`; `None` if its heaviest edge must be
/// heavier than `limit`.
pub(super) fn bound(kind: Kind, edges: &[Edge], set: Mask, limit: Weight) -> Option<Score> {
    levels(kind, edges, set, limit, |_, _| {})
}

/// Returns the bound, level by level: for each different weight, calls `each` with the
/// weight and the fewest edges that must be heavier, until that number is zero.
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
    /// For each GPU, the member that represents its component.
    of: [u8; EXACT_GPUS],
    degree: [u8; EXACT_GPUS],
    size: [u8; EXACT_GPUS],
    /// Sum of `min(2, degree)`.
    ends: [u8; EXACT_GPUS],
    number: u32,
    gpus: u32,
    /// The number of edges that all components hold together if the tour leaves each.
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

    /// Returns the most edges of a tour that can be light.
    fn capacity(&self) -> u32 {
        let ring_in_one = self.kind == Kind::Ring && self.number == 1;
        match self.gpus {
            // A ring of two uses its one path in both directions.
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
