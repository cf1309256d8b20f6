//! Kinds of jobs: jobs that ask the same of a node. They share an index over the nodes.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    sync::Arc,
};

use crate::{
    Millis, Name,
    cluster::Cluster,
    node_entry::Node,
    preference::Preference,
    profile::{Need, Profile, Starts},
    search::{Ask, Found, Search},
};

/// Costs that differ by less than this part are equal.
const SAME: f64 = 1e-9;

/// What all jobs of a kind ask of a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct JobSpec {
    /// The sets in which the node must be, sorted: the class and others.
    pub(crate) sets: Vec<Name>,
    pub(crate) ask: Ask,
    pub(crate) resources: Vec<u64>,
}

impl JobSpec {
    pub(crate) fn need(&self) -> Need<'_> {
        Need {
            gpus: self.ask.gpus,
            resources: &self.resources,
        }
    }

    /// Returns when a node can hold such a job, where, and how good that is.
    pub(crate) fn rate(
        &self,
        search: &mut Search,
        node: &Node,
        profile: &Profile,
        starts: Starts,
        bar: Bar,
    ) -> Option<(Preference, Arc<Found>)> {
        let ask = self.ask;
        let found = profile.earliest(self.need(), starts, |free| {
            let found = search.find(&node.case(free), ask)?;
            bar.admits(&found).then_some((free.len(), found))
        });
        found.map(|(start, (free, found))| {
            let key = Preference::new(node, start, free, &found, bar.least);
            (key, found)
        })
    }
}

/// What placements are compared with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bar {
    /// The least cost on the empty nodes.
    pub(crate) least: Option<f64>,
    /// Only placements of this cost count.
    pub(crate) best: bool,
}

impl Bar {
    fn admits(self, found: &Found) -> bool {
        let limit = self.least.unwrap_or(0.0) * (1.0 + SAME);
        !self.best || found.cost <= limit
    }
}

impl JobSpec {
    /// Reports whether a node could hold such a job now, other resources aside.
    fn lacks(&self, search: &mut Search, node: &Node) -> bool {
        if self.resources.iter().all(|&asked| asked == 0) {
            return false;
        }
        let gpus = Need {
            gpus: self.ask.gpus,
            resources: &[],
        };
        let free = node.profile.window(gpus, Millis::MIN, 0);
        free.is_some_and(|free| search.find(&node.case(free), self.ask).is_some())
    }
}

/// What the index knows of a node.
#[derive(Debug)]
struct Entry {
    /// `None` if it can hold no such job, or none so good, as far as is known.
    key: Option<Preference>,
    graph: u32,
    /// GPUs that are free now.
    free: u8,
    /// It could hold such a job now if it had more of other resources.
    lacks: bool,
}

/// The nodes for a kind of jobs, best first, as if nobody else waited.
#[derive(Debug, Default)]
pub(crate) struct Index {
    entries: HashMap<u32, Entry>,
    order: BTreeMap<Preference, u32>,
    /// The number of nodes by graph.
    graphs: BTreeMap<u32, u32>,
    /// The number of nodes by free GPUs.
    free: BTreeMap<u8, u32>,
    /// The number of nodes that only lack other resources.
    lacking: u32,
}

impl Index {
    /// Returns the keys and numbers of the nodes, best first.
    pub(crate) fn order(&self) -> &BTreeMap<Preference, u32> {
        &self.order
    }

    /// Returns the most GPUs that are free on one node.
    pub(crate) fn most_free(&self) -> u32 {
        self.free
            .last_key_value()
            .map_or(0, |(&free, _)| free.into())
    }

    /// Reports whether a node could hold such a job now if it had more of other resources.
    pub(crate) fn lacks(&self) -> bool {
        self.lacking > 0
    }

    fn remove(&mut self, number: u32) {
        let Some(entry) = self.entries.remove(&number) else {
            return;
        };
        if let Some(key) = entry.key {
            self.order.remove(&key);
        }
        less(&mut self.graphs, entry.graph);
        less(&mut self.free, entry.free);
        self.lacking -= u32::from(entry.lacks);
    }

    fn insert(&mut self, number: u32, entry: Entry) {
        if let Some(key) = &entry.key {
            self.order.insert(key.clone(), number);
        }
        *self.graphs.entry(entry.graph).or_default() += 1;
        *self.free.entry(entry.free).or_default() += 1;
        self.lacking += u32::from(entry.lacks);
        self.entries.insert(number, entry);
    }
}

