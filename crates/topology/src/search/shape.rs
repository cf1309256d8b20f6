//! Searches for the placement of a shape, which has a volume for each pair of ranks:
//! branch and bound over the GPU of each rank in turn.

use std::cmp::Ordering;

use super::{
    Found,
    instance::{Instance, Mask, members},
    subsets::{self, Best},
    tour::{Kind, Score, Tour},
};
use crate::{
    Pattern,
    flows::{Busy, Loads},
    volumes::Volumes,
    weight::Weight,
};

/// The number of rank assignments after which the search gives up and reports the result
/// as not exact: about a quarter of a second. Up to 8 GPUs, a chain over each set of one
/// size needs at most 109,600.
pub(super) const STEPS: u64 = 400_000;

/// The number of rank assignments after which a search that has found no order on NVLink
/// gives up, and the least for one of several sets that share them.
const STEPS_TO_FIRST: u64 = 10 * STEPS;
const LEAST_TO_FIRST: u64 = 1_000;
/// What a rank assignment costs, in the steps of [`super::Effort`].
const STEPS_PER_ASSIGNMENT: u64 = 600;

/// Returns the best set and order for the volumes of `pattern`; `None` if none is allowed.
pub(super) fn search(instance: &Instance<'_>, pattern: Pattern) -> Option<Found> {
    let volumes = Volumes::new(pattern, instance.k);
    let floor = Floor::new(&volumes);
    let candidates = subsets::ranked(instance, |set| floor.of(instance, set));
    let mut best: Option<(Best<'_>, Vec<usize>)> = None;
    let mut steps = (STEPS / instance.share.parts).max(1);
    let mut to_first = (STEPS_TO_FIRST / instance.share.parts).max(LEAST_TO_FIRST);
    for (bound, set) in candidates {
        let ties_win = match &mut best {
            None => true,
            Some((best, _)) => match bound.cmp(&best.score) {
                Ordering::Greater => break,
                _ if steps == 0 => break,
                _ => best.loses_tie_to(set),
            },
        };
        let known = best.as_ref().map(|(best, _)| best.score);
        let mut branches = Branches::new(instance, &volumes, set, known, ties_win, steps);
        branches.to_first = to_first;
        branches.assign(set, set);
        (steps, to_first) = (branches.steps, branches.to_first);
        if let Some((score, order)) = branches.found {
            best = Some((Best::new(instance, score, set), order));
        }
    }
    if best.is_none() && to_first == 0 {
        instance.share.give_up();
    }
    let (_, order) = best?;
    Some(Found {
        order: instance.positions(&order),
        exact: steps > 0,
        rings: None,
    })
}

/// Returns the best tour of one set, unless it is worse than `known`, and whether that is
/// proven. No tour of the set is better than `floor`. `steps` is the number of rank
/// assignments allowed; on return, the number left.
pub(super) fn tour_of_set(
    instance: &Instance<'_>,
    kind: Kind,
    set: Mask,
    floor: Score,
    known: Score,
    steps: &mut u64,
) -> (Option<Tour>, bool) {
    let volumes = Volumes::tour(instance.k, kind == Kind::Ring);
    let known = Some(known).filter(|known| *known != Score::UNKNOWN);
    let mut branches = Branches::new(instance, &volumes, set, known, true, *steps);
    branches.least = floor;
    // A ring passes through every GPU, so it may start at the lowest.
    let first = match kind {
        Kind::Ring => set & set.wrapping_neg(),
        Kind::Chain => set,
    };
    branches.assign(first, set);
    *steps = branches.steps;
    let tour = branches.found.map(|(score, order)| Tour::one(order, score));
    let at_floor = tour.as_ref().is_some_and(|tour| tour.score == floor);
    (tour, *steps > 0 || at_floor)
}

/// The least cost of the volumes, whatever their placement.
struct Floor {
    /// The most that one rank sends to another.
    largest: u64,
    /// The most that one rank sends, or receives, in total.
    most: u64,
    sum: u64,
}

impl Floor {
    fn new(volumes: &Volumes) -> Self {
        Self {
            largest: volumes.largest(),
            most: volumes.most(),
            sum: volumes.sum(),
        }
    }

    /// Returns the floor for `set`: the largest volume on the lightest path, and all that
    /// a rank sends through one port if the GPUs have no other links.
    fn of(&self, instance: &Instance<'_>, set: Mask) -> Score {
        let lightest = lightest(instance, set);
        let ports = members(set).map(|gpu| instance.only_port(set, gpu));
        let port = ports.min().flatten().unwrap_or(0);
        Score {
            heaviest: (self.largest * lightest).max(self.most * port),
            sum: self.sum * lightest,
        }
    }
}

/// Returns the weight of the lightest path between two GPUs of `set`.
fn lightest(instance: &Instance<'_>, set: Mask) -> Weight {
    let pairs = members(set).flat_map(|a| members(set & !(1 << a)).map(move |b| (a, b)));
    pairs
        .map(|(a, b)| instance.weights[a][b])
        .min()
        .unwrap_or(0)
}

struct Branches<'a> {
    instance: &'a Instance<'a>,
    volumes: &'a Volumes,
    /// The least cost of the heaviest single flow.
    floor: Weight,
    lightest: Weight,
    /// The flows between ranks that have a GPU.
    loads: Loads<'a>,
    /// Volume to or from ranks that have no GPU yet.
    missing: u64,
    /// The best score of any set so far.
    best: Option<Score>,
    found: Option<(Score, Vec<usize>)>,
    /// The GPU of each rank so far.
    order: Vec<usize>,
    /// Whether this set wins over the best one at the same score.
    ties_win: bool,
    /// A score that no order of the set beats: the search ends when it finds one with it.
    least: Score,
    steps: u64,
    /// The number of assignments that are allowed until the first order is found.
    to_first: u64,
}

