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
mod hostile;
mod kept;
mod promises;
mod random;
mod rejoin;
mod waits;
mod world;

use proptest::test_runner::Config as ProptestConfig;

/// How many random cases a test tries: `all`, or the part of it that `CASES_PERCENT` says.
fn cases(all: u32) -> ProptestConfig {
    let percent = std::env::var("CASES_PERCENT").ok();
    let percent: u32 = percent.map_or(100, |text| match text.parse() {
        Ok(percent @ 1..=100) => percent,
        _ => panic!("CASES_PERCENT is a number from 1 to 100"),
    });
    let cases = u64::from(all) * u64::from(percent) / 100;
    ProptestConfig::with_cases(u32::try_from(cases).unwrap_or(all).max(1))
}
