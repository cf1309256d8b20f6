//! The rate limit: a bucket of tokens, and the length of time that fills it.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// A bucket of tokens: one more each interval, up to `burst`.
#[derive(Debug)]
pub(super) struct Bucket {
    interval: Duration,
    /// `burst` intervals.
    full: Duration,
    /// Until when requests are paid for in advance.
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

    /// Whether a request may pass at `now`.
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

/// A length of time as Go's `time.ParseDuration` reads it: `1s`, `1.5s`,
/// `1m30s`, `0`. None where it is none, where it is negative, and where it is
/// longer than Go's longest, which is 292 years.
pub(super) fn parse_duration(text: &str) -> Option<Duration> {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    let mut nanos = 0_u128;
    while !rest.is_empty() || nanos == 0 {
        let (number, after) = split(rest, |c| c.is_ascii_digit() || c == '.');
        let (unit, after) = split(after, |c| !(c.is_ascii_digit() || c == '.'));
        nanos = nanos.checked_add(scaled(number, nanos_of(unit)?)?)?;
        if after.is_empty() {
            break;
        }
        rest = after;
    }
    let nanos = i64::try_from(nanos).ok()?;
    Some(Duration::from_nanos(nanos.unsigned_abs()))
}

fn split(text: &str, belongs: impl Fn(char) -> bool) -> (&str, &str) {
    let end = text.find(|c| !belongs(c)).unwrap_or(text.len());
    text.split_at(end)
}

fn nanos_of(unit: &str) -> Option<u128> {
    Some(match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60 * 1_000_000_000,
        "h" => 3_600 * 1_000_000_000,
        _ => return None,
    })
}

/// `number`, which may have a point, times `factor`.
fn scaled(number: &str, factor: u128) -> Option<u128> {
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && part.is_empty() || part.contains('.') {
        return None;
    }
    let digits = |text: &str| match text {
        "" => Some(0),
        text => text.parse::<u128>().ok(),
    };
    // More digits than these are less than a nanosecond.
    let part = &part[..part.len().min(15)];
    let of_part = digits(part)? * factor / 10_u128.pow(part.len() as u32);
    digits(whole)?.checked_mul(factor)?.checked_add(of_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_gives_a_burst_and_fills_again() {
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
    fn the_longest_interval_and_the_largest_burst_overflow_nothing() {
        let longest = parse_duration("2540400h").unwrap();
        let bucket = Bucket::new(longest, u32::MAX);
        let now = Instant::now();
        assert!(bucket.take(now));
        for _ in 0..100 {
            bucket.take(now);
        }
    }

    #[test]
    fn durations_as_go_reads_them() {
        for (text, millis) in [
            ("0", 0),
            ("0s", 0),
            ("1s", 1000),
            ("+1s", 1000),
            ("1.5s", 1500),
            (".5s", 500),
            ("1.s", 1000),
            ("1m30s", 90_000),
            ("1h0.5m", 3_630_000),
            ("250000us", 250),
            ("250000µs", 250),
            ("1000000ns", 1),
        ] {
            let duration = Duration::from_millis(millis);
            assert_eq!(parse_duration(text), Some(duration), "{text}");
        }
        for bad in [
            "",
            "s",
            "1",
            "1.2.3s",
            ".s",
            "-1s",
            "1d",
            "1 s",
            "1s2",
            "9999999999h",
            "99999999999999999999999999999999999999999999h",
        ] {
            assert_eq!(parse_duration(bad), None, "{bad}");
        }
    }
}
