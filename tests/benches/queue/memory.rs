//! The memory of the leader.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use nvlink_tests::wait_until;

use crate::{
    cluster::{CALLED, CLASS, Cluster, GPUS, LONG},
    pods,
};

/// The goal for 50,000 pods, in MiB.
const GOAL: f64 = 256.0;

/// Lets `count` more pods wait, and prints how much memory that takes.
pub(crate) fn measure(cluster: &Cluster, count: usize) -> Result<()> {
    let waiting = || cluster.metric("nvlink_webhook_queue_waiting_pods");
    // The pods that were rejected just before count until the leader sees that they have failed.
    let mut last = waiting()?;
    let before = wait_until("the number of waiting pods to be steady", LONG, || {
        thread::sleep(Duration::from_secs(2));
        let now = waiting()?;
        let steady = (now - last).abs() < 0.5;
        last = now;
        Ok(steady.then_some(now))
    })?;
    let [without, _] = cluster.memory()?;
    #[allow(clippy::cast_precision_loss)] // far below 2^53
    let wanted = before + count as f64;
    let api = cluster.pods(CALLED);
    let start = Instant::now();
    let jobs = (0..count).map(|number| pods::pod(&format!("more-{number:05}"), CLASS, GPUS, true));
    let created = pods::create(&api, jobs.collect());
    cluster.runtime.block_on(created)?;
    let created = start.elapsed();
    wait_until("the pods to wait", LONG, || {
        let now = waiting()?;
        ensure!(now >= wanted, "{now} of {wanted} pods wait");
        Ok(Some(()))
    })?;
    let [now, most] = cluster.memory()?;
    println!(
        "{count} more jobs wait, created in {created:.1?}: the leader needs {now:.0} MiB, at most {most:.0} MiB, {without:.0} MiB before (goal {GOAL} for 50,000)"
    );
    Ok(())
}
