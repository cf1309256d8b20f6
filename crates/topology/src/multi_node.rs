//! Chooses nodes for a gang, and says which of several nodes spares the others.
//!
//! The rules are those of the search, one level up. A gang goes to nodes of one NVLink fabric, else
//! to one node, else to one rack, else to one zone, else anywhere, as far as its scope allows.
//! There it goes to the nodes of least cost, slow ones after the others, then to as few nodes as
//! possible, and among equals to the nodes where it does least harm: a node without NVSwitch before
//! one with it, a fragment before a whole domain, a fuller node before an emptier one.
//!
//! Pods are separate hosts, also on one node: NCCL connects ranks peer to peer only if their host
//! hash (host name and boot id) and their `/dev/shm` are the same, or if both are in one NVLink
//! fabric of several nodes (`ncclTopoCheckP2p` and `ncclTopoCheckMNNVL` in `src/graph/paths.cc`,
//! `getHostHash` in `src/misc/utils.cc`, NCCL 2.30). So pods of one gang reach each other over the
//! network cards near their GPUs, unless an administrator makes them one host ([`Gang::one_host`]).
//! Pods of one node that is in such a fabric reach each other through it, as those of its other
//! nodes do, unless NCCL may not use it ([`Gang::without_fabrics`]).

use std::collections::BTreeMap;

use crate::{
    Fabric, GpuSet, Graph, Interconnect, NoPlacement, Pattern, Placement, Request, Scope,
    search::place,
};

/// Usable bandwidth between nodes without a known RDMA device: 10 Gbit/s Ethernet at line
/// rate, bytes per second in one direction.
pub const ASSUMED_ETHERNET: u64 = 1_250_000_000;

/// How much slower than the fastest a placement may be that spares the faster node: it takes at
/// most this many times as long.
///
/// Two: an NVLink bridge of twelve links is two thirds as fast as the switches of an H100, and a
/// job of eight that finds these taken by pairs of GPUs waits, or communicates over PCIe, an order
/// of magnitude slower. A pair of a DGX-1 takes six times as long as such a bridge.
pub const AS_FAST: f64 = 2.0;

/// Reports whether a placement counts as one of the fastest, of which the one is chosen that does
/// least harm: it is at full speed ([`crate::Placement::is_at_full_speed`]), and takes at most
/// [`AS_FAST`] times as long as the fastest, whose cost is `least`.
#[must_use]
pub fn is_as_fast(at_full_speed: bool, cost: f64, least: f64) -> bool {
    at_full_speed && cost <= least * AS_FAST
}

/// A candidate node.
#[derive(Clone, Debug)]
pub struct Node<'a> {
    /// Its name; the last tie-break.
    pub name: &'a str,
    /// Its GPUs.
    pub graph: &'a Graph,
    /// The GPUs that the job may use.
    pub free: GpuSet,
    /// How its GPUs are connected.
    pub interconnect: Interconnect,
    /// The NVLink fabric that its GPUs are part of.
    pub fabric: Option<&'a Fabric>,
    /// Its rack; a node without a rack shares a rack with no other node.
    pub rack: Option<&'a str>,
    /// Its zone; a node without a zone shares a zone with no other node.
    pub zone: Option<&'a str>,
    /// The share of one GPU in the node's RDMA devices, bytes per second in one direction
    /// ([`crate::descriptor::Capacity::inter_node`]); if unknown, each pod has
    /// [`ASSUMED_ETHERNET`].
    pub network_bytes_per_second: Option<u64>,
    /// Its benchmarks measure below those of its siblings ([`crate::NodeTopologySpec::slow`]). The
    /// graph does not say so: its bandwidths are those of all siblings.
    pub slow: bool,
}

/// Pods that start together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gang {
    /// Number of pods.
    pub pods: usize,
    /// GPUs per pod.
    pub gpus: usize,
    /// The communication pattern over all pods.
    pub pattern: Pattern,
    /// How close the GPUs of each pod must be.
    pub pod: Scope,
    /// How far apart the pods may be.
    pub scope: Scope,
    /// Whether NCCL takes the pods of one node for one host, because they share what it compares.
    pub one_host: bool,
    /// Whether NCCL may not use NVLink between hosts (`NCCL_MNNVL_ENABLE=0`).
    pub without_fabrics: bool,
}

