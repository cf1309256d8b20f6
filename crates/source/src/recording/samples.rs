//! Checks the samples of a recording. A contradiction here would become two
//! series of the same name in a scrape.

use std::{collections::BTreeSet, time::Duration};

use nvlink_topology::NodeTopology;

use super::{RecordingError, Sample};
use crate::{GpuHealth, LinkCounters};

/// Checks `samples` against each other and against the GPUs of `topology`.
///
/// # Errors
/// The first contradiction, with its path.
pub(crate) fn check(topology: &NodeTopology, samples: &[Sample]) -> Result<(), RecordingError> {
    let gpus: BTreeSet<u32> = topology.spec.gpus.iter().map(|gpu| gpu.index).collect();
    let mut before: Option<Duration> = None;
    for (n, sample) in samples.iter().enumerate() {
        let at = format!("samples[{n}]");
        let time = sample.at();
        let time = time.ok_or_else(|| wrong(format!("{at}.seconds"), "not a valid time"))?;
        if before.is_some_and(|before| time <= before) {
            return Err(wrong(
                format!("{at}.seconds"),
                "not later than the previous sample",
            ));
        }
        before = Some(time);
        let mut links = BTreeSet::new();
        for (m, counters) in sample.counters.iter().enumerate() {
            let at = format!("{at}.counters[{m}]");
            check_gpu(&gpus, counters.gpu, &at)?;
            check_counters(counters, &at)?;
            if !links.insert((counters.gpu, counters.link)) {
                let reason = format!("a second link {} of GPU {}", counters.link, counters.gpu);
                return Err(wrong(at, reason));
            }
        }
        let mut seen = BTreeSet::new();
        for (m, health) in sample.health.iter().enumerate() {
            let at = format!("{at}.health[{m}]");
            check_gpu(&gpus, health.gpu, &at)?;
            check_health(health, &at)?;
            if !seen.insert(health.gpu) {
                return Err(wrong(at, format!("a second GPU {}", health.gpu)));
            }
        }
    }
    Ok(())
}

fn check_gpu(gpus: &BTreeSet<u32>, gpu: u32, at: &str) -> Result<(), RecordingError> {
    match gpus.contains(&gpu) {
        true => Ok(()),
        false => Err(wrong(
            format!("{at}.gpu"),
            format!("GPU {gpu} is not in spec.gpus"),
        )),
    }
}

fn check_counters(counters: &LinkCounters, at: &str) -> Result<(), RecordingError> {
    let rates = [
        ("transmitBytesPerSecond", counters.transmit_bytes_per_second),
        ("receiveBytesPerSecond", counters.receive_bytes_per_second),
    ];
    for (key, rate) in rates {
        if rate.is_some_and(|rate| rate < 0.0) {
            return Err(wrong(format!("{at}.{key}"), "below 0"));
        }
    }
    check_once(&counters.errors, &format!("{at}.errors"))?;
    let ratios = format!("{at}.bitErrorRatios");
    check_once(&counters.bit_error_ratios, &ratios)?;
    match counters
        .bit_error_ratios
        .iter()
        .any(|&(_, ratio)| ratio < 0.0)
    {
        true => Err(wrong(ratios, "below 0")),
        false => Ok(()),
    }
}

fn check_health(health: &GpuHealth, at: &str) -> Result<(), RecordingError> {
    let conditions = health.fabric.as_ref().map(|fabric| &fabric.conditions[..]);
    check_once(
        conditions.unwrap_or_default(),
        &format!("{at}.fabric.conditions"),
    )?;
    check_once(&health.row_remap, &format!("{at}.rowRemap"))?;
    check_once(
        health.xids.as_deref().unwrap_or_default(),
        &format!("{at}.xids"),
    )
}

/// Checks that each key of a list of pairs occurs once.
fn check_once<K: Ord, V>(pairs: &[(K, V)], at: &str) -> Result<(), RecordingError> {
    let mut seen = BTreeSet::new();
    match pairs.iter().position(|(key, _)| !seen.insert(key)) {
        Some(n) => Err(wrong(format!("{at}[{n}]"), "a second entry of this kind")),
        None => Ok(()),
    }
}

fn wrong(path: String, reason: impl Into<String>) -> RecordingError {
    let reason = reason.into();
    RecordingError::Sample { path, reason }
}
