//! Benchmarks the search by board and number of GPUs: `cargo bench -p nvlink-topology`.

#![allow(clippy::expect_used, clippy::unwrap_used)] // a bad board is a bug in the benchmark

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use nvlink_topology::{GpuSet, Graph, NodeTopologySpec, Pattern, Request, Scope, place};

#[allow(dead_code)]
#[path = "../tests/search/boards.rs"]
mod boards;

fn request(gpus: usize, free: GpuSet, pattern: Pattern) -> Request {
    Request {
        gpus,
        free,
        required: GpuSet::EMPTY,
        pattern,
        scope: Scope::Node,
    }
}

/// Returns a board of 16 GPUs whose links come from a fixed pseudo-random sequence
/// (Knuth's MMIX multiplier), so that every run measures the same boards.
fn random(seed: u64) -> NodeTopologySpec {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut links = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        u32::try_from(state >> 61).unwrap_or(0).saturating_sub(3)
    };
    let pairs = (0..16).flat_map(|a| (a + 1..16).map(move |b| (a, b)));
    let edges: Vec<_> = pairs
        .map(|(a, b)| (a, b, links()))
        .filter(|edge| edge.2 > 0)
        .collect();
    boards::board(16, 2, &edges)
}

fn by_gpus(criterion: &mut Criterion) {
    for (name, spec) in [
        ("dgx1v", boards::dgx1v()),
        ("switch16", boards::switched(16, 2)),
        ("pairs16", boards::pairs(16, 2)),
        ("random16", random(1)),
        ("fabric72", boards::switched(72, 36)),
    ] {
        let graph = Graph::new(&spec).expect("a valid board");
        let mut group = criterion.benchmark_group(name);
        let sizes = (1..=graph.len()).filter(|k| graph.len() <= 16 || k % 8 == 0 || *k < 5);
        for k in sizes {
            let request = request(k, graph.all(), Pattern::AllReduce);
            group.bench_function(BenchmarkId::from_parameter(k), |bench| {
                bench.iter(|| place(black_box(&graph), black_box(&request)));
            });
        }
    }
}

/// Measures all sizes on a cube mesh in each of its 256 free states, so that no single
/// state decides the mean.
fn all_states(criterion: &mut Criterion) {
    let graph = Graph::new(&boards::dgx1v()).expect("a valid board");
    for k in 1..=8 {
        let states: Vec<GpuSet> = (1u32..256)
            .map(|free| {
                (0..8)
                    .filter(|gpu| free >> gpu & 1 == 1)
                    .collect::<GpuSet>()
            })
            .filter(|free| free.len() >= k)
            .collect();
        let mut next = states.iter().cycle();
        criterion.bench_function(&format!("dgx1v-all-states/{k}"), |bench| {
            bench.iter(|| {
                let free = next.next().copied().unwrap_or_default();
                place(&graph, &request(k, black_box(free), Pattern::AllReduce))
            });
        });
    }
}

/// Prints the worst time of 1,000 random boards, and how many of the placements were exact.
fn worst(_: &mut Criterion) {
    for pattern in [Pattern::AllReduce, Pattern::Pipeline, Pattern::AllToAll] {
        let (mut worst, mut exact) = (Duration::ZERO, 0);
        for seed in 0..1_000 {
            let graph = Graph::new(&random(seed)).expect("a valid board");
            let k = usize::try_from(seed % 15).unwrap_or(0) + 2;
            let start = Instant::now();
            let found = place(&graph, &request(k, graph.all(), pattern));
            worst = worst.max(start.elapsed());
            exact += u32::from(found.is_ok_and(|found| found.exact));
        }
        println!("random16, {pattern}: worst of 1000 {worst:?}; exact: {exact}");
    }
}

/// Limits each of about ninety benchmarks to a second, which is enough to distinguish
/// microseconds from milliseconds.
fn brief() -> Criterion {
    Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_secs(1))
}

criterion_group! {
    name = benches;
    config = brief();
    targets = by_gpus, all_states, worst
}
criterion_main!(benches);
