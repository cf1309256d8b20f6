//! Chooses the counter from which a link's traffic is read. Pure functions.

use std::collections::BTreeMap;

use nvml_wrapper_sys::bindings::field_id::*;

use super::fields::Answers;
use crate::{CounterSource, LinkCounters};

/// The unit of the throughput fields, in bytes.
const KIB: u64 = 1024;

/// The traffic of one link in both directions, from one source.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Flow<T> {
    pub(super) transmit: Option<T>,
    pub(super) receive: Option<T>,
}

impl<T: PartialOrd + Default + Copy> Flow<T> {
    fn answers(&self) -> bool {
        self.transmit.is_some() || self.receive.is_some()
    }

    fn moved(&self) -> bool {
        let moved = |value: Option<T>| value.is_some_and(|value| value > T::default());
        moved(self.transmit) || moved(self.receive)
    }
}

/// The traffic of one link from each source.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Traffic {
    nvlink5: Flow<u64>,
    throughput: Flow<u64>,
    /// Bytes per second between the last two samples.
    pub(super) gpm: Flow<f64>,
    /// The rate was already above 0 at the previous reading: a byte counter that is
    /// still 0 does not work.
    pub(super) gpm_moved_before: bool,
}

impl Traffic {
    /// Returns the traffic from the fields of a link.
    pub(super) fn of(answers: &Answers, link: u32) -> Self {
        let bytes = |id| answers.get(link, id);
        let kib = |id| bytes(id).map(|kib| kib.saturating_mul(KIB));
        Self {
            nvlink5: Flow {
                transmit: bytes(NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES),
                receive: bytes(NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES),
            },
            throughput: Flow {
                transmit: kib(NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX),
                receive: kib(NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX),
            },
            ..Self::default()
        }
    }

    /// Returns the source to choose, if one has proven that it works.
    ///
    /// This is the first source that answers, in order of precision, but a source
    /// with a nonzero value wins over one with 0: drivers answer *success, 0* for
    /// counters that they do not support. While all sources are 0, none is chosen.
    /// This loses nothing, since the source chosen later was 0 until then.
    fn proven(&self) -> Option<CounterSource> {
        if self.nvlink5.moved() {
            Some(CounterSource::Nvlink5Bytes)
        } else if self.throughput.moved() {
            Some(CounterSource::ThroughputData)
        } else if !self.gpm.answers() {
            None
        } else if self.first_of_bytes().is_none() || self.gpm_moved_before && self.gpm.moved() {
            Some(CounterSource::Gpm)
        } else {
            None
        }
    }

    /// Returns the first source that counts bytes and answers.
    fn first_of_bytes(&self) -> Option<CounterSource> {
        if self.nvlink5.answers() {
            Some(CounterSource::Nvlink5Bytes)
        } else if self.throughput.answers() {
            Some(CounterSource::ThroughputData)
        } else {
            None
        }
    }
}

/// The chosen source of each link, by UUID of the GPU and index of the link. A choice
/// holds for the life of the process: values of different sources cannot be compared.
#[derive(Debug, Default)]
pub(super) struct Choices(BTreeMap<(String, u32), CounterSource>);

impl Choices {
    /// Returns the source of a link, once it is chosen.
    pub(super) fn get(&self, uuid: &str, link: u32) -> Option<CounterSource> {
        self.0.get(&(uuid.to_owned(), link)).copied()
    }

    /// Writes the traffic from the link's source into `counters`. Chooses a source
    /// first, if possible.
    pub(super) fn apply(&mut self, uuid: &str, traffic: &Traffic, counters: &mut LinkCounters) {
        let settled = self.get(uuid, counters.link).or_else(|| {
            let source = traffic.proven()?;
            self.0.insert((uuid.to_owned(), counters.link), source);
            Some(source)
        });
        counters.source = settled;
        match settled.or(traffic.first_of_bytes()) {
            Some(CounterSource::Nvlink5Bytes) => set_bytes(counters, traffic.nvlink5),
            Some(CounterSource::ThroughputData) => set_bytes(counters, traffic.throughput),
            Some(CounterSource::Gpm) => {
                counters.transmit_bytes_per_second = traffic.gpm.transmit;
                counters.receive_bytes_per_second = traffic.gpm.receive;
            }
            None => {}
        }
    }
}

