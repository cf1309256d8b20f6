//! Boards on which the hops of a ring share PCIe uplinks or direct links: a tour costs more
//! than its hops, each on its own.

use nvlink_topology::{
    NodeTopologySpec, PathClass, Pattern, Placement, Request, Shape, Via, next_best, place,
};
use proptest::prelude::*;

use super::{
    boards::{board, dgx1v, graph},
    brute::{self, Brute},
    request,
};

/// Where a GPU is in the tree of PCIe, from the root: socket, host bridge, switch.
type Place = [u32; 3];

/// GB/s between GPUs on one switch, on one host bridge, in one socket, between sockets.
const RATES: [u64; 4] = [25, 23, 22, 18];

/// Returns a board whose GPUs are at these places of the tree. A GPU's own link has half the
/// rate if its bit is set in `halved`. Bridges of four links join pairs of GPUs.
fn tree(places: &[Place], halved: u32, bridges: &[(u32, u32)]) -> NodeTopologySpec {
    let n = u32::try_from(places.len()).unwrap();
    let edges: Vec<_> = bridges.iter().map(|&(a, b)| (a, b, 4)).collect();
    let mut spec = board(n, 1, &edges);
    for (gpu, place) in spec.gpus.iter_mut().zip(places) {
        gpu.numa_node = Some(place[0]);
    }
    spec.paths.retain(|path| path.class != PathClass::Nvlink);
    for path in &mut spec.paths {
        let (a, b) = (places[path.a as usize], places[path.b as usize]);
        let same = a.iter().zip(b).take_while(|(a, b)| **a == *b).count();
        let half = halved >> path.a & 1 == 1 || halved >> path.b & 1 == 1;
        let (class, rate) = match same {
            3 => (PathClass::Pix, RATES[0]),
            2 => (PathClass::Phb, RATES[1]),
            1 => (PathClass::Node, RATES[2]),
            _ => (PathClass::Sys, RATES[3]),
        };
        path.class = class;
        path.bytes_per_second = 1_000_000_000 * if half { 12 } else { rate };
    }
    spec.complete("node").unwrap();
    spec
}

/// Generates such boards of 5 to 7 GPUs, each in at most one bridge.
fn trees() -> impl Strategy<Value = NodeTopologySpec> {
    (5u32..=7).prop_flat_map(|n| {
        let gpus = n as usize;
        let places = prop::collection::vec([0u32..2, 0u32..2, 0u32..2], gpus);
        let order = Just((0..n).collect::<Vec<_>>()).prop_shuffle();
        let halved = prop_oneof![Just(0), 0u32..1 << n];
        (places, halved, order, 0..=gpus / 2).prop_map(|(places, halved, order, pairs)| {
            let pairs = order.chunks_exact(2).take(pairs);
            let bridges: Vec<_> = pairs.map(|pair| (pair[0], pair[1])).collect();
            tree(&places, halved, &bridges)
        })
    })
}

/// Generates boards whose paths have any class and rate, whatever the tree.
fn unruly() -> impl Strategy<Value = NodeTopologySpec> {
    let paths = prop::collection::vec(0usize..4, 21);
    (paths, any::<bool>()).prop_map(|(paths, bridged)| {
        let edges: &[(u32, u32, u32)] = if bridged {
            &[(0, 4, 4), (1, 3, 4)]
        } else {
            &[]
        };
        let mut spec = board(7, 2, edges);
        let classes = [
            PathClass::Pix,
            PathClass::Phb,
            PathClass::Node,
            PathClass::Sys,
        ];
        for (path, kind) in spec.paths.iter_mut().zip(paths) {
            if path.class != PathClass::Nvlink {
                path.class = classes[kind];
                path.bytes_per_second = 1_000_000_000 * RATES[kind];
            }
        }
        spec.complete("node").unwrap();
        spec
    })
}

/// Returns a board of `bridges` four-way bridges of H200 NVL cards: each two of a bridge
/// have six links. Pairs of neighbours are on one PCIe switch, and half of the cards in each
/// socket.
fn bridges_of_four(bridges: u32) -> NodeTopologySpec {
    let n = 4 * bridges;
    let links = |bridge: u32| {
        let gpus = 4 * bridge..4 * bridge + 4;
        gpus.clone()
            .flat_map(move |a| (a + 1..gpus.end).map(move |b| (a, b, 6)))
    };
    let mut spec = board(n, 2, &(0..bridges).flat_map(links).collect::<Vec<_>>());
    for path in &mut spec.paths {
        (path.class, path.bytes_per_second) = match path.class {
            PathClass::Nvlink => continue,
            PathClass::Node if path.a / 2 == path.b / 2 => (PathClass::Pix, 50_000_000_000),
            PathClass::Node => (PathClass::Node, 40_000_000_000),
            class => (class, 25_000_000_000),
        };
    }
    spec.complete("node").unwrap();
    spec
}

