//! The rate limit: a token bucket.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// A token bucket: it gains one token per interval, up to `burst`.
#[derive(Debug)]
pub(super) struct Bucket {
    interval: Duration,
    /// `burst` intervals.
    full: Duration,
    /// The point in time up to which tokens are spent.
    paid: Mutex<Option<Instant>>,
}

impl Bucket {
    pub(super) fn new(interval: Duration, burst: u32) -> Self {
        Self {
            interval,
            full: interval.saturating_mul(burst),
            paid: Mutex::default(),
        }
    }

    /// Takes a token at `now`; returns whether there was one.
    pub(super) fn take(&self, now: Instant) -> bool {
        let mut paid = self.paid.lock().unwrap_or_else(PoisonError::into_inner);
        let from = paid.map_or(now, |paid| paid.max(now));
        let Some(next) = from.checked_add(self.interval) else {
            return false;
        };
        let allowed = next.duration_since(now) <= self.full;
        if allowed {
            *paid = Some(next);
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::duration;

    #[test]
    fn a_bucket_allows_a_burst_and_refills() {
        let bucket = Bucket::new(Duration::from_secs(1), 3);
        let now = Instant::now();
        let taken = |after: u64| bucket.take(now + Duration::from_millis(after));
        assert_eq!([0, 0, 0, 0].map(taken), [true, true, true, false]);
        assert_eq!([900, 1100, 1200].map(taken), [false, true, false]);
        assert_eq!(
            [9000, 9000, 9000, 9000].map(taken),
            [true, true, true, false]
        );
    }

    #[test]
    fn the_longest_interval_and_the_largest_burst_do_not_overflow() {
        let longest = duration::parse("2540400h").unwrap();
        let bucket = Bucket::new(longest, u32::MAX);
        let now = Instant::now();
        assert!(bucket.take(now));
        for _ in 0..100 {
            bucket.take(now);
        }
    }
}
