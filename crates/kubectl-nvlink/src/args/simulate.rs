//! Flags of `simulate`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use nvlink_simulation::ClusterSpec;

/// What `--help` ends with.
pub(super) const EXAMPLES: &str = "\
Examples:
  What would the queue have done with last month's jobs?
    kubectl nvlink simulate jobs.csv --nodes dgx-h100=4,a100-pcie-pairs=8
  If jobs communicate for a quarter of their time, with a plot:
    kubectl nvlink simulate jobs.csv --nodes dgx-h100=4 --communication-share 0.25 --plot waits.svg
  Would four more nodes with bridges help?
    kubectl nvlink simulate jobs.csv --nodes dgx-h100=4 --nodes dgx-h100=4,a100-pcie-pairs=4
  With the scope, the order and the time limits of a class:
    kubectl nvlink simulate jobs.csv --nodes dgx-h100=4 --class-file class.yaml

A trace:
  time,gpus,duration,project
  0,8,3600,research
  12.5,0.5,90,ci

A job that no node can hold gets as few equal pods as possible, which start together under every
policy. docs/simulate.md explains the policies and the figures.";

/// Flags of `simulate`.
#[derive(Debug, Args)]
pub struct SimulateArgs {
    /// The trace: a CSV file with a header, or `-` for stdin.
    ///
    /// Columns, in any order: time and duration (in seconds), gpus (rounded up);
    /// optionally project, pattern (default all-reduce), priority (default 0). Other columns and
    /// lines that begin with # are ignored.
    #[arg(value_name = "TRACE")]
    pub trace: PathBuf,
    /// Profiles of nvlink-exporter's simulator, and how many nodes of each. Repeat it to compare
    /// clusters.
    #[arg(long, value_name = "PROFILE=COUNT,…", required = true)]
    pub nodes: Vec<ClusterSpec>,
    /// File with the DomainClass of all jobs, whose pods wait in the queue.
    ///
    /// Its scopes, order, time limits, waiting cost and quota apply; without it, the defaults with the
    /// scope node.
    #[arg(long, value_name = "FILE")]
    pub class_file: Option<PathBuf>,
    /// Seed of arbitrary choices: equal arguments give equal output.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Share of its traced duration that a job communicates, from 0 to 1.
    ///
    /// This part shrinks or grows with the speed of the job's GPUs, relative to the mean of `packed`
    /// for its size and pattern. With 0, each job takes as long as the trace says.
    #[arg(
        long,
        value_name = "FRACTION",
        value_parser = share,
        default_value_t = 0.0
    )]
    pub communication_share: f64,
    /// What to print.
    #[arg(short, long, value_enum, default_value_t = ReportFormat::Table)]
    pub output: ReportFormat,
    /// Also plot waits and placement qualities to this file, as SVG.
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
}

fn share(text: &str) -> Result<f64, String> {
    let share = text
        .parse()
        .ok()
        .filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "expected a number from 0 to 1, such as 0.25".to_owned())
}

/// The output format of `simulate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReportFormat {
    /// For people: a column for each policy, and what was gained and lost.
    Table,
    /// For programs.
    Json,
}
