//! GPU performance monitoring: link rates between two samples.

use std::{
    collections::BTreeMap,
    sync::Mutex,
    time::{Duration, Instant},
};

use nvml_wrapper_sys::bindings::{
    NVML_GPM_METRICS_GET_VERSION, NVML_GPM_SUPPORT_VERSION, nvmlDevice_t, nvmlGpmMetricsGet_t,
    nvmlGpmSample_t, nvmlGpmSupport_t,
};

use crate::{
    c::{Answer, INVALID_ARGUMENT, NOT_SUPPORTED, SUCCESS, UNKNOWN, VERSION_MISMATCH, array, put},
    call::{Gpu, export, lock},
    config::Counter,
    traffic::{Direction, kib},
};

/// The minimum time between two samples. Shorter intervals give no usable rates.
const APART: Duration = Duration::from_millis(100);
const KIB_PER_MIB: f64 = 1024.0;

/// A sample: its time, and the KiB sent and received by each link.
#[derive(Clone)]
struct Sample {
    at: Instant,
    gpu: usize,
    links: Vec<(u64, u64)>,
}

/// Samples by number; empty until the GPU is sampled.
static SAMPLES: Mutex<BTreeMap<usize, Option<Sample>>> = Mutex::new(BTreeMap::new());

export! {
    fn nvmlGpmQueryDeviceSupport(call, device: nvmlDevice_t, support: *mut nvmlGpmSupport_t) {
        let gpu = call.gpu(device)?;
        let asked = array(support, 1)?;
        if asked[0].version != NVML_GPM_SUPPORT_VERSION {
            return Err(VERSION_MISMATCH);
        }
        asked[0].isSupportedDevice = is_supported(&gpu).into();
        Ok(())
    }

    fn nvmlGpmSampleAlloc(_call, sample: *mut nvmlGpmSample_t) {
        let mut samples = lock(&SAMPLES);
        let number = samples.last_key_value().map_or(1, |(last, _)| last + 1);
        samples.insert(number, None);
        put(sample, std::ptr::without_provenance_mut(number << 4))
    }

    fn nvmlGpmSampleFree(_call, sample: nvmlGpmSample_t) {
        lock(&SAMPLES).remove(&number(sample)).map(drop).ok_or(INVALID_ARGUMENT)
    }

    fn nvmlGpmSampleGet(call, device: nvmlDevice_t, sample: nvmlGpmSample_t) {
        let gpu = call.gpu(device)?;
        if !is_supported(&gpu) {
            return Err(NOT_SUPPORTED);
        }
        let mut samples = lock(&SAMPLES);
        let slot = samples.get_mut(&number(sample)).ok_or(INVALID_ARGUMENT)?;
        *slot = Some(take(&gpu));
        Ok(())
    }

    fn nvmlGpmMetricsGet(_call, metrics: *mut nvmlGpmMetricsGet_t) {
        let asked = array(metrics, 1)?.first_mut().ok_or(INVALID_ARGUMENT)?;
        if asked.version != NVML_GPM_METRICS_GET_VERSION {
            return Err(VERSION_MISMATCH);
        }
        let samples = lock(&SAMPLES);
        let sample = |one| samples.get(&number(one)).cloned().flatten().ok_or(INVALID_ARGUMENT);
        let (first, second) = (sample(asked.sample1)?, sample(asked.sample2)?);
        if first.gpu != second.gpu {
            return Err(INVALID_ARGUMENT);
        }
        let count = asked.numMetrics as usize;
        for metric in asked.metrics.get_mut(..count).ok_or(INVALID_ARGUMENT)? {
            match rate(&first, &second, metric.metricId) {
                Ok(value) => (metric.nvmlReturn, metric.value) = (SUCCESS, value),
                Err(code) => metric.nvmlReturn = code,
            }
        }
        Ok(())
    }
}

fn number(sample: nvmlGpmSample_t) -> usize {
    sample.addr() >> 4
}

fn is_supported(gpu: &Gpu) -> bool {
    gpu.card().counts(Counter::Gpm) && !gpu.card().gpu.mig_enabled
}

fn take(gpu: &Gpu) -> Sample {
    let links = 0..gpu.card().ports.len() as u32;
    let count = |link, direction| kib(&gpu.board, gpu.position, link, direction);
    Sample {
        at: Instant::now(),
        gpu: gpu.position,
        links: links
            .map(|link| {
                (
                    count(link, Direction::Transmit),
                    count(link, Direction::Receive),
                )
            })
            .collect(),
    }
}

/// Returns a metric in MiB per second: 60 and 61 are for all links, then there are two
/// for each link, received before sent.
fn rate(first: &Sample, second: &Sample, metric: u32) -> Answer<f64> {
    let time = second.at.saturating_duration_since(first.at);
    if time < APART {
        return Err(UNKNOWN);
    }
    let metric = metric.checked_sub(60).ok_or(NOT_SUPPORTED)? as usize;
    let sum = |sample: &Sample| -> Answer<u64> {
        let of = |(sent, received): &(u64, u64)| {
            if metric.is_multiple_of(2) {
                *received
            } else {
                *sent
            }
        };
        match (metric / 2).checked_sub(1) {
            None => Ok(sample.links.iter().map(of).sum()),
            Some(link) => sample.links.get(link).map(of).ok_or(NOT_SUPPORTED),
        }
    };
    let moved = sum(second)?.saturating_sub(sum(first)?);
    Ok(moved as f64 / KIB_PER_MIB / time.as_secs_f64())
}
