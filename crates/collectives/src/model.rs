//! What the model expects of a collective.

use nvlink_topology::{
    GpuSet, Graph, Nic, NodeTopologySpec, Pattern, Request, Scope, Via, bandwidth::in_switch_gain,
};
use serde::{Deserialize, Serialize};

use super::{
    Collective,
    run::{Known, Origin},
};

/// Bus bandwidths that the model expects for large messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Expected {
    /// Where only the GPUs' links limit it: that of rings, bytes per second.
    pub bytes_per_second: u64,
    /// Where switches add up the data; absent where they cannot, or where it makes nothing faster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvls: Option<Nvls>,
}

/// An all-reduce that NVSwitches add up (NVLS, NVLink SHARP).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Nvls {
    /// The bus bandwidth with it.
    pub bytes_per_second: u64,
    /// Whether it is expected of this run, and by what.
    pub expected: Known<bool>,
}

impl Expected {
    /// Returns the bus bandwidth with which a run is compared.
    #[must_use]
    pub fn of_run(&self) -> u64 {
        let nvls = self.nvls.as_ref().filter(|nvls| nvls.expected.value);
        nvls.map_or(self.bytes_per_second, |nvls| nvls.bytes_per_second)
    }

    /// Returns how many times as fast as rings a run was because switches added up the data, by the
    /// model: 1 if they did not. What the output or the log says decides it, else what the run, of
    /// `measured` bytes per second, is nearer to. A flag says what should be, not what was.
    #[must_use]
    pub fn gain(&self, measured: u64) -> f64 {
        let Some(nvls) = &self.nvls else {
            return 1.0;
        };
        let (rings, with) = (self.bytes_per_second as f64, nvls.bytes_per_second as f64);
        let used = match nvls.expected.from {
            Origin::Output | Origin::Log => nvls.expected.value,
            // Ratios count, so the middle is the geometric mean.
            _ => measured as f64 > (rings * with).sqrt(),
        };
        if used { with / rings } else { 1.0 }
    }
}

/// The place of a run, as far as the model needs it.
#[derive(Clone, Copy, Debug)]
pub struct Site<'a> {
    /// A node on which it took place.
    pub node: &'a NodeTopologySpec,
    /// The indices of the GPUs of the node; `None` if it is not known which of them are used.
    pub used: Option<&'a [u32]>,
    /// Number of GPUs on all nodes.
    pub gpus: u32,
    /// Number of nodes.
    pub nodes: u32,
}

/// Returns the bus bandwidth that the model expects for large messages. `nvls` says whether the
/// switches add up the data, if anything does; else they are expected to where they can.
///
/// The expected bus bandwidth is the algorithm bandwidth, 1 over the cost of the pattern in
/// seconds per byte ([`nvlink_topology::cost`]), times the factor of the collective
/// ([`Collective::bus_factor`]). For everything that NCCL runs as a ring, that is the
/// capacity of the ring's busiest resource.
///
/// For an all-reduce over NVSwitches of Hopper and later, there is a second one ([`in_switch_gain`]):
/// the switches add up the data, so that each GPU sends little more than the payload once. An
/// all_gather or reduce_scatter gains nothing from it that its bus bandwidth shows: each GPU must
/// still receive, or send, what all others have, over its own links.
///
/// Over several nodes, a ring crosses the NICs of each node once in each direction: the
/// smaller of the ring inside a node and all its NICs together, unless the node's NVLink
/// domain spans nodes. NVLS gains nothing there: eight nodes of eight H100 on InfiniBand measure
/// 373 to 386 GB/s (CoreWeave's nccl-tests), what their rings reach.
///
/// Returns `None` where the model says nothing: one GPU, other collectives, several nodes
/// whose NICs have no known rate, and links that the source cannot see.
#[must_use]
pub fn expected(
    collective: Collective,
    site: Site<'_>,
    nvls: Option<&Known<bool>>,
) -> Option<Expected> {
    use Collective::{AllGather, AllReduce, AllToAll, Broadcast, Reduce, ReduceScatter};
    let Site { node, nodes, .. } = site;
    let here = site.here();
    if here < 2 || !node.knows_nvlink() {
        return None;
    }
    let graph = Graph::new(node).ok()?;
    let rings = match collective {
        AllReduce | AllGather | ReduceScatter | Broadcast | Reduce => {
            let ring = site.seconds_per_byte(&graph, Pattern::AllReduce)?;
            2.0 * (here as f64 - 1.0) / here as f64 / ring
        }
        AllToAll if nodes <= 1 => {
            let cost = site.seconds_per_byte(&graph, Pattern::AllToAll)?;
            collective.bus_factor(site.gpus) / cost
        }
        _ => return None,
    };
    if nodes > 1 && !site.is_fabric() {
        return Some(Expected {
            bytes_per_second: whole(rings).min(network(node)?),
            nvls: None,
        });
    }
    let gain = site.gain().filter(|_| collective == AllReduce);
    Some(Expected {
        bytes_per_second: whole(rings),
        nvls: gain.map(|gain| Nvls {
            bytes_per_second: whole(rings * gain),
            expected: nvls.cloned().unwrap_or(Known::new(true, Origin::Topology)),
        }),
    })
}

