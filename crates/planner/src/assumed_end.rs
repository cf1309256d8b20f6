//! When a pod that runs is assumed to end.

use crate::{Estimate, Millis};

/// From here on, times mean "after pods whose end is unknown": later than every real time.
///
/// The first pod of unknown end on a node is assumed to end at `FAR` plus its number of
/// GPUs, the next one at its number of GPUs later, and so on. So a job that can only
/// start after such pods is planned where the fewest GPUs are missing.
pub(crate) const FAR: Millis = 1 << 52;
/// As [`FAR`], for pods of unknown end that have run for [`SERVICE`].
pub(crate) const FARTHER: Millis = 1 << 58;
/// A pod of unknown end that has run this long is taken for a service that does not end:
/// one day. A job that waits for it is planned elsewhere if it can be.
pub(crate) const SERVICE: Millis = 24 * 3_600_000;
/// The assumed length of a job of unknown duration that starts later. 1,000 such jobs one
/// after the other from [`FAR`] stay before [`FARTHER`].
pub(crate) const UNKNOWN: Millis = 1 << 44;
/// A pod that is overdue is assumed to end a minute after its upper estimate; once that
/// has passed, two minutes after, then four, and so on.
const GRACE: Millis = 60_000;

/// The assumed end of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    /// When; at least [`FAR`] if unknown.
    pub(crate) until: Millis,
    /// The expected end.
    pub(crate) mean: Millis,
    /// When this assumption is no longer valid.
    pub(crate) valid: Millis,
    /// Whether the assumption depends on the present time, so that a clock that is set
    /// back makes it wrong.
    pub(crate) adjusted: bool,
}

impl End {
    /// The end of a pod that no job waits for.
    pub(crate) const NEVER: Self = Self {
        until: Millis::MAX,
        mean: Millis::MAX,
        valid: Millis::MAX,
        adjusted: false,
    };

    /// Returns the end of a pod that started at `since`. `unknown` counts the GPUs of the
    /// pods of unknown end on the node so far, this one included.
    pub(crate) fn of(end: Option<Estimate>, since: Millis, unknown: u32, now: Millis) -> Self {
        match end {
            Some(end) => Self::known(end, now),
            None => Self::unknown(since, unknown, now),
        }
    }

    fn known(end: Estimate, now: Millis) -> Self {
        let upper = end.upper().min(FAR - 1);
        let mut until = upper;
        let mut step = GRACE;
        while until <= now {
            until = upper.saturating_add(step);
            step = step.saturating_mul(2);
        }
        Self {
            until,
            mean: end.mean.min(until),
            valid: until,
            adjusted: until != upper,
        }
    }

    fn unknown(since: Millis, unknown: u32, now: Millis) -> Self {
        let grown = since.saturating_add(SERVICE);
        let service = grown <= now;
        let until = if service { FARTHER } else { FAR } + Millis::from(unknown);
        Self {
            until,
            mean: until,
            valid: if service { Millis::MAX } else { grown },
            adjusted: service,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overdue_end_moves_on_ever_more_slowly() {
        let end = Estimate {
            mean: 500_000,
            spread: 100_000,
        };
        for (now, until) in [
            (0, 600_000),
            (599_999, 600_000),
            (600_000, 660_000),
            (660_000, 720_000),
            (720_000, 840_000),
            (4_000_000, 4_440_000),
        ] {
            let found = End::of(Some(end), 0, 1, now);
            assert_eq!((found.until, found.mean), (until, 500_000), "{now}");
            assert_eq!(found.adjusted, now >= 600_000);
        }
    }

    #[test]
    fn a_pod_of_unknown_end_becomes_a_service_after_a_day() {
        let young = End::of(None, 0, 3, SERVICE - 1);
        assert_eq!((young.until, young.valid), (FAR + 3, SERVICE));
        let old = End::of(None, 0, 3, SERVICE);
        assert_eq!((old.until, old.valid), (FARTHER + 3, Millis::MAX));
    }
}