/// Asserts that a placement inside a domain, or outside of all, is no worse than the next best
/// one there.
fn assert_next_best_is_no_better(
    spec: &NodeTopologySpec,
    request: &Request,
    found: &Placement,
) -> Result<(), TestCaseError> {
    let graph = graph(spec);
    let inside = |gpus: &[u32]| {
        let set = graph.set(gpus).unwrap();
        graph.domains().any(|(_, domain)| domain.is_superset(set))
    };
    let Some(next) = next_best(&graph, request, found) else {
        return Ok(());
    };
    if inside(&next.gpus) == inside(&found.gpus) {
        let (one, other) = ((found.cost, found.total_cost), (next.cost, next.total_cost));
        prop_assert!(one <= other, "{:?} is worse than {:?}", found, next);
    }
    Ok(())
}

/// Asserts that the placement of `request` is the best of all sets and orders if it says so,
/// and no worse than the next best one in any case. Returns it.
fn assert_best(
    spec: &NodeTopologySpec,
    brute: &Brute<'_>,
    request: &Request,
) -> Result<Placement, TestCaseError> {
    let found = place(&graph(spec), request).unwrap();
    if found.exact {
        let (free, required) = (brute::mask(request.free), brute::mask(request.required));
        let best = brute.best(free, required, request.gpus).unwrap();
        let cost = (found.cost, found.total_cost);
        prop_assert_eq!(cost, (best.0, best.1), "{:?}", request);
    }
    assert_next_best_is_no_better(spec, request, &found)?;
    Ok(found)
}

proptest! {
    #![proptest_config(crate::cases(150))]

    #[test]
    fn a_tour_over_shared_uplinks_is_the_best_of_all_sets_and_orders(
        spec in prop_oneof![trees(), unruly()],
        fewer in 0usize..3,
        pattern in prop::sample::select(vec![Pattern::AllReduce, Pattern::Pipeline]),
    ) {
        let n = spec.gpus.len();
        let k = n - fewer.max(n.saturating_sub(6));
        let brute = Brute::new(&spec, pattern, |size| size == k);
        let request = request(k, graph(&spec).all(), pattern);
        let found = assert_best(&spec, &brute, &request)?;
        prop_assert!(found.exact, "8 GPUs are few");
    }

    #[test]
    fn a_star_over_shared_relays_is_the_best_of_all_sets_and_centres(
        (spec, free, required, k) in prop_oneof![Just(dgx1v()), super::random::boards()]
            .prop_flat_map(|spec| {
                let n = spec.gpus.len();
                let down = prop::collection::vec(0u32..3, spec.edges.len());
                (Just(spec), down, 1usize..1 << n, 0usize..1 << n, 3..=n.clamp(3, 6))
            })
            .prop_map(|(spec, down, free, required, k)| (links_down(spec, &down), free, required, k))
    ) {
        let required = required & free;
        prop_assume!(k <= free.count_ones() as usize && required.count_ones() as usize <= k);
        let brute = Brute::new(&spec, Pattern::ParameterServer, |size| size == k);
        let request = Request {
            required: brute::set(required),
            ..request(k, brute::set(free), Pattern::ParameterServer)
        };
        let found = assert_best(&spec, &brute, &request)?;
        prop_assert!(found.exact);
    }
}

/// Returns the board without `down` links of each edge; the last link of an edge stays.
fn links_down(mut spec: NodeTopologySpec, down: &[u32]) -> NodeTopologySpec {
    for (edge, down) in spec.edges.iter_mut().zip(down) {
        assert_eq!(edge.via, Via::Direct);
        let one = edge.bytes_per_second / u64::from(edge.links);
        edge.links = edge.links.saturating_sub(*down).max(1);
        edge.bytes_per_second = one * u64::from(edge.links);
    }
    spec.complete("node").unwrap();
    spec
}

