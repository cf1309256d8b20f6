//! What a series has over time, in promtool's notation.

use std::fmt::Write as _;

/// What a scrape finds of a series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Sample {
    Value(f64),
    /// The target does not have it, or does not answer: Prometheus marks the series as stale.
    Absent,
    /// Nobody scrapes.
    Unseen,
}

/// Returns the samples, one a scrape, as the `values` of promtool.
pub(super) fn notation(samples: &[Sample]) -> String {
    let mut out = String::new();
    let mut rest = samples;
    let mut is_there = false;
    while let Some(first) = rest.first() {
        let count = match *first {
            Sample::Value(from) => {
                let (by, count) = progression(rest);
                let _ = write!(out, "{from}+{by}x{} ", count - 1);
                is_there = true;
                count
            }
            Sample::Absent if is_there => {
                out += "stale ";
                is_there = false;
                1
            }
            other => {
                let count = rest.iter().take_while(|one| **one == other).count();
                let _ = write!(out, "_x{count} ");
                count
            }
        };
        rest = &rest[count..];
    }
    out
}

/// Returns by how much the values at the start rise each time, and how many do.
fn progression(samples: &[Sample]) -> (f64, usize) {
    let [Sample::Value(first), Sample::Value(second), ..] = *samples else {
        return (0.0, 1);
    };
    let by = second - first;
    let pairs = samples.windows(2);
    let rising = pairs
        .take_while(|pair| matches!(**pair, [Sample::Value(a), Sample::Value(b)] if b == a + by));
    let count = 1 + rising.count();
    // promtool has no sign before a negative step but "-".
    if by < 0.0 { (0.0, 1) } else { (by, count) }
}

#[test]
fn samples_become_runs() {
    use Sample::{Absent, Unseen, Value};
    let samples = [1.0, 1.0, 1.0, 5.0, 8.0, 11.0, 0.0].map(Value);
    let tail = [Absent, Absent, Absent, Unseen, Value(2.0), Unseen, Absent];
    let all = [&samples[..], &tail].concat();
    assert_eq!(
        notation(&all),
        "1+0x2 5+3x2 0+0x0 stale _x2 _x1 2+0x0 _x1 stale "
    );
}
