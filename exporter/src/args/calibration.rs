//! Flags of `calibration`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Flags of `calibration`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  nvlink-exporter calibration make /var/lib/nvlink/collectives > calibration.json
  kubectl -n nvlink-exporter create configmap nvlink-calibration --from-file=calibration.json
  nvlink-exporter calibration show calibration.json
  nvlink-exporter place --source nvml --gpus 4 --calibration calibration.json")]
pub struct CalibrationArgs {
    /// What to do
    #[command(subcommand)]
    pub action: CalibrationAction,
}

/// What `calibration` does.
#[derive(Debug, Subcommand)]
pub enum CalibrationAction {
    /// Sum up the benchmarks that `ingest --state` kept, as JSON for --calibration
    ///
    /// For each model of GPUs and each class of the slowest path, it takes the median of what
    /// all_reduce reached with large messages on one node, in relation to the constants: of at
    /// least 3 good runs of the last 180 days, without outliers.
    Make {
        /// Directories of `ingest --state`, of one node or of several
        #[arg(required = true, value_name = "DIR")]
        directories: Vec<PathBuf>,
    },
    /// Show a calibration
    Show {
        /// File that `calibration make` wrote
        #[arg(value_name = "FILE", env = "NVLINK_EXPORTER_CALIBRATION")]
        file: PathBuf,
    },
}
