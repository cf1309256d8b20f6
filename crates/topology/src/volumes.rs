//! How much the ranks of a pattern send to each other.

use crate::{
    Pattern, Shape,
    weight::{UNIT, Weight},
};

/// The volume that each rank sends to each other rank for one byte of payload per GPU, as
/// whole numbers over one denominator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Volumes {
    ranks: usize,
    numerators: Vec<u64>,
    pub(crate) denominator: u64,
}

impl Volumes {
    /// Returns the volumes of `pattern` for `ranks` GPUs.
    pub(crate) fn new(pattern: Pattern, ranks: usize) -> Self {
        let mut volumes = Self {
            ranks,
            numerators: vec![0; ranks * ranks],
            denominator: 1,
        };
        let n = ranks as u64;
        if ranks < 2 {
            return volumes;
        }
        match pattern {
            Pattern::None => {}
            Pattern::AllReduce => {
                volumes.denominator = n;
                (0..ranks).for_each(|i| volumes.add(i, (i + 1) % ranks, 2 * (n - 1)));
            }
            Pattern::AllToAll => {
                volumes.denominator = n;
                volumes.all_to_all(&(0..ranks).collect::<Vec<_>>(), 1);
            }
            Pattern::Pipeline => (1..ranks).for_each(|i| volumes.add(i - 1, i, 1)),
            Pattern::ParameterServer => (1..ranks).for_each(|i| {
                volumes.add(0, i, 1);
                volumes.add(i, 0, 1);
            }),
            Pattern::Shape(shape) => volumes.shape(shape),
        }
        volumes
    }

    /// Adds the volumes of a shape; see [`Shape`] for the numbering and the weights.
    fn shape(&mut self, shape: Shape) {
        let (tensor, data) = (shape.tensor as usize, shape.data as usize);
        let stages = self.ranks / (tensor * data);
        let rank = |stage: usize, d: usize, t: usize| (stage * data + d) * tensor + t;
        self.denominator = (tensor * data) as u64;
        for stage in 0..stages {
            for d in 0..data {
                let group: Vec<_> = (0..tensor).map(|t| rank(stage, d, t)).collect();
                self.all_to_all(&group, Shape::TENSOR_WEIGHT * data as u64);
            }
            for t in 0..tensor {
                for d in 0..data {
                    let me = rank(stage, d, t);
                    if data > 1 {
                        let volume = Shape::DATA_WEIGHT * 2 * (data as u64 - 1) * tensor as u64;
                        self.add(me, rank(stage, (d + 1) % data, t), volume);
                    }
                    if stage + 1 < stages {
                        let volume = Shape::PIPELINE_WEIGHT * self.denominator;
                        self.add(me, rank(stage + 1, d, t), volume);
                    }
                }
            }
        }
    }

    fn all_to_all(&mut self, ranks: &[usize], volume: u64) {
        for &i in ranks {
            for &j in ranks.iter().filter(|&&j| j != i) {
                self.add(i, j, volume);
            }
        }
    }

    fn add(&mut self, from: usize, to: usize, volume: u64) {
        self.numerators[from * self.ranks + to] += volume;
    }

    pub(crate) fn ranks(&self) -> usize {
        self.ranks
    }

    /// Returns what rank `from` sends to each rank, over the denominator.
    pub(crate) fn row(&self, from: usize) -> &[u64] {
        &self.numerators[from * self.ranks..][..self.ranks]
    }

    /// Returns the volumes of a tour: one byte from each rank to the next and, in a ring,
    /// from the last to the first.
    pub(crate) fn tour(ranks: usize, ring: bool) -> Self {
        let pattern = if ring {
            Pattern::AllReduce
        } else {
            Pattern::Pipeline
        };
        let mut volumes = Self::new(pattern, ranks);
        volumes
            .numerators
            .iter_mut()
            .for_each(|volume| *volume = (*volume).min(1));
        volumes.denominator = 1;
        volumes
    }

    /// Returns the most that one rank sends to another.
    pub(crate) fn largest(&self) -> u64 {
        self.numerators.iter().copied().max().unwrap_or(0)
    }

    /// Returns the most that one rank sends, or receives, in total.
    pub(crate) fn most(&self) -> u64 {
        let ranks = 0..self.ranks;
        let sent = ranks.clone().map(|rank| self.row(rank).iter().sum());
        let received = |to: usize| ranks.clone().map(|from| self.row(from)[to]).sum();
        sent.chain(ranks.clone().map(received)).max().unwrap_or(0)
    }

    /// Returns what all ranks send in total.
    pub(crate) fn sum(&self) -> u64 {
        self.numerators.iter().sum()
    }

    /// Converts `units` times numerators to seconds per byte of payload.
    pub(crate) fn seconds(&self, units: Weight) -> f64 {
        // Above 2^53 units the rounding error is smaller than the error of the bandwidths.
        #[allow(clippy::cast_precision_loss)]
        let (units, denominator) = (units as f64, self.denominator as f64);
        units * UNIT / denominator
    }
}
