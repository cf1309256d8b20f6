//! HTML from foreign text, and from numbers.

pub(super) use nvlink_runtime::page::{escape, mark};
pub(super) use nvlink_runtime::words::{count, gpus, percent};

use crate::output;

/// Returns the word of a label as text for people.
pub(super) fn spaced(word: &str) -> String {
    word.replace('_', " ")
}

/// Formats a rate in bytes per second; small rates have no decimals.
pub(super) fn rate(bytes_per_second: f64) -> String {
    match bytes_per_second {
        rate if rate >= 99.5e6 => output::rate(rate as u64),
        rate => format!("{:.0} MB/s", rate / 1e6),
    }
}
