//! Placements that leave out or rank last the GPUs that are marked as broken.

use nvlink_topology::{
    BrokenGpus, GpuSet, Graph, Pattern, Placement, Request, Scope, place, sparing,
};
use proptest::prelude::*;

use super::{
    PATTERNS,
    boards::{dgx1v, graph, pairs, switched},
    brute,
    random::boards,
    request,
};

/// Returns the placement, and how many of `broken` it uses.
fn placed(
    graph: &Graph,
    request: &Request,
    broken: GpuSet,
    how: BrokenGpus,
) -> Option<(usize, Placement)> {
    let narrowed = sparing(graph, request, broken, how).ok()?;
    let placement = place(graph, &narrowed).ok()?;
    let used = graph.set(&placement.gpus).unwrap().intersection(broken);
    Some((used.len(), placement))
}

/// Places every permitted set on its own. Returns the fewest broken GPUs and, among the sets
/// with so few, the least costs; `None` if no set is permitted.
fn fewest(graph: &Graph, request: &Request, broken: GpuSet) -> Option<(usize, (f64, f64), bool)> {
    let sets = (0..1usize << graph.len()).map(brute::set);
    let sets = sets.filter(|set| {
        set.len() == request.gpus
            && request.free.is_superset(*set)
            && set.is_superset(request.required)
    });
    let alone = sets.filter_map(|set| {
        let alone = Request {
            free: set,
            ..*request
        };
        Some((set, place(graph, &alone).ok()?))
    });
    let all: Vec<(GpuSet, Placement)> = alone.collect();
    let used = |set: GpuSet| set.intersection(broken).len();
    let count = all.iter().map(|(set, _)| used(*set)).min()?;
    let mut all: Vec<_> = all
        .into_iter()
        .filter(|(set, _)| used(*set) == count)
        .collect();
    let inside = |set: GpuSet| graph.domains().any(|(_, domain)| domain.is_superset(set));
    let rule1 = request.gpus > 1 && request.pattern != Pattern::None;
    if rule1 && all.iter().any(|(set, _)| inside(*set)) {
        all.retain(|(set, _)| inside(*set));
    }
    let exact = all.iter().all(|(_, placement)| placement.exact);
    let costs = all.iter().map(|(_, one)| (one.cost, one.total_cost));
    let least = costs.min_by(|a, b| a.partial_cmp(b).unwrap())?;
    Some((count, least, exact))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn the_fewest_broken_gpus_are_used_and_then_the_least_time(
        (spec, free, required, broken, k) in boards().prop_flat_map(|spec| {
            let n = spec.gpus.len();
            let set = 0usize..1 << n;
            (Just(spec), 1usize..1 << n, prop_oneof![Just(0), set.clone()], set, 1..=n)
        }),
        pattern in prop::sample::select(PATTERNS.to_vec()),
        scope in prop::sample::select(vec![Scope::Node, Scope::NvlinkDomain]),
    ) {
        prop_assume!(k <= free.count_ones() as usize);
        let mut required = required & free;
        while required.count_ones() as usize > k {
            required &= required - 1;
        }
        let graph = graph(&spec);
        let broken = brute::set(broken);
        let request = Request {
            required: brute::set(required),
            scope,
            ..request(k, brute::set(free), pattern)
        };
        let found = placed(&graph, &request, broken, BrokenGpus::Last);
        let expected = fewest(&graph, &request, broken);
        prop_assert_eq!(found.is_some(), expected.is_some());
        if let (Some((used, placement)), Some((count, costs, exact))) = (found, expected) {
            prop_assert_eq!(used, count, "{:?}", &request);
            if exact && placement.exact {
                prop_assert_eq!((placement.cost, placement.total_cost), costs);
            }
        }
        let spared = broken.difference(request.required);
        let without = Request { free: request.free.difference(spared), ..request };
        let avoided = placed(&graph, &request, broken, BrokenGpus::Avoid);
        prop_assert_eq!(avoided.map(|(_, one)| one), place(&graph, &without).ok());
        let ignored = placed(&graph, &request, broken, BrokenGpus::Ignore);
        prop_assert_eq!(ignored.map(|(_, one)| one), place(&graph, &request).ok());
    }
}

fn gpus(graph: &Graph, k: usize, broken: &[u32], scope: Scope) -> Option<Vec<u32>> {
    let request = Request {
        scope,
        ..request(k, graph.all(), Pattern::AllReduce)
    };
    let broken = graph.set(broken).unwrap();
    let (_, placement) = placed(graph, &request, broken, BrokenGpus::Last)?;
    let mut gpus = placement.gpus;
    gpus.sort_unstable();
    Some(gpus)
}

#[test]
fn a_healthy_set_wins_whatever_it_costs() {
    let mesh = graph(&dgx1v());
    // 0 to 3 are the best four; without 1, the best four are the other quad.
    assert_eq!(gpus(&mesh, 4, &[], Scope::Node).unwrap(), [0, 1, 2, 3]);
    assert_eq!(gpus(&mesh, 4, &[1], Scope::Node).unwrap(), [4, 5, 6, 7]);
    // Each pair has one broken GPU: the healthy ones are joined only by PCIe.
    let pairs = graph(&pairs(4, 1));
    assert_eq!(gpus(&pairs, 2, &[1, 3], Scope::Node).unwrap(), [0, 2]);
    assert_eq!(
        gpus(&pairs, 2, &[1, 3], Scope::NvlinkDomain).unwrap(),
        [0, 1]
    );
}

#[test]
fn broken_gpus_are_used_where_nothing_else_fits() {
    let board = graph(&switched(8, 2));
    assert_eq!(gpus(&board, 7, &[2, 5], Scope::Node).unwrap().len(), 7);
    let six = gpus(&board, 6, &[2, 5], Scope::NvlinkDomain).unwrap();
    assert_eq!(six, [0, 1, 3, 4, 6, 7]);
    let all: Vec<u32> = (0..8).collect();
    assert_eq!(gpus(&board, 4, &all, Scope::Node).unwrap(), [0, 1, 2, 3]);
    // Large enough that its subsets cannot all be tried.
    let large = graph(&switched(72, 2));
    let all: Vec<u32> = (0..72).collect();
    assert_eq!(
        gpus(&large, 40, &all[..60], Scope::NvlinkDomain)
            .unwrap()
            .len(),
        40
    );
}

#[test]
fn words_of_the_flag() {
    for how in [BrokenGpus::Avoid, BrokenGpus::Last, BrokenGpus::Ignore] {
        assert_eq!(how.to_string().parse(), Ok(how));
    }
    let error = "never".parse::<BrokenGpus>().unwrap_err();
    assert_eq!(error, "\"never\" is not avoid, last or ignore");
}
