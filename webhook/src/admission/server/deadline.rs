//! Until when a review must be answered: arrival, room and access reviews
//! share what the API server waits.

use std::time::Duration;

/// What an API server waits that does not say so: as the registration asks it to.
const DEFAULT: Duration = Duration::from_secs(5);
/// The longest that a registration may ask for.
const LONGEST: Duration = Duration::from_secs(30);
/// The longest that an answer takes to be written and to go back. An API server
/// that has less time left than it was asked to wait rounds up to a second, so
/// it may wait almost this much shorter than it says.
const MARGIN: Duration = Duration::from_secs(1);

/// How long a review may take, whose request has `query`: `timeout=5s`.
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

/// A duration as Go writes it: `5s`, `1m0s`, `1.5s`, `500ms`.
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
    // Longer ones than a Duration holds are clamped with all others.
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
    fn what_the_api_server_says_less_a_margin() {
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
