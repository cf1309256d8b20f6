//! Boards that the tests and benchmarks search.

use nvlink_topology::{
    Edge, Gpu, Graph, NodeTopologySpec, Path, PathClass, Source, SourceKind, Via, bandwidth,
};

/// Returns a node of `n` GPUs in `sockets` NUMA nodes, with the NVLink edges
/// `(a, b, links)` and with PCIe paths that depend on the sockets.
pub(crate) fn board(n: u32, sockets: u32, edges: &[(u32, u32, u32)]) -> NodeTopologySpec {
    let socket = |gpu: u32| gpu * sockets / n;
    let gpus = (0..n)
        .map(|index| Gpu {
            index,
            numa_node: Some(socket(index)),
            ..Gpu::default()
        })
        .collect();
    let edges = edges.iter().map(|&(a, b, links)| Edge {
        a: a.min(b),
        b: a.max(b),
        via: Via::Direct,
        links,
        bytes_per_second: bandwidth::assumed_nvlink(links),
    });
    let mut paths = Vec::new();
    for a in 0..n {
        for b in a + 1..n {
            let class = if socket(a) == socket(b) {
                PathClass::Node
            } else {
                PathClass::Sys
            };
            let bytes_per_second = bandwidth::assumed(class);
            paths.push(Path {
                a,
                b,
                class,
                bytes_per_second,
                assumed: true,
            });
        }
    }
    let source = Source {
        kind: SourceKind::File,
        from: String::new(),
    };
    let mut spec = NodeTopologySpec {
        edges: edges.collect(),
        paths,
        ..NodeTopologySpec::of(source, gpus)
    };
    spec.complete("node").unwrap();
    spec
}

/// Returns the hybrid cube mesh of a DGX-1 with V100: every GPU has six links.
pub(crate) fn dgx1v() -> NodeTopologySpec {
    let quad = [
        (0, 1, 1),
        (0, 2, 1),
        (0, 3, 2),
        (1, 2, 2),
        (1, 3, 1),
        (2, 3, 2),
    ];
    // The other quad is wired so that its spare links, 2 2 1 1, match those of the first.
    let other = [
        (4, 5, 1),
        (4, 6, 1),
        (4, 7, 2),
        (5, 6, 2),
        (5, 7, 1),
        (6, 7, 2),
    ];
    let across = [(0, 4, 2), (1, 5, 2), (2, 6, 1), (3, 7, 1)];
    board(8, 2, &[&quad[..], &other, &across].concat())
}

/// Returns a board of `n` GPUs on switches.
pub(crate) fn switched(n: u32, sockets: u32) -> NodeTopologySpec {
    let pairs = (0..n).flat_map(|a| (a + 1..n).map(move |b| (a, b, 18)));
    let mut spec = board(n, sockets, &pairs.collect::<Vec<_>>());
    spec.edges
        .iter_mut()
        .for_each(|edge| edge.via = Via::Switch);
    spec
}

/// Returns a board of `n` GPUs with bridges between pairs of neighbours.
pub(crate) fn pairs(n: u32, sockets: u32) -> NodeTopologySpec {
    let pairs = (0..n / 2).map(|pair| (2 * pair, 2 * pair + 1, 4));
    board(n, sockets, &pairs.collect::<Vec<_>>())
}

/// Returns the graph of a board.
pub(crate) fn graph(spec: &NodeTopologySpec) -> Graph {
    Graph::new(spec).unwrap()
}

/// Returns the same board with its GPUs renumbered: GPU `i` becomes `names[i]`.
pub(crate) fn renumbered(spec: &NodeTopologySpec, names: &[u32]) -> NodeTopologySpec {
    let mut spec = spec.clone();
    let name = |gpu: u32| names[gpu as usize];
    let pair = |a: u32, b: u32| (name(a).min(name(b)), name(a).max(name(b)));
    spec.gpus
        .iter_mut()
        .for_each(|gpu| gpu.index = name(gpu.index));
    spec.edges
        .iter_mut()
        .for_each(|edge| (edge.a, edge.b) = pair(edge.a, edge.b));
    spec.paths
        .iter_mut()
        .for_each(|path| (path.a, path.b) = pair(path.a, path.b));
    spec.domains.clear();
    spec.complete("node").unwrap();
    spec
}

/// Returns a node on which half of all pairs have an edge, directly or over switches, and each
/// pair has a bandwidth of its own, from a fixed pseudo-random sequence (Knuth's MMIX
/// multiplier).
pub(crate) fn disorder(gpus: u32) -> NodeTopologySpec {
    let mut state = 1_u64;
    let mut next = move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    let pairs = (0..gpus).flat_map(|a| (a + 1..gpus).map(move |b| (a, b)));
    let edges: Vec<_> = pairs
        .filter_map(|(a, b)| (next() % 2 == 0).then_some((a, b, 1)))
        .collect();
    let mut spec = board(gpus, 2, &edges);
    for edge in &mut spec.edges {
        edge.bytes_per_second = 1_000_000_000 + next() * 100;
        if next() % 2 == 0 {
            edge.via = Via::Switch;
        }
    }
    for path in &mut spec.paths {
        path.bytes_per_second = 1_000_000 + next() * 10;
    }
    spec
}
