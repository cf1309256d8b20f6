//! The placement search, each case once.
//!
//! Nodes of equal graph and equal free GPUs are one case, which [`nvlink_topology::memo`]
//! remembers. Here are the partitions of a node, of which a pod gets one.

use std::sync::Arc;

use nvlink_topology::{
    BrokenGpus, GpuSet, Graph, Pattern, Scope,
    memo::{Memo, Question},
    multi_node::Harm,
};

pub(crate) use nvlink_topology::memo::Found;

/// The most results that are remembered.
const MOST_RESULTS: usize = 100_000;

/// What is asked of a node: the key of a search, besides the node's case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Ask {
    pub(crate) gpus: u32,
    pub(crate) pattern: Pattern,
    /// [`Scope::Gpu`], [`Scope::NvlinkDomain`] or [`Scope::Node`].
    pub(crate) scope: Scope,
    pub(crate) broken: BrokenGpus,
}

/// A node's graph and its GPUs that count.
#[derive(Clone, Debug)]
pub(crate) struct Case<'a> {
    pub(crate) graph: &'a Arc<Graph>,
    /// The number of the graph: equal graphs have equal numbers.
    pub(crate) number: u32,
    pub(crate) free: GpuSet,
    pub(crate) broken: GpuSet,
    /// The sets of which a pod must have exactly one, by their lowest GPUs; `None` for any GPUs.
    pub(crate) partitions: Option<&'a [GpuSet]>,
}

/// The results of searches.
#[derive(Debug)]
pub(crate) struct Search(Memo);

impl Default for Search {
    fn default() -> Self {
        Self(Memo::new(MOST_RESULTS))
    }
}

impl Search {
    /// Returns the best placement; `None` if there is none.
    pub(crate) fn find(&mut self, case: &Case<'_>, ask: Ask) -> Option<Arc<Found>> {
        let Some(partitions) = case.partitions else {
            return self.among(case, ask);
        };
        let fitting = partitions.iter().copied();
        let fitting =
            fitting.filter(|set| set.len() == ask.gpus as usize && case.free.is_superset(*set));
        let found = fitting.filter_map(|free| self.among(&Case { free, ..*case }, ask));
        let found: Vec<Arc<Found>> = found.collect();
        let best = found.iter().min_by(|a, b| {
            let faster = a
                .cost
                .total_cmp(&b.cost)
                .then(a.total_cost.total_cmp(&b.total_cost));
            let split = |one: &Found| larger(case.free, partitions, one.set);
            a.broken
                .cmp(&b.broken)
                .then(faster)
                .then_with(|| split(a).cmp(&split(b)))
        })?;
        Some(Arc::new(Found {
            breaks: Harm::breaks(case.graph, case.free, best.set),
            ..Found::clone(best)
        }))
    }

    /// Returns the best placement on any of the free GPUs; `None` if there is none.
    fn among(&mut self, case: &Case<'_>, ask: Ask) -> Option<Arc<Found>> {
        if ask.gpus as usize > case.free.len() {
            return None;
        }
        let question = Question {
            gpus: ask.gpus as usize,
            pattern: ask.pattern,
            scope: ask.scope,
            free: case.free,
            broken: case.broken,
            broken_gpus: ask.broken,
        };
        self.0.ask(case.graph, case.number, question).ok()
    }

    /// Forgets all results, because numbers of graphs will be given anew.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

/// Returns the number of larger partitions that are free and cease to be if `set` is taken.
fn larger(free: GpuSet, partitions: &[GpuSet], set: GpuSet) -> usize {
    let larger = partitions.iter().filter(|other| other.len() > set.len());
    let lost =
        larger.filter(|other| free.is_superset(**other) && !other.intersection(set).is_empty());
    lost.count()
}