/// How much a placement on a node harms other jobs; less is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Harm {
    /// How the node's GPUs are connected: jobs that need NVSwitch have fewer nodes.
    pub interconnect: Interconnect,
    /// Whether it takes a part of a domain that was wholly free.
    pub breaks: bool,
    /// The number of GPUs of the node that are free before.
    pub free: usize,
}

impl Harm {
    /// Returns the harm of a job that gets the GPUs `held` of those that are `free`.
    #[must_use]
    pub fn of(graph: &Graph, interconnect: Interconnect, free: GpuSet, held: GpuSet) -> Self {
        Self {
            interconnect,
            breaks: Self::breaks(graph, free, held),
            free: free.len(),
        }
    }

    /// Reports whether such a job takes a part of a domain that was wholly free.
    #[must_use]
    pub fn breaks(graph: &Graph, free: GpuSet, held: GpuSet) -> bool {
        graph.domains().any(|(_, domain)| {
            let whole = free.is_superset(domain);
            whole && !domain.intersection(held).is_empty() && !held.is_superset(domain)
        })
    }
}

/// The placement of the pods of a gang.
#[derive(Clone, Debug, PartialEq)]
pub struct GangPlacement {
    /// Each pod's node and GPUs; pods of one node are adjacent.
    pub pods: Vec<(String, Placement)>,
    /// The scope that contains all pods.
    pub within: Scope,
    /// Expected time of the slowest GPU, seconds per byte of payload.
    pub cost: f64,
}

impl Node<'_> {
    fn request(&self, free: GpuSet, gpus: usize, pattern: Pattern, scope: Scope) -> Request {
        Request {
            gpus,
            free,
            required: GpuSet::EMPTY,
            pattern,
            scope,
        }
    }
}

impl Gang {
    /// Returns the time of the traffic between a pod on a node and the other pods: seconds per byte
    /// of payload, in the busier direction. `fabric`: all of them are in one fabric. `network` is
    /// that of [`Node::network_bytes_per_second`].
    ///
    /// Inside a fabric, all traffic of a GPU leaves through its links to the switches, also that to
    /// GPUs of its own pod. Elsewhere the pod's GPUs share the network cards that are near them.
    /// For a ring or chain the busiest pod is any, for a star that of the centre.
    #[must_use]
    pub fn between(&self, graph: &Graph, network: Option<u64>, fabric: bool) -> f64 {
        let fabric = fabric && !self.without_fabrics;
        let port = graph.fastest_port().filter(|_| fabric);
        #[allow(clippy::cast_precision_loss)] // far below 2^53
        let (n, k) = ((self.pods * self.gpus) as f64, self.gpus as f64);
        // The GPUs that share the way out.
        let inside = if port.is_some() { 1.0 } else { k };
        let bytes = match self.pattern {
            Pattern::None => 0.0,
            Pattern::AllReduce | Pattern::Shape(_) => 2.0 * (n - 1.0) / n,
            Pattern::AllToAll => inside * (n - inside) / n,
            Pattern::Pipeline => 1.0,
            Pattern::ParameterServer => n - inside,
        };
        let share = |share: u64| share.saturating_mul(self.gpus as u64);
        let rate = port.unwrap_or_else(|| network.map_or(ASSUMED_ETHERNET, share));
        #[allow(clippy::cast_precision_loss)] // far below 2^53
        let rate = rate.max(1) as f64;
        bytes / rate
    }
}

/// A node and the pods that fit on it, placed one after the other.
struct Fit<'a> {
    node: &'a Node<'a>,
    pods: Vec<Placement>,
    /// The cost of its slowest pod or of the traffic between pods, whichever is higher.
    cost: f64,
}

