//! The search against brute force, through its public entry.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod boards;
mod brute;
mod multi_node;
mod rings;

use boards::{board, dgx1v, graph, pairs, renumbered, switched};
use brute::Brute;
use nvlink_topology::{
    GpuSet, Graph, NoPlacement, NodeTopologySpec, PathClass, Pattern, Request, Scope, Shape,
    bandwidth, cost, place, search,
};
use proptest::prelude::*;

const PATTERNS: [Pattern; 5] = [
    Pattern::AllReduce,
    Pattern::AllToAll,
    Pattern::Pipeline,
    Pattern::ParameterServer,
    Pattern::None,
];

fn request(gpus: usize, free: GpuSet, pattern: Pattern) -> Request {
    Request {
        gpus,
        free,
        required: GpuSet::EMPTY,
        pattern,
        scope: Scope::Node,
    }
}

/// Shapes that need exactly `k` GPUs.
fn shapes(k: u32) -> Vec<Pattern> {
    let mut shapes = Vec::new();
    for tensor in 1..=k {
        for data in 1..=k {
            for pipeline in 1..=k {
                if tensor * data * pipeline == k {
                    shapes.push(Pattern::Shape(Shape {
                        tensor,
                        data,
                        pipeline,
                    }));
                }
            }
        }
    }
    shapes
}

/// Holds one answer against brute force by every rule; returns it.
fn assert_best(
    brute: &Brute<'_>,
    graph: &Graph,
    request: &Request,
) -> Result<search::Placement, TestCaseError> {
    let found = place(graph, request).unwrap();
    let (free, required) = (brute::mask(request.free), brute::mask(request.required));
    let best = brute.best(free, required, request.gpus).unwrap();
    let gpus = graph.set(&found.gpus).unwrap();
    prop_assert_eq!(gpus.len(), request.gpus, "each GPU once");
    if !found.exact {
        // Of rings through neighbours on 7 or 8 GPUs the most may stay unproven.
        prop_assert!(request.gpus > 6 && request.pattern == Pattern::AllReduce);
        return Ok(found);
    }
    prop_assert_eq!(
        (found.cost, found.total_cost),
        (best.0, best.1),
        "{:?}",
        request
    );
    prop_assert_eq!(brute.rank(free, brute::mask(gpus)), best, "{:?}", request);
    let order: Vec<usize> = found
        .gpus
        .iter()
        .map(|&gpu| graph.set(&[gpu]).unwrap().iter().next().unwrap())
        .collect();
    let again = cost::evaluate(graph, &order, request.pattern);
    prop_assert_eq!(
        (again.slowest, again.total),
        (found.cost, found.total_cost),
        "its own order"
    );
    Ok(found)
}

fn assert_all_states(spec: &NodeTopologySpec) {
    let graph = graph(spec);
    for pattern in PATTERNS {
        let brute = Brute::new(spec, pattern, |_| true);
        for free in 1..1usize << graph.len() {
            for k in 1..=free.count_ones() as usize {
                let request = request(k, brute::set(free), pattern);
                assert_best(&brute, &graph, &request).unwrap();
            }
        }
    }
}

#[test]
fn every_free_state_of_a_cube_mesh_is_exact() {
    assert_all_states(&dgx1v());
}

#[test]
fn every_free_state_of_bridged_pairs_is_exact() {
    assert_all_states(&pairs(8, 2));
    // The bridge may join GPUs of different sockets.
    assert_all_states(&board(6, 2, &[(0, 3, 12), (1, 4, 12), (2, 5, 12)]));
}

#[test]
fn every_free_state_of_a_switch_board_is_exact() {
    assert_all_states(&switched(8, 2));
}

#[test]
fn shapes_are_exact_on_a_cube_mesh() {
    let spec = dgx1v();
    let graph = graph(&spec);
    for k in [2, 4, 6, 8] {
        for pattern in shapes(k) {
            let brute = Brute::new(&spec, pattern, |size| size == k as usize);
            for free in [0xff, 0xf7, 0x7e, 0xb7] {
                let free = brute::set(free);
                if free.len() >= k as usize {
                    assert_best(&brute, &graph, &request(k as usize, free, pattern)).unwrap();
                }
            }
        }
    }
}

