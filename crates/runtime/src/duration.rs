//! Durations in flags and in files, as Go writes them.
//!
//! `kube::core::Duration` parses the same format, but for a source that is trusted: it panics if
//! a number is too large (`9999999999999999999h`), takes an empty text for 0 and a negative
//! duration for a valid one, and its errors name neither the value nor an example.

use std::time::Duration;

/// Parses the value of a flag: 100 ms to 24 h.
///
/// # Errors
/// What is expected.
pub fn flag(text: &str) -> Result<Duration, String> {
    let duration = parse(text).ok_or("expected a duration such as 500ms, 5s or 2m")?;
    let bounds = Duration::from_millis(100)..=Duration::from_secs(86_400);
    match bounds.contains(&duration) {
        true => Ok(duration),
        false => Err("expected a duration from 100ms to 24h".to_owned()),
    }
}

/// Parses a duration as Go's `time.ParseDuration` does: `1s`, `1.5s`, `1m30s`,
/// `0`. Returns `None` if it is invalid, negative, or longer than Go's maximum,
/// which is 292 years.
pub(crate) fn parse(text: &str) -> Option<Duration> {
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

/// Returns `number`, which may have a decimal point, times `factor`.
fn scaled(number: &str, factor: u128) -> Option<u128> {
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && part.is_empty() || part.contains('.') {
        return None;
    }
    let digits = |text: &str| match text {
        "" => Some(0),
        text => text.parse::<u128>().ok(),
    };
    // Further digits are worth less than a nanosecond.
    let part = &part[..part.len().min(15)];
    let of_part = digits(part)? * factor / 10_u128.pow(part.len() as u32);
    digits(whole)?.checked_mul(factor)?.checked_add(of_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_accept_neither_too_short_nor_too_long_durations() {
        assert_eq!(flag("250ms"), Ok(Duration::from_millis(250)));
        for text in ["5", "0s", "s", "25h"] {
            assert!(flag(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations_are_parsed_as_in_go() {
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
            assert_eq!(parse(text), Some(duration), "{text}");
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
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
