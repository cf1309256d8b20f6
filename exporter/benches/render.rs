//! What a scrape costs, beside the plain prometheus-client registry that
//! encodes the same series. One run, so that the two can be compared.

#![allow(missing_docs, clippy::expect_used)]

use std::{
    collections::BTreeMap,
    hint::black_box,
    sync::atomic::AtomicU64,
    time::{Duration, Instant},
};

use criterion::{Criterion, criterion_group, criterion_main};
use nvlink_exporter::{
    collect::collect,
    metrics::{self, Format, Groups},
    placement::{Judged, PatternFrom, Placements},
    snapshot::{Latest, View},
    source::SourceSpec,
};
use nvlink_topology::{Allocation, NodeTopologyStatus, Pattern};
use prometheus_client::{
    encoding::text::encode,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

/// A node all of whose GPUs are held, four by a container.
fn view(profile: &str) -> View {
    let source = format!("sim:{profile}");
    let spec: SourceSpec = source.parse().expect("a source");
    let mut opened = spec.open(Some("node-a")).expect("it opens");
    let snapshot = collect(&source, opened.as_mut(), Duration::from_secs(100));
    let data = snapshot.data.as_ref().expect("data");
    let gpus: Vec<u32> = data
        .topology
        .spec
        .gpus
        .iter()
        .map(|gpu| gpu.index)
        .collect();
    let judged: Vec<Judged> = gpus.chunks(4).map(judged).collect();
    let allocations = judged.iter().map(|one| one.allocation.clone()).collect();
    let latest = Latest::default();
    latest.publish(snapshot);
    latest.place(Placements {
        status: Some(NodeTopologyStatus { allocations }),
        judged,
        health: None,
    });
    latest.view(Instant::now())
}

fn judged(gpus: &[u32]) -> Judged {
    Judged {
        allocation: Allocation {
            namespace: "ci-group-project".to_owned(),
            pod: format!("runner-abcdefgh-project-4711-concurrent-{}", gpus[0]),
            container: "build".to_owned(),
            gpus: gpus.to_vec(),
            ..Allocation::default()
        },
        pattern: Pattern::AllReduce,
        pattern_from: PatternFrom::Default,
        domains: 1,
        bottleneck_bytes_per_second: Some(370_800_000_000),
        quality_node: Some(1.0),
        quality_free: Some(0.75),
    }
}

type Labels = Vec<(String, String)>;

/// A registry that holds every series of `text`.
fn registry(text: &str) -> Registry {
    let mut counters: BTreeMap<&str, Family<Labels, Counter>> = BTreeMap::new();
    let mut gauges: BTreeMap<&str, Family<Labels, Gauge<f64, AtomicU64>>> = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (series, value) = line.rsplit_once(' ').expect("a value");
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let labels = labels
            .trim_end_matches('}')
            .split("\",")
            .filter_map(|label| {
                let (name, value) = label.split_once("=\"")?;
                Some((name.to_owned(), value.trim_end_matches('"').to_owned()))
            });
        let labels: Labels = labels.collect();
        let value: f64 = value.parse().expect("a number");
        match name.strip_suffix("_total") {
            Some(name) => {
                let family = counters.entry(name).or_default();
                family.get_or_create(&labels).inc_by(value as u64);
            }
            None => {
                let family = gauges.entry(name).or_default();
                family.get_or_create(&labels).set(value);
            }
        }
    }
    let mut registry = Registry::default();
    for (name, family) in counters {
        registry.register(name, "What it says", family);
    }
    for (name, family) in gauges {
        registry.register(name, "What it says", family);
    }
    registry
}

fn samples(text: &str) -> usize {
    text.lines().filter(|line| !line.starts_with('#')).count()
}

fn render(criterion: &mut Criterion) {
    for profile in ["dgx-h100", "gb200-nvl72"] {
        let view = view(profile);
        let text = metrics::render(&view, Format::OpenMetrics, Groups::ALL).expect("a text");
        let registry = registry(&text);
        let mut plain = String::new();
        encode(&mut plain, &registry).expect("a text");
        assert_eq!(samples(&plain), samples(&text), "the same series");
        let size = format!(
            "{profile}, {} series, {} KiB",
            samples(&text),
            text.len() >> 10
        );
        let mut group = criterion.benchmark_group(size);
        group.sample_size(30);
        group.bench_function("a scrape", |bencher| {
            bencher.iter(|| metrics::render(black_box(&view), Format::OpenMetrics, Groups::ALL));
        });
        group.bench_function("prometheus-client's registry", |bencher| {
            bencher.iter(|| {
                let mut text = String::new();
                encode(&mut text, black_box(&registry)).expect("a text");
                text
            });
        });
        group.finish();
    }
}

criterion_group!(benches, render);
criterion_main!(benches);
