//! The rules of the search by brute force. This module shares only the cost of one given
//! order with the search.

use std::cmp::Reverse;

use nvlink_topology::{GpuSet, Graph, NodeTopologySpec, Pattern, Shape, cost};

use super::rings;

/// The values that the rules compare, in the order of the rules.
pub(crate) type Rank = (f64, f64, usize, Reverse<Vec<usize>>, Vec<usize>);

/// Every set of up to 8 GPUs of one node with its least cost over all orders.
pub(crate) struct Brute<'a> {
    spec: &'a NodeTopologySpec,
    graph: Graph,
    pattern: Pattern,
    best: Vec<Option<(f64, f64)>>,
}

impl<'a> Brute<'a> {
    /// Tries all orders of all sets whose size `wanted` accepts.
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
            if pattern == Pattern::AllReduce {
                return Some(all_reduce(spec, &graph, &mut gpus));
            }
            Some(least(&mut gpus, |order| cost_of(&graph, order, pattern)))
        });
        Self {
            best: best.collect(),
            graph,
            spec,
            pattern,
        }
    }

    /// Returns the best rank of `k` GPUs of `free` that include `required`.
    pub(crate) fn best(&self, free: usize, required: usize, k: usize) -> Option<Rank> {
        self.best_but(free, required, k, 0)
    }

    /// Returns the best rank of the same sets without the set `but`.
    pub(crate) fn best_but(
        &self,
        free: usize,
        required: usize,
        k: usize,
        but: usize,
    ) -> Option<Rank> {
        let fits = |mask: usize, within: usize| {
            mask & !within == 0 && required & !mask == 0 && mask.count_ones() as usize == k
        };
        let sets = |within: usize| {
            let all = (0..self.best.len()).filter(move |&mask| mask != but);
            all.filter(move |&mask| fits(mask, within))
        };
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

    /// Returns the rank of one set.
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

    /// Returns the sizes of the NVLink-connected sets in `free`, largest first.
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

/// Returns the cost of rings over links if there are any, else of one ring over any paths.
fn all_reduce(spec: &NodeTopologySpec, graph: &Graph, gpus: &mut [usize]) -> (f64, f64) {
    // Brute-force packing takes too long for more than 6 GPUs.
    let counted = match gpus.len() {
        3..=6 => rings::most(spec, gpus).map(|(rate, relayed)| {
            let n = gpus.len() as f64;
            let cost = 2.0 * (n - 1.0) / n / rate as f64;
            (cost, if relayed { 2.0 * n } else { n } * cost)
        }),
        _ => None,
    };
    if let Some(counted) = counted {
        let known = cost_of(graph, gpus, Pattern::AllReduce);
        let close = |a: f64, b: f64| (a - b).abs() <= 1e-9 * b;
        assert!(
            close(known.0, counted.0) && close(known.1, counted.1),
            "{gpus:?}: {known:?}, {counted:?}"
        );
        return known;
    }
    if gpus.len() > 6 && rings::exist(spec, gpus) {
        return cost_of(graph, gpus, Pattern::AllReduce);
    }
    // A data-parallel shape is one ring with twice the volume, whatever the links.
    let data = u32::try_from(gpus.len()).unwrap();
    let one = Pattern::Shape(Shape {
        tensor: 1,
        data,
        pipeline: 1,
    });
    least(gpus, |order| {
        let (cost, total) = cost_of(graph, order, one);
        (cost / 2.0, total / 2.0)
    })
}

fn cost_of(graph: &Graph, order: &[usize], pattern: Pattern) -> (f64, f64) {
    let cost = cost::evaluate(graph, order, pattern);
    (cost.slowest, cost.total)
}

/// Returns the least cost over all orders.
fn least(gpus: &mut [usize], cost: impl Fn(&[usize]) -> (f64, f64)) -> (f64, f64) {
    let mut least = (f64::INFINITY, f64::INFINITY);
    permutations(gpus, 0, &mut |order| {
        let cost = cost(order);
        if cost < least {
            least = cost;
        }
    });
    least
}

/// Converts a set to a bit mask of positions.
pub(crate) fn mask(set: GpuSet) -> usize {
    set.iter().fold(0, |mask, gpu| mask | 1 << gpu)
}

/// Converts a bit mask of positions to a set.
pub(crate) fn set(mask: usize) -> GpuSet {
    (0..usize::BITS as usize)
        .filter(|gpu| mask >> gpu & 1 == 1)
        .collect()
}

pub(crate) fn permutations(items: &mut [usize], from: usize, each: &mut impl FnMut(&[usize])) {
    if from == items.len() {
        return each(items);
    }
    for at in from..items.len() {
        items.swap(from, at);
        permutations(items, from + 1, each);
        items.swap(from, at);
    }
}