/// Where the free GPUs of a cube mesh have a ring of NVLinks, the placement is one.
#[test]
fn an_nvlink_ring_is_found_wherever_there_is_one() {
    let spec = dgx1v();
    let graph = graph(&spec);
    let edge = |a: u32, b: u32| {
        spec.edges
            .iter()
            .any(|e| (e.a, e.b) == (a.min(b), a.max(b)))
    };
    let ring =
        |order: &[u32]| (0..order.len()).all(|at| edge(order[at], order[(at + 1) % order.len()]));
    let mut rings = 0;
    for free in 1usize..256 {
        let gpus: Vec<u32> = (0..8).filter(|gpu| free >> gpu & 1 == 1).collect();
        for k in 2..=gpus.len() {
            let found = place(&graph, &request(k, brute::set(free), Pattern::AllReduce)).unwrap();
            let exists = any_order(&gpus, k, &mut Vec::new(), &ring);
            assert_eq!(
                ring(&found.gpus),
                exists,
                "free {gpus:?}, k = {k}: {:?}",
                found.gpus
            );
            rings += usize::from(exists);
        }
    }
    assert!(
        rings > 300,
        "the mesh has rings in most states, not {rings}"
    );
}

fn any_order(from: &[u32], k: usize, order: &mut Vec<u32>, good: &impl Fn(&[u32]) -> bool) -> bool {
    if order.len() == k {
        return good(order);
    }
    from.iter().any(|&gpu| {
        if order.contains(&gpu) {
            return false;
        }
        order.push(gpu);
        let found = any_order(from, k, order, good);
        order.pop();
        found
    })
}

#[test]
fn quality_is_best_cost_over_actual_cost() {
    let spec = dgx1v();
    let graph = graph(&spec);
    // 0 and 5 are joined by SYS alone; a double link is the best that this node has.
    let found = place(
        &graph,
        &request(2, graph.set(&[0, 5]).unwrap(), Pattern::AllReduce),
    )
    .unwrap();
    let sys = bandwidth::assumed(PathClass::Sys);
    assert_eq!(found.bottleneck_bytes_per_second, Some(sys));
    let sys = 12e9;
    assert!(
        (found.quality.node - sys / 40e9).abs() < 1e-6,
        "{:?}",
        found.quality
    );
    assert_eq!(found.quality.free, 1.0, "nothing better was free");
    // Held by a job while 0 and 3, doubly linked, were free too.
    let free = graph.set(&[0, 3, 5]).unwrap();
    let held = graph.set(&[0, 5]).unwrap();
    let rated = search::rate(&graph, held, free, Pattern::AllReduce).unwrap();
    assert!(
        (rated.quality.free - sys / 40e9).abs() < 1e-6,
        "{:?}",
        rated.quality
    );
}

/// Bandwidth of an all-reduce in GB/s, of exactly these GPUs.
fn all_reduce(graph: &Graph, gpus: &[u32]) -> u64 {
    let held = graph.set(gpus).unwrap();
    let rated = search::rate(graph, held, held, Pattern::AllReduce).unwrap();
    rated.bottleneck_bytes_per_second.unwrap() / 1_000_000_000
}

#[test]
fn an_all_reduce_runs_on_as_many_rings_as_the_links_hold() {
    let pairs = (0..4).flat_map(|a| (a + 1..4).map(move |b| (a, b, 4)));
    let board_of_four = graph(&board(4, 1, &pairs.collect::<Vec<_>>()));
    // Twelve rings of one link of 20 GB/s, as behind switches.
    assert_eq!(all_reduce(&board_of_four, &[0, 1, 2, 3]), 240);
    assert_eq!(
        all_reduce(&board_of_four, &[0, 1, 2]),
        160,
        "both ways round, four links each"
    );
    assert_eq!(
        all_reduce(&board_of_four, &[0, 3]),
        80,
        "a pair has its own links only"
    );

    let cube = graph(&dgx1v());
    assert_eq!(all_reduce(&cube, &[0, 1, 2, 3]), 80, "4 rings");
    assert_eq!(all_reduce(&cube, &[1, 2, 5, 6]), 40, "2 rings");
    assert_eq!(all_reduce(&cube, &[0, 1, 2, 3, 4, 5, 6, 7]), 120, "6 rings");
    // 0-1 has one link, 1-5 two: the way from 5 to 0 leads back through 1.
    assert_eq!(all_reduce(&cube, &[0, 1, 5]), 20);
    // One link each of 1-2 would do for a ring, but nothing joins 0 to 5 and 6.
    let worse = place(
        &cube,
        &request(4, cube.set(&[1, 2, 5, 6]).unwrap(), Pattern::AllReduce),
    );
    assert_eq!(worse.unwrap().quality.node, 0.5);
}

