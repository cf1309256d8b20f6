//! What was complained of lately.

use std::time::{Duration, Instant};

/// A reason that lasts, such as a CRD that is missing, comes back with each
/// try, many times a minute.
#[derive(Default)]
pub(crate) struct Complaints {
    last: Option<(String, Instant)>,
}

impl Complaints {
    /// How long the same reason is not told again.
    const QUIET: Duration = Duration::from_secs(60);

    /// Whether `reason` is to be told: it is new, or was last told long ago.
    pub(crate) fn is_due(&mut self, reason: &str, now: Instant) -> bool {
        let told = self.last.as_ref().is_some_and(|(last, since)| {
            last == reason && now.saturating_duration_since(*since) < Self::QUIET
        });
        if !told {
            self.last = Some((reason.to_owned(), now));
        }
        !told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_that_lasts_is_told_once_a_minute() {
        let start = Instant::now();
        let mut complaints = Complaints::default();
        let mut told = |reason: &str, seconds: u64| {
            complaints.is_due(reason, start + Duration::from_secs(seconds))
        };
        assert!(told("no CRDs", 0));
        assert!(!told("no CRDs", 1) && !told("no CRDs", 59));
        assert!(told("no CRDs", 60));
        assert!(told("forbidden", 61));
        assert!(!told("forbidden", 62));
    }
}
