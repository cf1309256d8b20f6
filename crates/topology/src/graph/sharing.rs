//! The links that several PCIe paths of a node share.
//!
//! PCIe is a tree: a GPU's own link, the uplink of a PCIe switch, the link of a host
//! bridge into its socket, the links between sockets. All traffic that leaves such a
//! group of GPUs passes the group's one uplink. A document contains the classes of paths,
//! not switches, so the groups are derived from the classes: GPUs that are at most `PIX`
//! apart are on one switch, at most `PXB` on one tree of switches, at most `PHB` on one
//! host bridge, at most `NODE` on one socket (as are GPUs of one NUMA node).

use crate::{GpuSet, Graph, NodeTopologySpec, PathClass, weight::Capacity};

/// GPUs behind one uplink, which carries all PCIe traffic between them and other GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Group {
    pub(crate) members: GpuSet,
    /// The capacity of the fastest path that leaves the group; the uplink is at least as fast.
    pub(crate) uplink: Capacity,
}

/// Returns the groups of a node, each set of GPUs once.
pub(crate) fn groups(graph: &Graph, spec: &NodeTopologySpec) -> Vec<Group> {
    let pairs = pairs(graph, spec);
    let mut groups: Vec<Group> = Vec::new();
    if pairs.iter().all(|(.., apart)| apart.is_none()) {
        return groups;
    }
    let mut sockets = vec![None; graph.len()];
    for gpu in &spec.gpus {
        if let Some(position) = graph.position(gpu.index) {
            sockets[position] = gpu.numa_node;
        }
    }
    let each: Vec<GpuSet> = (0..graph.len()).map(one).collect();
    add(&mut groups, graph, &pairs, &each);
    for class in [
        PathClass::Pix,
        PathClass::Pxb,
        PathClass::Phb,
        PathClass::Node,
    ] {
        let mut joined = each.clone();
        for &(a, b, apart) in &pairs {
            let near = match apart {
                Some(apart) => apart <= class,
                None => {
                    class == PathClass::Node && sockets[a].is_some() && sockets[a] == sockets[b]
                }
            };
            if near {
                join(&mut joined, a, b);
            }
        }
        add(&mut groups, graph, &pairs, &joined);
    }
    groups
}

/// Two GPUs and the class of their PCIe path. A pair with an NVLink edge has a PCIe path
/// too, but the document does not give its class.
type Pair = (usize, usize, Option<PathClass>);

/// Returns all pairs of GPUs of the node.
fn pairs(graph: &Graph, spec: &NodeTopologySpec) -> Vec<Pair> {
    let n = graph.len();
    // A pair without a path in the document is assumed to be the farthest.
    let mut classes = vec![Some(PathClass::Sys); n * n];
    for (a, b) in (0..n).flat_map(|a| (a + 1..n).map(move |b| (a, b))) {
        if graph.neighbours(a).contains(b) {
            classes[a * n + b] = None;
        }
    }
    for path in &spec.paths {
        if let (Some(a), Some(b)) = (graph.position(path.a), graph.position(path.b)) {
            let class = &mut classes[a.min(b) * n + a.max(b)];
            if path.class != PathClass::Nvlink {
                *class = class.map(|_| path.class);
            }
        }
    }
    let pairs = (0..n).flat_map(|a| (a + 1..n).map(move |b| (a, b)));
    pairs.map(|(a, b)| (a, b, classes[a * n + b])).collect()
}

fn one(gpu: usize) -> GpuSet {
    [gpu].into_iter().collect()
}

/// Merges the sets of `a` and `b`.
fn join(sets: &mut [GpuSet], a: usize, b: usize) {
    if sets[a].contains(b) {
        return;
    }
    let both = sets[a].union(sets[b]);
    for member in both.iter() {
        sets[member] = both;
    }
}

/// Adds the sets that PCIe paths leave, unless a group with the same GPUs exists.
fn add(groups: &mut Vec<Group>, graph: &Graph, pairs: &[Pair], sets: &[GpuSet]) {
    for (gpu, &members) in sets.iter().enumerate() {
        let first = members.iter().next() == Some(gpu);
        if !first || groups.iter().any(|group| group.members == members) {
            continue;
        }
        let leaves =
            |(a, b, apart): &&Pair| apart.is_some() && members.contains(*a) != members.contains(*b);
        let leaving = pairs.iter().filter(leaves);
        let fastest = leaving.map(|&(a, b, _)| graph.bytes_per_second(a, b)).max();
        if let Some(fastest) = fastest {
            let uplink = Capacity::new(fastest);
            groups.push(Group { members, uplink });
        }
    }
}
