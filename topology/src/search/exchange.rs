//! What it costs when GPUs exchange a byte with each of their partners, both
//! ways: all-to-all, and a star. The same as [`crate::flows::Loads`] of these
//! flows, which are the same in both directions, counted over bit masks.

use super::{
    EXACT_GPUS,
    instance::{FORBIDDEN, Instance, Mask, members},
    tour::Score,
};
use crate::{
    flows::{PARTS, busy},
    graph::Weight,
};

/// The GPUs with which each exchanges a byte.
pub(super) type Partners = [Mask; EXACT_GPUS];

/// What each two direct neighbours pass on for others, in [`PARTS`].
type Relayed = [[u16; EXACT_GPUS]; EXACT_GPUS];

impl Instance<'_> {
    /// The score of the exchange among the GPUs of `set`.
    pub(super) fn exchange(&self, set: Mask, partners: &Partners) -> Score {
        let mut score = Score::ZERO;
        let mut relayed: Relayed = [[0; EXACT_GPUS]; EXACT_GPUS];
        let mut over_pcie = [0; EXACT_GPUS];
        let mut passed_on = false;
        for a in members(set) {
            let switched = partners[a] & self.neighbours[a] & !self.direct[a];
            if switched != 0 {
                let port = Weight::from(switched.count_ones()) * self.port(a);
                score.heaviest = score.heaviest.max(port);
            }
            for b in members(partners[a] & self.neighbours[a]) {
                score.add(self.plain[a][b]);
            }
            for b in members(partners[a] & !self.neighbours[a] & !((2 << a) - 1)) {
                if let Some(weight) = self.relay(set, a, b, &mut relayed) {
                    passed_on = true;
                    // Two hops each way.
                    (0..4).for_each(|_| score.add(weight));
                } else {
                    over_pcie[a] |= 1 << b;
                    over_pcie[b] |= 1 << a;
                    (0..2).for_each(|_| score.add(self.plain[a][b]));
                }
            }
        }
        if passed_on {
            let busiest = self.busiest_link(set, partners, &relayed);
            score.heaviest = score.heaviest.max(busiest);
        }
        for &(group, uplink) in &self.groups {
            let leaving = |a: usize| (over_pcie[a] & !group).count_ones();
            let load: u32 = members(set & group).map(leaving).sum();
            score.heaviest = score.heaviest.max(Weight::from(load) * uplink);
        }
        if score.heaviest >= FORBIDDEN {
            Score::FORBIDDEN
        } else {
            score
        }
    }

    /// Splits a byte over the widest ways from `a` to `b` through a third GPU of `set`.
    fn relay(&self, set: Mask, a: usize, b: usize, relayed: &mut Relayed) -> Option<Weight> {
        let both = self.direct[a] & self.direct[b] & set;
        let way = |relay: usize| self.plain[a][relay].max(self.plain[relay][b]);
        let widest = members(both).map(way).min()?;
        let ways = members(both).filter(|&relay| way(relay) == widest);
        // At most PARTS.
        let part = PARTS.div_ceil(ways.clone().count() as u64) as u16;
        for relay in ways {
            for (from, to) in [(a, relay), (relay, a), (relay, b), (b, relay)] {
                relayed[from][to] += part;
            }
        }
        Some(widest)
    }

    /// The busiest direct link, with what passes it for others.
    fn busiest_link(&self, set: Mask, partners: &Partners, relayed: &Relayed) -> Weight {
        let mut busiest = 0;
        for a in members(set) {
            for b in members(self.direct[a] & set) {
                let own = if partners[a] >> b & 1 == 1 { PARTS } else { 0 };
                let load = own + u64::from(relayed[a][b]);
                busiest = busiest.max(busy(load, self.plain[a][b]));
            }
        }
        busiest
    }
}
