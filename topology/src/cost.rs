//! Expected communication time of a placement whose rank order is given.

use crate::{
    Graph, Pattern, Shape,
    graph::{UNIT, Weight},
};

/// Communication time of a placement, in seconds per byte of payload per GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Of the slowest GPU: a collective ends when its slowest member does.
    pub slowest: f64,
    /// Of all GPUs together.
    pub total: f64,
    /// The slowest path that carries traffic, bytes per second; `None` without traffic.
    pub bottleneck_bytes_per_second: Option<u64>,
}

/// What each rank sends to each other for one byte of payload per GPU: whole
/// numbers over one denominator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Volumes {
    ranks: usize,
    numerators: Vec<u64>,
    pub(crate) denominator: u64,
}

impl Volumes {
    /// The volumes of `pattern` for `ranks` GPUs.
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

    /// See [`Shape`] for the numbering and the weights.
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

    /// What rank `from` sends to each rank, over the denominator.
    pub(crate) fn row(&self, from: usize) -> &[u64] {
        &self.numerators[from * self.ranks..][..self.ranks]
    }

    /// Seconds per byte of payload, of so many units times numerators.
    pub(crate) fn seconds(&self, units: Weight) -> f64 {
        // Above 2^53 units the rounding is below that of the bandwidths.
        #[allow(clippy::cast_precision_loss)]
        let (units, denominator) = (units as f64, self.denominator as f64);
        units * UNIT / denominator
    }
}

/// The cost of the GPUs at the positions `order`, in rank order, for `pattern`:
/// `cost(i) = Σ_j v(i,j) / b(i,j)`.
///
/// # Panics
/// When `order` names a position that the graph does not have.
#[must_use]
pub fn evaluate(graph: &Graph, order: &[usize], pattern: Pattern) -> Cost {
    let volumes = Volumes::new(pattern, order.len());
    let (mut slowest, mut total, mut bottleneck) = (0, 0, None);
    for (from, &a) in order.iter().enumerate() {
        let mut units: Weight = 0;
        for (&b, &volume) in order.iter().zip(volumes.row(from)) {
            if volume > 0 && a != b {
                units += volume * graph.weight(a, b);
                let bandwidth = graph.bytes_per_second(a, b);
                bottleneck = Some(bottleneck.map_or(bandwidth, |least: u64| least.min(bandwidth)));
            }
        }
        slowest = slowest.max(units);
        total += units;
    }
    Cost {
        slowest: volumes.seconds(slowest),
        total: volumes.seconds(total),
        bottleneck_bytes_per_second: bottleneck,
    }
}