fn less<K: Ord>(counts: &mut BTreeMap<K, u32>, key: K) {
    if let std::collections::btree_map::Entry::Occupied(mut count) = counts.entry(key) {
        *count.get_mut() -= 1;
        if *count.get() == 0 {
            count.remove();
        }
    }
}

/// A kind of jobs.
#[derive(Debug)]
pub(crate) struct Kind {
    pub(crate) spec: Arc<JobSpec>,
    jobs: u32,
    any: Option<Index>,
    /// Only placements of the least cost.
    best: Option<Index>,
    /// The least cost on the empty nodes, if `any` is built.
    least: Option<f64>,
    /// Not all nodes could be asked for the least cost.
    unsure: bool,
}

/// All kinds, by number.
#[derive(Debug, Default)]
pub(crate) struct Kinds {
    numbers: HashMap<JobSpec, u32>,
    kinds: Vec<Option<Kind>>,
    spare: Vec<u32>,
    /// Kinds without a job, oldest first.
    idle: VecDeque<u32>,
}

impl Kinds {
    /// The number of kinds without a job whose index is kept for the next job.
    const KEPT: usize = 16;

    /// Returns the number of the kind for one more job.
    pub(crate) fn join(&mut self, spec: JobSpec) -> u32 {
        if let Some(&number) = self.numbers.get(&spec) {
            if let Some(kind) = &mut self.kinds[number as usize] {
                kind.jobs += 1;
            }
            self.idle.retain(|&idle| idle != number);
            return number;
        }
        let number = self.spare.pop().unwrap_or_else(|| {
            self.kinds.push(None);
            // There are far fewer than 2^32 jobs.
            u32::try_from(self.kinds.len() - 1).unwrap_or(u32::MAX)
        });
        self.numbers.insert(spec.clone(), number);
        self.kinds[number as usize] = Some(Kind {
            spec: Arc::new(spec),
            jobs: 1,
            any: None,
            best: None,
            least: None,
            unsure: false,
        });
        number
    }

    /// Takes a job out of its kind.
    pub(crate) fn leave(&mut self, number: u32) {
        let Some(kind) = &mut self.kinds[number as usize] else {
            return;
        };
        kind.jobs -= 1;
        if kind.jobs > 0 {
            return;
        }
        self.idle.push_back(number);
        if self.idle.len() <= Self::KEPT {
            return;
        }
        let oldest = self.idle.pop_front();
        if let Some(kind) = oldest.and_then(|oldest| self.kinds[oldest as usize].take()) {
            self.numbers.remove(&*kind.spec);
            self.spare.extend(oldest);
        }
    }

    /// Returns a kind.
    pub(crate) fn get(&self, number: u32) -> Option<&Kind> {
        self.kinds[number as usize].as_ref()
    }

    /// Brings all indexes up to date with the nodes that changed.
    pub(crate) fn update(&mut self, cluster: &Cluster, search: &mut Search, changed: &[u32]) {
        for kind in self.kinds.iter_mut().flatten() {
            kind.update(cluster, search, changed);
        }
    }

    /// Returns the index of a kind; with `best`, only of placements of the least cost.
    pub(crate) fn index(
        &mut self,
        number: u32,
        best: bool,
        cluster: &Cluster,
        search: &mut Search,
    ) -> Option<&Index> {
        let kind = self.kinds[number as usize].as_mut()?;
        kind.build(best, cluster, search);
        if best {
            kind.best.as_ref()
        } else {
            kind.any.as_ref()
        }
    }

    /// Returns the least cost of such a job on an empty node; `None` if no node can hold it.
    pub(crate) fn least(
        &mut self,
        number: u32,
        cluster: &Cluster,
        search: &mut Search,
    ) -> Option<f64> {
        let kind = self.kinds[number as usize].as_mut()?;
        kind.build(false, cluster, search);
        kind.least
    }
}

impl Kind {
    fn build(&mut self, best: bool, cluster: &Cluster, search: &mut Search) {
        if self.any.is_none() {
            self.least = self.least_cost(cluster, search);
            self.unsure = search.is_open();
            self.any = Some(self.filled(false, cluster, search));
        }
        if best && self.best.is_none() {
            self.best = Some(self.filled(true, cluster, search));
        }
    }

