//! Benchmarks rounds by the size of the cluster: `cargo bench -p nvlink-planner`.
//!
//! Each node has eight GPUs, all held. Five pods wait for each node: single pods of 1, 2,
//! 4 and 8 GPUs of several patterns and durations, and gangs of 4 pods of 8 GPUs. Rounds are
//! planned after one change, and after a minute in which nothing changes but estimates of ends
//! that pass, hundreds of them with 10,000 nodes.

#![allow(clippy::expect_used, clippy::unwrap_used)] // a bad cluster is a bug in the benchmark

use std::{
    hint::black_box,
    sync::Arc,
    time::{Duration, Instant},
};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use nvlink_planner::{
    Availability, Estimate, Job, Member, Millis, Name, NodeState, Planner, PodState, Settings,
};
use nvlink_topology::{Graph, Interconnect, Pattern, Scope};

#[allow(dead_code)]
#[path = "../../topology/tests/search/boards.rs"]
mod boards;

const NODES: [usize; 2] = [1_000, 10_000];
const HOUR: Millis = 3_600_000;
const MINUTE: Millis = 60_000;

/// A fixed pseudo-random sequence (Knuth's MMIX multiplier): every run measures the same.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }

    fn time(&mut self, n: Millis) -> Millis {
        Millis::try_from(self.below(n.unsigned_abs())).unwrap()
    }
}

fn name(text: String) -> Name {
    text.into()
}

fn node(graph: &Arc<Graph>, at: usize) -> NodeState {
    NodeState {
        graph: Some(graph.clone()),
        capacity: 8,
        held: Vec::new(),
        broken: Vec::new(),
        partitions: None,
        availability: Availability::Ready,
        interconnect: Interconnect::Nvswitch,
        fabric: None,
        network: Vec::new(),
        rack: Some(name(format!("rack{:04}", at / 32))),
        zone: Some(name(format!("zone{}", at / 3_000))),
        network_bytes_per_second: Some(400_000_000_000),
        slow: 0,
        sets: vec!["class".into()],
        resources: Vec::new(),
    }
}

fn running(node: &Name, planned: Vec<u32>, random: &mut Random) -> PodState {
    // Every fourth end is unknown.
    let known = random.below(4) > 0;
    let end = Estimate {
        mean: HOUR + random.time(8 * HOUR),
        spread: random.time(HOUR),
    };
    PodState {
        node: node.clone(),
        gpus: u32::try_from(planned.len()).unwrap(),
        planned,
        bound: true,
        since: random.time(HOUR),
        end: known.then_some(end),
        job: None,
        class: Some("class".into()),
        project: name(format!("project{}", random.below(50))),
        priority: 0,
        resources: Vec::new(),
    }
}

fn waiting(at: usize, random: &mut Random) -> Job {
    let gang = random.below(20) == 0;
    let patterns = [Pattern::AllReduce, Pattern::AllToAll, Pattern::None];
    let gpus = if gang { 8 } else { 1 << random.below(4) };
    let pods = if gang { 4 } else { 1 };
    let member = |rank| Member {
        pod: name(format!("job{at:05}-{rank}")),
        gpus,
        rank: Some(rank),
        role: None,
        resources: Vec::new(),
    };
    let duration = Estimate {
        mean: HOUR / 4 + random.time(4 * HOUR),
        spread: random.time(HOUR),
    };
    Job {
        class: "class".into(),
        project: name(format!("project{}", random.below(50))),
        priority: i32::try_from(random.below(3)).unwrap(),
        created: random.time(HOUR),
        members: (0..pods).map(member).collect(),
        complete: true,
        pattern: patterns[usize::try_from(random.below(3)).unwrap()],
        scope: Scope::NvlinkDomain,
        gang_scope: Scope::Cluster,
        within: Vec::new(),
        duration: (random.below(4) > 0).then_some(duration),
        deadline: None,
        seats: Vec::new(),
        released: 0,
    }
}

/// Returns a full cluster of `nodes` nodes, and the pods on it.
fn cluster(nodes: usize) -> (Planner, Vec<(Name, PodState)>) {
    let graph = Arc::new(Graph::new(&boards::switched(8, 2)).unwrap());
    let mut random = Random(1);
    let mut planner = Planner::new(Settings::default());
    let mut pods = Vec::new();
    for at in 0..nodes {
        let host = name(format!("node{at:05}"));
        planner.node(&host, Some(node(&graph, at)));
        let sizes: &[u32] = match random.below(4) {
            0 => &[8],
            1 => &[4, 4],
            2 => &[2, 2, 4],
            _ => &[1, 1, 1, 1, 2, 2],
        };
        let mut first = 0;
        for size in sizes {
            let planned = (first..first + size).collect();
            first += size;
            let pod = running(&host, planned, &mut random);
            pods.push((name(format!("pod{:06}", pods.len())), pod));
        }
    }
    for (id, pod) in &pods {
        planner.pod(id, Some(pod.clone()));
    }
    let mut waits = 0;
    let mut at = 0;
    while waits < 5 * nodes {
        let job = waiting(at, &mut random);
        waits += job.members.len();
        planner.job(&name(format!("job{at:05}")), Some(job));
        at += 1;
    }
    (planner, pods)
}

fn resident() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM"));
    line.unwrap_or("unknown").to_owned()
}

fn rounds(criterion: &mut Criterion) {
    for nodes in NODES {
        let (mut planner, pods) = cluster(nodes);
        let started = Instant::now();
        let round = planner.round(HOUR);
        println!(
            "{nodes} nodes: first round {:?}, {} actions, {} wait; process {}",
            started.elapsed(),
            round.actions.len(),
            round.waiting.len(),
            resident(),
        );
        let (mut empty, pods_there) = cluster(nodes);
        for (id, _) in &pods_there {
            empty.pod(id, None);
        }
        let started = Instant::now();
        let round = empty.round(HOUR);
        println!(
            "{nodes} nodes, all free: first round {:?}, {} actions, {} wait",
            started.elapsed(),
            round.actions.len(),
            round.waiting.len(),
        );
        drop((empty, pods_there));
        let mut next = pods.iter().cycle();
        let mut group = criterion.benchmark_group("round-after-one-change");
        group
            .sample_size(20)
            .measurement_time(Duration::from_secs(5));
        group.bench_function(BenchmarkId::from_parameter(nodes), |bench| {
            bench.iter_custom(|rounds| {
                let mut spent = Duration::ZERO;
                for _ in 0..rounds {
                    let (id, pod) = next.next().unwrap();
                    let started = Instant::now();
                    planner.pod(id, None);
                    black_box(planner.round(HOUR));
                    spent += started.elapsed();
                    planner.pod(id, Some(pod.clone()));
                    planner.round(HOUR);
                }
                spent
            });
        });
        group.finish();
        after_a_minute(criterion, nodes, &mut planner);
        println!("{nodes} nodes: process {}", resident());
    }
}

fn after_a_minute(criterion: &mut Criterion, nodes: usize, planner: &mut Planner) {
    let mut group = criterion.benchmark_group("round-after-a-minute");
    group
        .sample_size(20)
        .measurement_time(Duration::from_secs(5));
    group.bench_function(BenchmarkId::from_parameter(nodes), |bench| {
        let mut now = HOUR;
        bench.iter(|| {
            now = if now < 10 * HOUR { now + MINUTE } else { HOUR };
            black_box(planner.round(now));
        });
    });
    group.finish();
}

criterion_group!(benches, rounds);
criterion_main!(benches);
