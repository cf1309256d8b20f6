//! A region of at most [`EXACT_GPUS`] GPUs, renumbered for bit masks, and its k-subsets.

use super::{EXACT_GPUS, Remainder, Request, remainder};
use crate::{GpuSet, Graph, Pattern, graph::Weight};

/// A set of GPUs by their number in the [`Instance`].
pub(super) type Mask = u32;

/// One region to choose from. GPUs are numbers `0..len`, in the order of their indices.
pub(super) struct Instance<'a> {
    graph: &'a Graph,
    /// All that is free, on the whole node.
    free: GpuSet,
    /// Number of GPUs to choose.
    pub(super) k: usize,
    /// Position in the graph of each number.
    positions: Vec<usize>,
    pub(super) required: Mask,
    pub(super) weights: Weights,
    /// All 0 for a job without traffic, which spans nothing.
    numa: [u8; EXACT_GPUS],
    /// Sets of interchangeable GPUs.
    twins: Vec<Mask>,
}

/// Weights between GPUs by number.
pub(super) type Weights = [[Weight; EXACT_GPUS]; EXACT_GPUS];

/// The numbers in `mask`, ascending.
pub(super) fn members(mask: Mask) -> impl Iterator<Item = usize> + Clone {
    let mut rest = mask;
    std::iter::from_fn(move || {
        let lowest = rest.trailing_zeros() as usize;
        (rest != 0).then(|| {
            rest &= rest - 1;
            lowest
        })
    })
}

/// Whether the ascending members of `a` come before those of `b`.
pub(super) fn comes_first(a: Mask, b: Mask) -> bool {
    let differ = a ^ b;
    a & differ & differ.wrapping_neg() != 0
}

impl<'a> Instance<'a> {
    /// The GPUs of `region`, at most [`EXACT_GPUS`].
    pub(super) fn new(graph: &'a Graph, request: &Request, region: GpuSet) -> Self {
        let positions: Vec<usize> = region.iter().collect();
        let mut weights = [[0; EXACT_GPUS]; EXACT_GPUS];
        let mut numa = [0; EXACT_GPUS];
        let mut required = 0;
        for (a, &at) in positions.iter().enumerate() {
            let row = graph.row(at);
            for (b, &to) in positions.iter().enumerate() {
                weights[a][b] = row[to];
            }
            if request.pattern != Pattern::None {
                numa[a] = graph.numa(at);
            }
            required |= Mask::from(request.required.contains(at)) << a;
        }
        let mut instance = Self {
            graph,
            free: request.free,
            k: request.gpus,
            positions,
            required,
            weights,
            numa,
            twins: Vec::new(),
        };
        instance.twins = instance.find_twins();
        instance
    }

    pub(super) fn len(&self) -> usize {
        self.positions.len()
    }

    /// Positions in the graph of GPUs by number.
    pub(super) fn positions(&self, order: &[usize]) -> Vec<usize> {
        order.iter().map(|&gpu| self.positions[gpu]).collect()
    }

    /// Number of NUMA nodes that `mask` spans.
    pub(super) fn numa_nodes(&self, mask: Mask) -> u32 {
        let seen = members(mask).fold(0u128, |seen, gpu| seen | 1 << self.numa[gpu]);
        seen.count_ones()
    }

    /// What is free once `mask` is taken.
    pub(super) fn remainder(&self, mask: Mask) -> Remainder {
        let taken = members(mask).map(|gpu| self.positions[gpu]).collect();
        remainder::Remainder::of(self.graph, self.free.difference(taken))
    }

    /// Sets of GPUs any two of which can change places without changing
    /// anything that the rules compare but the indices.
    fn find_twins(&self) -> Vec<Mask> {
        let mut twins: Vec<Mask> = Vec::with_capacity(self.len());
        for gpu in 0..self.len() {
            let like = |set: &&mut Mask| self.alike(set.trailing_zeros() as usize, gpu);
            match twins.iter_mut().find(like) {
                Some(set) => *set |= 1 << gpu,
                None => twins.push(1 << gpu),
            }
        }
        twins
    }

    fn alike(&self, a: usize, b: usize) -> bool {
        let required = |gpu: usize| self.required >> gpu & 1;
        if self.numa[a] != self.numa[b] || required(a) != required(b) {
            return false;
        }
        let same = |other| other == a || other == b || self.weights[a][other] == self.weights[b][other];
        (0..self.len()).all(same) && self.same_neighbours(a, b)
    }

    fn same_neighbours(&self, a: usize, b: usize) -> bool {
        let (a, b) = (self.positions[a], self.positions[b]);
        let both: GpuSet = [a, b].into_iter().collect();
        let of = |gpu| self.graph.neighbours(gpu).intersection(self.free).difference(both);
        of(a) == of(b)
    }

    /// The lowest member of each set of twins of which `unused` has some:
    /// to a search, the others are the same GPU again.
    pub(super) fn distinct(&self, unused: Mask) -> Mask {
        let lowest = |set: &Mask| {
            let left = set & unused;
            left & left.wrapping_neg()
        };
        self.twins.iter().map(lowest).fold(0, |all, one| all | one)
    }

    /// Calls `each` with every set of `k` GPUs that holds the required ones,
    /// up to an exchange of twins: of those, the lowest.
    pub(super) fn subsets(&self, mut each: impl FnMut(Mask)) {
        self.choose(0, 0, self.k, &mut each);
    }

    fn choose(&self, set: usize, chosen: Mask, missing: usize, each: &mut impl FnMut(Mask)) {
        if set == self.twins.len() {
            if missing == 0 && chosen & self.required == self.required {
                each(chosen);
            }
            return;
        }
        let left: u32 = self.twins[set..].iter().map(|twins| twins.count_ones()).sum();
        if (left as usize) < missing {
            return;
        }
        let (mut rest, mut taken, mut missing) = (self.twins[set], chosen, missing);
        loop {
            self.choose(set + 1, taken, missing, each);
            if rest == 0 || missing == 0 {
                return;
            }
            taken |= rest & rest.wrapping_neg();
            rest &= rest - 1;
            missing -= 1;
        }
    }
}
