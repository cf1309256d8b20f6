//! What clusters without the queue do: kube-scheduler and a device plugin.

use std::{cmp::Ordering, collections::HashMap};

use fastrand::Rng;
use nvlink_planner::Millis;
use nvlink_topology::{
    BrokenGpus, GpuSet, Pattern, Scope,
    memo::{Memo, Question},
};

use crate::{
    cluster::{Cluster, Demand},
    scheduler::{Entry, Policy, Scheduler, Seat, Start},
    waiting::Waiting,
};

/// kube-scheduler's MaxNodeScore.
const MOST: usize = 100;
/// The most placements that are remembered.
const BEST: usize = 1 << 16;

/// kube-scheduler with one of its scoring strategies, and a device plugin.
pub(crate) struct Baseline<'a> {
    policy: Policy,
    cluster: &'a Cluster,
    entries: &'a [Entry<'a>],
    free: Vec<GpuSet>,
    held: HashMap<usize, Vec<Seat>>,
    waiting: Waiting,
    random: Rng,
    /// The best GPUs of each kind of hardware.
    best: Memo,
}

impl<'a> Baseline<'a> {
    pub(crate) fn new(
        policy: Policy,
        cluster: &'a Cluster,
        entries: &'a [Entry<'a>],
        seed: u64,
    ) -> Self {
        let nodes = 0..cluster.nodes();
        Self {
            policy,
            cluster,
            entries,
            free: nodes.map(|node| cluster.graph(node).all()).collect(),
            held: HashMap::new(),
            waiting: Waiting::default(),
            random: Rng::with_seed(seed),
            best: Memo::new(BEST),
        }
    }

    /// Finds GPUs for a job, pod by pod, and takes them; `None` if not all pods fit.
    fn fit(&mut self, entry: usize, demand: Demand) -> Option<Start> {
        let mut seats: Vec<Seat> = Vec::new();
        for _ in 0..demand.pods {
            let Some(node) = self.node(demand.gpus) else {
                self.give_back(&seats);
                return None;
            };
            let gpus = self.gpus(node, demand.gpus, self.entries[entry].job.pattern);
            self.free[node] = self.free[node].difference(gpus);
            seats.push(Seat { node, gpus });
        }
        self.held.insert(entry, seats.clone());
        Some(Start { entry, seats })
    }

    fn give_back(&mut self, seats: &[Seat]) {
        for seat in seats {
            self.free[seat.node] = self.free[seat.node].union(seat.gpus);
        }
    }

    /// Returns the node with the best score that has `gpus` free ones. Among equals
    /// kube-scheduler picks at random; `packed` and `aligned` pick the first.
    fn node(&mut self, gpus: u32) -> Option<usize> {
        let gpus = gpus as usize;
        let (mut best, mut score, mut equals) = (None, 0, 0);
        for node in 0..self.free.len() {
            let free = self.free[node].len();
            if free < gpus {
                continue;
            }
            let capacity = self.cluster.graph(node).len();
            let left = free - gpus;
            // As in least_allocated.go and most_allocated.go, with the GPUs as the resource.
            let own = match self.policy {
                Policy::Spread => left * MOST / capacity,
                _ => (capacity - left) * MOST / capacity,
            };
            match best.map_or(Ordering::Greater, |_| own.cmp(&score)) {
                Ordering::Greater => (best, score, equals) = (Some(node), own, 1),
                Ordering::Equal if self.policy == Policy::Spread => {
                    equals += 1;
                    if self.random.usize(..equals) == 0 {
                        best = Some(node);
                    }
                }
                _ => {}
            }
        }
        best
    }

    /// Returns the GPUs that the device plugin hands out.
    fn gpus(&mut self, node: usize, gpus: u32, pattern: Pattern) -> GpuSet {
        let free = self.free[node];
        let lowest = || free.iter().take(gpus as usize).collect();
        match self.policy {
            Policy::Spread => {
                let mut free: Vec<usize> = free.iter().collect();
                self.random.shuffle(&mut free);
                free.into_iter().take(gpus as usize).collect()
            }
            Policy::NvlinkDomains | Policy::Packed => lowest(),
            Policy::Aligned => {
                // A shape is one of all pods together.
                let pattern = match pattern {
                    Pattern::Shape(shape) if shape.gpus() != gpus as usize => Pattern::AllReduce,
                    pattern => pattern,
                };
                let graph = self.cluster.graph(node);
                let kind = u32::try_from(self.cluster.nodes[node].kind).unwrap_or(u32::MAX);
                let question = Question {
                    gpus: gpus as usize,
                    pattern,
                    scope: Scope::Node,
                    free,
                    broken: GpuSet::EMPTY,
                    broken_gpus: BrokenGpus::Ignore,
                };
                let found = self.best.ask(graph, kind, question);
                found.map_or_else(|_| lowest(), |found| found.set)
            }
        }
    }
}

impl Scheduler for Baseline<'_> {
    fn arrive(&mut self, entry: usize) {
        let Entry { job, demand } = &self.entries[entry];
        self.waiting.add(entry, job.priority, *demand);
    }

    fn end(&mut self, entry: usize, _: Millis) {
        let seats = self.held.remove(&entry).unwrap_or_default();
        self.give_back(&seats);
    }

    fn round(&mut self, _: Millis) -> Vec<Start> {
        let mut waiting = std::mem::take(&mut self.waiting);
        let starts = waiting.try_all(|entry, demand| self.fit(entry, demand));
        self.waiting = waiting;
        starts
    }
}
