//! HTML from words that somebody else chose.

use crate::output;

pub(super) use crate::output::svg::escape;

/// `3 links`, `1 link`.
pub(super) fn count(number: usize, word: &str) -> String {
    match number {
        1 => format!("1 {word}"),
        _ => format!("{number} {word}s"),
    }
}

/// `GPU 3`, `GPUs 0-7`.
pub(super) fn gpus(indices: &[u32]) -> String {
    match indices {
        [one] => format!("GPU {one}"),
        _ => format!("GPUs {}", output::ranges(indices)),
    }
}

/// A rate in bytes per second, for people; small ones lose their tenths.
pub(super) fn rate(bytes_per_second: f64) -> String {
    match bytes_per_second {
        rate if rate >= 99.5e6 => output::rate(rate as u64),
        rate => format!("{:.0} MB/s", rate / 1e6),
    }
}

/// A share of one, as a whole percentage.
pub(super) fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}
