//! Flags of `device-plugin`.

use std::{path::PathBuf, time::Duration};

use clap::Args;
use nvlink_runtime::{duration, web};

use super::{LogFormat, SourceArgs};

/// Flags of `device-plugin`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  nvlink-exporter device-plugin                          on a node, as root
  nvlink-exporter device-plugin --source sim:dgx1-v100 --kubelet-plugins ./kubelet --vendor-plugins ./vendor

The vendor's device plugin must get the directory of --vendor-plugins as its
/var/lib/kubelet/device-plugins. docs/preferred.md shows how to change its DaemonSet.")]
pub struct DevicePluginArgs {
    /// What to read
    #[command(flatten)]
    pub source: SourceArgs,

    /// The directory of the kubelet's socket for device plugins
    #[arg(
        long,
        env = "NVLINK_EXPORTER_KUBELET_PLUGINS",
        default_value = "/var/lib/kubelet/device-plugins",
        value_name = "DIR"
    )]
    pub kubelet_plugins: PathBuf,

    /// The directory that the vendor's device plugin takes for the kubelet's; created if missing
    #[arg(
        long,
        env = "NVLINK_EXPORTER_VENDOR_PLUGINS",
        default_value = "/var/lib/kubelet/nvlink-domains",
        value_name = "DIR"
    )]
    pub vendor_plugins: PathBuf,

    /// Label the Node with nvlink-domains.io/devices=preferred while this program provides its GPUs
    /// (needs --node-name)
    #[arg(long, env = "NVLINK_EXPORTER_PUBLISH", requires = "node_name")]
    pub publish: bool,

    /// Time between two readings of the source
    #[arg(
        long,
        env = "NVLINK_EXPORTER_COLLECTION_INTERVAL",
        default_value = "5s",
        value_name = "DURATION",
        value_parser = duration::flag
    )]
    pub collection_interval: Duration,

    /// Age of a reading above which the vendor's plugin chooses the GPUs
    #[arg(
        long,
        env = "NVLINK_EXPORTER_STALE_AFTER",
        default_value = "30s",
        value_name = "DURATION",
        value_parser = duration::flag
    )]
    pub stale_after: Duration,

    /// Address of /metrics, /livez and /readyz; :PORT means all IPv4 addresses (repeatable)
    #[arg(
        long = "web.listen-address",
        env = "NVLINK_EXPORTER_WEB_LISTEN_ADDRESS",
        default_value = "0.0.0.0:9838",
        value_delimiter = ',',
        value_name = "ADDRESS",
        value_parser = web::address
    )]
    pub listen_addresses: Vec<String>,

    /// File with TLS, client certificates and passwords, as for `serve`
    #[arg(
        long = "web.config.file",
        env = "NVLINK_EXPORTER_WEB_CONFIG_FILE",
        value_name = "FILE"
    )]
    pub config_file: Option<PathBuf>,

    /// Log format; RUST_LOG sets the filter (info, debug, …)
    #[arg(
        long,
        env = "NVLINK_EXPORTER_LOG_FORMAT",
        default_value = "text",
        value_enum
    )]
    pub log_format: LogFormat,
}
