//! The scheduler extender on clusters of 1,000 and 5,000 nodes with 8 GPUs each: a call as
//! it arrives, with all names, while placements are not known yet and when they are.

#![allow(clippy::unwrap_used)] // a bad board is a bug in the benchmark

use std::{hint::black_box, sync::Arc};

use axum::{
    Router,
    body::{Body, to_bytes},
    http::Request,
};
use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use nvlink_admission::view::{SharedView, View};
use nvlink_api::class::Class;
use nvlink_cluster::{
    gpus::{Hardwares, Marks},
    informer::Extent,
    mirror::{Mirror, Pod, pod::Stage},
};
use nvlink_topology::{Allocation, NodeTopologySpec, labels};
use nvlink_webhook::extender::{
    Extender,
    server::{FILTER, PRIORITIZE, router},
};
use serde_json::{Value, json};
use tower::ServiceExt;

/// Returns boards of eight GPUs: behind a switch, a mesh as of DGX-1, and pairs.
fn boards() -> [NodeTopologySpec; 3] {
    let all = || (0..8_u32).flat_map(|b| (0..b).map(move |a| (a, b)));
    let cube = |&(a, b): &(u32, u32)| a / 4 == b / 4 || a % 4 == b % 4;
    [
        board(all().collect(), "switch"),
        board(all().filter(cube).collect(), "direct"),
        board(all().filter(|(a, b)| a / 2 == b / 2).collect(), "direct"),
    ]
}

fn board(edges: Vec<(u32, u32)>, via: &str) -> NodeTopologySpec {
    let gpus: Value = (0..8).map(|n| json!({"index": n, "links": []})).collect();
    let edge = |(a, b)| json!({"a": a, "b": b, "via": via, "links": 4, "bytesPerSecond": 80_000_000_000_u64});
    let edges: Value = edges.into_iter().map(edge).collect();
    let spec = json!({"source": {"kind": "sim"}, "gpus": gpus, "edges": edges});
    let mut spec: NodeTopologySpec = serde_json::from_value(spec).unwrap();
    spec.complete("n").unwrap();
    spec
}

fn name(node: u32) -> String {
    format!("gpu-node-{node:04}.cluster.example")
}

/// Returns the router of a cluster in which each node runs some pods.
fn cluster(nodes: u32) -> Router {
    let mirror = Mirror::default();
    let mut hardwares = Hardwares::default();
    let boards = boards();
    for node in 0..nodes {
        // Any set of GPUs may be held.
        let bits = node.wrapping_mul(2_654_435_761) >> 16;
        let held = (0..8).filter(|gpu| bits >> gpu & 1 == 1).map(|gpu| {
            let pod = format!("job-{node}-{gpu}");
            let stage = Stage::Bound(name(node));
            let key = ("ci".to_owned(), pod.clone());
            mirror.set_pod(
                key,
                Pod {
                    gpus: 1,
                    stage,
                    ..Pod::default()
                },
            );
            Allocation {
                namespace: "ci".to_owned(),
                pod,
                container: "main".to_owned(),
                gpus: vec![gpu],
                ..Allocation::default()
            }
        });
        let held = held.collect();
        let board = &boards[node as usize % boards.len()];
        let published = hardwares.node(board, Marks::default(), Some(held));
        mirror.set_node(&name(node), Arc::new(Ok(published)));
    }
    mirror.all_nodes(|_| true);
    mirror.all_pods(|_| true, Extent::Whole);
    let mut view = View::default();
    let class = Class::new("any", &serde_json::from_value(json!({})).unwrap());
    view.set_class("any", class.map_err(|error| error.to_string()));
    let view = SharedView::new(view);
    router(Extender { mirror, view }, Arc::default())
}

fn call(nodes: u32) -> String {
    let container = json!({"name": "main", "resources": {"limits": {"nvidia.com/gpu": "4"}}});
    let pod = json!({
        "metadata": {"name": "p", "namespace": "ci", "labels": {labels::CLASS: "any"}},
        "spec": {"containers": [container]},
    });
    let names: Vec<_> = (0..nodes).map(name).collect();
    json!({"Pod": pod, "Nodes": null, "NodeNames": names}).to_string()
}

async fn post(router: Router, path: &str, body: String) -> usize {
    let request = Request::post(path).body(Body::from(body)).unwrap();
    let response = router.oneshot(request).await.unwrap();
    assert_eq!(response.status(), 200);
    to_bytes(response.into_body(), usize::MAX)
        .await
        .unwrap()
        .len()
}

fn calls(criterion: &mut Criterion) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for nodes in [1000, 5000] {
        let mut group = criterion.benchmark_group(format!("extender/{nodes}"));
        group.sample_size(10);
        let body = call(nodes);
        group.bench_function("filter, nothing known", |bencher| {
            bencher.iter_batched(
                || (cluster(nodes), body.clone()),
                |(router, body)| runtime.block_on(post(router, FILTER, body)),
                BatchSize::PerIteration,
            );
        });
        let known = cluster(nodes);
        for (what, path) in [("filter", FILTER), ("prioritize", PRIORITIZE)] {
            runtime.block_on(post(known.clone(), path, body.clone()));
            group.bench_function(what, |bencher| {
                let call = || post(known.clone(), path, body.clone());
                bencher.iter(|| black_box(runtime.block_on(call())));
            });
        }
        group.finish();
    }
}

criterion_group!(benches, calls);
criterion_main!(benches);
