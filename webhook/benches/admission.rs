//! The time of a decision for two sizes of cluster, in one run: it must not depend on the number
//! of nodes.

#![allow(clippy::expect_used)]

mod support;

use std::hint::black_box;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use nvlink_admission::{
    authorize::{Grants, Subject},
    decide::{self, Admitted, Choice, Facts, Settings},
    view::View,
};
use nvlink_topology::labels;
use serde_json::Value;
use support::{cluster, pod};

/// Returns the outcome, so that freeing the pod is not measured.
fn decision(pod: Value, view: &View, settings: &Settings) -> Admitted {
    let subject = Subject::default();
    let facts = Facts::of(&pod, "ci", &subject, &view.variables()).expect("no refusal");
    let chosen = decide::choose(&facts, &Grants::new(), view).expect("no refusal");
    let Choice::Take(chosen) = chosen else {
        panic!("the pod is claimed")
    };
    let mut admitted = decide::apply(pod, &chosen, settings).expect("no refusal");
    admitted.warnings.extend(decide::prospects(&chosen, view));
    admitted
}

fn admission(criterion: &mut Criterion) {
    let settings = Settings::default();
    let mut group = criterion.benchmark_group("decision");
    for (nodes, classes) in [(10, 1), (10, 100), (10_000, 1), (10_000, 100)] {
        let view = cluster(nodes, classes);
        group.bench_function(format!("{nodes} nodes, {classes} classes"), |bencher| {
            bencher.iter_batched(
                pod,
                |pod| black_box(decision(pod, &view, &settings)),
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();
    let mut view = cluster(10_000, 100);
    let mut size = 0;
    criterion.bench_function("a node changes, 10000 nodes, 100 classes", |bencher| {
        bencher.iter(|| {
            size = size % 16 + 1;
            let labels = [
                (labels::DOMAIN_SIZE, size.to_string()),
                ("pool", "pool-3".to_owned()),
            ];
            view.set_node(
                "node-3",
                labels.map(|(key, value)| (key.to_owned(), value)).into(),
            );
        });
    });
}

criterion_group!(benches, admission);
criterion_main!(benches);