#[test]
fn transfers_over_one_socket_link_share_it() {
    let graph = graph(&board(8, 2, &[]));
    // 3 + 1 sends three flows over the socket link, 2 + 2 would send four.
    let free = graph.set(&[0, 1, 2, 4, 5]).unwrap();
    let found = place(&graph, &request(4, free, Pattern::AllToAll)).unwrap();
    assert_eq!(found.gpus, [0, 1, 2, 4]);
    let sys = bandwidth::assumed(PathClass::Sys);
    assert_eq!(found.bottleneck_bytes_per_second, Some(sys));
    assert!(
        (found.cost * sys as f64 - 3.0 / 4.0).abs() < 1e-6,
        "{found:?}"
    );
}

#[test]
fn direct_links_work_in_parallel_and_a_port_is_shared() {
    let pairs = (0..4).flat_map(|a| (a + 1..4).map(move |b| (a, b, 4)));
    let mesh = graph(&board(4, 1, &pairs.collect::<Vec<_>>()));
    let found = place(&mesh, &request(4, mesh.all(), Pattern::AllToAll)).unwrap();
    assert!(
        (found.cost * 80e9 - 0.25).abs() < 1e-6,
        "each link carries one flow: {found:?}"
    );
    let switch = graph(&switched(4, 1));
    let found = place(&switch, &request(4, switch.all(), Pattern::AllToAll)).unwrap();
    assert!(
        (found.cost * 360e9 - 0.75).abs() < 1e-6,
        "a port carries three: {found:?}"
    );
}

#[test]
fn one_fast_path_does_not_prove_a_placement_on_24_gpus() {
    // All paths are of one speed, but what leaves a switch of four shares its uplink.
    let mut spec = board(24, 24, &[]);
    for path in &mut spec.paths {
        path.bytes_per_second = 12_000_000_000;
        if path.a / 4 == path.b / 4 {
            path.class = PathClass::Pix;
        }
    }
    let graph = graph(&spec);
    let found = place(&graph, &request(8, graph.all(), Pattern::AllToAll)).unwrap();
    // Two GPUs of a switch send to six others each; four of a switch would send more.
    let best = 2.0 * 6.0 / 8.0 / 12e9;
    assert!(!found.exact || found.cost <= best * 1.000_001, "{found:?}");
}

#[test]
fn a_shape_on_an_irregular_fabric_is_answered_soon() {
    let edges: Vec<_> = (0..24)
        .flat_map(|a| (a + 1..24).map(move |b| (a, b, (a * 7 + b * 13) % 5)))
        .filter(|edge| edge.2 > 0)
        .collect();
    let graph = graph(&board(24, 2, &edges));
    let shape = "tp=4,pp=3".parse().unwrap();
    let found = place(&graph, &request(12, graph.all(), shape)).unwrap();
    assert!(!found.exact, "given up in bounded time");
}

#[test]
fn the_scope_nvlink_domain_keeps_every_flow_on_nvlink() {
    let graph = graph(&dgx1v());
    let ask = |gpus: &[u32], pattern| {
        let free = graph.set(gpus).unwrap();
        let scope = Scope::NvlinkDomain;
        place(
            &graph,
            &Request {
                scope,
                ..request(gpus.len(), free, pattern)
            },
        )
    };
    for pattern in [
        Pattern::AllReduce,
        Pattern::AllToAll,
        Pattern::Pipeline,
        Pattern::ParameterServer,
    ] {
        let refused = ask(&[0, 5], pattern).unwrap_err();
        assert_eq!(refused, NoPlacement::OffNvlink { asked: 2, pattern });
        // Through 1, as NCCL does it.
        let found = ask(&[0, 1, 5], pattern).unwrap();
        assert_eq!(
            found.bottleneck_bytes_per_second,
            Some(20_000_000_000),
            "{pattern}"
        );
        assert!(ask(&[0, 1, 2, 3, 4, 5, 6, 7], pattern).is_ok(), "{pattern}");
    }
    // 4 reaches 2 through 0 or 6, of which neither is free.
    assert!(ask(&[1, 2, 4], Pattern::AllToAll).is_err());
    assert!(ask(&[0, 5], Pattern::None).is_ok(), "nobody talks");
    let fabric = boards::graph(&switched(20, 2));
    let all = Request {
        scope: Scope::NvlinkDomain,
        ..request(18, fabric.all(), Pattern::AllToAll)
    };
    assert_eq!(place(&fabric, &all).unwrap().gpus.len(), 18);
}

