//! Chooses the GPUs: tries every k-subset, up to an exchange of twins.

use std::cmp::Ordering;

use super::{
    EXACT_GPUS, Found,
    bound::Edge,
    exchange::{Limit, Partners},
    instance::{Instance, Mask, comes_first, members, within},
    meshed::Tours,
    order,
    tour::{Kind, Score, Tour},
    tours,
};
use crate::weight::Weight;

/// The patterns whose cost depends on sums of weights, not on a tour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sums {
    /// Each GPU sends to each other: the order does not matter.
    AllToAll,
    /// The centre exchanges data with every other GPU; it comes first.
    Star,
    /// There is no traffic.
    Nothing,
}

/// The best set so far. The values that rules 3 and 4 compare are computed only for a tie.
pub(super) struct Best<'a> {
    instance: &'a Instance<'a>,
    pub(super) score: Score,
    pub(super) set: Mask,
    numa_nodes: u32,
    remainder: Option<u128>,
}

impl<'a> Best<'a> {
    pub(super) fn new(instance: &'a Instance<'a>, score: Score, set: Mask) -> Self {
        let numa_nodes = instance.numa_nodes(set);
        Self {
            instance,
            score,
            set,
            numa_nodes,
            remainder: None,
        }
    }

    /// Reports whether `set`, if it had the same score, would be better by rules 3 to 5.
    pub(super) fn loses_tie_to(&mut self, set: Mask) -> bool {
        match self.instance.numa_nodes(set).cmp(&self.numa_nodes) {
            Ordering::Less => return true,
            Ordering::Greater => return false,
            Ordering::Equal => {}
        }
        let (instance, own) = (self.instance, self.set);
        let own = *self
            .remainder
            .get_or_insert_with(|| instance.remainder(own));
        match instance.remainder(set).cmp(&own) {
            Ordering::Greater => true,
            Ordering::Less => false,
            Ordering::Equal => comes_first(set, self.set),
        }
    }

    /// Replaces the best set with `set` if that is better, and reports whether it is.
    fn offer(&mut self, score: Score, set: Mask) -> bool {
        let better = match score.cmp(&self.score) {
            Ordering::Less => true,
            Ordering::Greater => false,
            Ordering::Equal => self.loses_tie_to(set),
        };
        if better {
            *self = Self::new(self.instance, score, set);
        }
        better
    }
}

