//! Shapes: a volume for each pair of ranks. Branch and bound over the GPU of each rank in turn.

use std::cmp::Ordering;

use super::{
    Found,
    instance::{Instance, Mask, members},
    subsets::{self, Best},
    tour::Score,
};
use crate::{Pattern, cost::Volumes, graph::Weight};

/// Ranks assigned before the search gives up and says so: about a quarter of a second.
const STEPS: u64 = 4_000_000;

/// The best set and order for the volumes of `pattern`.
pub(super) fn search(instance: &Instance, pattern: Pattern) -> Found {
    let volumes = Volumes::new(pattern, instance.k);
    let candidates = subsets::ranked(instance, |set| Some(floor(instance, &volumes, set)));
    let mut branches = Branches {
        instance,
        sends: (0..instance.k)
            .map(|rank| volumes.row(rank).iter().sum())
            .collect(),
        volumes,
        best: None,
        order: Vec::with_capacity(instance.k),
        rows: vec![0; instance.k],
        ties_win: true,
        steps: STEPS,
    };
    for (floor, set) in candidates {
        branches.ties_win = match &mut branches.best {
            None => true,
            Some((best, _)) => match floor.cmp(&best.score) {
                Ordering::Greater => break,
                _ => best.loses_tie_to(set),
            },
        };
        branches.assign(set, set, Score::ZERO);
    }
    let order = branches.best.map_or_else(Vec::new, |(_, order)| order);
    Found {
        order: instance.positions(&order),
        exact: branches.steps > 0,
    }
}

/// All volumes over the lightest path.
fn floor(instance: &Instance, volumes: &Volumes, set: Mask) -> Score {
    let lightest = members(set)
        .map(|gpu| lightest(instance, set, gpu))
        .min()
        .unwrap_or(0);
    let mut score = Score::ZERO;
    for rank in 0..volumes.ranks() {
        let row = volumes.row(rank).iter().sum::<u64>() * lightest;
        score = Score {
            heaviest: score.heaviest.max(row),
            sum: score.sum + row,
        };
    }
    score
}

/// The lightest path from `gpu` to another of `set`.
fn lightest(instance: &Instance, set: Mask, gpu: usize) -> Weight {
    let row = members(set & !(1 << gpu)).map(|other: usize| instance.weights[gpu][other]);
    row.min().unwrap_or(0)
}

struct Branches<'a> {
    instance: &'a Instance,
    volumes: Volumes,
    best: Option<(Best<'a>, Vec<usize>)>,
    /// GPU of each rank so far.
    order: Vec<usize>,
    /// What each rank sends to ranks that have a GPU, weighted.
    rows: Vec<Weight>,
    /// Volume that each rank sends to ranks that have no GPU yet.
    sends: Vec<u64>,
    /// Whether this set wins over the best one at the same score.
    ties_win: bool,
    steps: u64,
}

impl Branches<'_> {
    fn assign(&mut self, set: Mask, unused: Mask, score: Score) {
        if unused == 0 {
            let best = Best::new(self.instance, score, set);
            self.best = Some((best, self.order.clone()));
            // From now on another order of this set has to be cheaper.
            self.ties_win = false;
            return;
        }
        for gpu in members(self.instance.distinct(unused)) {
            if self.steps == 0 && self.best.is_some() {
                return;
            }
            self.steps = self.steps.saturating_sub(1);
            let (rows, sends) = (self.rows.clone(), self.sends.clone());
            let sum = score.sum + self.take(gpu);
            let floor = self.floor(set, sum);
            if self.worth(floor) {
                let heaviest = self.rows.iter().copied().max().unwrap_or(0);
                self.assign(set, unused & !(1 << gpu), Score { heaviest, sum });
            }
            self.order.pop();
            (self.rows, self.sends) = (rows, sends);
        }
    }

    /// Gives `gpu` to the next rank; returns what that adds to the sum.
    fn take(&mut self, gpu: usize) -> Weight {
        let rank = self.order.len();
        let mut added = 0;
        for (other, &at) in self.order.iter().enumerate() {
            let weight = self.instance.weights[gpu][at];
            for (from, to) in [(rank, other), (other, rank)] {
                let volume = self.volumes.row(from)[to];
                self.rows[from] += volume * weight;
                self.sends[from] -= volume;
                added += volume * weight;
            }
        }
        self.order.push(gpu);
        added
    }

    /// The least score of any way to go on: what is still to be sent takes each GPU's lightest path.
    fn floor(&self, set: Mask, sum: Weight) -> Score {
        let lightest = |gpu: usize| lightest(self.instance, set, gpu);
        let least = members(set).map(lightest).min().unwrap_or(0);
        let mut score = Score { heaviest: 0, sum };
        for (rank, (&row, &volume)) in self.rows.iter().zip(&self.sends).enumerate() {
            let weight = self.order.get(rank).map_or(least, |&gpu| lightest(gpu));
            score.heaviest = score.heaviest.max(row + volume * weight);
            score.sum += volume * weight;
        }
        score
    }

    fn worth(&self, floor: Score) -> bool {
        match &self.best {
            None => true,
            Some((best, _)) if self.ties_win => floor <= best.score,
            Some((best, _)) => floor < best.score,
        }
    }
}
