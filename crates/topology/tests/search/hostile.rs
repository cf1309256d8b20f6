//! Graphs without any order: nobody builds such machines, but somebody can describe one. The
//! search ends after a number of steps all the same.

use nvlink_topology::{
    BrokenGpus, GpuSet, Graph, NoPlacement, Pattern, Request, Scope, next_best, place,
    search::{Effort, place_sparing},
};

use super::{
    PATTERNS,
    boards::{board, disorder, graph},
    request, shapes,
};

/// Two seconds, by the count of the search.
const MOST: u64 = 2_000_000_000;

/// Returns what it costs to search.
fn cost(graph: &Graph, gpus: usize, pattern: Pattern, free: GpuSet, broken: GpuSet) -> u64 {
    let effort = Effort::default();
    let request = request(gpus, free, pattern);
    let found = place_sparing(graph, &request, broken, BrokenGpus::Last, &effort);
    assert_eq!(found.unwrap().gpus.len(), gpus);
    effort.spent()
}

#[test]
fn a_search_ends_after_a_number_of_steps_whatever_the_graph_is_like() {
    for n in [16, 32, 128] {
        let graph = graph(&disorder(n));
        let free = graph.all().difference(GpuSet::first(2));
        for gpus in [2, 12, 16, 64, 120] {
            if gpus > free.len() {
                continue;
            }
            let shapes = shapes(u32::try_from(gpus).unwrap());
            let shapes = shapes.into_iter().step_by(8);
            for pattern in PATTERNS.into_iter().chain(shapes) {
                let cost = cost(&graph, gpus, pattern, free, GpuSet::EMPTY);
                assert!(cost < MOST, "{gpus} of {n}, {pattern}: {cost} steps");
            }
        }
    }
}

#[test]
fn broken_gpus_do_not_multiply_the_steps() {
    for (n, gpus) in [(16, 12), (128, 100)] {
        let graph = graph(&disorder(n));
        let broken: GpuSet = (0..12).collect();
        for pattern in PATTERNS {
            let cost = cost(&graph, gpus, pattern, graph.all(), broken);
            assert!(cost < MOST, "{gpus} of {n}, {pattern}: {cost} steps");
        }
    }
}

#[test]
fn what_is_not_proven_is_said_not_to_be() {
    let graph = graph(&disorder(128));
    let shape: Pattern = "tp=16,dp=2,pp=2".parse().unwrap();
    let request = request(64, graph.all(), shape);
    let found = place(&graph, &request).unwrap();
    assert!(!found.exact);
    let next = next_best(&graph, &request, &found).unwrap();
    assert!(!next.exact);
    assert!(next.cost >= found.cost);
}

/// "There is none" is said only with a proof: the search rather says that it gave up.
#[test]
fn what_is_not_found_is_not_ruled_out() {
    let ring: Vec<_> = (0..64).map(|gpu| (gpu, (gpu + 1) % 64, 4)).collect();
    let graph = graph(&board(64, 2, &ring));
    let ask = |gpus, shape: &str| {
        let pattern = shape.parse().unwrap();
        let scope = Scope::NvlinkDomain;
        let request = request(gpus, graph.all(), pattern);
        (pattern, place(&graph, &Request { scope, ..request }))
    };
    let (pattern, found) = ask(64, "tp=8,dp=8");
    assert_eq!(found, Err(NoPlacement::NotFound { asked: 64, pattern }));
    let (_, found) = ask(2, "tp=2");
    assert_eq!(found.unwrap().gpus.len(), 2);
}
