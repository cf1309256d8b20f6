//! Compares the search with brute force, through the public API.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod boards;
mod broken;
mod brute;
mod costs;
mod hostile;
mod multi_node;
mod random;
mod rings;
mod shared;

use boards::{board, dgx1v, graph, pairs, switched};
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

/// How many random cases a test tries: `all`, or the part of it that `CASES_PERCENT` says.
fn cases(all: u32) -> ProptestConfig {
    let percent = std::env::var("CASES_PERCENT").ok();
    let percent: u32 = percent.map_or(100, |text| match text.parse() {
        Ok(percent @ 1..=100) => percent,
        _ => panic!("CASES_PERCENT is a number from 1 to 100"),
    });
    let cases = u64::from(all) * u64::from(percent) / 100;
    ProptestConfig::with_cases(u32::try_from(cases).unwrap_or(all).max(1))
}

fn request(gpus: usize, free: GpuSet, pattern: Pattern) -> Request {
    Request {
        gpus,
        free,
        required: GpuSet::EMPTY,
        pattern,
        scope: Scope::Node,
    }
}

/// Returns the shapes that need exactly `k` GPUs.
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

/// Compares one answer with brute force by every rule, and returns it.
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
        // On 5 GPUs or more, the maximum number of rings through neighbours may stay unproven.
        prop_assert!(request.gpus > 4 && request.pattern == Pattern::AllReduce);
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
        "the cost of the returned order"
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
    // A bridge may join GPUs of different sockets.
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

/// If the free GPUs of a cube mesh have a ring of NVLinks, the placement is one.
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
    // Only a SYS path joins 0 and 5; the best path of this node is a double link.
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
    // A job holds 0 and 5 while 0 and 3, which have a double link, were free too.
    let free = graph.set(&[0, 3, 5]).unwrap();
    let held = graph.set(&[0, 5]).unwrap();
    let rated = search::rate(&graph, held, free, Pattern::AllReduce).unwrap();
    assert!(
        (rated.quality.free - sys / 40e9).abs() < 1e-6,
        "{:?}",
        rated.quality
    );
}

#[test]
fn one_fast_path_does_not_prove_a_placement_on_24_gpus() {
    // All paths have the same speed, but traffic that leaves a switch of four GPUs shares
    // its uplink.
    let mut spec = board(24, 24, &[]);
    for path in &mut spec.paths {
        path.bytes_per_second = 12_000_000_000;
        if path.a / 4 == path.b / 4 {
            path.class = PathClass::Pix;
        }
    }
    let graph = graph(&spec);
    let found = place(&graph, &request(8, graph.all(), Pattern::AllToAll)).unwrap();
    // Two GPUs of a switch send to six others each; four GPUs of a switch would send more.
    let best = 2.0 * 6.0 / 8.0 / 12e9;
    assert!(!found.exact || found.cost <= best * 1.000_001, "{found:?}");
}

#[test]
fn the_search_for_a_shape_on_an_irregular_fabric_is_bounded() {
    let edges: Vec<_> = (0..24)
        .flat_map(|a| (a + 1..24).map(move |b| (a, b, (a * 7 + b * 13) % 5)))
        .filter(|edge| edge.2 > 0)
        .collect();
    let graph = graph(&board(24, 2, &edges));
    let shape = "tp=4,pp=3".parse().unwrap();
    let found = place(&graph, &request(12, graph.all(), shape)).unwrap();
    assert!(!found.exact, "the search stops in bounded time");
}

#[test]
fn a_small_job_uses_up_fragments() {
    let graph = graph(&pairs(8, 2));
    // One GPU of the last pair is in use, so the other is of no use to a job of two.
    let free = graph.set(&[0, 1, 2, 3, 4, 5, 7]).unwrap();
    for pattern in PATTERNS {
        assert_eq!(
            place(&graph, &request(1, free, pattern)).unwrap().gpus,
            [7],
            "{pattern}"
        );
    }
    // Inference uses fragments even if a whole pair is free.
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

/// Returns the error for a request on two bridged pairs.
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
fn each_error_names_the_reason() {
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
fn a_scope_or_shape_that_cannot_be_satisfied_is_an_error() {
    let domain = Scope::NvlinkDomain;
    assert_eq!(
        refusal(2, &[0, 2], &[], domain).to_string(),
        "no nvlink-domain has room for 2 GPUs: the most that fit in one is 1"
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
        "the shape tp=2,pp=2 needs 4 GPUs, but 3 were requested"
    );
}

#[test]
fn a_regular_fabric_of_72_is_exact() {
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
fn an_irregular_graph_of_24_has_a_placement_marked_as_not_exact() {
    let edges: Vec<_> = (0..24)
        .map(|gpu| (gpu, (gpu * 5 + 1) % 24, gpu % 3 + 1))
        .filter(|e| e.0 < e.1)
        .collect();
    let graph = graph(&board(24, 2, &edges));
    let found = place(&graph, &request(9, graph.all(), Pattern::AllReduce)).unwrap();
    assert_eq!(graph.set(&found.gpus).unwrap().len(), 9);
    assert!(!found.exact, "there is no proof");
}
