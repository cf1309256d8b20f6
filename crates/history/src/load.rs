//! The changes between two readings: the traffic rate of each link, and its new
//! errors. They are for the page; Prometheus computes its own rates.

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

use nvlink_source::{ErrorKind, LinkCounters, Reading};

/// How long errors count as recent.
pub const RECENT: Duration = Duration::from_secs(300);
/// Length of the time slots in which recent errors are counted.
const SLOT: Duration = Duration::from_secs(30);

/// Rates and new errors of one link between the last two good readings. Unknown
/// values (no earlier reading, a counter that was reset) are absent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LinkLoad {
    /// Index of the GPU.
    pub gpu: u32,
    /// Index of the link on the GPU.
    pub link: u32,
    /// Payload bytes sent per second.
    pub transmit_bytes_per_second: Option<f64>,
    /// Payload bytes received per second.
    pub receive_bytes_per_second: Option<f64>,
    /// The kinds of errors that occurred recently, in the order of [`ErrorKind`].
    pub rises: Vec<Rise>,
}

/// Recent errors of one kind on one link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rise {
    pub kind: ErrorKind,
    /// Number of errors between the last two good readings.
    pub last: u64,
    /// Number of errors within [`RECENT`].
    pub recent: u64,
}

/// A link, by the indices of its GPU and of itself.
type Place = (u32, u32);

/// The counters of a reading, and its time.
#[derive(Debug)]
struct Counted {
    at: Instant,
    counters: BTreeMap<Place, LinkCounters>,
    uuids: BTreeMap<u32, Option<String>>,
}

#[derive(Debug, Default)]
pub struct Meter {
    start: Option<Instant>,
    previous: Option<Counted>,
    recent: BTreeMap<(Place, ErrorKind), VecDeque<(u64, u64)>>,
}

impl Meter {
    /// Returns the rates and new errors since the previous reading, by GPU and
    /// link. The reading `now` ended at `finished`.
    pub fn observe(&mut self, now: &Reading, finished: Instant) -> Vec<LinkLoad> {
        let start = *self.start.get_or_insert(finished);
        let slot = slot(finished.saturating_duration_since(start));
        self.forget(slot);
        let counted = Counted::new(now, finished);
        let previous = self.previous.take();
        let seconds = previous.as_ref().map_or(0.0, |one| {
            finished.saturating_duration_since(one.at).as_secs_f64()
        });
        let one = |link: &LinkCounters| {
            let old = previous.as_ref().and_then(|one| one.find(link, &counted));
            self.one(link, old, seconds, slot)
        };
        let loads = now.counters.iter().map(one).collect();
        self.previous = Some(counted);
        loads
    }

    fn one(
        &mut self,
        now: &LinkCounters,
        old: Option<&LinkCounters>,
        seconds: f64,
        slot: u64,
    ) -> LinkLoad {
        let rate = |value: fn(&LinkCounters) -> Option<u64>| {
            let more = value(now)?.checked_sub(value(old?)?)?;
            (seconds > 0.0).then(|| more as f64 / seconds)
        };
        LinkLoad {
            gpu: now.gpu,
            link: now.link,
            transmit_bytes_per_second: now
                .transmit_bytes_per_second
                .or_else(|| rate(|one| one.transmit_bytes)),
            receive_bytes_per_second: now
                .receive_bytes_per_second
                .or_else(|| rate(|one| one.receive_bytes)),
            rises: self.rises(now, old, slot),
        }
    }

    fn rises(&mut self, now: &LinkCounters, old: Option<&LinkCounters>, slot: u64) -> Vec<Rise> {
        let mut rises = Vec::new();
        for &(kind, count) in &now.errors {
            let old = old.and_then(|old| old.errors.iter().find(|(other, _)| *other == kind));
            let last = old.and_then(|&(_, old)| count.checked_sub(old));
            let last = last.unwrap_or_default();
            let key = ((now.gpu, now.link), kind);
            if last > 0 {
                let slots = self.recent.entry(key).or_default();
                match slots.back_mut() {
                    Some((newest, sum)) if *newest == slot => *sum = sum.saturating_add(last),
                    _ => slots.push_back((slot, last)),
                }
            }
            if let Some(slots) = self.recent.get(&key) {
                let recent = slots
                    .iter()
                    .fold(0, |sum: u64, one| sum.saturating_add(one.1));
                rises.push(Rise { kind, last, recent });
            }
        }
        rises
    }

    /// Drops the slots that are no longer recent.
    fn forget(&mut self, slot: u64) {
        let oldest = slot.saturating_sub(RECENT.as_secs() / SLOT.as_secs());
        self.recent.retain(|_, slots| {
            slots.retain(|(at, _)| *at >= oldest);
            !slots.is_empty()
        });
    }
}

fn slot(since_start: Duration) -> u64 {
    since_start.as_secs() / SLOT.as_secs()
}

