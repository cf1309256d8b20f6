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
    instance::{Instance, Mask},
    order::Kind,
};
use crate::graph::Weight;

/// The least that the heaviest edge, and the sum of all edges, can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Score {
    pub(super) heaviest: Weight,
    pub(super) sum: Weight,
}

impl Score {
    pub(super) const ZERO: Self = Self { heaviest: 0, sum: 0 };
}

/// Edges of an instance by ascending weight; `(weight, a, b)`.
pub(super) fn sorted_edges(instance: &Instance<'_>) -> Vec<(Weight, u8, u8)> {
    let mut edges = Vec::with_capacity(instance.len() * instance.len() / 2);
    for a in 0..instance.len() {
        for b in a + 1..instance.len() {
            // Numbers are below EXACT_GPUS.
            #[allow(clippy::cast_possible_truncation)]
            edges.push((instance.weights[a][b], a as u8, b as u8));
        }
    }
    edges.sort_unstable();
    edges
}

/// The bound for tours of `kind` over `set`.
pub(super) fn bound(kind: Kind, edges: &[(Weight, u8, u8)], set: Mask) -> Score {
    levels(kind, edges, set, |_, _| {})
}

/// The bound, level by level: `each` gets a weight and the fewest edges that
/// must be heavier, for each different weight while that is not zero.
pub(super) fn levels(
    kind: Kind,
    edges: &[(Weight, u8, u8)],
    set: Mask,
    mut each: impl FnMut(Weight, u32),
) -> Score {
    let needed = kind.edges(set.count_ones());
    if needed == 0 {
        return Score::ZERO;
    }
    let inside = |(_, a, b): &&(Weight, u8, u8)| set >> a & set >> b & 1 == 1;
    if set.count_ones() == 2 {
        let weight = edges.iter().find(inside).map_or(0, |edge| edge.0);
        return Score { heaviest: weight, sum: weight * Weight::from(needed) };
    }
    let mut parts = Components::new(kind, set);
    let mut score = Score::ZERO;
    let mut heavier = needed;
    let mut within = edges.iter().filter(inside).peekable();
    while let Some(&(weight, a, b)) = within.next() {
        parts.join(a.into(), b.into());
        if within.peek().is_some_and(|next| next.0 == weight) {
            continue;
        }
        let heavier_than_this = needed.saturating_sub(parts.capacity()).min(heavier);
        score.sum += weight * Weight::from(heavier - heavier_than_this);
        if heavier_than_this < heavier {
            score.heaviest = weight;
        }
        heavier = heavier_than_this;
        if heavier == 0 {
            break;
        }
        each(weight, heavier);
    }
    score
}

/// Components of the light edges, with the number of tour edges that each can hold.
struct Components {
    kind: Kind,
    of: [u8; EXACT_GPUS],
    degree: [u8; EXACT_GPUS],
    size: [u8; EXACT_GPUS],
    /// Sum of `min(2, degree)`.
    ends: [u8; EXACT_GPUS],
    number: u32,
    /// What all components hold together if the tour leaves each.
    held: u32,
}

impl Components {
    fn new(kind: Kind, set: Mask) -> Self {
        let mut of = [0; EXACT_GPUS];
        for (number, slot) in (0..).zip(&mut of) {
            *slot = number;
        }
        let zero = [0; EXACT_GPUS];
        let size = [1; EXACT_GPUS];
        Self { kind, of, degree: zero, size, ends: zero, number: set.count_ones(), held: 0 }
    }

    fn holds(&self, part: usize) -> u32 {
        u32::from((self.ends[part] / 2).min(self.size[part] - 1))
    }

    fn join(&mut self, a: usize, b: usize) {
        let (into, from) = (self.of[a] as usize, self.of[b] as usize);
        self.held -= self.holds(into);
        if into != from {
            self.held -= self.holds(from);
            self.size[into] += self.size[from];
            self.ends[into] += self.ends[from];
            self.number -= 1;
            for part in &mut self.of {
                if *part as usize == from {
                    // `into` came out of this array.
                    #[allow(clippy::cast_possible_truncation)]
                    {
                        *part = into as u8;
                    }
                }
            }
        }
        for gpu in [a, b] {
            self.degree[gpu] += 1;
            self.ends[into] += u8::from(self.degree[gpu] <= 2);
        }
        self.held += self.holds(into);
    }

    /// The most edges of a tour that are light.
    fn capacity(&self) -> u32 {
        if self.number > 1 || self.kind == Kind::Chain {
            return self.held;
        }
        let part = self.of.iter().zip(&self.degree).find(|(_, degree)| **degree > 0);
        part.map_or(0, |(part, _)| u32::from(self.ends[*part as usize] / 2))
    }
}
