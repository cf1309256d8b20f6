//! Rates the GPUs that a job got.

use std::collections::HashMap;

use nvlink_planner::Class;
use nvlink_topology::{
    GpuSet, Pattern, Scope,
    multi_node::{Gang, place_gang, plain},
    search,
};

use crate::{
    clock::Started,
    cluster::{Cluster, Demand},
    scheduler::{Entry, Seat},
    summary::Ran,
};

/// Costs by what they depend on.
pub(crate) struct Ratings<'a> {
    cluster: &'a Cluster,
    /// Says what the pods of a job share, under every policy.
    class: &'a Class,
    /// Cost, and quality against the empty node, by the node's hardware.
    pods: HashMap<(usize, GpuSet, Pattern), (f64, f64)>,
    /// The least cost on the empty cluster.
    gangs: HashMap<(Demand, Pattern), f64>,
}

impl<'a> Ratings<'a> {
    pub(crate) fn new(cluster: &'a Cluster, class: &'a Class) -> Self {
        Self {
            cluster,
            class,
            pods: HashMap::new(),
            gangs: HashMap::new(),
        }
    }

    /// Returns what a job got.
    pub(crate) fn rate(&mut self, entry: &Entry<'_>, started: &Started) -> Ran {
        let job = entry.job;
        let seats = &started.seats;
        let (cost, quality) = self.cost(entry, seats);
        let could = job.communicates() && self.cluster.has_domain_of(job.gpus);
        Ran {
            time: job.time,
            start: started.at,
            duration: started.length,
            gpus: job.gpus,
            communicates: job.communicates(),
            communicated: 0.0,
            cost,
            quality,
            across_domains: could && !self.in_one_domain(seats),
        }
    }

    /// Returns the communication time of a job on these GPUs, seconds per byte of payload, and
    /// [`Ran::quality`]; 0 and 1 if it does not communicate.
    pub(crate) fn cost(&mut self, entry: &Entry<'_>, seats: &[Seat]) -> (f64, f64) {
        let Entry { job, demand } = entry;
        match *seats {
            _ if !job.communicates() => (0.0, 1.0),
            [seat] => self.pod(seat, job.pattern),
            _ => self.gang(*demand, job.pattern, seats),
        }
    }

    fn pod(&mut self, seat: Seat, pattern: Pattern) -> (f64, f64) {
        let graph = self.cluster.graph(seat.node);
        let key = (self.cluster.nodes[seat.node].kind, seat.gpus, pattern);
        *self.pods.entry(key).or_insert_with(|| {
            let rated = search::rate(graph, seat.gpus, seat.gpus, pattern);
            rated.map_or((0.0, 1.0), |rated| (rated.cost, rated.quality.node))
        })
    }

    fn gang(&mut self, demand: Demand, pattern: Pattern, seats: &[Seat]) -> (f64, f64) {
        let gang = Gang {
            pods: demand.pods as usize,
            gpus: demand.gpus as usize,
            pattern,
            pod: Scope::Node,
            scope: Scope::Cluster,
            one_host: self.class.one_host,
            without_fabrics: self.class.without_fabrics,
        };
        let fabric = self.fabric(seats);
        let mut cost: f64 = 0.0;
        for &seat in seats {
            let kind = &self.cluster.kinds[self.cluster.nodes[seat.node].kind];
            let (pod, _) = self.pod(seat, plain(pattern));
            let between = gang.between(&kind.graph, kind.network, fabric);
            cost = cost.max(pod).max(between);
        }
        let cluster = self.cluster;
        let best = *self.gangs.entry((demand, pattern)).or_insert_with(|| {
            place_gang(&cluster.candidates(), &gang).map_or(cost, |found| found.cost)
        });
        let quality = if cost > 0.0 { best / cost } else { 1.0 };
        (cost, quality.min(1.0))
    }

    /// Reports whether all nodes are in one NVLink fabric.
    fn fabric(&self, seats: &[Seat]) -> bool {
        let mut fabrics = seats
            .iter()
            .map(|seat| &self.cluster.nodes[seat.node].fabric);
        let first = fabrics.next().and_then(Option::as_ref);
        first.is_some() && fabrics.all(|fabric| fabric.as_ref() == first)
    }

    fn in_one_domain(&self, seats: &[Seat]) -> bool {
        match *seats {
            [seat] => {
                let mut domains = self.cluster.graph(seat.node).domains();
                domains.any(|(_, domain)| domain.is_superset(seat.gpus))
            }
            _ => self.fabric(seats),
        }
    }
}
