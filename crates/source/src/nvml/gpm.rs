//! Link rates from GPU performance monitoring (GPM), for GPUs whose driver does not
//! count bytes.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::Arc,
    time::Duration,
};

use nvml_wrapper::Device;

use super::{
    counters::Flow,
    error::Trouble,
    failures::{Answer, Failures, detail},
    raw::{Loaded, Sample},
};

/// The minimum time between two samples. Shorter intervals give no usable rates.
const LEAST: Duration = Duration::from_millis(100);
/// The id of the metric "received over link 0". "Sent over link 0" follows, then link 1.
const FIRST: u32 = 62;
/// Links that have metrics.
const LINKS: u32 = 18;
/// The unit of the metrics: MiB per second (their documentation says bytes in some places).
const UNIT: f64 = 1_048_576.0;

/// The last sample of each GPU.
#[derive(Debug, Default)]
pub(super) struct Gpm(BTreeMap<String, Sampled>);

#[derive(Debug, Default)]
struct Sampled {
    unsupported: bool,
    last: Option<(Sample, Duration)>,
    rates: Vec<Rate>,
}

/// The rate of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Rate {
    /// Bytes per second, from the last two samples.
    pub(super) flow: Flow<f64>,
    /// There was traffic in the interval before the last one.
    pub(super) moved_before: bool,
}

impl Gpm {
    /// Samples the GPU `uuid` and returns the rates of its first `links` links; empty
    /// if there are none, as after the first sample.
    ///
    /// # Errors
    /// When the GPU or the library is lost.
    pub(super) fn rates(
        &mut self,
        library: &Arc<Loaded>,
        device: &Device<'_>,
        (uuid, links): (&str, u32),
        now: Duration,
        failures: &mut Failures,
    ) -> Result<&[Rate], Trouble> {
        let sampled = match self.0.entry(uuid.to_owned()) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let call = detail("nvmlGpmQueryDeviceSupport");
                let supported = match failures.ask(call, Sample::supported(device))? {
                    Answer::Given(supported) => supported,
                    Answer::Unknown => false,
                    Answer::Failed => return Ok(&[]),
                };
                entry.insert(Sampled {
                    unsupported: !supported,
                    ..Sampled::default()
                })
            }
        };
        let recent = |at: Duration| now.saturating_sub(at) < LEAST;
        if sampled.unsupported || sampled.last.as_ref().is_some_and(|(_, at)| recent(*at)) {
            return Ok(&sampled.rates);
        }
        let sample = failures.ask(detail("nvmlGpmSampleGet"), Sample::take(library, device))?;
        let Some(sample) = sample.given() else {
            sampled.rates.clear();
            sampled.last = None;
            return Ok(&[]);
        };
        let ids: Vec<_> = (FIRST..FIRST + 2 * links.min(LINKS)).collect();
        let metrics = match &sampled.last {
            Some((earlier, _)) => {
                let metrics = sample.since(earlier, &ids);
                let metrics = failures.ask(detail("nvmlGpmMetricsGet"), metrics)?;
                metrics.given().unwrap_or_default()
            }
            None => Vec::new(),
        };
        sampled.rates = rates(&metrics, &sampled.rates);
        sampled.last = Some((sample, now));
        Ok(&sampled.rates)
    }

    /// Forgets the GPU `uuid`, which no longer needs rates.
    pub(super) fn forget(&mut self, uuid: &str) {
        self.0.remove(uuid);
    }
}

/// Converts metrics in the order of their ids, received before sent, to rates of links.
fn rates(metrics: &[Option<f64>], before: &[Rate]) -> Vec<Rate> {
    let bytes = |metric: Option<f64>| metric.filter(|rate| *rate >= 0.0).map(|rate| rate * UNIT);
    let link = |(link, pair): (usize, &[Option<f64>])| {
        let earlier = before.get(link).map(|rate| rate.flow).unwrap_or_default();
        let moved = |rate: Option<f64>| rate.is_some_and(|rate| rate > 0.0);
        Rate {
            flow: Flow {
                receive: bytes(pair[0]),
                transmit: bytes(pair[1]),
            },
            moved_before: moved(earlier.transmit) || moved(earlier.receive),
        }
    };
    metrics.chunks_exact(2).enumerate().map(link).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_in_mib_and_received_comes_before_sent() {
        let first = rates(&[Some(1.0), Some(2.5), None, Some(0.0)], &[]);
        assert_eq!(first[0].flow.receive, Some(1_048_576.0));
        assert_eq!(first[0].flow.transmit, Some(2_621_440.0));
        assert_eq!(
            (first[1].flow.receive, first[1].flow.transmit),
            (None, Some(0.0))
        );
        assert!(!first[0].moved_before);
        let second = rates(&[Some(0.0), Some(0.0), Some(-1.0), None], &first);
        assert!(second[0].moved_before && !second[1].moved_before);
        assert_eq!(second[1].flow, Flow::default());
        assert!(rates(&[], &second).is_empty());
    }
}
