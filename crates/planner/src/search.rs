//! The placement search, each case once.
//!
//! Nodes of equal graph and equal free GPUs are one case: its result is remembered.

use std::{collections::HashMap, sync::Arc};

use nvlink_topology::{
    BrokenGpus, GpuSet, Graph, Pattern, Request, Scope,
    multi_node::{Harm, is_as_fast},
    place, sparing,
};

/// The most results that are remembered. Beyond it all are forgotten, and found again
/// when needed.
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

/// A placement on one node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Found {
    /// GPU positions in rank order.
    pub(crate) order: Vec<u8>,
    pub(crate) set: GpuSet,
    /// Seconds per byte of payload.
    pub(crate) cost: f64,
    pub(crate) total_cost: f64,
    /// The number of broken GPUs.
    pub(crate) broken: u8,
    /// Whether it takes a part of a domain that was wholly free.
    pub(crate) breaks: bool,
    /// Whether it is as fast as any on the empty node
    /// ([`nvlink_topology::Placement::is_at_full_speed`]).
    pub(crate) full_speed: bool,
}

impl Found {
    /// Returns both placements as one: this one's GPUs come first.
    pub(crate) fn and(mut self, other: &Self) -> Self {
        self.order.extend(&other.order);
        Self {
            order: self.order,
            set: self.set.union(other.set),
            cost: self.cost.max(other.cost),
            total_cost: self.total_cost + other.total_cost,
            broken: self.broken.saturating_add(other.broken),
            breaks: self.breaks || other.breaks,
            full_speed: self.full_speed && other.full_speed,
        }
    }

    /// Reports whether it counts as one of the fastest ([`is_as_fast`]); `least` is the least cost
    /// of such a job on an empty node.
    pub(crate) fn is_as_fast(&self, least: Option<f64>) -> bool {
        least.is_some_and(|least| is_as_fast(self.full_speed, self.cost, least))
    }
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

#[derive(PartialEq, Eq, Hash)]
struct Key {
    graph: u32,
    ask: Ask,
    free: GpuSet,
    broken: GpuSet,
}

/// The results of searches.
#[derive(Default)]
pub(crate) struct Search {
    results: HashMap<Key, Option<Arc<Found>>>,
}

impl std::fmt::Debug for Search {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Search({} results)", self.results.len())
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
        let mut free = case.free;
        let mut broken = case.broken.intersection(free);
        match ask.broken {
            BrokenGpus::Avoid => free = free.difference(broken),
            BrokenGpus::Ignore => {}
            BrokenGpus::Last => {
                // Without a shortage of others, broken GPUs play no part.
                let spared = free.difference(broken);
                if !broken.is_empty() {
                    let without = self.cached(case, ask, spared, GpuSet::EMPTY);
                    if without.is_some() {
                        return without;
                    }
                    return self.cached(case, ask, free, broken);
                }
            }
        }
        broken = GpuSet::EMPTY;
        self.cached(case, ask, free, broken)
    }

    fn cached(
        &mut self,
        case: &Case<'_>,
        ask: Ask,
        free: GpuSet,
        broken: GpuSet,
    ) -> Option<Arc<Found>> {
        if (ask.gpus as usize) > free.len() {
            return None;
        }
        let key = Key {
            graph: case.number,
            ask,
            free,
            broken,
        };
        if let Some(known) = self.results.get(&key) {
            return known.clone();
        }
        if self.results.len() >= MOST_RESULTS {
            self.results.clear();
        }
        let found = found(case.graph, ask, free, broken).map(Arc::new);
        self.results.insert(key, found.clone());
        found
    }

    /// Forgets all results, because numbers of graphs will be given anew.
    pub(crate) fn clear(&mut self) {
        self.results.clear();
    }
}

/// Returns the number of larger partitions that are free and cease to be if `set` is taken.
fn larger(free: GpuSet, partitions: &[GpuSet], set: GpuSet) -> usize {
    let larger = partitions.iter().filter(|other| other.len() > set.len());
    let lost =
        larger.filter(|other| free.is_superset(**other) && !other.intersection(set).is_empty());
    lost.count()
}

fn found(graph: &Graph, ask: Ask, free: GpuSet, broken: GpuSet) -> Option<Found> {
    let request = Request {
        gpus: ask.gpus as usize,
        free,
        required: GpuSet::EMPTY,
        pattern: ask.pattern,
        scope: ask.scope,
    };
    let request = sparing(graph, &request, broken, ask.broken).ok()?;
    let placement = place(graph, &request).ok()?;
    let position = |&gpu: &u32| {
        let found = graph.all().iter().find(|&at| graph.index(at) == gpu)?;
        u8::try_from(found).ok()
    };
    let order: Vec<u8> = placement.gpus.iter().filter_map(position).collect();
    let set: GpuSet = order.iter().map(|&at| usize::from(at)).collect();
    Some(Found {
        order,
        set,
        cost: placement.cost,
        total_cost: placement.total_cost,
        broken: u8::try_from(broken.intersection(set).len()).unwrap_or(u8::MAX),
        breaks: Harm::breaks(graph, free, set),
        full_speed: placement.is_at_full_speed(),
    })
}
