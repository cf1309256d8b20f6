//! The deadline of a review: reading the body, waiting for room and access
//! reviews share the time that the API server waits.

use std::time::Duration;

/// How long the API server waits if the call has no timeout: as in the registration.
const DEFAULT: Duration = Duration::from_secs(5);
/// The longest timeout that a registration may have.
const LONGEST: Duration = Duration::from_secs(30);
/// The longest that an answer takes to be serialized and sent. It also covers
/// rounding: an API server with less time left than the registration's timeout
/// rounds the remaining time up to whole seconds, so it may wait almost this
/// much less than it announces.
const MARGIN: Duration = Duration::from_secs(1);

/// Returns how long a review may take whose request has `query`: `timeout=5s`.
pub(super) fn allowed(query: Option<&str>) -> Duration {
    let pairs = query.into_iter().flat_map(|query| query.split('&'));
    let said = pairs
        .filter_map(|pair| pair.strip_prefix("timeout="))
        .find_map(duration);
    let waits = said
        .filter(|waits| !waits.is_zero())
        .map_or(DEFAULT, |waits| waits.min(LONGEST));
    waits - MARGIN.min(waits / 5)
}

/// Parses a duration in Go's format: `5s`, `1m0s`, `1.5s`, `500ms`.
fn duration(text: &str) -> Option<Duration> {
    let (mut rest, mut seconds) = (text, 0.0);
    while !rest.is_empty() {
        let number = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(number);
        let unit = tail.find(|c: char| c.is_ascii_digit() || c == '.');
        let (unit, tail) = tail.split_at(unit.unwrap_or(tail.len()));
        seconds += number.parse::<f64>().ok()? * in_seconds(unit)?;
        rest = tail;
    }
    // Clamp before the conversion: a `Duration` cannot hold every value.
    Duration::try_from_secs_f64(seconds.min(LONGEST.as_secs_f64())).ok()
}

fn in_seconds(unit: &str) -> Option<f64> {
    match unit {
        "h" => Some(3600.0),
        "m" => Some(60.0),
        "s" => Some(1.0),
        "ms" => Some(1e-3),
        "us" | "µs" => Some(1e-6),
        "ns" => Some(1e-9),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_review_may_take_the_timeout_less_a_margin() {
        for (query, milliseconds) in [
            ("timeout=5s", 4000),
            ("timeout=10s", 9000),
            ("a=b&timeout=1m0s", 29_000),
            ("timeout=2s", 1600),
            ("timeout=500ms", 400),
            ("timeout=1.5s", 1200),
            ("timeout=1s500ms", 1200),
            ("timeout=9999999999999h", 29_000),
            ("timeout=1e9s", 4000),
            ("timeout=-3s", 4000),
            ("timeout=0s", 4000),
            ("timeout=5", 4000),
            ("timeout=", 4000),
            ("timeout=..s", 4000),
            ("timeouts=1s", 4000),
            ("", 4000),
        ] {
            let expected = Duration::from_millis(milliseconds);
            assert_eq!(allowed(Some(query)), expected, "{query}");
        }
        assert_eq!(allowed(None), Duration::from_secs(4));
    }
}
