//! A ring or a chain over some GPUs, and how good it is.

use super::instance::{FORBIDDEN, Mask};
use crate::{graph::Weight, rings::Rings};

/// A tour: each GPU sends to the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The last sends to the first.
    Ring,
    /// The last sends nothing.
    Chain,
}

impl Kind {
    /// Edges of a tour over `gpus` GPUs. A ring of two has two: each sends to the other.
    pub(super) fn edges(self, gpus: u32) -> u32 {
        match self {
            _ if gpus < 2 => 0,
            Self::Ring => gpus,
            Self::Chain => gpus - 1,
        }
    }

    /// Whether a GPU that reaches only `near` of `gpus` GPUs is in no tour of them.
    pub(super) fn isolated(self, gpus: usize, near: Mask) -> bool {
        match self {
            _ if gpus < 2 => false,
            Self::Ring if gpus > 2 => near & near.wrapping_sub(1) == 0,
            _ => near == 0,
        }
    }
}

/// Of a set of GPUs, the best order and what it costs.
pub(super) struct Tour {
    pub(super) order: Vec<usize>,
    pub(super) score: Score,
    /// The rings that it stands for, where they are counted.
    pub(super) rings: Option<Rings>,
}

impl Tour {
    /// A tour of its own.
    pub(super) fn one(order: Vec<usize>, score: Score) -> Self {
        Self {
            order,
            score,
            rings: None,
        }
    }
}

/// The least that the heaviest edge, and the sum of all edges, can be.
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
    /// Of what the scope does not allow.
    pub(super) const FORBIDDEN: Self = Self {
        heaviest: FORBIDDEN,
        sum: FORBIDDEN,
    };
    /// Worse than any.
    pub(super) const UNKNOWN: Self = Self {
        heaviest: Weight::MAX,
        sum: Weight::MAX,
    };

    /// Another transfer, over a path of its own.
    pub(super) fn add(&mut self, weight: Weight) {
        self.heaviest = self.heaviest.max(weight);
        self.sum += weight;
    }

    /// It uses a path that the scope does not allow.
    pub(super) fn is_forbidden(self) -> bool {
        self.heaviest >= FORBIDDEN
    }
}
