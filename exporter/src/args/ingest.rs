//! Flags of `ingest`.

use std::{path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};
use nvlink_collectives::{
    Collective, Given,
    verdict::{Against, Gate},
};
use nvlink_runtime::duration;
use nvlink_source::SourceSpec;
use nvlink_topology::PathClass;

/// Flags of `ingest`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  all_reduce_perf -b 8 -e 8G -f 2 -g 8 | nvlink-exporter ingest --source nvml -
  nvlink-exporter ingest results/*.txt --source file:node.json --state /var/lib/nvlink/collectives
  nvlink-exporter ingest nccl.log --source nvml --min-ratio 0.9    the gate of a CI job
  nvlink-exporter ingest --watch /var/log/nccl --state /var/lib/nvlink/collectives

Exits with status 1 if an input cannot be read, a run failed, or a bandwidth is below --min-ratio.")]
pub struct IngestArgs {
    /// Files or directories; - is standard input
    ///
    /// Output of nccl-tests (text, or JSON of -J), files of NCCL Inspector (.prom, JSON), logs of
    /// NCCL.
    #[arg(value_name = "FILE", required_unless_present = "watch")]
    pub files: Vec<PathBuf>,

    /// Read a directory's files as they come and grow, until stopped, but no hidden and .tmp files
    #[arg(
        long,
        env = "NVLINK_EXPORTER_INGEST_WATCH",
        value_name = "DIR",
        conflicts_with_all = ["files", "min_ratio", "summary", "output"],
        requires = "state"
    )]
    pub watch: Option<PathBuf>,

    /// Time between two readings of the directory of --watch
    #[arg(
        long,
        env = "NVLINK_EXPORTER_INGEST_INTERVAL",
        default_value = "5s",
        value_name = "DURATION",
        value_parser = duration::flag
    )]
    pub interval: Duration,

    /// Time without growth after which an incomplete file of --watch counts as truncated
    #[arg(
        long,
        env = "NVLINK_EXPORTER_INGEST_SETTLE",
        default_value = "10m",
        value_name = "DURATION",
        value_parser = duration::flag
    )]
    pub settle: Duration,

    /// Directory for the latest runs of each placement class, for the baseline and `serve
    /// --collectives`
    #[arg(long, env = "NVLINK_EXPORTER_INGEST_STATE", value_name = "DIR")]
    pub state: Option<PathBuf>,

    /// The place of the runs, where their output does not tell it
    #[command(flatten)]
    pub place: PlaceFlags,

    /// Exit with status 1 if the bus bandwidth, divided by that of --against, is lower
    #[arg(
        long,
        value_name = "RATIO",
        value_parser = ratio
    )]
    pub min_ratio: Option<f64>,

    /// What --min-ratio compares with
    #[arg(long, default_value = "model", value_enum)]
    pub against: Against,

    /// Also write a summary of at most 4096 bytes, for a container's termination message
    ///
    /// The exporter reads it from pods of its namespace with the label
    /// nvlink-domains.io/benchmark=true.
    #[arg(long, value_name = "FILE")]
    pub summary: Option<PathBuf>,

    /// Output format
    #[arg(long, short, default_value = "table", value_enum)]
    pub output: IngestFormat,
}

/// The place of the runs. A flag takes precedence over what an output says.
#[derive(Debug, Args)]
pub struct PlaceFlags {
    /// Topology of a node of the runs, as for `topology`: gives --path and the model's expectation
    #[arg(long, value_name = "SOURCE")]
    pub source: Option<SourceSpec>,

    /// Collective, such as all_reduce
    #[arg(long, value_name = "NAME")]
    pub collective: Option<Collective>,

    /// GPU model, such as "NVIDIA H100 80GB HBM3"
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,

    /// Number of GPUs
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=1_000_000)
    )]
    pub gpus: Option<u32>,

    /// Number of nodes
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=1_000_000)
    )]
    pub nodes: Option<u32>,

    /// Slowest path between two GPUs of a node: NVLINK, PIX, PXB, PHB, NODE or SYS
    #[arg(
        long,
        value_name = "CLASS",
        value_parser = path
    )]
    pub path: Option<PathClass>,

    /// Whether the model expects NVSwitches to reduce an all_reduce (NVLS)
    #[arg(long, default_value = "auto", value_name = "WHETHER", value_enum)]
    pub nvls: NvlsFlag,
}

/// Values of `ingest --nvls`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum NvlsFlag {
    /// As NCCL's log or NCCL Inspector says; without both, wherever the switches can.
    Auto,
    /// Wherever the switches can, whatever the log says.
    On,
    /// Not, so that the model expects rings.
    Off,
}

/// Values of `ingest --output`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum IngestFormat {
    /// For people.
    Table,
    /// For programs, with each row as the benchmark printed it.
    Json,
}

impl IngestArgs {
    /// Returns the gate, if there is one.
    #[must_use]
    pub fn gate(&self) -> Option<Gate> {
        let against = self.against;
        let gate = |min_ratio| Gate { min_ratio, against };
        self.min_ratio.map(gate)
    }
}

impl PlaceFlags {
    /// Returns what the flags say.
    #[must_use]
    pub fn given(&self) -> Given {
        Given {
            collective: self.collective,
            model: self.model.clone(),
            gpus: self.gpus,
            nodes: self.nodes,
            path: self.path,
            nvls: match self.nvls {
                NvlsFlag::Auto => None,
                NvlsFlag::On => Some(true),
                NvlsFlag::Off => Some(false),
            },
        }
    }
}

fn ratio(text: &str) -> Result<f64, String> {
    let ratio = text.parse().ok();
    let ratio = ratio.filter(|ratio| (0.0..=100.0).contains(ratio));
    ratio.ok_or_else(|| "expected a ratio such as 0.9".to_owned())
}

fn path(text: &str) -> Result<PathClass, String> {
    use PathClass::{Node, Nvlink, Phb, Pix, Pxb, Sys};
    let classes = [Nvlink, Pix, Pxb, Phb, Node, Sys];
    let found = classes
        .into_iter()
        .find(|class| class.as_str() == text.to_ascii_uppercase());
    found.ok_or_else(|| {
        let words = classes.map(PathClass::as_str).join(", ");
        format!("expected one of {words}")
    })
}