/// Returns the best set for a pattern of sums; `None` if none is allowed.
pub(super) fn of_sums(instance: &Instance<'_>, sums: Sums) -> Option<Found> {
    let mut best: Option<(Best<'_>, Option<usize>)> = None;
    let mut limit = Limit::new(instance, Weight::MAX);
    instance.subsets(|set| {
        let Some((score, centre)) = score_of_sums(instance, sums, set, &limit) else {
            return;
        };
        match &mut best {
            Some((best, first)) => {
                if best.offer(score, set) {
                    *first = centre;
                }
            }
            None => best = Some((Best::new(instance, score, set), centre)),
        }
        if score.heaviest < limit.weight {
            limit = Limit::new(instance, score.heaviest);
        }
    });
    let (best, first) = best?;
    let mut order: Vec<usize> = first.into_iter().collect();
    order.extend(members(best.set).filter(|&gpu| Some(gpu) != first));
    Some(Found {
        order: instance.positions(&order),
        exact: true,
        rings: None,
    })
}

/// Returns the score of a set and the GPU that must come first; `None` if a resource is
/// busier than `limit`.
fn score_of_sums(
    instance: &Instance<'_>,
    sums: Sums,
    set: Mask,
    limit: &Limit,
) -> Option<(Score, Option<usize>)> {
    let mut partners: Partners = [0; EXACT_GPUS];
    match sums {
        Sums::Nothing => Some((Score::ZERO, None)),
        Sums::AllToAll => {
            members(set).for_each(|gpu| partners[gpu] = set & !(1 << gpu));
            let score = instance.exchange(set, &partners, limit)?;
            Some((score, None))
        }
        Sums::Star => {
            let of = |centre: usize| {
                members(set).for_each(|gpu| partners[gpu] = 1 << centre);
                partners[centre] = set & !(1 << centre);
                let score = instance.exchange(set, &partners, limit)?;
                Some((score, Some(centre)))
            };
            members(set).filter_map(of).min()
        }
    }
}

/// Returns the best set for a ring or a chain; `None` if none is allowed.
///
/// Sets are tried by ascending bound, until the bound of the next is worse than the best
/// tour found. If bounds are poor, that would be many tours; then one pass of dynamic
/// programming over all sets replaces them or, if a tour costs more than its hops alone,
/// the search ends without a proof.
pub(super) fn of_tours(instance: &Instance<'_>, kind: Kind) -> Option<Found> {
    let mut tours = Tours::new(instance, kind);
    let candidates = tours.worth_trying();
    let mut best: Option<(Best<'_>, Tour)> = None;
    let mut proven = true;
    for (at, &(bound, set)) in candidates.iter().enumerate() {
        if let Some((best, _)) = &mut best {
            match bound.cmp(&best.score) {
                Ordering::Greater => break,
                Ordering::Equal if !best.loses_tie_to(set) => continue,
                _ => {}
            }
        }
        let allowed = best.as_ref().filter(|(best, _)| !best.score.is_forbidden());
        if tours.is_exhausted() && (allowed.is_some() || tours.may_pass_over_all_sets()) {
            if tours.may_pass_over_all_sets() {
                let best = best.map(|(best, _)| best);
                return of_all_tours(instance, kind, &tours.edges, &candidates[at..], best);
            }
            proven = false;
            break;
        }
        let known = best.as_ref().map_or(Score::UNKNOWN, |(best, _)| best.score);
        let (found, sure) = tours.of_set(set, known);
        proven &= sure;
        if found.as_ref().is_none_or(|tour| tour.score != bound) {
            tours.miss();
        }
        match (&mut best, found) {
            (_, None) => {}
            (Some((best, tour)), Some(found)) => {
                if best.offer(found.score, set) {
                    *tour = found;
                }
            }
            (None, Some(found)) => {
                best = Some((Best::new(instance, found.score, set), found));
            }
        }
    }
    let best = best.filter(|(best, _)| !best.score.is_forbidden());
    if best.is_none() && !proven {
        instance.share.give_up();
    }
    let (_, tour) = best?;
    Some(Found {
        order: instance.positions(&tour.order),
        exact: proven,
        rings: tour.rings,
    })
}

/// Returns all candidate sets, sorted by their bound and by rules 3 and 5.
pub(super) fn ranked(instance: &Instance<'_>, bound: impl Fn(Mask) -> Score) -> Vec<(Score, Mask)> {
    let mut sets = Vec::with_capacity(64);
    instance.subsets(|set| sets.push((bound(set), set)));
    by_rank(instance, sets)
}

/// Sorts sets by their bound and by rules 3 and 5.
pub(super) fn by_rank(instance: &Instance<'_>, sets: Vec<(Score, Mask)>) -> Vec<(Score, Mask)> {
    // The reversed complement puts lower GPUs first.
    let rank = |(bound, set): (Score, Mask)| (bound, instance.numa_nodes(set), !set.reverse_bits());
    let mut ranked: Vec<_> = sets.into_iter().map(|one| (rank(one), one)).collect();
    ranked.sort_unstable_by_key(|(rank, _)| *rank);
    ranked.into_iter().map(|(_, one)| one).collect()
}

/// Returns the number of steps of a pass of dynamic programming over the subsets of `n` GPUs.
pub(super) fn effort(n: usize) -> u64 {
    let n64 = n as u64;
    (n64 * n64) << n
}

/// Does the same as [`of_tours`] in one pass over all sets, with the exact score of each
/// candidate. A tour must cost what its hops cost, each on its own.
fn of_all_tours<'a>(
    instance: &'a Instance<'a>,
    kind: Kind,
    edges: &[Edge],
    candidates: &[(Score, Mask)],
    mut best: Option<Best<'a>>,
) -> Option<Found> {
    let all = AllTours { instance, kind };
    instance.share.spend(2 * effort(instance.len()));
    let everything: Mask = (1 << instance.len()) - 1;
    let least = candidates.first().map_or(0, |(bound, _)| bound.heaviest);
    let known = best
        .as_ref()
        .map_or(Weight::MAX, |best| best.score.heaviest);
    let mut limits = tours::weights_between(&instance.weights, everything, least);
    limits.retain(|&limit| limit <= known);
    let sets: Vec<Mask> = candidates.iter().map(|&(_, set)| set).collect();
    let heaviest = tours::lightest(limits, |limit| limit >= known || all.reaches(limit, &sets));
    let sums = all.sums(heaviest);
    for set in sets {
        let Some(sum) = all.sum(&sums, set) else {
            continue;
        };
        let score = Score { heaviest, sum };
        match &mut best {
            Some(best) => {
                best.offer(score, set);
            }
            None => best = Some(Best::new(instance, score, set)),
        }
    }
    let set = best.filter(|best| !best.score.is_forbidden())?.set;
    let tour = order::best(kind, &instance.weights, edges, set, Score::UNKNOWN);
    let order = tour.map_or_else(Vec::new, |tour| tour.order);
    Some(Found {
        order: instance.positions(&order),
        exact: true,
        rings: None,
    })
}

/// Dynamic programming over all sets of at most `k` GPUs. A ring starts at its lowest GPU.
struct AllTours<'a> {
    instance: &'a Instance<'a>,
    kind: Kind,
}

