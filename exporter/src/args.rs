//! The command line. The doc comments are the help texts.
#![allow(
    rustdoc::broken_intra_doc_links,
    reason = "brackets in a help text are not links"
)]

mod calibration;
mod device_plugin;
mod ingest;
mod web;

use std::{ffi::OsString, path::PathBuf, str::FromStr, time::Duration};

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum, error::ErrorKind};
use nvlink_runtime::{duration, flags};
use nvlink_source::SourceSpec;
use nvlink_topology::{BrokenGpus, Pattern, Scope};

pub use self::{
    calibration::{CalibrationAction, CalibrationArgs},
    device_plugin::DevicePluginArgs,
    ingest::{IngestArgs, IngestFormat, PlaceFlags},
    web::{Collectors, WebArgs},
};
use crate::{allocations::AllocationArgs, output::TopologyFormat};

/// Discovers the NVLink graph of a GPU node, exports it to Prometheus and publishes it to Kubernetes
#[derive(Debug, Parser)]
#[command(
    version,
    override_usage = "nvlink-exporter [COMMAND] [FLAGS]",
    after_help = EXAMPLES,
    max_term_width = 100
)]
pub struct Cli {
    /// The subcommand; `serve` by default.
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "\
Without a command, nvlink-exporter runs serve and accepts the flags of serve.

Examples:
  nvlink-exporter --source sim:dgx-h100             serve a simulated node on http://localhost:9836
  nvidia-smi topo -m | nvlink-exporter topology --source file:-
                                                    print the graph of this machine
  nvlink-exporter topology --source sim:dgx1-v100 --output dot | dot -Tsvg > node.svg
  nvlink-exporter place --source sim:dgx1-v100 --gpus 4 --free 0,1,2,4,5,7
  gpus=$(nvlink-exporter place --source file:node.json --gpus 4 --output env) && eval \"$gpus\" && torchrun …";

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve metrics and the node's page, and publish to Kubernetes
    Serve(ServeArgs),
    /// Print the graph
    Topology(TopologyArgs),
    /// Write the JSON recording of a node
    Record(RecordArgs),
    /// Find the best GPUs for a job, and explain the choice
    Place(PlaceArgs),
    /// Read the results of collective benchmarks, and compare them with the model and earlier runs
    Ingest(IngestArgs),
    /// Turn results of benchmarks into measured bandwidths for --calibration, and show them
    Calibration(CalibrationArgs),
    /// Give containers the best connected GPUs, between the kubelet and the vendor's device plugin
    DevicePlugin(DevicePluginArgs),
    /// Print what each metric means, as Markdown
    Metrics,
    /// Remove what was published about a node
    Unpublish(UnpublishArgs),
}

/// What to read.
#[derive(Debug, Args)]
pub struct SourceArgs {
    /// Source of the topology: auto, nvml[:PATH], sysfs[:ROOT], file:PATH or sim:PROFILE
    ///
    /// auto reads nvml or, while the driver's library does not answer, sysfs, which does not show
    /// NVLink. nvml:PATH names the library, sysfs:ROOT the root of the PCI tree, such as /host.
    /// file:PATH reads a recording (JSON), `nvidia-smi topo -m` or an NCCL topology (XML); file:-
    /// is standard input. sim:PROFILE simulates a node: a100-pcie-pairs, dgx-a100, dgx-h100,
    /// dgx1-v100, dgx2-v100, gb200-nvl72, h200-degraded, hgx-a100-4, hgx-b200, l40s,
    /// rtx-a6000-pairs.
    #[arg(
        long,
        env = "NVLINK_EXPORTER_SOURCE",
        default_value = "auto",
        value_name = "SOURCE"
    )]
    pub source: SourceSpec,

    /// The node's name [default: the recorded name, else the host's]
    #[arg(long, env = "NODE_NAME", value_name = "NAME", value_parser = nvlink_source::node_name)]
    pub node_name: Option<String>,

    /// File of `calibration make`: measured bandwidths that replace constants; serve follows its changes
    #[arg(long, env = "NVLINK_EXPORTER_CALIBRATION", value_name = "FILE")]
    pub calibration: Option<PathBuf>,
}

