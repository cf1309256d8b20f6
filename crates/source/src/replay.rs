//! Replays the samples of a recording.
//!
//! Each sample holds until the time of the next one. Recordings loop: the first
//! sample follows the last one, and the gains of all earlier rounds are added, so
//! that counters keep increasing at the recorded rates. A counter that was reset
//! while it was recorded continues without the reset.

use std::{collections::BTreeMap, time::Duration};

use super::{ErrorKind, GpuHealth, LinkCounters, recording::Sample};

/// The identity of one counter of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Counter {
    Transmit(u32, u32),
    Receive(u32, u32),
    Error(u32, u32, ErrorKind),
    Xid(u32, u64),
}

/// The counters and the health of a recording, in an endless loop.
#[derive(Clone, Debug, Default)]
pub(crate) struct Replay {
    /// Time since the first sample, and the sample. Counters never decrease.
    samples: Vec<(Duration, Sample)>,
    /// The increase of each counter from the first sample to the last.
    gains: BTreeMap<Counter, u64>,
}

impl Replay {
    /// Creates a replay of samples that are checked and in ascending order of time.
    #[must_use]
    pub(crate) fn new(samples: Vec<Sample>) -> Self {
        let start = samples.first().and_then(Sample::at).unwrap_or_default();
        let mut seen: BTreeMap<Counter, Seen> = BTreeMap::new();
        let mut rising = Vec::with_capacity(samples.len());
        for mut sample in samples {
            let at = sample.at().unwrap_or_default().saturating_sub(start);
            each_counter(&mut sample, |counter, value| {
                let seen = seen.entry(counter).or_insert_with(|| Seen::new(*value));
                *value = seen.next(*value);
            });
            rising.push((at, sample));
        }
        let gain = |(counter, seen): (_, Seen)| (counter, seen.counted - seen.first);
        Self {
            samples: rising,
            gains: seen.into_iter().map(gain).collect(),
        }
    }

    /// Returns the counters and the health at `now`, the time since the replay began.
    #[must_use]
    pub(crate) fn at(&self, now: Duration) -> (Vec<LinkCounters>, Vec<GpuHealth>) {
        let length = self.samples.last().map_or(0, |(at, _)| at.as_nanos());
        // The last sample is shown at its exact time, before the first one follows again.
        let now = now.as_nanos();
        let round = now.saturating_sub(1).checked_div(length).unwrap_or(0);
        let phase = now - round * length;
        let next = self
            .samples
            .partition_point(|(at, _)| at.as_nanos() <= phase);
        let Some((_, sample)) = self.samples.get(next.saturating_sub(1)) else {
            return Default::default();
        };
        let mut sample = sample.clone();
        let round = u64::try_from(round).unwrap_or(u64::MAX);
        each_counter(&mut sample, |counter, value| {
            let gain = self.gains.get(&counter).copied().unwrap_or_default();
            *value = value.saturating_add(gain.saturating_mul(round));
        });
        (sample.counters, sample.health)
    }
}

/// The values of one counter so far.
struct Seen {
    first: u64,
    last: u64,
    counted: u64,
}

impl Seen {
    fn new(first: u64) -> Self {
        Self {
            first,
            last: first,
            counted: first,
        }
    }

    /// Returns the value without resets. After a reset the whole new value counts as gained.
    fn next(&mut self, value: u64) -> u64 {
        let more = value.checked_sub(self.last).unwrap_or(value);
        self.last = value;
        self.counted = self.counted.saturating_add(more);
        self.counted
    }
}

fn each_counter(sample: &mut Sample, mut change: impl FnMut(Counter, &mut u64)) {
    for link in &mut sample.counters {
        let at = (link.gpu, link.link);
        if let Some(bytes) = &mut link.transmit_bytes {
            change(Counter::Transmit(at.0, at.1), bytes);
        }
        if let Some(bytes) = &mut link.receive_bytes {
            change(Counter::Receive(at.0, at.1), bytes);
        }
        for (kind, count) in &mut link.errors {
            change(Counter::Error(at.0, at.1, *kind), count);
        }
    }
    for health in &mut sample.health {
        for (xid, count) in health.xids.iter_mut().flatten() {
            change(Counter::Xid(health.gpu, *xid), count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(seconds: f64, transmit: u64, ratio: f64) -> Sample {
        let link = LinkCounters {
            transmit_bytes: Some(transmit),
            transmit_bytes_per_second: Some(ratio),
            errors: vec![(ErrorKind::Replay, transmit / 100)],
            ..LinkCounters::default()
        };
        let xids = Some(vec![(74, transmit / 1000)]);
        let health = GpuHealth {
            xids,
            ..GpuHealth::default()
        };
        Sample {
            seconds,
            counters: vec![link],
            health: vec![health],
        }
    }

    fn transmit(replay: &Replay, millis: u64) -> u64 {
        let (counters, health) = replay.at(Duration::from_millis(millis));
        let bytes = counters[0].transmit_bytes.unwrap();
        assert_eq!(counters[0].errors, [(ErrorKind::Replay, bytes / 100)]);
        assert_eq!(health[0].xids.as_ref().unwrap()[0], (74, bytes / 1000));
        bytes
    }

    #[test]
    fn counters_follow_the_recorded_time_and_keep_increasing() {
        let replay = Replay::new(vec![
            sample(3.0, 5000, 0.0),
            sample(4.0, 6000, 1.0),
            sample(7.0, 9000, 2.0),
        ]);
        let cases = [
            (0, 5000),
            (999, 5000),
            (1000, 6000),
            (3999, 6000),
            (4000, 9000),
            // The second round starts from 9000.
            (4001, 9000),
            (5000, 10_000),
            (8000, 13_000),
            (9000, 14_000),
            (12_000, 17_000),
        ];
        for (millis, expected) in cases {
            assert_eq!(transmit(&replay, millis), expected, "at {millis} ms");
        }
        // Values other than counters are shown as recorded.
        let rate = |millis| replay.at(Duration::from_millis(millis)).0[0].transmit_bytes_per_second;
        assert_eq!(
            [rate(0), rate(4000), rate(5000)],
            [Some(0.0), Some(2.0), Some(1.0)]
        );
    }

    #[test]
    fn a_reset_does_not_decrease_a_counter() {
        let replay = Replay::new(vec![
            sample(0.0, 7000, 0.0),
            sample(1.0, 2000, 0.0),
            sample(2.0, 4000, 0.0),
        ]);
        let all: Vec<_> = [0, 1000, 2000, 3000, 4000]
            .map(|at| transmit(&replay, at))
            .to_vec();
        assert_eq!(all, [7000, 9000, 11_000, 13_000, 15_000]);
    }

    #[test]
    fn one_sample_never_changes_and_no_samples_are_empty() {
        let one = Replay::new(vec![sample(5.0, 1000, 0.0)]);
        assert_eq!(transmit(&one, 0), transmit(&one, 1_000_000));
        let (counters, health) = Replay::default().at(Duration::from_secs(1));
        assert!(counters.is_empty() && health.is_empty());
    }

    #[test]
    fn counters_saturate() {
        let replay = Replay::new(vec![sample(0.0, 0, 0.0), sample(1e-9, u64::MAX / 2, 0.0)]);
        let (counters, _) = replay.at(Duration::MAX);
        assert_eq!(counters[0].transmit_bytes, Some(u64::MAX));
    }
}