fn set_bytes(counters: &mut LinkCounters, flow: Flow<u64>) {
    counters.transmit_bytes = flow.transmit;
    counters.receive_bytes = flow.receive;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn flow<T>(transmit: T, receive: T) -> Flow<T> {
        Flow {
            transmit: Some(transmit),
            receive: Some(receive),
        }
    }

    fn bytes(answers: &[(u32, u64)]) -> Traffic {
        Traffic::of(&Answers::of_link(answers), 0)
    }

    fn apply(choices: &mut Choices, traffic: &Traffic) -> LinkCounters {
        let mut counters = LinkCounters::default();
        choices.apply("GPU-1", traffic, &mut counters);
        counters
    }

    #[test]
    fn kib_become_bytes_and_bytes_come_first() {
        // A reading captured on an A100: KiB, as `nvidia-smi` prints them.
        let counters = apply(
            &mut Choices::default(),
            &bytes(&[(138, 37_014_301), (139, 1)]),
        );
        assert_eq!(counters.transmit_bytes, Some(37_902_644_224));
        assert_eq!(counters.receive_bytes, Some(1024));
        assert_eq!(counters.source, Some(CounterSource::ThroughputData));
        let both = bytes(&[(202, 5), (204, 6), (138, 7), (139, 8)]);
        let counters = apply(&mut Choices::default(), &both);
        assert_eq!(counters.source, Some(CounterSource::Nvlink5Bytes));
        assert_eq!(
            (counters.transmit_bytes, counters.receive_bytes),
            (Some(5), Some(6))
        );
        assert_eq!(counters.transmit_bytes_per_second, None);
    }

    #[test]
    fn a_choice_holds_for_the_life_of_the_process() {
        let mut choices = Choices::default();
        apply(&mut choices, &bytes(&[(138, 10), (139, 10)]));
        let later = apply(
            &mut choices,
            &bytes(&[(202, 1), (204, 1), (138, 11), (139, 11)]),
        );
        assert_eq!(later.source, Some(CounterSource::ThroughputData));
        assert_eq!(later.transmit_bytes, Some(11 * 1024));
        // Its source stops answering: the value is absent, not that of another source.
        let silent = apply(&mut choices, &bytes(&[(202, 2), (204, 2)]));
        assert_eq!(silent.transmit_bytes, None);
        assert_eq!(silent.source, Some(CounterSource::ThroughputData));
        let mut other = LinkCounters::default();
        choices.apply("GPU-2", &bytes(&[(202, 2), (204, 2)]), &mut other);
        assert_eq!(
            other.source,
            Some(CounterSource::Nvlink5Bytes),
            "another GPU"
        );
    }

    #[test]
    fn a_counter_that_counts_wins_over_one_that_stays_0() {
        let mut choices = Choices::default();
        let idle = apply(
            &mut choices,
            &bytes(&[(202, 0), (204, 0), (138, 0), (139, 0)]),
        );
        assert_eq!((idle.source, idle.transmit_bytes), (None, Some(0)));
        let moved = apply(
            &mut choices,
            &bytes(&[(202, 0), (204, 0), (138, 3), (139, 0)]),
        );
        assert_eq!(moved.source, Some(CounterSource::ThroughputData));
        assert_eq!(moved.transmit_bytes, Some(3072));
    }

    #[test]
    fn gpm_is_used_where_no_counter_works() {
        let rate = |answers, gpm_moved_before| Traffic {
            gpm: flow(2.5e9, 0.0),
            gpm_moved_before,
            ..bytes(answers)
        };
        let counters = apply(&mut Choices::default(), &rate(&[], false));
        assert_eq!(counters.source, Some(CounterSource::Gpm));
        assert_eq!(counters.transmit_bytes_per_second, Some(2.5e9));
        assert_eq!(counters.receive_bytes_per_second, Some(0.0));
        assert_eq!(counters.transmit_bytes, None);
        // Traffic may have begun after the byte counter was read.
        let zero: &[_] = &[(138, 0), (139, 0)];
        let counters = apply(&mut Choices::default(), &rate(zero, false));
        assert_eq!((counters.source, counters.transmit_bytes), (None, Some(0)));
        let counters = apply(&mut Choices::default(), &rate(zero, true));
        assert_eq!(counters.source, Some(CounterSource::Gpm));
        assert_eq!(counters.transmit_bytes, None);
    }

    #[test]
    fn traffic_without_a_counter_is_absent() {
        assert_eq!(
            apply(&mut Choices::default(), &bytes(&[])),
            LinkCounters::default()
        );
    }

    fn answer() -> impl Strategy<Value = Option<u64>> {
        prop_oneof![Just(None), Just(Some(0)), (1..u64::MAX).prop_map(Some)]
    }

    proptest! {
        /// Whatever the driver answers, in whatever order: the source of a link
        /// changes at most once, from none to one, and bytes and rates are never
        /// reported together.
        #[test]
        fn sources_never_mix(
            readings in prop::collection::vec(
                (answer(), answer(), answer(), answer(), answer(), any::<bool>()), 1..20,
            ),
        ) {
            let mut choices = Choices::default();
            let mut before = None;
            for (a, b, c, d, rate, gpm_moved_before) in readings {
                let traffic = Traffic {
                    nvlink5: Flow { transmit: a, receive: b },
                    throughput: Flow { transmit: c, receive: d },
                    gpm: Flow { transmit: rate.map(|rate| rate as f64), receive: None },
                    gpm_moved_before,
                };
                let counters = apply(&mut choices, &traffic);
                prop_assert!(before.is_none() || counters.source == before);
                before = counters.source;
                let counted = counters.transmit_bytes.or(counters.receive_bytes).is_some();
                let rated = counters.transmit_bytes_per_second.is_some();
                prop_assert!(!(counted && rated));
                prop_assert!(!rated || counters.source == Some(CounterSource::Gpm));
            }
        }
    }
}