/// Flags of `serve`.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// What to read
    #[command(flatten)]
    pub source: SourceArgs,

    /// Serving
    #[command(flatten)]
    pub web: WebArgs,

    /// Time between two readings of the source; a scrape gets the latest
    #[arg(
        long,
        env = "NVLINK_EXPORTER_COLLECTION_INTERVAL",
        default_value = "5s",
        value_name = "DURATION",
        value_parser = duration::flag
    )]
    pub collection_interval: Duration,

    /// Age above which data are not served and /readyz fails
    #[arg(
        long,
        env = "NVLINK_EXPORTER_STALE_AFTER",
        default_value = "30s",
        value_name = "DURATION",
        value_parser = duration::flag
    )]
    pub stale_after: Duration,

    /// Allocations
    #[command(flatten)]
    pub allocations: AllocationArgs,

    /// Publishing
    #[command(flatten)]
    pub publish: PublishArgs,

    /// Directory of `ingest --state`, whose results are exported
    #[arg(long, env = "NVLINK_EXPORTER_COLLECTIVES", value_name = "DIR")]
    pub collectives: Option<PathBuf>,

    /// Log format; RUST_LOG sets the filter (info, debug, …)
    #[arg(
        long,
        env = "NVLINK_EXPORTER_LOG_FORMAT",
        default_value = "text",
        value_enum
    )]
    pub log_format: LogFormat,

    /// Groups of metrics to serve
    #[command(flatten)]
    pub collectors: Collectors,
}

/// Flags of publishing.
#[derive(Debug, Args)]
pub struct PublishArgs {
    /// Publish labels and annotations of the Node, and a NodeTopology (needs --node-name)
    #[arg(long, env = "NVLINK_EXPORTER_PUBLISH", requires = "node_name")]
    pub publish: bool,

    /// Also publish the labels of published guides (node.k8s.io/gpu-count, …)
    #[arg(long, env = "NVLINK_EXPORTER_ALIAS_LABELS", requires = "publish")]
    pub alias_labels: bool,

    /// Time between two checks of what is published
    #[arg(
        long,
        env = "NVLINK_EXPORTER_PUBLISH_INTERVAL",
        default_value = "5m",
        value_name = "DURATION",
        value_parser = duration::flag
    )]
    pub publish_interval: Duration,
}

/// Log formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

/// Flags of `topology`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  nvlink-exporter topology --source sim:dgx1-v100
  nvlink-exporter topology --source file:node.json --output dot | dot -Tpng > node.png
  nvlink-exporter topology --source file:node.json --output matrix    as `nvidia-smi topo -m`")]
pub struct TopologyArgs {
    /// What to read
    #[command(flatten)]
    pub source: SourceArgs,

    /// Output format
    #[arg(long, short, default_value = "table", value_enum)]
    pub output: TopologyFormat,
}

/// Flags of `record`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  nvidia-smi topo -m | nvlink-exporter record --source file:- --node-name gpu-7 --to gpu-7.json
  nvlink-exporter record --samples 60 --interval 1s --to gpu-7.json    one minute of counters
  nvlink-exporter topology --source file:gpu-7.json

Ctrl-C ends a recording early; the samples read so far are written.")]
pub struct RecordArgs {
    /// What to read
    #[command(flatten)]
    pub source: SourceArgs,

    /// File to write [default: standard output]
    #[arg(long, value_name = "FILE")]
    pub to: Option<PathBuf>,

    /// Number of samples of counters and health, which `--source file:` replays
    #[arg(
        long,
        default_value = "1",
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=1_000_000)
    )]
    pub samples: u32,

    /// Time between two samples
    #[arg(
        long,
        default_value = "1s",
        value_name = "DURATION",
        value_parser = duration::flag
    )]
    pub interval: Duration,
}

/// Flags of `place`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  nvlink-exporter place --source sim:dgx1-v100 --gpus 4
  nvlink-exporter place --source sim:dgx1-v100 --gpus 3 --free 0,2-5 --require 4
  nvlink-exporter place --source sim:dgx1-v100 --gpus 8 --pattern pipeline
  nvlink-exporter place --source sim:a100-pcie-pairs --gpus 4 --scope node --output env
  nvlink-exporter place --source sim:h200-degraded --gpus 5 --broken avoid

Exits with status 1 and the reason if there is no such placement.")]
pub struct PlaceArgs {
    /// What to read
    #[command(flatten)]
    pub source: SourceArgs,

    /// Number of GPUs
    #[arg(long, short, value_name = "K")]
    pub gpus: usize,

    /// GPUs that may be used, such as 0,1,4-7 [default: those that the recording does not allocate]
    #[arg(long, value_name = "LIST")]
    pub free: Option<Gpus>,

    /// GPUs that the placement must include
    #[arg(long, value_name = "LIST")]
    pub require: Option<Gpus>,

