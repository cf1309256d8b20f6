//! A ring or a chain over some GPUs, and its score.

use super::instance::{FORBIDDEN, Mask};
use crate::{rings::Rings, weight::Weight};

/// A tour: each GPU sends to the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The last sends to the first.
    Ring,
    /// The last sends nothing.
    Chain,
}

impl Kind {
    /// Returns the number of edges of a tour over `gpus` GPUs. A ring of two has two:
    /// each GPU sends to the other.
    pub(super) fn edges(self, gpus: u32) -> u32 {
        match self {
            _ if gpus < 2 => 0,
            Self::Ring => gpus,
            Self::Chain => gpus - 1,
        }
    }

    /// Reports whether a GPU that reaches only `near` of `gpus` GPUs is in no tour of them.
    pub(super) fn isolated(self, gpus: usize, near: Mask) -> bool {
        match self {
            _ if gpus < 2 => false,
            Self::Ring if gpus > 2 => near & near.wrapping_sub(1) == 0,
            _ => near == 0,
        }
    }
}

/// The best order of a set of GPUs, and its cost.
pub(super) struct Tour {
    pub(super) order: Vec<usize>,
    pub(super) score: Score,
    /// The rings that the tour represents, if they are counted.
    pub(super) rings: Option<Rings>,
}

impl Tour {
    /// Returns a single tour, which represents no counted rings.
    pub(super) fn one(order: Vec<usize>, score: Score) -> Self {
        Self {
            order,
            score,
            rings: None,
        }
    }
}

/// The least weight of the heaviest edge, and the least sum of all edges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Score {
    pub(super) heaviest: Weight,
    pub(super) sum: Weight,
}

impl Score {
    pub(super) const ZERO: Self = Self {
        heaviest: 0,
        sum: 0,
    };
    /// The score of a tour that the scope does not allow.
    pub(super) const FORBIDDEN: Self = Self {
        heaviest: FORBIDDEN,
        sum: FORBIDDEN,
    };
    /// A score worse than any other.
    pub(super) const UNKNOWN: Self = Self {
        heaviest: Weight::MAX,
        sum: Weight::MAX,
    };

    /// Adds another transfer, over a path of its own.
    pub(super) fn add(&mut self, weight: Weight) {
        self.heaviest = self.heaviest.max(weight);
        self.sum += weight;
    }

    /// Reports whether the tour uses a path that the scope does not allow.
    pub(super) fn is_forbidden(self) -> bool {
        self.heaviest >= FORBIDDEN
    }
}
