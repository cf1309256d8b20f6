//! Times with a unit, as classes and jobs write them: `150s`, `90m`, `2h`.

use std::time::Duration;

/// The most digits of a number: 999999 hours are 114 years.
const DIGITS: usize = 6;

/// Parses a time of the CRD's form `^[1-9][0-9]{0,5}[smh]$`.
#[must_use]
pub fn parse(text: &str) -> Option<Duration> {
    let unit = match text.bytes().last()? {
        b's' => 1,
        b'm' => 60,
        b'h' => 3600,
        _ => return None,
    };
    let number = &text[..text.len() - 1];
    let fits = (1..=DIGITS).contains(&number.len()) && !number.starts_with('0');
    if !fits || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some(Duration::from_secs(number.parse::<u64>().ok()? * unit))
}

/// Returns the shortest text of whole seconds that [`parse`] reads.
#[must_use]
pub fn shown(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match (seconds % 3600, seconds % 60) {
        (0, _) if seconds > 0 => format!("{}h", seconds / 3600),
        (_, 0) if seconds > 0 => format!("{}m", seconds / 60),
        _ => format!("{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_number_and_a_unit() {
        for (text, seconds) in [
            ("150s", 150),
            ("90m", 5400),
            ("2h", 7200),
            ("999999h", 3_599_996_400),
        ] {
            let parsed = parse(text).unwrap();
            assert_eq!(parsed.as_secs(), seconds);
            assert_eq!(parse(&shown(parsed)), Some(parsed));
        }
        for odd in [
            "", "s", "0s", "05m", "+5m", "-5m", "5", "5 m", "1.5h", "1h30m", "5d", "1000000s", "5ü",
        ] {
            assert_eq!(parse(odd), None, "{odd}");
        }
        assert_eq!(shown(Duration::from_secs(5400)), "90m");
    }
}