/// Finds nodes for a gang.
///
/// Within a set of nodes the result has the least cost, then slow nodes only where the others do
/// not suffice, and then the fewest nodes. The GPUs of the pods on one node are chosen pod by pod.
///
/// # Errors
/// The reason why there is no placement. For [`NoPlacement::Scope`], `most` counts the
/// GPUs of the pods that fit within one such scope.
pub fn place_gang(nodes: &[Node<'_>], gang: &Gang) -> Result<GangPlacement, NoPlacement> {
    let asked = gang.pods * gang.gpus;
    if asked == 0 {
        return Err(NoPlacement::NoGpus);
    }
    let mut most = 0;
    for within in levels(gang) {
        let mut best: Option<GangPlacement> = None;
        for group in groups(nodes, within) {
            let fits = fits(&group, gang, within);
            most = most.max(fits.iter().map(|fit| fit.pods.len() * gang.gpus).sum());
            let Some(found) = choose(fits, gang, within) else {
                continue;
            };
            let order = |one: &GangPlacement| (one.cost, uses_slow(nodes, one));
            if best
                .as_ref()
                .is_none_or(|least| order(&found) < order(least))
            {
                best = Some(found);
            }
        }
        if let Some(best) = best {
            return Ok(best);
        }
    }
    Err(NoPlacement::Scope {
        scope: gang.scope,
        asked,
        most,
    })
}

/// Reports whether a pod is on a slow node.
fn uses_slow(nodes: &[Node<'_>], placement: &GangPlacement) -> bool {
    let slow = |name: &str| nodes.iter().any(|node| node.slow && node.name == name);
    placement.pods.iter().any(|(name, _)| slow(name))
}

/// Returns the levels within which a gang may be, closest first.
fn levels(gang: &Gang) -> Vec<Scope> {
    if gang.pods == 1 {
        return vec![Scope::Node];
    }
    let closest = match gang.one_host {
        // One domain of one node; `fits` ensures the domain.
        true => [Scope::Node, Scope::NvlinkDomain],
        false => [Scope::NvlinkDomain, Scope::Node],
    };
    let levels = closest
        .into_iter()
        .chain([Scope::Rack, Scope::Zone, Scope::Cluster]);
    let allowed = |level: &Scope| match *level {
        Scope::Node => gang.scope >= Scope::Node || gang.one_host,
        Scope::NvlinkDomain => {
            !gang.without_fabrics && !matches!(gang.scope, Scope::Gpu | Scope::Node)
        }
        level => gang.scope >= level,
    };
    levels.filter(allowed).collect()
}

/// Groups the nodes that share a `within` (a fabric, a rack, a zone, or the node itself),
/// in the order of its name.
fn groups<'a>(nodes: &'a [Node<'a>], within: Scope) -> Vec<Vec<&'a Node<'a>>> {
    let mut groups: BTreeMap<String, Vec<&Node<'_>>> = BTreeMap::new();
    for node in nodes {
        let key = match within {
            Scope::NvlinkDomain => node.fabric.map(Fabric::id),
            Scope::Rack => node.rack.map(str::to_owned),
            Scope::Zone => node.zone.map(str::to_owned),
            Scope::Gpu | Scope::Node => Some(node.name.to_owned()),
            Scope::Cluster => Some(String::new()),
        };
        if let Some(key) = key {
            groups.entry(key).or_default().push(node);
        }
    }
    groups.into_values().collect()
}

/// Returns, for each node, as many of the gang's pods as it can hold.
fn fits<'a>(group: &[&'a Node<'a>], gang: &Gang, within: Scope) -> Vec<Fit<'a>> {
    let fit = |&node: &&'a Node<'a>| {
        if within == Scope::Node && gang.one_host {
            return as_one_job(node, gang);
        }
        let pods = pods_of(node, node.free, gang);
        let slowest = pods.iter().map(|pod| pod.cost).reduce(f64::max)?;
        let network = node.network_bytes_per_second;
        let fabric = match within {
            Scope::Node => node.fabric.is_some(),
            within => within == Scope::NvlinkDomain,
        };
        let between = match gang.pods {
            1 => 0.0,
            _ => gang.between(node.graph, network, fabric),
        };
        let cost = slowest.max(between);
        Some(Fit { node, pods, cost })
    };
    group.iter().filter_map(fit).collect()
}

/// Places all pods of a gang on one node as if they were one pod.
fn as_one_job<'a>(node: &'a Node<'a>, gang: &Gang) -> Option<Fit<'a>> {
    let scope = local(gang.pod.min(gang.scope));
    let all = node.request(node.free, gang.pods * gang.gpus, plain(gang.pattern), scope);
    let found = place(node.graph, &all).ok()?;
    let pods = pods_of(node, node.graph.set(&found.gpus).ok()?, gang);
    let cost = found.cost;
    (pods.len() == gang.pods).then_some(Fit { node, pods, cost })
}

/// Returns the scope on one node for a job of this scope.
#[must_use]
pub fn local(scope: Scope) -> Scope {
    match scope {
        Scope::Gpu | Scope::NvlinkDomain => scope,
        Scope::Node | Scope::Rack | Scope::Zone | Scope::Cluster => Scope::Node,
    }
}

/// Returns the pattern of one pod, or of all pods together. A shape applies only to the
/// whole gang.
#[must_use]
pub fn plain(pattern: Pattern) -> Pattern {
    match pattern {
        Pattern::Shape(_) => Pattern::AllReduce,
        pattern => pattern,
    }
}

/// Places pods of the gang on `free` GPUs of one node until no more fit.
fn pods_of(node: &Node<'_>, mut free: GpuSet, gang: &Gang) -> Vec<Placement> {
    let pattern = plain(gang.pattern);
    let mut pods = Vec::new();
    while pods.len() < gang.pods {
        let request = node.request(free, gang.gpus, pattern, local(gang.pod));
        let Ok(found) = place(node.graph, &request) else {
            break;
        };
        free = free.difference(node.graph.set(&found.gpus).unwrap_or(free));
        pods.push(found);
    }
    pods
}

/// Chooses the nodes of least cost that hold the gang, without slow ones if possible, then as few
/// nodes as possible.
fn choose(mut fits: Vec<Fit<'_>>, gang: &Gang, within: Scope) -> Option<GangPlacement> {
    let rank = |fit: &Fit<'_>| (fit.cost, fit.node.slow);
    let by_rank = |a: &Fit<'_>, b: &Fit<'_>| {
        let cost = a.cost.total_cmp(&b.cost);
        cost.then(a.node.slow.cmp(&b.node.slow))
    };
    fits.sort_by(|a, b| by_rank(a, b).then_with(|| a.node.name.cmp(b.node.name)));
    let mut held = 0;
    let enough = fits.iter().position(|fit| {
        held += fit.pods.len();
        held >= gang.pods
    })?;
    let limit = rank(&fits[enough]);
    fits.retain(|fit| rank(fit) <= limit);
    let harm = |fit: &Fit<'_>| fit.node.interconnect;
    fits.sort_by(|a, b| {
        let fullest = b.pods.len().cmp(&a.pods.len());
        let order = fullest.then_with(|| harm(a).cmp(&harm(b)));
        let free = order.then_with(|| a.node.free.len().cmp(&b.node.free.len()));
        free.then_with(|| a.node.name.cmp(b.node.name))
    });
    let mut pods = Vec::with_capacity(gang.pods);
    let mut cost: f64 = 0.0;
    while pods.len() < gang.pods {
        let missing = gang.pods - pods.len();
        // The last node is the one that the remaining pods fill best.
        let last = fits.iter().rposition(|fit| fit.pods.len() >= missing);
        let fit = match last {
            Some(at) => {
                let room = fits[at].pods.len();
                let first = fits
                    .iter()
                    .position(|fit| fit.pods.len() == room)
                    .unwrap_or(at);
                fits.remove(first)
            }
            None if fits.is_empty() => return None,
            None => fits.remove(0),
        };
        cost = cost.max(fit.cost);
        let here = fit.pods.into_iter().take(missing);
        pods.extend(here.map(|pod| (fit.node.name.to_owned(), pod)));
    }
    Some(GangPlacement { pods, within, cost })
}
