//! Inputs of all formats through the public entry, and what becomes of their runs.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test may fail by panicking"
)]

mod broken;
mod formats;
mod place;
mod samples;
mod state;
mod stream;
mod watch;

use nvlink_collectives::{
    Run,
    input::{self, InputError},
};

/// Returns the runs of an input, and its error.
fn read(text: &[u8]) -> (Vec<Run>, Option<InputError>) {
    let mut runs = Vec::new();
    let result = input::read(text, &mut |run| runs.push(run));
    (runs, result.err())
}

/// Returns the runs of a good input.
fn runs(text: &str) -> Vec<Run> {
    let (runs, error) = read(text.as_bytes());
    assert!(error.is_none(), "{error:?}");
    runs
}

/// Returns the only run of a good input.
fn run(text: &str) -> Run {
    let mut runs = runs(text);
    assert_eq!(runs.len(), 1, "{runs:?}");
    runs.remove(0)
}