impl Counted {
    fn new(reading: &Reading, at: Instant) -> Self {
        let gpus = &reading.topology.spec.gpus;
        let counters = reading.counters.iter();
        Self {
            at,
            counters: counters
                .map(|one| ((one.gpu, one.link), one.clone()))
                .collect(),
            uuids: gpus
                .iter()
                .map(|gpu| (gpu.index, gpu.uuid.clone()))
                .collect(),
        }
    }

    /// Finds the same link, unless its index belongs to another GPU `now`.
    fn find(&self, link: &LinkCounters, now: &Self) -> Option<&LinkCounters> {
        let same = self.uuids.get(&link.gpu) == now.uuids.get(&link.gpu);
        self.counters.get(&(link.gpu, link.link)).filter(|_| same)
    }
}

#[cfg(test)]
mod tests {
    use nvlink_source::SourceSpec;

    use super::*;

    /// Reads a simulated node after `seconds`, changes the reading by `edit` and observes it.
    fn observe(
        meter: &mut Meter,
        base: Instant,
        seconds: u64,
        edit: impl FnOnce(&mut Reading),
    ) -> Vec<LinkLoad> {
        let spec: SourceSpec = "sim:h200-degraded".parse().unwrap();
        let now = Duration::from_secs(seconds);
        let mut reading = spec.open(Some("n")).unwrap().read(now).unwrap();
        edit(&mut reading);
        meter.observe(&reading, base + now)
    }

    fn of(loads: &[LinkLoad], gpu: u32, link: u32) -> &LinkLoad {
        let here = |one: &&LinkLoad| (one.gpu, one.link) == (gpu, link);
        loads.iter().find(here).unwrap()
    }

    #[test]
    fn rates_and_rises_span_two_good_readings() {
        let (mut meter, base) = (Meter::default(), Instant::now());
        let first = observe(&mut meter, base, 0, |_| {});
        assert!(
            first
                .iter()
                .all(|one| one.transmit_bytes_per_second.is_none())
        );
        assert!(first.iter().all(|one| one.rises.is_empty()));
        let loads = observe(&mut meter, base, 10, |_| {});
        let busy = of(&loads, 0, 0).transmit_bytes_per_second.unwrap();
        assert!((0.5..0.61).contains(&(busy / 26_562_000_000.0)), "{busy}");
        let kind = ErrorKind::CrcFlit;
        let rise = |last, recent| Rise { kind, last, recent };
        assert_eq!(of(&loads, 6, 4).rises[0], rise(20, 20));
        assert!(of(&loads, 0, 0).rises.is_empty());
        let loads = observe(&mut meter, base, 15, |_| {});
        assert_eq!(of(&loads, 6, 4).rises[0], rise(10, 30));
    }

    #[test]
    fn a_counter_that_was_reset_has_no_rate() {
        let (mut meter, base) = (Meter::default(), Instant::now());
        observe(&mut meter, base, 50, |_| {});
        let loads = observe(&mut meter, base, 60, |reading| {
            reading.counters.retain_mut(|one| {
                one.transmit_bytes = Some(0);
                one.errors.iter_mut().for_each(|error| error.1 = 0);
                true
            });
        });
        let link = of(&loads, 6, 4);
        assert_eq!(link.transmit_bytes_per_second, None);
        assert!(link.receive_bytes_per_second.is_some());
        assert!(link.rises.is_empty());
    }

    #[test]
    fn another_gpu_at_the_same_index_is_another_gpu() {
        let (mut meter, base) = (Meter::default(), Instant::now());
        observe(&mut meter, base, 0, |_| {});
        let loads = observe(&mut meter, base, 10, |reading| {
            reading.topology.spec.gpus[6].uuid = Some("GPU-other".to_owned());
        });
        assert_eq!(of(&loads, 6, 4).transmit_bytes_per_second, None);
        assert!(of(&loads, 6, 4).rises.is_empty());
        assert!(of(&loads, 5, 4).transmit_bytes_per_second.is_some());
    }

    #[test]
    fn old_errors_are_dropped_and_reported_rates_are_used_directly() {
        let (mut meter, base) = (Meter::default(), Instant::now());
        observe(&mut meter, base, 0, |_| {});
        observe(&mut meter, base, 10, |_| {});
        let still = |reading: &mut Reading| {
            for one in &mut reading.counters {
                one.errors.clear();
                one.transmit_bytes = None;
                one.transmit_bytes_per_second = Some(7.0);
            }
        };
        observe(&mut meter, base, 200, still);
        let loads = observe(&mut meter, base, 1000, still);
        assert!(loads.iter().all(|one| one.rises.is_empty()));
        assert!(meter.recent.is_empty());
        assert_eq!(of(&loads, 0, 0).transmit_bytes_per_second, Some(7.0));
    }
}
