//! Times and estimates.

/// Milliseconds since the epoch, or a number of milliseconds.
///
/// The planner has no clock. It never orders jobs by the present time, so that a clock
/// that jumps changes estimates and timeouts but neither the order nor what is held.
pub type Millis = i64;

/// An estimate of a time or of a duration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Estimate {
    /// The expected value, milliseconds.
    pub mean: Millis,
    /// How much later it may be, milliseconds: what nearly never happens is later still.
    /// 0 for an exact value or for a limit that somebody enforces.
    pub spread: Millis,
}

impl Estimate {
    /// Returns an estimate without spread.
    #[must_use]
    pub fn exact(mean: Millis) -> Self {
        Self { mean, spread: 0 }
    }

    /// Returns the upper estimate, on which reservations are built.
    #[must_use]
    pub fn upper(self) -> Millis {
        self.mean.saturating_add(self.spread.max(0))
    }
}
