//! Times, sources and foreign text in words.

use nvlink_planner::Millis;

pub(super) use nvlink_queue::words::{span, stamp, why};
pub(super) use nvlink_runtime::columns::clean;

use nvlink_queue::Source;

/// Returns a point in time for people, as seen from `now`: `in 14m (10:14:00 UTC)`.
pub(super) fn moment(at: Millis, now: Millis) -> String {
    let stamp = stamp(at);
    let clock = stamp.trim_end_matches('Z').split_once('T');
    let near = (at - now).abs() < 43_200_000;
    let clock = match clock {
        Some((_, time)) if near => format!("{time} UTC"),
        _ => stamp.clone(),
    };
    match at - now {
        ..-999 => format!("{} ago ({clock})", span(now - at)),
        -999..1000 => "now".to_owned(),
        _ => format!("in {} ({clock})", span(at - now)),
    }
}

/// Returns where the expected end of a pod comes from.
pub(super) fn source(source: Source) -> String {
    match source {
        Source::Expected => "its expected-duration".to_owned(),
        Source::Past { runs } => format!("{runs} past runs"),
        Source::Limit => "its time limit; most jobs end earlier".to_owned(),
    }
}

/// Returns a number of GPUs.
pub(super) fn gpus(number: u32) -> String {
    plural(number, "GPU")
}

/// Returns a number with its noun.
pub(super) fn plural(number: u32, noun: &str) -> String {
    let s = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{s}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_at_most_two_units() {
        for (seconds, expected) in [
            (-5, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (3599, "59m"),
            (3600, "1h"),
            (11_100, "3h5m"),
            (86_400, "1d"),
            (187_300, "2d4h"),
        ] {
            assert_eq!(span(seconds * 1000), expected, "{seconds}");
        }
    }

    #[test]
    fn moments_are_relative_and_absolute() {
        let now = 1_785_578_400_000;
        assert_eq!(stamp(now), "2026-08-01T10:00:00Z");
        assert_eq!(moment(now + 840_000, now), "in 14m (10:14:00 UTC)");
        assert_eq!(moment(now - 60_000, now), "60s ago (09:59:00 UTC)");
        assert_eq!(moment(now + 10, now), "now");
        assert_eq!(
            moment(now + 90_000_000, now),
            "in 1d1h (2026-08-02T11:00:00Z)"
        );
    }

    #[test]
    fn text_of_the_cluster_cannot_move_the_cursor() {
        assert_eq!(
            clean("a\x1b[31mb\r\n\u{202e}c"),
            "a\u{fffd}[31mb\u{fffd}\u{fffd}\u{fffd}c"
        );
        assert_eq!(clean("déjà vu"), "déjà vu");
    }
}