#[test]
fn a_small_job_uses_up_fragments() {
    let graph = graph(&pairs(8, 2));
    // One of the last pair is taken: the other is of no use to a pair job.
    let free = graph.set(&[0, 1, 2, 3, 4, 5, 7]).unwrap();
    for pattern in PATTERNS {
        assert_eq!(
            place(&graph, &request(1, free, pattern)).unwrap().gpus,
            [7],
            "{pattern}"
        );
    }
    // Inference takes fragments even where a whole pair is free.
    let free = graph.set(&[0, 1, 2, 4]).unwrap();
    assert_eq!(
        place(&graph, &request(2, free, Pattern::None))
            .unwrap()
            .gpus,
        [2, 4]
    );
    assert_eq!(
        place(&graph, &request(2, free, Pattern::AllReduce))
            .unwrap()
            .gpus,
        [0, 1]
    );
}

/// The refusal of a request on two bridged pairs.
fn refusal(gpus: usize, free: &[u32], required: &[u32], scope: Scope) -> NoPlacement {
    let graph = graph(&pairs(4, 2));
    let (free, required) = (graph.set(free).unwrap(), graph.set(required).unwrap());
    let pattern = Pattern::AllReduce;
    let request = Request {
        gpus,
        free,
        required,
        pattern,
        scope,
    };
    place(&graph, &request).unwrap_err()
}

#[test]
fn each_refusal_says_why() {
    let all = [0, 1, 2, 3];
    let node = Scope::Node;
    assert_eq!(refusal(0, &all, &[], node), NoPlacement::NoGpus);
    assert_eq!(
        refusal(5, &all, &[], node),
        NoPlacement::TooMany { asked: 5, have: 4 }
    );
    let too_few = NoPlacement::NotEnoughFree { asked: 3, free: 2 };
    assert_eq!(refusal(3, &[0, 2], &[], node), too_few);
    assert_eq!(
        refusal(2, &[0, 2], &[1], node),
        NoPlacement::RequiredNotFree { gpu: 1 }
    );
    let too_many = NoPlacement::TooManyRequired {
        required: 2,
        asked: 1,
    };
    assert_eq!(refusal(1, &all, &[0, 1], node), too_many);
    let unknown = graph(&pairs(4, 2)).set(&[9]);
    assert_eq!(unknown, Err(NoPlacement::UnknownGpu { gpu: 9 }));
}

#[test]
fn a_scope_or_shape_that_cannot_be_met_is_refused() {
    let domain = Scope::NvlinkDomain;
    assert_eq!(
        refusal(2, &[0, 2], &[], domain).to_string(),
        "no nvlink-domain can hold 2 free GPUs: the most in one is 1"
    );
    let apart = NoPlacement::Scope {
        scope: domain,
        asked: 2,
        most: 0,
    };
    assert_eq!(refusal(2, &[0, 1, 2, 3], &[0, 2], domain), apart);
    assert!(matches!(
        refusal(2, &[0, 1], &[], Scope::Gpu),
        NoPlacement::Scope { .. }
    ));
    let graph = graph(&pairs(4, 2));
    let shape = request(3, graph.all(), "tp=2,pp=2".parse().unwrap());
    assert_eq!(
        place(&graph, &shape).unwrap_err().to_string(),
        "the shape tp=2,pp=2 is for 4 GPUs, but 3 were asked for"
    );
}

#[test]
fn a_fabric_of_72_is_exact_where_it_is_regular() {
    let spec = switched(72, 36);
    let graph = graph(&spec);
    for pattern in PATTERNS {
        for k in [2, 4, 8, 36, 72] {
            let found = place(&graph, &request(k, graph.all(), pattern)).unwrap();
            assert!(
                found.exact && found.gpus.len() == k,
                "{pattern}, {k}: {found:?}"
            );
            let numa: std::collections::BTreeSet<_> =
                found.gpus.iter().map(|gpu| gpu / 2).collect();
            assert_eq!(
                numa.len(),
                k.div_ceil(2),
                "{pattern}, {k}: fewest NUMA nodes"
            );
        }
    }
}

#[test]
fn an_irregular_graph_of_24_is_answered_and_marked() {
    let edges: Vec<_> = (0..24)
        .map(|gpu| (gpu, (gpu * 5 + 1) % 24, gpu % 3 + 1))
        .filter(|e| e.0 < e.1)
        .collect();
    let graph = graph(&board(24, 2, &edges));
    let found = place(&graph, &request(9, graph.all(), Pattern::AllReduce)).unwrap();
    assert_eq!(graph.set(&found.gpus).unwrap().len(), 9);
    assert!(!found.exact, "no proof, so no claim");
}

