//! What a search may spend, and what it has spent.

use std::cell::Cell;

/// What one search spends, counted in steps of about a nanosecond.
///
/// It counts what the search does and never the time, so that it is the same on every machine.
#[derive(Debug, Default)]
pub struct Effort {
    steps: Cell<u64>,
    /// A search ended without a placement, because it had no steps left.
    gave_up: Cell<bool>,
}

impl Effort {
    /// Returns the steps so far.
    #[must_use]
    pub fn spent(&self) -> u64 {
        self.steps.get()
    }

    fn spend(&self, steps: u64) {
        self.steps.set(self.steps.get().saturating_add(steps));
    }
}

/// The part of each budget that one of several searches may spend.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share<'a> {
    /// It may spend one of so many parts; at least 1.
    pub(super) parts: u64,
    effort: &'a Effort,
}

impl<'a> Share<'a> {
    /// Returns the whole budget.
    pub(super) fn whole(effort: &'a Effort) -> Self {
        Self { parts: 1, effort }
    }

    /// Returns the share of one of `parts` searches.
    pub(super) fn split(self, parts: u64) -> Self {
        Self {
            parts: self.parts.saturating_mul(parts.max(1)),
            ..self
        }
    }

    /// Notes that a search ended without a placement and without a proof that there is none.
    pub(super) fn give_up(self) {
        self.effort.gave_up.set(true);
    }

    /// Reports whether a search did.
    pub(super) fn gave_up(self) -> bool {
        self.effort.gave_up.get()
    }

    /// Counts steps.
    pub(super) fn spend(self, steps: u64) {
        self.effort.spend(steps);
    }
}