impl Site<'_> {
    /// Returns the number of GPUs on the node.
    fn here(&self) -> usize {
        self.gpus as usize / self.nodes.max(1) as usize
    }

    /// Reports whether the node's NVLink domain spans nodes.
    fn is_fabric(&self) -> bool {
        let spans = self.node.domains.iter().any(|one| one.fabric.is_some());
        spans && self.node.edges.iter().any(|edge| edge.via != Via::Direct)
    }

    /// Returns what the switches between all GPUs gain; `None` if they do not connect all GPUs that
    /// are used, if the GPUs' models differ, and if the switches cannot add up.
    fn gain(&self) -> Option<f64> {
        let domains = self.node.domains.iter().map(|domain| &*domain.gpus);
        let largest = || domains.max_by_key(|gpus| gpus.len());
        let used = self.used.or_else(largest)?;
        let has = |index: &u32| used.contains(index);
        let switched = self
            .node
            .edges
            .iter()
            .filter(|edge| edge.via != Via::Direct);
        let pairs = switched.filter(|edge| has(&edge.a) && has(&edge.b));
        if used.len() < self.here() || pairs.count() < used.len() * (used.len() - 1) / 2 {
            return None;
        }
        let gpus = self.node.gpus.iter().filter(|gpu| has(&gpu.index));
        let mut models = gpus.map(|gpu| gpu.model.as_deref());
        let model = models.next()??;
        let alike = models.all(|one| one == Some(model));
        in_switch_gain(model, self.gpus).filter(|_| alike)
    }

    /// Returns the cost of a pattern on the GPUs that are used, in their best order; on the best
    /// GPUs of the node if it is not known which are used.
    fn seconds_per_byte(&self, graph: &Graph, pattern: Pattern) -> Option<f64> {
        let used = match self.used {
            Some(used) => Some(graph.set(used).ok()?),
            None => None,
        };
        let request = Request {
            gpus: self.here(),
            free: used.unwrap_or(graph.all()),
            required: used.unwrap_or(GpuSet::EMPTY),
            pattern,
            scope: Scope::Node,
        };
        let placement = nvlink_topology::place(graph, &request).ok()?;
        (placement.cost > 0.0).then_some(placement.cost)
    }
}

/// Returns the rates of all NICs near GPUs together; `None` if one is not known.
fn network(node: &NodeTopologySpec) -> Option<u64> {
    let near = node.nics.iter().filter(|nic| !nic.gpus.is_empty());
    let rates: Option<Vec<u64>> = near.map(Nic::rate).collect();
    rates
        .filter(|rates| !rates.is_empty())
        .map(|rates| rates.iter().sum())
}

/// Rounds to MB/s: costs are whole numbers of small units of time, so the last digits of what
/// is computed from them mean nothing.
fn whole(bytes_per_second: f64) -> u64 {
    // The cast saturates.
    (bytes_per_second / 1e6).round() as u64 * 1_000_000
}

/// Returns `measured` over `reference`.
#[must_use]
pub fn ratio(measured: u64, reference: u64) -> f64 {
    measured as f64 / reference.max(1) as f64
}