/// The sum if there is no tour.
const NONE: Weight = Weight::MAX / 4;

impl AllTours<'_> {
    /// Returns the GPUs that a walk over `visited` may visit next.
    fn onward(&self, visited: Mask) -> Mask {
        let all: Mask = (1 << self.instance.len()) - 1;
        let above_start = match self.kind {
            Kind::Ring => !(visited & visited.wrapping_neg())
                .wrapping_mul(2)
                .wrapping_sub(1),
            Kind::Chain => all,
        };
        all & above_start & !visited
    }

    fn walks(&self) -> impl Iterator<Item = Mask> {
        let k = self.instance.k;
        (1..1 << self.instance.len()).filter(move |set: &Mask| (set.count_ones() as usize) < k)
    }

    /// Reports whether a tour over one of `sets` has no edge heavier than `limit`.
    fn reaches(&self, limit: Weight, sets: &[Mask]) -> bool {
        let n = self.instance.len();
        let near = within(&self.instance.weights, n, limit);
        let mut ends: Vec<u16> = vec![0; 1 << n];
        (0..n).for_each(|gpu| ends[1 << gpu] = 1 << gpu);
        for visited in self.walks() {
            let at = Mask::from(ends[visited as usize]);
            if at == 0 {
                continue;
            }
            for next in members(self.onward(visited)) {
                let arrives = u16::from(near[next] & at != 0);
                ends[(visited | 1 << next) as usize] |= arrives << next;
            }
        }
        sets.iter().any(|&set| {
            let last = Mask::from(ends[set as usize]);
            let start = set.trailing_zeros() as usize;
            last != 0 && (self.kind == Kind::Chain || last & near[start] != 0)
        })
    }

    /// Returns the least sums of walks without an edge heavier than `limit`, by set and
    /// last GPU.
    fn sums(&self, limit: Weight) -> Vec<Weight> {
        let n = self.instance.len();
        let mut step = self.instance.weights;
        for weight in step.iter_mut().flatten().filter(|weight| **weight > limit) {
            *weight = NONE;
        }
        let mut sums = vec![NONE; n << n];
        (0..n).for_each(|gpu| sums[(1 << gpu) * n + gpu] = 0);
        for visited in self.walks() {
            for next in members(self.onward(visited)) {
                let row = &sums[visited as usize * n..][..n];
                let through = members(visited).map(|here| row[here] + step[here][next]);
                let least = through.min().unwrap_or(NONE).min(NONE);
                sums[(visited | 1 << next) as usize * n + next] = least;
            }
        }
        if self.kind == Kind::Ring {
            self.close(&mut sums, &step);
        }
        sums
    }

    fn close(&self, sums: &mut [Weight], step: &super::instance::Weights) {
        let n = self.instance.len();
        for set in 1usize..1 << n {
            let start = set.trailing_zeros() as usize;
            for (last, sum) in sums[set * n..][..n].iter_mut().enumerate() {
                *sum = sum.saturating_add(step[last][start]).min(NONE);
            }
        }
    }

    /// Returns the least sum of a tour over `set`, if there is one.
    fn sum(&self, sums: &[Weight], set: Mask) -> Option<Weight> {
        let n = self.instance.len();
        let row = &sums[set as usize * n..][..n];
        members(set)
            .map(|last| row[last])
            .min()
            .filter(|&sum| sum < NONE)
    }
}
