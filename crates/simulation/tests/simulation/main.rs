//! The simulation, through its public functions.

#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod generate;
mod golden;
mod policies;
mod properties;
mod trace;

use nvlink_simulation::{Cluster, Options, Outcome, Policy, Report, Rules, Trace, run};

fn read(text: &str) -> Trace {
    Trace::read(text.as_bytes()).unwrap()
}

fn cluster(spec: &str) -> Cluster {
    Cluster::new(&spec.parse().unwrap()).unwrap()
}

/// Returns options under which jobs last as the trace says.
fn options(seed: u64) -> Options {
    Options {
        seed,
        communication_share: 0.0,
        rules: Rules::default(),
    }
}

fn simulate(trace: &str, on: &str) -> Report {
    run(&read(trace), &cluster(on), &options(1), &mut |_| {}).unwrap()
}

fn outcome(report: &Report, policy: Policy) -> &Outcome {
    let mut outcomes = report.outcomes.iter();
    outcomes.find(|one| one.policy == policy).unwrap()
}

/// Returns the waits under a policy, seconds, in the order of arrival.
fn waits(report: &Report, policy: Policy) -> Vec<f64> {
    let ran = outcome(report, policy).ran.iter();
    ran.map(|one| one.wait()).collect()
}
