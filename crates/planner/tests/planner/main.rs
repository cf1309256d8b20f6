//! Drives the planner through its public API.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

#[allow(dead_code)]
#[path = "../../../topology/tests/search/boards.rs"]
mod boards;

mod capacity;
mod cluster;
mod deadlines;
mod fed;
mod gangs;
mod promises;
mod random;
mod waits;
mod world;

use proptest::test_runner::Config as ProptestConfig;

/// How many random cases a test tries: `all`, or the part of it that `CASES_PERCENT` says.
fn cases(all: u32) -> ProptestConfig {
    let percent = std::env::var("CASES_PERCENT").ok();
    let percent = percent.and_then(|text| text.parse().ok()).unwrap_or(100);
    ProptestConfig::with_cases((all * percent / 100).max(1))
}
