//! How late pods are rejected.

use std::{thread, time::Duration};

use anyhow::{Context, Result};

use crate::{
    cluster::{CALLED, Cluster, GPUS, LONG, SHORT, TIMEOUT},
    pods, quantile,
    seen::Seen,
};

const GOAL: f64 = 1.0;
/// The pods are created within this time, in several groups.
const SPREAD: Duration = Duration::from_secs(4);
const GROUPS: usize = 8;

/// Creates pods that wait behind the full nodes until they are rejected.
pub(crate) fn measure(cluster: &Cluster, count: usize) -> Result<()> {
    let api = cluster.pods(CALLED);
    let seen = Seen::start(&cluster.runtime, api.clone());
    let numbers: Vec<usize> = (0..count).collect();
    for group in numbers.chunks(count.div_ceil(GROUPS).max(1)) {
        let pods = group
            .iter()
            .map(|number| pods::pod(&format!("late-{number:05}"), SHORT, GPUS, true));
        let created = pods::create(&api, pods.collect());
        cluster.runtime.block_on(created)?;
        thread::sleep(SPREAD / u32::try_from(GROUPS)?);
    }
    let ages = seen.until("the pods to be rejected", LONG, |times| {
        (times.failed.len() == count).then(|| times.failed.clone())
    })?;
    let mut late: Vec<f64> = ages
        .iter()
        .map(|(_, age)| age.as_secs_f64() - TIMEOUT.as_secs_f64())
        .collect();
    late.sort_by(f64::total_cmp);
    let first = late.first().context("no pod was rejected")?;
    println!(
        "{count} rejections after queueTimeout {TIMEOUT:?}: the first {first:.2} s late, median {:.2} s, 95th percentile {:.2} s, last {:.2} s (goal {GOAL})",
        quantile(&late, 0.5),
        quantile(&late, 0.95),
        quantile(&late, 1.0)
    );
    Ok(())
}
