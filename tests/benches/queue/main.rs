//! Measures the queue on a real API server, with the real webhook as the leader. Prints the goals.
//!
//! - Releases a second, when many pods may start at once, beside patches of the same size that
//!   this program sends, without and with the webhook's admission.
//! - The time from the end of a job to the release of the next one, with a short and a long queue.
//! - How late a pod is rejected after `queueTimeout`.
//! - The memory of the leader with a long queue, its writes in a minute, and what the page and
//!   `kubectl nvlink status` take.
//!
//! `PODS=100 ROUNDS=1 SAMPLES=20 TIMEOUTS=20 QUEUE_PODS=500` makes it shorter, and
//! `QUEUE_PODS=50000` longer. Nodes have no kubelet, and pods of the first part no scheduler.

mod burst;
mod cluster;
mod freed;
mod late;
mod memory;
mod people;
mod pods;
mod seen;

use anyhow::{Context, Result};
use cluster::Cluster;

fn main() -> Result<()> {
    let pods = number("PODS", 2_000)?;
    let rounds = number("ROUNDS", 3)?;
    let samples = number("SAMPLES", 100)?;
    let timeouts = number("TIMEOUTS", 100)?;
    let waiting = number("QUEUE_PODS", 5_000)?;
    let cluster = Cluster::start(pods.div_ceil(cluster::GPUS))?;
    burst::measure(&cluster, pods, rounds)?;
    let mut jobs = freed::Jobs::start(&cluster, samples)?;
    jobs.measure(samples, "few jobs wait")?;
    late::measure(&cluster, timeouts)?;
    memory::measure(&cluster, waiting)?;
    people::measure(&cluster, waiting)?;
    jobs.measure(samples, &format!("{waiting} more jobs wait"))
}

fn number(name: &str, default: usize) -> Result<usize> {
    match std::env::var(name) {
        Ok(text) => text.parse().with_context(|| format!("invalid {name}")),
        Err(_) => Ok(default),
    }
}

/// Returns the value below which this part of the sorted values is.
fn quantile(sorted: &[f64], part: f64) -> f64 {
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        clippy::cast_possible_truncation
    )]
    let at = ((sorted.len() as f64 * part).ceil() as usize).saturating_sub(1);
    sorted.get(at).copied().unwrap_or(f64::NAN)
}
