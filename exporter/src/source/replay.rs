//! Replays the samples of a recording.
//!
//! Each sample holds from its own time to that of the next one. After the last
//! one the first follows again, with everything that was counted added, so
//! that counters never fall and their rates go on as recorded. A
//! counter that was reset while it was recorded goes on counting instead.

use std::{collections::BTreeMap, time::Duration};

use super::{ErrorKind, GpuHealth, LinkCounters, recording::Sample};

/// Names one counter of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Counter {
    Transmit(u32, u32),
    Receive(u32, u32),
    Error(u32, u32, ErrorKind),
    Xid(u32, u64),
}

/// The moving parts of a recording, endlessly.
#[derive(Clone, Debug, Default)]
pub struct Replay {
    /// Time since the first sample, and the sample; counters never fall.
    samples: Vec<(Duration, Sample)>,
    /// What each counter gains from the first sample to the last.
    gains: BTreeMap<Counter, u64>,
}

impl Replay {
    /// Of checked samples, by ascending time.
    #[must_use]
    pub fn new(samples: Vec<Sample>) -> Self {
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

    /// The counters and the health, `now` after the replay began.
    #[must_use]
    pub fn at(&self, now: Duration) -> (Vec<LinkCounters>, Vec<GpuHealth>) {
        let length = self.samples.last().map_or(0, |(at, _)| at.as_nanos());
        // The last sample is shown for a moment, too, before the first one comes again.
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

/// What is known of one counter so far.
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

    /// The next value without resets: after one, a counter has counted all that it shows.
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
    fn counters_follow_the_recorded_time_and_go_on() {
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
            // Again, from 9000.
            (4001, 9000),
            (5000, 10_000),
            (8000, 13_000),
            (9000, 14_000),
            (12_000, 17_000),
        ];
        for (millis, expected) in cases {
            assert_eq!(transmit(&replay, millis), expected, "at {millis} ms");
        }
        // What is no counter is shown as recorded.
        let rate = |millis| replay.at(Duration::from_millis(millis)).0[0].transmit_bytes_per_second;
        assert_eq!(
            [rate(0), rate(4000), rate(5000)],
            [Some(0.0), Some(2.0), Some(1.0)]
        );
    }

    #[test]
    fn a_reset_does_not_make_a_counter_fall() {
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
    fn one_sample_stands_still_and_none_is_nothing() {
        let one = Replay::new(vec![sample(5.0, 1000, 0.0)]);
        assert_eq!(transmit(&one, 0), transmit(&one, 1_000_000));
        let (counters, health) = Replay::default().at(Duration::from_secs(1));
        assert!(counters.is_empty() && health.is_empty());
    }

    #[test]
    fn a_replay_ends_at_the_largest_number() {
        let replay = Replay::new(vec![sample(0.0, 0, 0.0), sample(1e-9, u64::MAX / 2, 0.0)]);
        let (counters, _) = replay.at(Duration::MAX);
        assert_eq!(counters[0].transmit_bytes, Some(u64::MAX));
    }
}
