//! The cost of the running exporter: memory, CPU per scrape, the time of a
//! collection, the answer while the driver hangs, and the size of the program.
//! Prints tables, and marks what misses its goal.

#![allow(clippy::expect_used)]

mod exporter;
#[path = "../../tests/support/full.rs"]
mod full;
mod library;

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use exporter::{Exporter, collection, program};
use nvlink_exporter::snapshot::View;
use nvlink_source::recording::Recorder;

const SCRAPES: u32 = 1000;

/// A node, and its goals.
struct Case {
    name: &'static str,
    source: String,
    megabytes: f64,
    cpu_milliseconds: f64,
}

fn main() {
    let directory = tempfile::tempdir().expect("a directory");
    let size = fs::metadata(program()).expect("the program").len();
    println!(
        "program: {:.1} MiB (goal 12)",
        size as f64 / f64::from(1 << 20)
    );
    println!("after {SCRAPES} scrapes:");
    for case in cases(directory.path()) {
        case.measure();
    }
    library::measure(directory.path());
}

fn cases(directory: &Path) -> [Case; 3] {
    let case = |name, source, megabytes, cpu_milliseconds| Case {
        name,
        source,
        megabytes,
        cpu_milliseconds,
    };
    let file = |name: &str, view| format!("file:{}", recording(directory, name, &view));
    [
        case("8 GPUs, held", file("8.json", full::eight()), 15.0, 1.0),
        case("8 GPUs, sim:dgx-h100", "sim:dgx-h100".to_owned(), 15.0, 1.0),
        case(
            "72 GPUs, held",
            file("72.json", full::seventy_two()),
            40.0,
            10.0,
        ),
    ]
}

/// Writes the node as `nvlink-exporter record` would.
fn recording(directory: &Path, name: &str, view: &View) -> String {
    let document = view.document().expect("a document");
    let mut recorder = Recorder::new(&document).expect("a recorder");
    let data = view.data().expect("data");
    for seconds in 0..2 {
        let added = recorder.add(Duration::from_secs(seconds), data);
        assert!(added.expect("a sample"), "it fits");
    }
    let path = directory.join(name);
    fs::write(&path, recorder.text()).expect("a file");
    path.display().to_string()
}

impl Case {
    fn measure(&self) {
        let exporter = Exporter::start(&["--source", &self.source], &[]);
        let before = exporter.cpu();
        let start = Instant::now();
        let (mut bytes, mut text) = (0, String::new());
        for _ in 0..SCRAPES {
            text = exporter.scrape();
            bytes += text.len();
        }
        let took = start.elapsed() / SCRAPES;
        let cpu = (exporter.cpu() - before) * 1000.0 / f64::from(SCRAPES);
        let memory = exporter.memory();
        let series = text.lines().filter(|line| !line.starts_with('#')).count();
        println!(
            "  {:22} {series:6} series {:5} KiB   RSS {memory:5.1} MiB (goal {})   CPU {cpu:5.2} ms a scrape (goal {})   answer in {took:.2?}   collection {:.2} ms",
            self.name,
            (bytes / SCRAPES as usize) >> 10,
            self.megabytes,
            self.cpu_milliseconds,
            collection(&text),
        );
        if memory > self.megabytes || cpu > self.cpu_milliseconds {
            println!("  above its goal");
        }
    }
}
