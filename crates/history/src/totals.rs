//! Totals of each GPU over its links: traffic and errors since the exporter started.
//!
//! A sum over the counters of a GPU's links falls when one link is reset, and Prometheus would
//! take the whole remaining sum for new traffic. So increments are added up here, link by link.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use nvlink_source::{ErrorKind, LinkCounters, Reading};

use crate::Key;

/// The totals of one GPU, since the exporter first read it. A value that none of its links
/// reports now is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuTotals {
    /// Index of the GPU.
    pub gpu: u32,
    /// Bytes sent over all links.
    pub transmit_bytes: Option<u64>,
    /// Bytes received over all links.
    pub receive_bytes: Option<u64>,
    /// Errors of all links by kind, in the order of [`ErrorKind`].
    pub errors: Vec<(ErrorKind, u64)>,
}

/// Adds up the increments of all links from reading to reading. Nothing is forgotten when a GPU is
/// lost: it may return.
#[derive(Debug, Default)]
pub struct Totals {
    /// When the previous reading ended.
    before: Option<Instant>,
    sums: BTreeMap<Key, BTreeMap<Counted, Sum>>,
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Counted {
    Transmit,
    Receive,
    Error(ErrorKind),
}

/// What a link reports.
#[derive(Clone, Copy, Debug)]
enum Amount {
    /// A counter.
    Count(u64),
    /// The rate per second since the previous reading.
    Rate(f64),
}

/// The sum of one GPU's links.
#[derive(Debug, Default)]
struct Sum {
    total: u64,
    /// The last count of each link that has counted.
    last: BTreeMap<u32, u64>,
}

impl Totals {
    /// Adds the increments since the previous reading, and returns the totals of all GPUs that
    /// report counters, in the order of the document. The reading `now` ended at `finished`.
    pub fn observe(&mut self, now: &Reading, finished: Instant) -> Vec<GpuTotals> {
        let before = self.before.replace(finished).unwrap_or(finished);
        let seconds = finished.saturating_duration_since(before).as_secs_f64();
        let mut links: BTreeMap<u32, Vec<&LinkCounters>> = BTreeMap::new();
        for link in &now.counters {
            links.entry(link.gpu).or_default().push(link);
        }
        let gpus = now.topology.spec.gpus.iter();
        let counting = gpus.filter_map(|gpu| Some((gpu, links.get(&gpu.index)?)));
        counting
            .map(|(gpu, links)| {
                let key = Key::new(gpu.index, gpu.uuid.as_deref());
                let sums = self.sums.entry(key).or_default();
                let reported = add(sums, links, seconds);
                totals(gpu.index, sums, &reported)
            })
            .collect()
    }
}

/// Adds what `links` report to `sums`. Returns what at least one of them reports.
fn add(
    sums: &mut BTreeMap<Counted, Sum>,
    links: &[&LinkCounters],
    seconds: f64,
) -> BTreeSet<Counted> {
    let mut reported = BTreeSet::new();
    for link in links {
        for (counted, amount) in amounts(link) {
            sums.entry(counted)
                .or_default()
                .add(link.link, amount, seconds);
            reported.insert(counted);
        }
    }
    reported
}

fn amounts(link: &LinkCounters) -> impl Iterator<Item = (Counted, Amount)> {
    let traffic = |count: Option<u64>, rate: Option<f64>| {
        let count = count.map(Amount::Count);
        count.or(rate.map(Amount::Rate))
    };
    let sent = traffic(link.transmit_bytes, link.transmit_bytes_per_second);
    let received = traffic(link.receive_bytes, link.receive_bytes_per_second);
    let traffic = [(Counted::Transmit, sent), (Counted::Receive, received)];
    let traffic = traffic
        .into_iter()
        .filter_map(|(counted, amount)| Some((counted, amount?)));
    let errors = link.errors.iter();
    traffic.chain(errors.map(|&(kind, count)| (Counted::Error(kind), Amount::Count(count))))
}

fn totals(gpu: u32, sums: &BTreeMap<Counted, Sum>, reported: &BTreeSet<Counted>) -> GpuTotals {
    let mut totals = GpuTotals {
        gpu,
        ..GpuTotals::default()
    };
    let known = sums
        .iter()
        .filter(|(counted, _)| reported.contains(counted));
    for (&counted, &Sum { total, .. }) in known {
        match counted {
            Counted::Transmit => totals.transmit_bytes = Some(total),
            Counted::Receive => totals.receive_bytes = Some(total),
            Counted::Error(kind) => totals.errors.push((kind, total)),
        }
    }
    totals
}

impl Sum {
    /// Adds what `link` reports, `seconds` after the previous reading.
    fn add(&mut self, link: u32, amount: Amount, seconds: f64) {
        let more = match amount {
            Amount::Count(now) => match self.last.insert(link, now) {
                // A counter that is lower than before was reset: it has counted from 0 since.
                Some(last) => now.checked_sub(last).unwrap_or(now),
                // What it counted before the exporter knew it did not happen now.
                None => 0,
            },
            Amount::Rate(rate) => {
                // If it counts again later, that count includes what is added here.
                self.last.remove(&link);
                (rate * seconds).round() as u64
            }
        };
        // At 900 GB/s, a total overflows after eight months. It then begins again at 0, as
        // Prometheus expects of a counter.
        self.total = self.total.checked_add(more).unwrap_or(more);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(amounts: impl IntoIterator<Item = (u32, Amount)>) -> u64 {
        let mut sum = Sum::default();
        for (link, amount) in amounts {
            sum.add(link, amount, 2.0);
        }
        sum.total
    }

    #[test]
    fn an_overflow_is_a_reset() {
        use Amount::Count;
        let most = u64::MAX;
        assert_eq!(sum([(0, Count(0)), (0, Count(most))]), most);
        let over = [
            (0, Count(0)),
            (0, Count(most)),
            (1, Count(3)),
            (1, Count(8)),
        ];
        assert_eq!(sum(over), 5);
    }

    #[test]
    fn rates_that_are_no_numbers_add_nothing() {
        use Amount::Rate;
        assert_eq!(sum([(0, Rate(1.5))]), 3);
        assert_eq!(sum([(0, Rate(f64::NAN)), (0, Rate(-4.0))]), 0);
        assert_eq!(sum([(0, Rate(f64::INFINITY)), (0, Rate(2.0))]), 4);
    }
}