    /// Communication pattern: all-reduce, all-to-all, pipeline, parameter-server, none, or a shape such as tp=4,pp=2
    #[arg(long, default_value = "all-reduce")]
    pub pattern: Pattern,

    /// How close the GPUs must be: gpu, nvlink-domain (all traffic over NVLink, as for classes) or node,
    /// as for wider scopes
    #[arg(long, default_value = "nvlink-domain")]
    pub scope: Scope,

    /// Broken GPUs: avoid, last (use as few as possible) or ignore the marks
    #[arg(long, default_value = "last")]
    pub broken: BrokenGpus,

    /// Output format
    #[arg(long, short, default_value = "table", value_enum)]
    pub output: PlaceFormat,
}

/// Values of `place --output`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PlaceFormat {
    /// For people.
    Table,
    /// For programs.
    Json,
    /// `export` lines for a shell.
    Env,
}

/// Flags of `unpublish`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  nvlink-exporter unpublish --node-name gpu-7
  nvlink-exporter unpublish --all")]
pub struct UnpublishArgs {
    /// The node's name
    #[arg(long, env = "NODE_NAME", value_name = "NAME", value_parser = nvlink_source::node_name)]
    #[arg(required_unless_present = "all")]
    pub node_name: Option<String>,
    /// All nodes, also those that no longer exist: for uninstalling. Needs the rights to list and
    /// change Nodes and NodeTopologies
    #[arg(long)]
    pub all: bool,
}

/// A list of GPU indices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpus(pub Vec<u32>);

impl FromStr for Gpus {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.trim().parse::<u32>().ok().filter(|&gpu| gpu < 10_000);
        let mut gpus = Vec::new();
        for part in text.split(',').filter(|_| !text.trim().is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            match (number(first), number(last)) {
                (Some(first), Some(last)) if first <= last => gpus.extend(first..=last),
                _ => return Err(format!("{part:?} is not a GPU index; write 0,1,4-7")),
            }
        }
        gpus.sort_unstable();
        gpus.dedup();
        Ok(Self(gpus))
    }
}

/// Parses the command line.
///
/// # Errors
/// What clap reports on bad usage, and on a request for help.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let args = with_default_command(args);
    let cli = Cli::try_parse_from(&args)
        .map_err(|error| flags::naming_variable(error, &Cli::command(), &args))?;
    let times = match &cli.command {
        Command::Serve(args) => Some((args.stale_after, args.collection_interval)),
        Command::DevicePlugin(args) => Some((args.stale_after, args.collection_interval)),
        _ => None,
    };
    if times.is_some_and(|(stale, interval)| stale <= interval) {
        let reason = "--stale-after must be longer than --collection-interval, otherwise data become stale before the next collection";
        return Err(Cli::command().error(ErrorKind::ValueValidation, reason));
    }
    Ok(cli)
}

/// Returns the arguments, with `serve` inserted where they name no command.
#[must_use]
pub fn with_default_command(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut args: Vec<_> = args.into_iter().collect();
    let flag = |arg: &OsString| arg.to_string_lossy().starts_with('-');
    let own = |arg: &OsString| {
        ["-h", "--help", "-V", "--version"]
            .iter()
            .any(|own| arg == own)
    };
    let serve = args.get(1).is_none_or(|first| flag(first) && !own(first));
    if serve {
        args.insert(args.len().min(1), "serve".into());
    }
    args
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
        let help = Cli::command()
            .find_subcommand_mut("serve")
            .unwrap()
            .render_long_help();
        let help = help
            .to_string()
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        assert!(
            help.contains(&nvlink_source::sim::names().join(", ")),
            "{help}"
        );
    }

    #[test]
    fn serve_is_the_default() {
        let command =
            |args: &[&str]| with_default_command(args.iter().map(OsString::from))[1].clone();
        assert_eq!(command(&["x"]), "serve");
        assert_eq!(command(&["x", "--publish"]), "serve");
        assert_eq!(command(&["x", "place"]), "place");
        assert_eq!(command(&["x", "--help"]), "--help");
        assert_eq!(with_default_command([])[0], "serve");
    }

    #[test]
    fn values() {
        assert_eq!("4-6, 0,5".parse(), Ok(Gpus(vec![0, 4, 5, 6])));
        assert_eq!("".parse(), Ok(Gpus(vec![])));
        assert!("3-1".parse::<Gpus>().is_err() && "a".parse::<Gpus>().is_err());
        assert!("0-4000000000".parse::<Gpus>().is_err());
    }
}
