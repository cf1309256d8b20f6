//! The rules of the search, by trying everything. Shares nothing with the
//! search but the cost of one given order.

use std::cmp::Reverse;

use nvlink_topology::{GpuSet, Graph, NodeTopologySpec, Pattern, cost};

/// What the rules compare, in their order.
pub(crate) type Rank = (f64, f64, usize, Reverse<Vec<usize>>, Vec<usize>);

/// Every set of up to 8 GPUs of one node with its least cost over all orders.
pub(crate) struct Brute<'a> {
    spec: &'a NodeTopologySpec,
    graph: Graph,
    pattern: Pattern,
    best: Vec<Option<(f64, f64)>>,
}

impl<'a> Brute<'a> {
    /// Tries all orders of all sets of the sizes that `wanted` says.
    pub(crate) fn new(
        spec: &'a NodeTopologySpec,
        pattern: Pattern,
        wanted: impl Fn(usize) -> bool,
    ) -> Self {
        let graph = Graph::new(spec).unwrap();
        let n = spec.gpus.len();
        let best = (0..1usize << n).map(|mask| {
            let mut gpus: Vec<usize> = (0..n).filter(|gpu| mask >> gpu & 1 == 1).collect();
            if !wanted(gpus.len()) {
                return None;
            }
            let mut least = (f64::INFINITY, f64::INFINITY);
            permutations(&mut gpus, 0, &mut |order| {
                let cost = cost::evaluate(&graph, order, pattern);
                if (cost.slowest, cost.total) < least {
                    least = (cost.slowest, cost.total);
                }
            });
            Some(least)
        });
        Self {
            best: best.collect(),
            graph,
            spec,
            pattern,
        }
    }

    /// The best rank of `k` GPUs of `free` that hold `required`.
    pub(crate) fn best(&self, free: usize, required: usize, k: usize) -> Option<Rank> {
        let fits = |mask: usize, within: usize| {
            mask & !within == 0 && required & !mask == 0 && mask.count_ones() as usize == k
        };
        let sets = |within: usize| (0..self.best.len()).filter(move |&mask| fits(mask, within));
        let domains: Vec<usize> = self
            .graph
            .domains()
            .map(|(_, set)| mask(set) & free)
            .collect();
        let holds = domains.iter().any(|&domain| sets(domain).next().is_some());
        let inside = |set: usize| domains.iter().any(|domain| set & !domain == 0);
        let rule1 = holds && k > 1 && self.pattern != Pattern::None;
        sets(free)
            .filter(|&set| !rule1 || inside(set))
            .map(|set| self.rank(free, set))
            .min_by(|a, b| a.partial_cmp(b).unwrap())
    }

    /// The rank of one set.
    pub(crate) fn rank(&self, free: usize, set: usize) -> Rank {
        let (cost, total) = self.best[set].unwrap();
        let members: Vec<usize> = (0..self.graph.len())
            .filter(|gpu| set >> gpu & 1 == 1)
            .collect();
        let mut numa: Vec<_> = members
            .iter()
            .map(|&gpu| self.spec.gpus[gpu].numa_node)
            .collect();
        numa.sort_unstable();
        numa.dedup();
        if self.pattern == Pattern::None {
            numa.clear();
        }
        (
            cost,
            total,
            numa.len(),
            Reverse(self.remainder(free & !set)),
            members,
        )
    }

    /// Sizes of the NVLink-joined sets in `free`, largest first.
    fn remainder(&self, free: usize) -> Vec<usize> {
        let mut group: Vec<usize> = (0..self.graph.len()).collect();
        for edge in &self.spec.edges {
            let (a, b) = (edge.a as usize, edge.b as usize);
            if free >> a & free >> b & 1 == 1 {
                let (from, to) = (group[a], group[b]);
                group
                    .iter_mut()
                    .filter(|one| **one == from)
                    .for_each(|one| *one = to);
            }
        }
        let size = |one: usize| {
            (0..self.graph.len())
                .filter(|&gpu| free >> gpu & 1 == 1 && group[gpu] == one)
                .count()
        };
        let mut sizes: Vec<usize> = (0..self.graph.len()).map(size).filter(|&s| s > 0).collect();
        sizes.sort_unstable_by_key(|&size| Reverse(size));
        sizes
    }
}

/// A set as a bit mask of positions.
pub(crate) fn mask(set: GpuSet) -> usize {
    set.iter().fold(0, |mask, gpu| mask | 1 << gpu)
}

/// A bit mask of positions as a set.
pub(crate) fn set(mask: usize) -> GpuSet {
    (0..usize::BITS as usize)
        .filter(|gpu| mask >> gpu & 1 == 1)
        .collect()
}

fn permutations(items: &mut [usize], from: usize, each: &mut impl FnMut(&[usize])) {
    if from == items.len() {
        return each(items);
    }
    for at in from..items.len() {
        items.swap(from, at);
        permutations(items, from + 1, each);
        items.swap(from, at);
    }
}