    /// Returns an index of all nodes.
    fn filled(&self, best: bool, cluster: &Cluster, search: &mut Search) -> Index {
        let mut index = Index::default();
        for (number, node) in cluster.nodes() {
            self.enter(&mut index, number, node, search, best);
        }
        index
    }

    fn update(&mut self, cluster: &Cluster, search: &mut Search, changed: &[u32]) {
        let Some(mut any) = self.any.take() else {
            return;
        };
        let before: BTreeSet<u32> = any.graphs.keys().copied().collect();
        self.refill(&mut any, cluster, search, changed, false);
        if self.unsure || !before.iter().eq(any.graphs.keys()) {
            let least = self.least_cost(cluster, search);
            self.unsure = search.is_open();
            if least != self.least {
                // Which placements are as fast as any.
                self.least = least;
                any = self.filled(false, cluster, search);
            }
            self.best = None;
        }
        self.any = Some(any);
        if let Some(mut best) = self.best.take() {
            self.refill(&mut best, cluster, search, changed, true);
            self.best = Some(best);
        }
    }

    fn refill(
        &self,
        index: &mut Index,
        cluster: &Cluster,
        search: &mut Search,
        changed: &[u32],
        best: bool,
    ) {
        for &number in changed {
            index.remove(number);
            if let Some(node) = cluster.node(number) {
                self.enter(index, number, node, search, best);
            }
        }
    }

    /// Reports whether jobs of this kind may start on a node.
    fn may_use(&self, node: &Node) -> bool {
        node.is_ready() && node.is_in(&self.spec.sets)
    }

    fn enter(&self, index: &mut Index, number: u32, node: &Node, search: &mut Search, best: bool) {
        if !self.may_use(node) {
            return;
        }
        let (free, count) = node.profile.free(Millis::MIN);
        let free = u32::try_from(free.len()).unwrap_or(u32::MAX).min(count);
        let starts = Starts::from(Millis::MIN, 0);
        let bar = Bar {
            least: self.least,
            best,
        };
        let rated = self.spec.rate(search, node, &node.profile, starts, bar);
        let now = rated
            .as_ref()
            .is_some_and(|(key, _)| key.start == Millis::MIN);
        let entry = Entry {
            lacks: !now && !best && self.spec.lacks(search, node),
            key: rated.map(|(key, _)| key),
            graph: node.shared.number,
            free: u8::try_from(free).unwrap_or(u8::MAX),
        };
        index.insert(number, entry);
    }

    /// Returns the least cost over the graphs of the nodes, empty.
    fn least_cost(&self, cluster: &Cluster, search: &mut Search) -> Option<f64> {
        let mut seen = BTreeSet::new();
        let nodes = cluster.nodes().map(|(_, node)| node);
        let new = nodes.filter(|node| self.may_use(node) && seen.insert(node.shared.number));
        let costs = new.filter_map(|node| {
            let mut case = node.case(node.profile.all());
            case.broken = nvlink_topology::GpuSet::EMPTY;
            case.partitions = None;
            Some(search.find(&case, self.spec.ask)?.cost)
        });
        costs.min_by(f64::total_cmp)
    }
}

/// Which nodes could hold a job if they were empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Ever {
    /// Nodes that jobs may start on.
    Ready,
    /// Only with nodes that are silent.
    Silent,
    /// Only with nodes that are out.
    Out,
    /// None.
    No,
}

impl JobSpec {
    /// Reports whether such a job could ever run, on empty nodes.
    pub(crate) fn ever(&self, cluster: &Cluster, search: &mut Search) -> Ever {
        use crate::Availability;
        let mut ever = Ever::No;
        for (_, node) in cluster.nodes() {
            if !node.is_in(&self.sets) || !node.profile.holds_empty(self.need()) {
                continue;
            }
            let all = node.case(node.profile.all());
            let found = search.find(&all, self.ask).is_some();
            if !found && !search.is_open_for(node.shared.number) {
                continue;
            }
            match node.state.availability {
                Availability::Ready => return Ever::Ready,
                Availability::Silent => ever = ever.min(Ever::Silent),
                Availability::Out => ever = ever.min(Ever::Out),
            }
        }
        ever
    }
}