/// Generates boards of 10 to 20 GPUs, with 0 to 3 NVLinks for each pair.
fn larger() -> impl Strategy<Value = NodeTopologySpec> {
    (10u32..=20).prop_flat_map(|n| {
        let pairs = (n * (n - 1) / 2) as usize;
        let links = prop::collection::vec(prop_oneof![3 => Just(0u32), 1 => 1u32..4], pairs);
        links.prop_map(move |links| {
            let pairs = (0..n).flat_map(|a| (a + 1..n).map(move |b| (a, b)));
            let edges = pairs.zip(links).filter(|(_, links)| *links > 0);
            let edges: Vec<_> = edges.map(|((a, b), links)| (a, b, links)).collect();
            board(n, 2, &edges)
        })
    })
}

proptest! {
    #![proptest_config(crate::cases(24))]

    #[test]
    fn a_placement_on_a_larger_board_is_no_worse_than_the_next_best(
        spec in larger(),
        fewer in 1usize..5,
        pattern in prop::sample::select(vec![
            Pattern::AllReduce,
            Pattern::Pipeline,
            Pattern::Shape(Shape { tensor: 2, data: 2, pipeline: 2 }),
        ]),
    ) {
        let k = match pattern {
            Pattern::Shape(shape) => shape.gpus(),
            _ => spec.gpus.len() - fewer,
        };
        let request = request(k, graph(&spec).all(), pattern);
        let found = place(&graph(&spec), &request).unwrap();
        assert_next_best_is_no_better(&spec, &request, &found)?;
    }
}

/// Returns the placement of an all-reduce over `k` GPUs, after it was compared with brute force.
fn all_reduce(spec: &NodeTopologySpec, k: usize) -> Placement {
    let brute = Brute::new(spec, Pattern::AllReduce, |size| size == k);
    let request = request(k, graph(spec).all(), Pattern::AllReduce);
    assert_best(spec, &brute, &request).unwrap()
}

#[test]
fn two_switches_and_a_card_between_them_are_exact() {
    // Cards 0 to 2 and 4 to 6 are on switches. Card 0 has faster paths to the far switch than
    // its neighbours have, so the switches' uplinks are faster than most paths that use them.
    let mut spec = board(7, 2, &[(0, 4, 4), (1, 3, 4)]);
    for path in &mut spec.paths {
        let switch = |gpu: u32| gpu / 4 * 4 + gpu % 4 / 3 * 3;
        let near = [(0, 3), (0, 5), (0, 6), (1, 4), (2, 3), (2, 4)];
        (path.class, path.bytes_per_second) = match (path.a, path.b) {
            _ if path.class == PathClass::Nvlink => continue,
            (a, b) if switch(a) == switch(b) => (PathClass::Pix, 25_000_000_000),
            pair if near.contains(&pair) => (PathClass::Node, 22_000_000_000),
            _ => (PathClass::Sys, 18_000_000_000),
        };
    }
    spec.complete("node").unwrap();
    assert!(all_reduce(&spec, 6).exact);
}

#[test]
fn a_star_counts_the_slower_hop_of_a_transfer_that_two_relays_share() {
    // Two relays join 0 and 3, over two links from 0 and over one to 3.
    let mut spec = board(
        6,
        1,
        &[(0, 1, 4), (0, 2, 4), (1, 3, 1), (2, 3, 1), (0, 4, 4)],
    );
    spec.complete("node").unwrap();
    let pattern = Pattern::ParameterServer;
    for free in 0usize..1 << 6 {
        for k in 3..=free.count_ones() as usize {
            let brute = Brute::new(&spec, pattern, |size| size == k);
            let request = request(k, brute::set(free), pattern);
            assert!(assert_best(&spec, &brute, &request).unwrap().exact);
        }
    }
}

#[test]
fn boards_with_bridges_of_four_are_exact() {
    for bridges in [3, 4] {
        let spec = bridges_of_four(bridges);
        for pattern in [Pattern::AllReduce, Pattern::Pipeline] {
            for k in 2..=4 * bridges as usize {
                let request = request(k, graph(&spec).all(), pattern);
                let found = place(&graph(&spec), &request).unwrap();
                assert!(found.exact, "{pattern}, {k}: {found:?}");
                assert_next_best_is_no_better(&spec, &request, &found).unwrap();
            }
        }
    }
    // The ring leaves the middle bridge in both sockets, and so never crosses between them
    // over PCIe.
    let spec = bridges_of_four(3);
    let ten = request(10, graph(&spec).all(), Pattern::AllReduce);
    let found = place(&graph(&spec), &ten).unwrap();
    assert_eq!(found.bottleneck_bytes_per_second, Some(40_000_000_000));
}
