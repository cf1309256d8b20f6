//! What a scrape costs, beside the plain prometheus-client registry that
//! encodes the same series. One run, so that the two can be compared; CPU time
//! of the thread, so that a busy machine does not matter.

#![allow(missing_docs, clippy::expect_used)]

#[path = "../tests/support/full.rs"]
mod full;

use std::{collections::BTreeMap, fs, hint::black_box, sync::atomic::AtomicU64, time::Duration};

use criterion::{
    BenchmarkGroup, Criterion, criterion_group, criterion_main, measurement::WallTime,
};
use nvlink_exporter::metrics::{self, Format, Groups};
use prometheus_client::{
    encoding::text::encode,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

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
    for (name, view) in [("8 GPUs", full::eight()), ("72 GPUs", full::seventy_two())] {
        let text = metrics::render(&view, Format::OpenMetrics, Groups::ALL).expect("a text");
        let registry = registry(&text);
        let mut plain = String::new();
        encode(&mut plain, &registry).expect("a text");
        assert_eq!(samples(&plain), samples(&text), "the same series");
        let size = format!(
            "{name}, {} series, {} KiB",
            samples(&text),
            text.len() >> 10
        );
        let mut group = criterion.benchmark_group(size);
        group.sample_size(30);
        let ours = timed(&mut group, "a scrape", || {
            metrics::render(black_box(&view), Format::OpenMetrics, Groups::ALL)
        });
        let theirs = timed(&mut group, "prometheus-client's registry", || {
            let mut text = String::new();
            encode(&mut text, black_box(&registry)).map(|()| text)
        });
        group.finish();
        if let (Some(ours), Some(theirs)) = (ours, theirs) {
            println!(
                "{name}: {:.0} µs, the registry {:.0} µs: {:.2} times its time\n",
                ours * 1e6,
                theirs * 1e6,
                ours / theirs
            );
        }
    }
}

/// CPU time of this thread so far.
fn cpu() -> Duration {
    let stat = fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    let nanoseconds = stat.split(' ').next().and_then(|text| text.parse().ok());
    Duration::from_nanos(nanoseconds.expect("a number"))
}

/// Runs `body` as a benchmark; the median of its samples, in seconds, where it ran.
fn timed<T>(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    body: impl Fn() -> T,
) -> Option<f64> {
    let mut times = Vec::new();
    group.bench_function(name, |bencher| {
        bencher.iter_custom(|iterations| {
            let start = cpu();
            for _ in 0..iterations {
                black_box(body());
            }
            let took = cpu().saturating_sub(start).max(Duration::from_nanos(1));
            times.push(took.as_secs_f64() / iterations as f64);
            took
        });
    });
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied()
}

criterion_group!(benches, render);
criterion_main!(benches);
