//! Chooses nodes for a gang, and says which of several nodes spares the others.
//!
//! The rules are those of the search, one level up. A gang goes to one node if one can
//! hold it, else to nodes of one NVLink fabric, else to one rack, else to one zone, as
//! far as its scope allows. There it goes to the nodes of least cost, slow ones after the
//! others, then to as few nodes as possible, and among equals to the nodes where it does
//! least harm: a node without NVSwitch before one with it, a fragment before a whole
//! domain, a fuller node before an emptier one.

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
    /// Total bandwidth of its RDMA devices, bytes per second; [`ASSUMED_ETHERNET`] if unknown.
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
    /// How far apart the pods may be.
    pub scope: Scope,
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

/// Returns the bandwidth from a node to the others in `within`, bytes per second in one
/// direction: that of its fastest NVLink edge within a fabric, else of its network.
#[must_use]
pub fn outward(graph: &Graph, network_bytes_per_second: Option<u64>, within: Scope) -> u64 {
    let network = network_bytes_per_second.unwrap_or(ASSUMED_ETHERNET);
    if within != Scope::NvlinkDomain {
        return network;
    }
    let gpus = 0..graph.len();
    let pairs = gpus.clone().flat_map(|a| gpus.clone().map(move |b| (a, b)));
    let edges = pairs.filter(|&(a, b)| graph.neighbours(a).contains(b));
    let fastest = edges.map(|(a, b)| graph.bytes_per_second(a, b)).max();
    fastest.unwrap_or(network)
}

/// A node and the pods that fit on it, placed one after the other.
struct Fit<'a> {
    node: &'a Node<'a>,
    pods: Vec<Placement>,
    /// The cost of its slowest pod or of the traffic that leaves the node, whichever is higher.
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
    for within in [Scope::Node, Scope::NvlinkDomain, Scope::Rack, Scope::Zone] {
        if !allows(gang.scope, within, gang.pods) {
            continue;
        }
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

/// Reports whether a gang with this scope may spread over `within`.
fn allows(scope: Scope, within: Scope, pods: usize) -> bool {
    match within {
        Scope::Gpu => pods == 1,
        // One domain of one node is within one node; `fits` ensures the domain.
        Scope::Node => scope != Scope::Gpu || pods == 1,
        Scope::NvlinkDomain => matches!(scope, Scope::NvlinkDomain | Scope::Rack | Scope::Zone),
        Scope::Rack => scope >= Scope::Rack,
        Scope::Zone => scope >= Scope::Zone,
    }
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
        };
        if let Some(key) = key {
            groups.entry(key).or_default().push(node);
        }
    }
    groups.into_values().collect()
}

/// Returns, for each node, as many of the gang's pods as it can hold.
fn fits<'a>(group: &[&'a Node<'a>], gang: &Gang, within: Scope) -> Vec<Fit<'a>> {
    let alone = within == Scope::Node;
    let one_domain = gang.scope == Scope::NvlinkDomain;
    let fit = |&node: &&'a Node<'a>| {
        let pods = if alone && one_domain {
            // All pods of the gang must be in one domain: place them as one job first.
            let scope = Scope::NvlinkDomain;
            let pattern = plain(gang.pattern);
            let all = node.request(node.free, gang.pods * gang.gpus, pattern, scope);
            place(node.graph, &all).ok().map(|found| {
                let held = node.graph.set(&found.gpus).unwrap_or_default();
                pods_of(node, held, gang)
            })
        } else {
            Some(pods_of(node, node.free, gang))
        };
        let pods = pods.filter(|pods| !pods.is_empty())?;
        let slowest = pods.iter().map(|pod| pod.cost).fold(0.0, f64::max);
        #[allow(clippy::cast_precision_loss)] // far below 2^53
        let outward = outward(node.graph, node.network_bytes_per_second, within).max(1) as f64;
        let leaving = if alone { 0.0 } else { leaving(gang) / outward };
        Some(Fit {
            node,
            pods,
            cost: slowest.max(leaving),
        })
    };
    group.iter().filter_map(fit).collect()
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
    let scope = if gang.scope == Scope::NvlinkDomain {
        gang.scope
    } else {
        Scope::Node
    };
    let mut pods = Vec::new();
    while pods.len() < gang.pods {
        let request = node.request(free, gang.gpus, pattern, scope);
        let Ok(found) = place(node.graph, &request) else {
            break;
        };
        free = free.difference(node.graph.set(&found.gpus).unwrap_or(free));
        pods.push(found);
    }
    pods
}

/// Returns the most bytes that one GPU of a gang sends to other nodes for one byte of
/// payload. For a ring or chain this is a rank at the node's edge, for an all-to-all
/// every rank, for a star the centre.
#[must_use]
pub fn leaving(gang: &Gang) -> f64 {
    #[allow(clippy::cast_precision_loss)] // a gang is far below 2^53
    let (n, k) = ((gang.pods * gang.gpus) as f64, gang.gpus as f64);
    match gang.pattern {
        Pattern::None => 0.0,
        Pattern::AllReduce | Pattern::Shape(_) => 2.0 * (n - 1.0) / n,
        // The GPUs of a node share its network.
        Pattern::AllToAll => k * (n - k) / n,
        Pattern::Pipeline => 1.0,
        Pattern::ParameterServer => n - k,
    }
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
