//! Limits how often the same failure is logged.

use std::time::{Duration, Instant};

/// The reason that was logged last. A lasting reason, such as a missing CRD,
/// returns with each retry, many times a minute.
#[derive(Default)]
pub struct Complaints {
    last: Option<(String, Instant)>,
}

impl Complaints {
    /// For this long the same reason is not logged again.
    const QUIET: Duration = Duration::from_secs(60);

    /// Reports whether to log `reason`: it is new, or was last logged long ago.
    pub fn is_due(&mut self, reason: &str, now: Instant) -> bool {
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
    fn a_lasting_reason_is_logged_once_a_minute() {
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
