//! Measures the rules and the dashboards on a Prometheus that has a day of a large cluster:
//! 1,000 nodes with 8 GPUs of 18 links, and 20,000 jobs. Prints tables and the goals.
//!
//! A small cluster of real programs is the template: simulated nodes, a fake kubelet,
//! the webhook on a real API server, a Prometheus with the rules. The series of its nodes
//! are written for each node of the large one, with other names and UUIDs, and promtool
//! makes blocks of them. `NODES=100` makes it smaller. 1,000 nodes need 15 GB of disk,
//! 10 GB of memory and half an hour.

mod fill;
mod foreign;
mod measure;
mod panels;
mod sample;
mod series;

use std::{env, fs, time::Duration};

use anyhow::{Context, Result};
use fill::Fleet;
use nvlink_tests::{Prometheus, Rules};
use sample::Readers;
use serde_json::Value;

/// The default of Prometheus Operator's rules is 30 s; Prometheus' own is a minute.
const INTERVAL: Duration = Duration::from_secs(15);

/// For the end of a Prometheus, which writes gigabytes to a disk that is perhaps busy.
const END: Duration = Duration::from_secs(600);

fn main() -> Result<()> {
    let nodes = match env::var("NODES") {
        Ok(text) => text.parse().context("invalid NODES")?,
        Err(_) => 1000,
    };
    let rules = Rules::read()?;
    let expr = |rule: &Value| Some(rule["expr"].as_str()?.to_owned());
    let readers = Readers {
        panels: panels::over_time()?,
        rules: rules.all().filter_map(expr).collect(),
    };
    let fleet = Fleet::new(sample::take(&readers)?, nodes)?;
    println!("{nodes} nodes, {} series at a time", fleet.series());
    let filled = fleet.fill()?;
    println!(
        "{} samples in {} blocks, made in {:.0?}; the largest text has {} MB",
        filled.samples,
        filled.blocks,
        filled.spent,
        filled.text_bytes / 1_000_000
    );
    let evaluating = Prometheus::over(&filled.data, Some(&rules), INTERVAL)?;
    let now = measure::evaluate(&evaluating)?;
    evaluating.process.terminate(END)?;
    // Without evaluations, so that a query is alone.
    let prometheus = Prometheus::over(&filled.data, None, INTERVAL)?;
    measure::rules(&prometheus, &rules, INTERVAL, now)?;
    measure::queries(&prometheus, now)?;
    let status = fs::read_to_string(format!("/proc/{}/status", prometheus.process.id()))?;
    let most = status.lines().find(|line| line.starts_with("VmHWM"));
    println!("\nPrometheus: {}", most.unwrap_or_default());
    Ok(())
}
