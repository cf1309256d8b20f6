//! The cost of a scrape, in CPU time of the thread, which does not depend on
//! other load of the machine.

#![allow(clippy::expect_used)]

#[path = "../tests/support/full.rs"]
mod full;

use std::{fs, hint::black_box, time::Duration};

use criterion::{Criterion, criterion_group, criterion_main};
use nvlink_exporter::metrics::{self, Groups};

fn render(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("a scrape");
    group.sample_size(30);
    for (name, view) in [("8 GPUs", full::eight()), ("72 GPUs", full::seventy_two())] {
        let text = metrics::render(&view, Groups::ALL).expect("a text");
        let series = text.lines().filter(|line| !line.starts_with('#')).count();
        let name = format!("{name}, {series} series, {} KiB", text.len() >> 10);
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|iterations| {
                let start = cpu();
                for _ in 0..iterations {
                    drop(black_box(metrics::render(black_box(&view), Groups::ALL)));
                }
                cpu().saturating_sub(start).max(Duration::from_nanos(1))
            });
        });
    }
    group.finish();
}

/// Returns the CPU time of this thread so far.
fn cpu() -> Duration {
    let stat = fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    let nanoseconds = stat.split(' ').next().and_then(|text| text.parse().ok());
    Duration::from_nanos(nanoseconds.expect("a number"))
}

criterion_group!(benches, render);
criterion_main!(benches);