/// A random board of up to 8 GPUs: some links of few kinds, sockets, the rest PCIe.
fn boards() -> impl Strategy<Value = NodeTopologySpec> {
    (2u32..=8, 1u32..=3).prop_flat_map(|(n, sockets)| {
        let pairs = (n * (n - 1) / 2) as usize;
        prop::collection::vec(prop_oneof![3 => Just(0u32), 2 => 1u32..4], pairs).prop_map(
            move |links| {
                let pairs = (0..n).flat_map(|a| (a + 1..n).map(move |b| (a, b)));
                let edges = pairs.zip(links).filter(|(_, links)| *links > 0);
                board(
                    n,
                    sockets,
                    &edges
                        .map(|((a, b), links)| (a, b, links))
                        .collect::<Vec<_>>(),
                )
            },
        )
    })
}

fn patterns(k: usize) -> impl Strategy<Value = Pattern> {
    let mut all = PATTERNS.to_vec();
    all.extend(shapes(u32::try_from(k).unwrap()));
    prop::sample::select(all)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn random_boards_are_exact(
        (spec, free, required, k, pattern) in boards().prop_flat_map(|spec| {
            let n = spec.gpus.len();
            (Just(spec), 1usize..1 << n, 0usize..1 << n, 1..=n)
        }).prop_flat_map(|(spec, free, required, k)| {
            (Just(spec), Just(free), Just(required), Just(k), patterns(k))
        })
    ) {
        prop_assume!(k <= free.count_ones() as usize);
        let mut required = required & free;
        while required.count_ones() as usize > k {
            required &= required - 1;
        }
        let graph = graph(&spec);
        let brute = Brute::new(&spec, pattern, |size| size == k);
        let request = Request {
            required: brute::set(required),
            ..request(k, brute::set(free), pattern)
        };
        assert_best(&brute, &graph, &request)?;
    }

    #[test]
    fn renumbering_changes_nothing_but_the_names(
        (spec, names, k) in boards().prop_flat_map(|spec| {
            let n = spec.gpus.len();
            let names = Just((0..u32::try_from(n).unwrap()).collect::<Vec<_>>()).prop_shuffle();
            (Just(spec), names, 1..=n)
        })
    ) {
        let other = renumbered(&spec, &names);
        let (one, two) = (graph(&spec), graph(&other));
        for pattern in PATTERNS {
            let a = place(&one, &request(k, one.all(), pattern)).unwrap();
            let b = place(&two, &request(k, two.all(), pattern)).unwrap();
            // Of rings through neighbours on 7 or 8 GPUs the most may stay unproven.
            if !(a.exact && b.exact) {
                prop_assert!(k > 6 && pattern == Pattern::AllReduce);
                continue;
            }
            prop_assert_eq!((a.cost, a.total_cost), (b.cost, b.total_cost), "{}", pattern);
            prop_assert_eq!(a.quality, b.quality);
            let again = place(&two, &request(k, two.all(), pattern)).unwrap();
            prop_assert_eq!(b, again);
        }
    }

    #[test]
    fn the_order_of_the_input_changes_nothing(
        (spec, shuffled) in boards().prop_flat_map(|spec| {
            let gpus = Just(spec.gpus.clone()).prop_shuffle();
            let edges = Just(spec.edges.clone()).prop_shuffle();
            let paths = Just(spec.paths.clone()).prop_shuffle();
            (Just(spec), (gpus, edges, paths))
        })
    ) {
        let mut other = spec.clone();
        (other.gpus, other.edges, other.paths) = shuffled;
        other.complete("node").unwrap();
        prop_assert_eq!(spec, other);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// Above 8 GPUs permutations are too many for brute force: the two ways in
    /// which the search itself finds a tour check each other, set by set.
    #[test]
    fn sixteen_gpus_agree_with_their_own_subsets(
        links in prop::collection::vec(0u32..4, 120),
        k in 3usize..9,
        pattern in prop::sample::select(vec![Pattern::AllReduce, Pattern::Pipeline]),
    ) {
        let pairs = (0..16).flat_map(|a| (a + 1..16).map(move |b| (a, b)));
        let edges = pairs.zip(links).filter(|(_, links)| *links > 0);
        let spec = board(16, 2, &edges.map(|((a, b), links)| (a, b, links)).collect::<Vec<_>>());
        let graph = graph(&spec);
        let found = place(&graph, &request(k, graph.all(), pattern)).unwrap();
        // Each set of k on its own, as a job that holds it would be rated.
        let sets = (0usize..1 << 16).filter(|set| set.count_ones() as usize == k);
        for set in sets.step_by(61) {
            let held = brute::set(set);
            let inside = graph.domains().any(|(_, domain)| domain.is_superset(held));
            let one = search::rate(&graph, held, held, pattern).unwrap();
            let worse = (one.cost, one.total_cost) >= (found.cost, found.total_cost);
            prop_assert!(worse || !inside || !found.exact, "{:?} beats {:?}", one, found);
        }
    }
}
