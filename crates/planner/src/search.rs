//! The placement search, each case once.
//!
//! Nodes of equal graph and equal free GPUs are one case, which [`nvlink_topology::memo`]
//! remembers. Here are the partitions of a node, of which a pod gets one.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use nvlink_topology::{
    BrokenGpus, GpuSet, Graph, Pattern, Scope,
    memo::{Look, Memo, Question},
    multi_node::Harm,
    search::Effort,
};

pub(crate) use nvlink_topology::memo::Found;

/// The most results that are remembered.
const MOST_RESULTS: usize = 100_000;

/// The steps ([`Effort`]) that the searches of one round may spend on the nodes of one graph, and
/// on all: a third of a second, and two seconds. The graphs of real machines need milliseconds.
const STEPS_PER_GRAPH: u64 = 300_000_000;
const STEPS: u64 = 2_000_000_000;
/// What each graph may spend, whatever the others have spent.
const STEPS_FOR_ANY: u64 = 20_000_000;

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
///
/// A graph whose searches have spent all that a round may spend on it has no further placements
/// in this round, except those that are known. The next round goes on from there.
#[derive(Debug)]
pub(crate) struct Search {
    memo: Memo,
    /// The steps of this round, and those of each graph.
    spent: u64,
    by_graph: HashMap<u32, u64>,
    /// The graphs of which something could not be asked in this round.
    open: BTreeSet<u32>,
}

impl Default for Search {
    fn default() -> Self {
        Self {
            memo: Memo::new(MOST_RESULTS),
            spent: 0,
            by_graph: HashMap::new(),
            open: BTreeSet::new(),
        }
    }
}

impl Search {
    /// Begins a round, and returns the graphs of which something could not be asked in the last
    /// one.
    pub(crate) fn begin(&mut self) -> BTreeSet<u32> {
        self.spent = 0;
        self.by_graph.clear();
        std::mem::take(&mut self.open)
    }

    /// Reports whether something could not be asked in this round.
    pub(crate) fn is_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Reports whether something could not be asked of a graph in this round.
    pub(crate) fn is_open_for(&self, number: u32) -> bool {
        self.open.contains(&number)
    }

    /// Reports whether the searches on a graph have spent what a round may spend.
    fn is_exhausted(&self, number: u32) -> bool {
        let spent = self.by_graph.get(&number).copied().unwrap_or(0);
        spent >= STEPS_PER_GRAPH || spent >= STEPS_FOR_ANY && self.spent >= STEPS
    }

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
        loop {
            let open = match self.memo.look(case.number, question) {
                Look::Known(answer) => return answer.ok(),
                Look::Open(open) => open,
            };
            if self.is_exhausted(case.number) {
                self.open.insert(case.number);
                return None;
            }
            let effort = Effort::default();
            let found = open.search_with(case.graph, &effort);
            self.spent = self.spent.saturating_add(effort.spent());
            *self.by_graph.entry(case.number).or_default() += effort.spent();
            self.memo.learn(case.number, open, found);
        }
    }

    /// Forgets all results, because numbers of graphs will be given anew.
    pub(crate) fn clear(&mut self) {
        self.memo.clear();
    }
}

/// Returns the number of larger partitions that are free and cease to be if `set` is taken.
fn larger(free: GpuSet, partitions: &[GpuSet], set: GpuSet) -> usize {
    let larger = partitions.iter().filter(|other| other.len() > set.len());
    let lost =
        larger.filter(|other| free.is_superset(**other) && !other.intersection(set).is_empty());
    lost.count()
}
