//! When each GPU last had each XID. The driver counts them; an old count is no news.

use std::{collections::BTreeMap, time::Instant};

use nvlink_source::Reading;

use crate::Key;

/// The XIDs of all GPUs, with their counts and the time at which the count last changed. It is not the
/// time of day, which is wrong until a clock that was wrong at boot is set.
#[derive(Clone, Debug, Default)]
pub struct XidTimes(BTreeMap<(Key, u64), Seen>);

#[derive(Clone, Copy, Debug)]
struct Seen {
    count: u64,
    at: Instant,
}

impl XidTimes {
    /// Takes a reading of the time `now` into account. What it does not tell of is kept: a GPU that is
    /// lost, or cannot be asked now, had its XIDs nevertheless.
    pub fn observe(&mut self, reading: &Reading, now: Instant) {
        let gpus = &reading.topology.spec.gpus;
        for health in &reading.health {
            let Some(xids) = &health.xids else { continue };
            let gpu = gpus.iter().find(|gpu| gpu.index == health.gpu);
            let uuid = gpu.and_then(|gpu| gpu.uuid.as_deref());
            let key = Key::new(health.gpu, uuid);
            // A source that was opened anew counts from 0, and the next one is a new one.
            let told = |xid: u64| xids.iter().any(|&(one, _)| one == xid);
            self.0.retain(|(of, xid), _| *of != key || told(*xid));
            self.count(&key, xids, now);
        }
        for lost in &reading.lost {
            self.count(&Key::of(lost), &lost.xids, now);
        }
    }

    fn count(&mut self, key: &Key, xids: &[(u64, u64)], now: Instant) {
        for &(xid, count) in xids.iter().filter(|(_, count)| *count > 0) {
            let seen = self.0.entry((key.clone(), xid));
            let seen = seen.or_insert(Seen { count, at: now });
            if seen.count != count {
                *seen = Seen { count, at: now };
            }
        }
    }

    /// Returns when a GPU last had an XID; `None` if it had none.
    #[must_use]
    pub fn at(&self, gpu: &Key, xid: u64) -> Option<Instant> {
        self.0.get(&(gpu.clone(), xid)).map(|seen| seen.at)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nvlink_source::{LostGpu, Opener, SourceSpec};

    use super::*;

    fn reading(xids: Option<&[(u64, u64)]>) -> Reading {
        let spec: SourceSpec = "sim:hgx-a100-4".parse().unwrap();
        let mut source = Opener::new(spec, Some("n".to_owned())).open().unwrap();
        let mut reading = source.read(Duration::ZERO).unwrap();
        reading.topology.spec.gpus[0].uuid = Some("GPU-0".to_owned());
        reading.health[0].xids = xids.map(<[_]>::to_vec);
        reading
    }

    #[test]
    fn the_time_is_that_of_the_last_one() {
        let mut times = XidTimes::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let key = Key::new(0, Some("GPU-0"));
        let mut seen = |reading: &Reading, seconds: u64| {
            times.observe(reading, at(seconds));
            [times.at(&key, 74), times.at(&key, 79)]
        };
        assert_eq!(seen(&reading(Some(&[])), 1), [None, None]);
        assert_eq!(seen(&reading(Some(&[(74, 1)])), 2), [Some(at(2)), None]);
        assert_eq!(seen(&reading(Some(&[(74, 1)])), 9), [Some(at(2)), None]);
        assert_eq!(seen(&reading(None), 10), [Some(at(2)), None]);
        let lost = LostGpu {
            uuid: Some("GPU-0".to_owned()),
            xids: vec![(74, 1), (79, 1)],
            ..LostGpu::default()
        };
        let mut gone = reading(None);
        gone.health.remove(0);
        gone.lost = vec![lost];
        assert_eq!(seen(&gone, 11), [Some(at(2)), Some(at(11))]);
        assert_eq!(
            seen(&reading(Some(&[(74, 2), (79, 1)])), 12),
            [Some(at(12)), Some(at(11))]
        );
        // Opened anew.
        assert_eq!(seen(&reading(Some(&[])), 13), [None, None]);
        assert_eq!(seen(&reading(Some(&[(74, 2)])), 14), [Some(at(14)), None]);
    }
}
