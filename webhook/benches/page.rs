//! The page of a cluster of 1,000 nodes with 8 GPUs each: time to render, and memory.
//! `tests/benches/page.rs` measures the same page in a browser.

#![allow(clippy::unwrap_used)] // a bad board is a bug in the benchmark

use std::{
    fs,
    sync::{Arc, LazyLock, Mutex},
    thread,
    time::{Duration, Instant},
};

use nvlink_admission::{decide::Settings, view::SharedView};
use nvlink_cluster::{
    gpus::{Hardwares, Marks},
    informer::Extent,
    mirror::Mirror,
};
use nvlink_topology::{Allocation, NodeTopologySpec};
use nvlink_webhook::{page::Page, recent::Recent};
use serde_json::{Value, json};

/// Nodes with the same graph share it, as they do in the informer.
static HARDWARES: LazyLock<Mutex<Hardwares>> = LazyLock::new(Mutex::default);
const NODES: u32 = 1000;
const CHANGED: u32 = 100;
/// Longer than a rendering is used again.
const LATER: Duration = Duration::from_millis(1100);

fn main() {
    let specs: Vec<_> = (0..NODES).map(board).collect();
    let page = Page::new(
        Mirror::default(),
        Recent::keeping(),
        SharedView::default(),
        Settings::default(),
        "bench",
    );
    let before = memory();
    let start = Instant::now();
    for (index, spec) in (0..).zip(&specs) {
        set(&page, index, spec, "train");
    }
    page.mirror.all_nodes(|_| true);
    page.mirror.all_pods(|_| true, Extent::OfClasses);
    println!("{NODES} nodes of 8 GPUs");
    println!(
        "  mirror filled      {:>8.1?}, {:.1} MiB",
        start.elapsed(),
        memory() - before
    );
    let before = memory();
    let (took, size) = timed(|| page.html(""));
    println!("  first page         {took:>8.1?}, {} KiB", size >> 10);
    let (took, size) = timed(|| page.html(""));
    println!("  the same again     {took:>8.1?}, {} KiB", size >> 10);
    println!("  rendered rows keep {:.1} MiB", memory() - before);
    let html = page.html("");
    let (_, cursor) = html.split_once("data-cursor=\"").unwrap();
    let (cursor, _) = cursor.split_once('"').unwrap();
    let (took, size) = timed(|| page.json());
    println!("  JSON               {took:>8.1?}, {} KiB", size >> 10);
    let (took, _) = timed(|| page.html("is:free"));
    println!("  a search           {took:>8.1?}");
    thread::sleep(LATER);
    let (took, _) = timed(|| page.changes(cursor, ""));
    println!("  nothing changed    {took:>8.1?}");
    for (index, spec) in (0..CHANGED).zip(&specs) {
        set(&page, index, spec, "other");
    }
    thread::sleep(LATER);
    let (took, size) = timed(|| page.changes(cursor, ""));
    println!(
        "  {CHANGED} nodes changed  {took:>8.1?}, {} KiB",
        size >> 10
    );
}

fn timed(render: impl FnOnce() -> String) -> (Duration, usize) {
    let start = Instant::now();
    let text = render();
    (start.elapsed(), text.len())
}

/// Returns the resident memory of this process, in MiB.
fn memory() -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.unwrap().split_whitespace().next().unwrap();
    kib.parse::<f64>().unwrap() / 1024.0
}

fn name(index: u32) -> String {
    format!("gpu-node-{index:04}.cluster.example")
}

fn board(index: u32) -> NodeTopologySpec {
    let link = |n: u32| {
        json!({
            "index": n, "up": true, "bytesPerSecond": 26_562_500_000_u64, "remote": {"kind": "switch"},
        })
    };
    let gpu = |gpu: u32| {
        json!({
            "index": gpu, "uuid": format!("GPU-{index:08x}-b0d2-b7c5-2dfe-{gpu:012x}"), "numaNode": gpu / 4,
            "model": "NVIDIA H100 80GB HBM3", "links": (0..18).map(link).collect::<Value>(),
        })
    };
    let gpus: Value = (0..8).map(gpu).collect();
    let spec = json!({"source": {"kind": "sim"}, "gpus": gpus});
    let mut spec: NodeTopologySpec = serde_json::from_value(spec).unwrap();
    spec.complete(&name(index)).unwrap();
    spec
}

/// Sets one to four jobs on a node, and some free GPUs.
fn set(page: &Page, index: u32, spec: &NodeTopologySpec, word: &str) {
    let size = 1 + index % 4;
    let jobs = (0..8 / size).filter(|job| !(index + job).is_multiple_of(3));
    let held = jobs.map(|job| Allocation {
        namespace: format!("team-{}", index % 12),
        pod: format!("{word}-{index}-{job}"),
        container: "main".to_owned(),
        gpus: (job * size..(job + 1) * size).collect(),
        ..Allocation::default()
    });
    let mut hardwares = HARDWARES.lock().unwrap();
    let node = hardwares.node(spec, Marks::default(), Some(held.collect()));
    page.mirror.set_node(&name(index), Arc::new(Ok(node)));
}