impl<'a> Branches<'a> {
    fn new(
        instance: &'a Instance<'a>,
        volumes: &'a Volumes,
        set: Mask,
        best: Option<Score>,
        ties_win: bool,
        steps: u64,
    ) -> Self {
        let lightest = lightest(instance, set);
        Self {
            instance,
            volumes,
            floor: volumes.largest() * lightest,
            lightest,
            loads: Loads::new(instance.graph, instance.set(set)),
            missing: volumes.sum(),
            best,
            found: None,
            order: Vec::with_capacity(instance.k),
            ties_win,
            least: Score::ZERO,
            steps,
            to_first: STEPS_TO_FIRST,
        }
    }

    /// Assigns each GPU of `next` to the next rank, and those of `unused` to the rest.
    fn assign(&mut self, next: Mask, unused: Mask) {
        if unused == 0 {
            let score = self.instance.score(&self.loads);
            self.best = Some(score);
            self.found = Some((score, self.order.clone()));
            // From now on another order of this set must be cheaper.
            self.ties_win = false;
            return;
        }
        for gpu in members(self.instance.distinct(next)) {
            if self.has_ended() {
                return;
            }
            self.steps = self.steps.saturating_sub(1);
            self.instance.share.spend(STEPS_PER_ASSIGNMENT);
            let (before, missing) = (self.loads.busy(), self.missing);
            self.take(gpu);
            if self.worth() {
                let unused = unused & !(1 << gpu);
                self.assign(unused, unused);
            }
            self.give_back(before);
            self.missing = missing;
        }
    }

    /// Reports whether no further assignment is to be tried.
    fn has_ended(&mut self) -> bool {
        match self.best {
            Some(best) => self.steps == 0 || self.found.is_some() && best <= self.least,
            None => {
                self.to_first = self.to_first.saturating_sub(1);
                self.to_first == 0
            }
        }
    }

    /// Returns the flows between the newest rank and the earlier ones.
    fn flows(&self) -> impl Iterator<Item = (usize, usize, u64)> + use<> {
        let newest = self.order.len() - 1;
        let position = |rank: usize| self.instance.position(self.order[rank]);
        let mut flows = Vec::with_capacity(2 * newest);
        for rank in 0..newest {
            for (from, to) in [(rank, newest), (newest, rank)] {
                let volume = self.volumes.row(from)[to];
                if volume > 0 {
                    flows.push((position(from), position(to), volume));
                }
            }
        }
        flows.into_iter()
    }

    /// Assigns `gpu` to the next rank.
    fn take(&mut self, gpu: usize) {
        self.order.push(gpu);
        for (from, to, volume) in self.flows() {
            self.loads.add(from, to, volume);
            self.missing -= volume;
        }
    }

    fn give_back(&mut self, before: Busy) {
        for (from, to, volume) in self.flows() {
            self.loads.remove(from, to, volume, before);
        }
        self.order.pop();
    }

    /// Reports whether any continuation can be the best.
    fn worth(&self) -> bool {
        let now = self.instance.score(&self.loads);
        if now.is_forbidden() {
            return false;
        }
        let floor = Score {
            heaviest: now.heaviest.max(self.floor),
            sum: now.sum + self.missing * self.lightest,
        };
        match &self.best {
            None => true,
            Some(best) if self.ties_win => floor <= *best,
            Some(best) => floor < *best,
        }
    }
}
