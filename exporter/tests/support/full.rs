//! Nodes with all GPUs held, which have the maximum number of series.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::{sync::Arc, time::Duration};

use nvlink_collectives::{
    Collective, Expected, Results, State, follow::Node, run::Reason, state::Class,
};
use nvlink_exporter::{
    collect::collect,
    placement::{Health, Judged, Keys, PatternFrom, Placements},
    snapshot::{Latest, View},
    statistics::Statistics,
};
use nvlink_history::totals::Totals;
use nvlink_runtime::supervise::{Supervisor, Weight};
use nvlink_source::{Reading, SourceSpec};
use nvlink_topology::{Allocation, Edge, NodeTopologyStatus, PathClass, Pattern};
use serde_json::json;
use strum::IntoEnumIterator;

/// Returns eight GPUs with 18 links of NVLink 4 each, held by two containers.
pub(crate) fn eight() -> View {
    view("sim:dgx-h100", 8, 4)
}

/// Returns a fabric of 72 GPUs with 18 links of NVLink 5 each, as one node, held
/// by nine containers. No real node is as large; it is an upper bound.
pub(crate) fn seventy_two() -> View {
    view("sim:gb200-nvl72", 72, 8)
}

fn view(source: &str, gpus: u32, per_container: usize) -> View {
    let spec: SourceSpec = source.parse().expect("a source");
    let mut opened = spec.open(Some("node-a")).expect("it opens");
    let mut snapshot = collect(source, opened.as_mut(), Duration::from_secs(100));
    let data = snapshot.data.as_mut().expect("data");
    widen(data, gpus);
    let gpus: Vec<u32> = (0..gpus).collect();
    let held = gpus.chunks(per_container).map(judged).collect();
    let held = placements(data, held);
    let finished = snapshot.health.finished;
    snapshot.totals = Totals::default().observe(data, finished);
    snapshot.health.duration = Duration::from_millis(2);
    let statistics = Statistics {
        supervisor: parts(),
        ..Statistics::default()
    };
    let latest = Latest::default().with(statistics);
    latest.publish(snapshot);
    latest.place(held);
    latest.measure(Arc::new(results()));
    latest.view(finished + Duration::from_millis(1500))
}

/// Returns the results of four collectives in one placement class, each with all that can be
/// known of it.
fn results() -> Results {
    let mut state = State::default();
    let collectives = [
        Collective::AllReduce,
        Collective::AllGather,
        Collective::ReduceScatter,
        Collective::AllToAll,
    ];
    for collective in collectives {
        let class = Class {
            collective,
            model: Some("NVIDIA H100 80GB HBM3".to_owned()),
            gpus: 8,
            nodes: Some(1),
            path: Some(PathClass::Nvlink),
        };
        for (at, reason) in (-3..).zip(Reason::iter()) {
            let failure = json!({"reason": reason, "line": 1, "text": "x"});
            let kept = json!({"id": at.to_string(), "at": 1_800_000_000 + at, "failure": failure});
            let kept = serde_json::from_value(kept).expect("a failed run");
            state.add(&class, kept, None);
        }
        for at in 1..=4 {
            let level =
                json!({"size": 1 << 30, "bytesPerSecond": 350_000_000_000_u64, "seconds": 0.003});
            let kept = json!({
                "id": at.to_string(), "at": 1_800_000_000 + at, "setupSeconds": 2.5,
                "levels": {"small": level, "medium": level, "large": level},
            });
            let kept = serde_json::from_value(kept).expect("a run");
            let expected = Expected {
                bytes_per_second: 370_800_000_000,
                nvls: None,
            };
            state.add(&class, kept, Some(expected));
        }
    }
    let comparison = json!({
        "model": "NVIDIA H100 80GB HBM3", "path": "NVLINK", "gpus": 8, "ratio": 0.97, "runs": 4,
    });
    Results {
        state,
        error: None,
        comparisons: Some(vec![
            serde_json::from_value(comparison).expect("a comparison"),
        ]),
    }
}

/// Returns the parts of an exporter that does not publish.
fn parts() -> Supervisor {
    let supervisor = Supervisor::default();
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let _inside = runtime.as_ref().expect("a runtime").enter();
    for part in [
        "the collector",
        "the watch of the source",
        "the collector of allocations",
        "the watch of the web configuration",
    ] {
        supervisor.keep(part, Weight::Minor, std::future::pending::<()>);
    }
    supervisor
}

/// Repeats the GPUs until there are `gpus`, all joined with each other.
fn widen(data: &mut Reading, gpus: u32) {
    let spec = &mut data.topology.spec;
    let tray = spec.gpus.len() as u32;
    for index in tray..gpus {
        let twin = (index % tray) as usize;
        let mut gpu = spec.gpus[twin].clone();
        gpu.index = index;
        gpu.uuid = Some(format!("GPU-{index:08x}-0000-4000-8000-{index:012x}"));
        // An address that is not in the tray.
        gpu.pci_bus_id = Some(format!("{:08X}:01:00.0", 0x100 + index));
        spec.gpus.push(gpu);
        let counters: Vec<_> = data
            .counters
            .iter()
            .filter(|one| one.gpu == twin as u32)
            .cloned()
            .collect();
        data.counters.extend(counters.into_iter().map(|mut one| {
            one.gpu = index;
            one
        }));
        let health = data
            .health
            .iter()
            .find(|one| one.gpu == twin as u32)
            .cloned();
        data.health.extend(health.map(|mut one| {
            one.gpu = index;
            one
        }));
    }
    let pairs = (0..gpus).flat_map(|a| (a + 1..gpus).map(move |b| (a, b)));
    let edge = spec.edges[0].clone();
    spec.edges = pairs
        .map(|(a, b)| Edge {
            a,
            b,
            ..edge.clone()
        })
        .collect();
    spec.paths.clear();
    spec.domains[0].gpus = (0..gpus).collect();
}

/// Returns the placements of a node with `judged`.
pub(crate) fn placements(data: &Reading, judged: Vec<Judged>) -> Placements {
    let allocations = judged.iter().map(|one| one.allocation.clone()).collect();
    Placements {
        on: Keys::of(&data.topology.spec.gpus),
        status: Some(NodeTopologyStatus { allocations }),
        judged,
        health: Some(Health::default()),
        ..Placements::default()
    }
}

/// Returns a well placed container that holds `gpus`.
pub(crate) fn judged(gpus: &[u32]) -> Judged {
    Judged {
        allocation: Allocation {
            namespace: "ci-group-project".to_owned(),
            pod: format!("runner-abcdefgh-project-4711-concurrent-{}", gpus[0]),
            container: "build".to_owned(),
            gpus: gpus.to_vec(),
            ..Allocation::default()
        },
        lost: Vec::new(),
        model: Some("NVIDIA H100 80GB HBM3".to_owned()),
        path: Some(PathClass::Nvlink),
        class: Some("high-throughput".to_owned()),
        project: Some("gitlab.4711".to_owned()),
        gang: Some("JobSet llama/workers".to_owned()),
        pattern: Pattern::AllReduce,
        pattern_from: PatternFrom::Default,
        domains: Some(1),
        bottleneck_bytes_per_second: Some(370_800_000_000),
        quality_node: Some(1.0),
        quality_free: Some(0.75),
    }
}
