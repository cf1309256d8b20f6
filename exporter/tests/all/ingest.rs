//! `ingest`, and what `serve` exports of its results.

mod program;
#[path = "../../../crates/collectives/tests/all/samples.rs"]
mod samples;
mod served;

use nvlink_collectives::{Run, input};

/// Returns the runs of a good input.
fn runs(text: &str) -> Vec<Run> {
    let mut runs = Vec::new();
    input::read(text.as_bytes(), &mut |run| runs.push(run)).unwrap();
    runs
}
