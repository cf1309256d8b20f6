//! The cost of an exchange in which each GPU sends a byte to each of its partners, and
//! receives one: all-to-all, and a star. The result is the same as
//! [`crate::flows::Loads`] of these flows, which are symmetric, but is computed with bit
//! masks.

use super::{
    EXACT_GPUS,
    instance::{Instance, Mask, members},
    tour::Score,
};
use crate::{
    flows::{PARTS, busy, most},
    weight::Weight,
};

/// For each GPU, the GPUs with which it exchanges a byte.
pub(super) type Partners = [Mask; EXACT_GPUS];

/// The volume that each two direct neighbours pass on for others, in [`PARTS`].
type Relayed = [[u16; EXACT_GPUS]; EXACT_GPUS];

/// The limit of how busy a resource may be. The search drops most sets as soon as one of
/// their resources is busier.
pub(super) struct Limit {
    pub(super) weight: Weight,
    /// The load that the direct links of each two GPUs may carry, in [`PARTS`].
    most: Relayed,
    /// For each GPU, the direct neighbours whose links are too slow for a byte.
    too_slow: [Mask; EXACT_GPUS],
}

impl Limit {
    pub(super) fn new(instance: &Instance<'_>, weight: Weight) -> Self {
        let mut limit = Self {
            weight,
            most: [[u16::MAX; EXACT_GPUS]; EXACT_GPUS],
            too_slow: [0; EXACT_GPUS],
        };
        for a in 0..instance.len() {
            for b in members(instance.direct[a]) {
                let most = most(weight, instance.plain[a][b]);
                limit.most[a][b] = u16::try_from(most).unwrap_or(u16::MAX);
                limit.too_slow[a] |= Mask::from(most < PARTS) << b;
            }
        }
        limit
    }
}

impl Instance<'_> {
    /// Returns the score of the exchange among the GPUs of `set`; `None` if a resource is
    /// busier than `limit`.
    pub(super) fn exchange(&self, set: Mask, partners: &Partners, limit: &Limit) -> Option<Score> {
        if members(set).any(|a| partners[a] & limit.too_slow[a] != 0) {
            return None;
        }
        let over_pcie = self.over_pcie(set, partners);
        let mut score = Score::ZERO;
        for &(group, uplink) in &self.groups {
            let leaving = |a: usize| (over_pcie[a] & !group).count_ones();
            let load: u32 = members(set & group).map(leaving).sum();
            score.heaviest = score.heaviest.max(Weight::from(load) * uplink);
        }
        if score.heaviest > limit.weight {
            return None;
        }
        let mut relayed: Relayed = [[0; EXACT_GPUS]; EXACT_GPUS];
        for a in members(set) {
            let near = partners[a] & self.neighbours[a];
            let switched = near & !self.direct[a];
            if switched != 0 {
                let port = Weight::from(switched.count_ones()) * self.port(a);
                score.heaviest = score.heaviest.max(port);
            }
            for b in members(partners[a] & !near & !over_pcie[a] & !((2 << a) - 1)) {
                let widest = self.relay(set, a, b, partners, &mut relayed, limit)?;
                // One transfer uses one of the paths, however many share the load.
                score.heaviest = score.heaviest.max(widest);
                // There are two hops in each direction.
                score.sum += 4 * widest;
            }
            for b in members(near | over_pcie[a]) {
                score.add(self.plain[a][b]);
            }
        }
        let busiest = self.busiest_link(set, partners, &relayed);
        score.heaviest = score.heaviest.max(busiest);
        (score.heaviest <= limit.weight && !score.is_forbidden()).then_some(score)
    }

    /// Returns, for each GPU, the partners that it reaches neither over a link nor
    /// through a third GPU of `set`.
    fn over_pcie(&self, set: Mask, partners: &Partners) -> Partners {
        let mut over_pcie = [0; EXACT_GPUS];
        for a in members(set) {
            let through = self.direct[a] & set;
            let apart = members(partners[a] & !self.neighbours[a]);
            over_pcie[a] = apart
                .filter(|&b| self.direct[b] & through == 0)
                .fold(0, |mask, b| mask | 1 << b);
        }
        over_pcie
    }

    /// Splits a byte over the widest paths between two GPUs through a third GPU of `set`,
    /// of which there is at least one; `None` if a link exceeds its limit.
    fn relay(
        &self,
        set: Mask,
        a: usize,
        b: usize,
        partners: &Partners,
        relayed: &mut Relayed,
        limit: &Limit,
    ) -> Option<Weight> {
        let both = self.direct[a] & self.direct[b] & set;
        let way = |relay: usize| self.plain[a][relay].max(self.plain[relay][b]);
        let widest = members(both).map(way).min()?;
        let ways = members(both).filter(|&relay| way(relay) == widest);
        // `part` is at most PARTS.
        let part = PARTS.div_ceil(ways.clone().count() as u64) as u16;
        for relay in ways {
            for (from, to) in [(a, relay), (relay, a), (relay, b), (b, relay)] {
                relayed[from][to] += part;
                if own(partners, from, to) + relayed[from][to] > limit.most[from][to] {
                    return None;
                }
            }
        }
        Some(widest)
    }

    /// Returns the load of the busiest direct link, including what passes it for others.
    fn busiest_link(&self, set: Mask, partners: &Partners, relayed: &Relayed) -> Weight {
        let mut busiest = 0;
        for a in members(set) {
            for b in members(self.direct[a] & set) {
                let load = own(partners, a, b) + relayed[a][b];
                busiest = busiest.max(busy(load.into(), self.plain[a][b]));
            }
        }
        busiest
    }
}

/// Returns what a GPU sends to another for itself, in [`PARTS`].
fn own(partners: &Partners, from: usize, to: usize) -> u16 {
    // The result is at most PARTS, far below the maximum of `u16`.
    (partners[from] >> to & 1) as u16 * PARTS as u16
}
