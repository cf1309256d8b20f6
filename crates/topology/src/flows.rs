//! Computes which resources the flows between the GPUs of a job use, and how busy they are.

use crate::{GpuSet, Graph, volumes::Volumes, weight::Capacity, weight::Weight};

/// The volume on each resource of a node, for the flows added so far.
///
/// The resources are: for each ordered pair of GPUs its own path (direct NVLinks in one
/// direction, or the bandwidth of one transfer over PCIe or a switch); a GPU's links to
/// the switches, out and in; and the links that PCIe paths share ([`crate::graph`]),
/// out and in. Flows that share no resource run in parallel.
pub(crate) struct Loads<'a> {
    graph: &'a Graph,
    job: GpuSet,
    /// The load of each pair, in [`PARTS`] of a volume; row-major, from and to.
    pairs: Vec<u64>,
    /// The load of each GPU's switch links, out and in.
    ports: Vec<[u64; 2]>,
    /// The load of each group's uplink, out and in.
    groups: Vec<[u64; 2]>,
    busy: Busy,
}

/// The cost of the flows in [`Loads`]. The caller saves it and restores it when it
/// removes flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Busy {
    /// The time of the busiest resource.
    pub(crate) busiest: Weight,
    /// The time of all transfers, one after the other.
    pub(crate) total: Weight,
    /// Whether some flow leaves NVLink.
    pub(crate) over_pcie: bool,
}

/// Parts per volume. Loads are counted in parts so that several equal paths can share a volume.
pub(crate) const PARTS: u64 = 60;

/// Returns how busy a resource is, in units for one byte of a flow.
pub(crate) fn busy(load: u64, weight: Weight) -> Weight {
    let busy = u128::from(load) * u128::from(weight) / u128::from(PARTS);
    // Even 128 GPUs that send the largest volumes over the slowest paths stay below the maximum.
    Weight::try_from(busy).unwrap_or(Weight::MAX)
}

/// Returns the largest load with which a resource is no busier than `limit`.
pub(crate) fn most(limit: Weight, weight: Weight) -> u64 {
    let parts = limit.saturating_add(1).checked_mul(PARTS);
    parts.map_or(u64::MAX, |parts| (parts - 1) / weight.max(1))
}

/// The cost of a flow apart from the load on resources.
struct Way {
    /// The weight of all hops, one after the other.
    hops: Weight,
    over_pcie: bool,
}

impl<'a> Loads<'a> {
    /// Returns the loads of the GPUs of `job` without flows.
    pub(crate) fn new(graph: &'a Graph, job: GpuSet) -> Self {
        let n = graph.len();
        Self {
            graph,
            job,
            pairs: vec![0; n * n],
            ports: vec![[0; 2]; n],
            groups: vec![[0; 2]; graph.groups().len()],
            busy: Busy::default(),
        }
    }

    /// Returns the loads of ranks placed on the GPUs `order`.
    pub(crate) fn of(graph: &'a Graph, order: &[usize], volumes: &Volumes) -> Self {
        let mut loads = Self::new(graph, order.iter().copied().collect());
        for (from, &a) in order.iter().enumerate() {
            for (&b, &volume) in order.iter().zip(volumes.row(from)) {
                if volume > 0 && a != b {
                    loads.add(a, b, volume);
                }
            }
        }
        loads
    }

    /// Adds a flow.
    pub(crate) fn add(&mut self, from: usize, to: usize, volume: u64) {
        let mut busiest = self.busy.busiest;
        let way = self.route(from, to, |load, capacity, parts| {
            *load += (volume * PARTS).div_ceil(parts);
            busiest = busiest.max(busy(*load, capacity));
        });
        self.busy.busiest = busiest;
        self.busy.total += volume * way.hops;
        self.busy.over_pcie |= way.over_pcie;
    }

    /// Removes a flow; `before` is the cost of the other flows.
    pub(crate) fn remove(&mut self, from: usize, to: usize, volume: u64, before: Busy) {
        self.route(from, to, |load, _, parts| {
            *load -= (volume * PARTS).div_ceil(parts)
        });
        self.busy = before;
    }

    /// Returns the cost of the flows so far.
    pub(crate) fn busy(&self) -> Busy {
        self.busy
    }

    /// Calls `each` with the load and the weight of every resource on the path of a flow,
    /// and with the number of paths that share the flow there.
    fn route(
        &mut self,
        from: usize,
        to: usize,
        mut each: impl FnMut(&mut u64, Weight, u64),
    ) -> Way {
        let graph = self.graph;
        let n = graph.len();
        let own = graph.weight(from, to);
        let mut way = Way {
            hops: own,
            over_pcie: false,
        };
        let relays = graph.relays(from, to, self.job);
        if let Some((relays, weight)) = relays {
            let parts = relays.len() as u64;
            for relay in relays.iter() {
                for (a, b) in [(from, relay), (relay, to)] {
                    each(&mut self.pairs[a * n + b], graph.weight(a, b), parts);
                }
            }
            // One transfer uses one of the paths.
            each(&mut self.pairs[from * n + to], weight, 1);
            way.hops = 2 * weight;
            return way;
        }
        each(&mut self.pairs[from * n + to], own, 1);
        if graph.direct(from).contains(to) {
            return way;
        }
        if !graph.neighbours(from).contains(to) {
            way.over_pcie = true;
            for (group, loads) in graph.groups().iter().zip(&mut self.groups) {
                let entered = group.members.contains(to);
                if group.members.contains(from) != entered {
                    each(&mut loads[usize::from(entered)], group.uplink.weight, 1);
                }
            }
        } else {
            for (gpu, direction) in [(from, 0), (to, 1)] {
                if let Some(port) = graph.port(gpu) {
                    each(&mut self.ports[gpu][direction], port.weight, 1);
                }
            }
        }
        way
    }

    /// Returns the capacity of one transfer between two GPUs.
    fn path(&self, from: usize, to: usize) -> Capacity {
        let graph = self.graph;
        let relay = graph
            .relays(from, to, self.job)
            .and_then(|(relays, _)| relays.iter().next());
        let slower = |relay: usize| {
            let hops = [(from, relay), (relay, to)].map(|(a, b)| graph.bytes_per_second(a, b));
            hops[0].min(hops[1])
        };
        Capacity::new(relay.map_or_else(|| graph.bytes_per_second(from, to), slower))
    }

    /// Returns the capacity of the busiest resource, bytes per second; among equally busy
    /// ones the smallest. `None` without flows.
    pub(crate) fn bottleneck(&self) -> Option<u64> {
        let graph = self.graph;
        let n = graph.len();
        let pairs = self
            .pairs
            .iter()
            .enumerate()
            .filter(|(_, load)| **load > 0)
            .map(|(at, &load)| (load, self.path(at / n, at % n)));
        let ports = self.ports.iter().enumerate().flat_map(|(gpu, loads)| {
            let port = graph.port(gpu);
            port.into_iter()
                .flat_map(move |port| loads.map(|load| (load, port)))
        });
        let groups = graph.groups().iter().zip(&self.groups);
        let groups = groups.flat_map(|(group, loads)| loads.map(|load| (load, group.uplink)));
        let used = pairs
            .chain(ports)
            .chain(groups)
            .filter(|(load, _)| *load > 0);
        let busiest =
            used.max_by_key(|(load, capacity)| (busy(*load, capacity.weight), capacity.weight));
        busiest.map(|(_, capacity)| capacity.bytes_per_second)
    }
}
