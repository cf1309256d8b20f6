//! Flags of `simulate`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use nvlink_simulation::ClusterSpec;

/// What `--help` ends with.
pub(super) const EXAMPLES: &str = "\
Examples:
  What would the queue have done with last month's jobs?
    kubectl nvlink simulate jobs.csv --nodes dgx-h100=4,a100-pcie-pairs=8
  The same, if jobs communicate for a quarter of their time:
    kubectl nvlink simulate jobs.csv --nodes dgx-h100=4 --communication-share 0.25
  For programs, and as a picture:
    kubectl nvlink simulate jobs.csv --nodes dgx-h100=4 -o json --plot waits.svg
  Would four more nodes with bridges do?
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
    /// Columns, in any order: time (when the job was created), gpus and duration, in seconds;
    /// optionally project, pattern (default all-reduce) and priority (default 0). Other columns
    /// are ignored; lines that begin with # are comments. A fraction of a GPU is rounded up,
    /// because Kubernetes hands out whole GPUs.
    #[arg(value_name = "TRACE")]
    pub trace: PathBuf,
    /// The nodes: profiles of nvlink-exporter's simulator, and how many of each.
    ///
    /// Repeat it to compare clusters.
    #[arg(long, value_name = "PROFILE=COUNT,…", required = true)]
    pub nodes: Vec<ClusterSpec>,
    /// The class of all jobs: a file with a DomainClass whose pods wait in the queue.
    ///
    /// The simulation goes by its scopes, order, time limits, waiting cost and quota. Without it, the
    /// settings are the defaults, except that a job may be anywhere on its node.
    #[arg(long, value_name = "FILE")]
    pub class_file: Option<PathBuf>,
    /// Decides what is arbitrary: equal arguments give equal output.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// The share of its traced duration that a job communicates, from 0 to 1.
    ///
    /// This part of a job takes as long as traced at the mean speed that `packed` gives to jobs of its
    /// size and pattern, and longer or shorter on slower or faster GPUs, under every policy. So jobs that
    /// communicate faster end sooner. A trace does not say the share, so the default is 0: each job
    /// takes as long as the trace says, wherever it runs.
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
    /// Also write a plot of waits and placement qualities to this file, as SVG.
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
