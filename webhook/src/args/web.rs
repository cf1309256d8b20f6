//! Flags of the page.
#![allow(
    rustdoc::broken_intra_doc_links,
    reason = "brackets in a help text are not links"
)]

use std::path::PathBuf;

use clap::Args;
use nvlink_runtime::web;

/// Flags of the page, under the names that Prometheus exporters use.
#[derive(Debug, Args)]
pub struct WebArgs {
    /// Address of the page of the cluster; :PORT means all IPv4 addresses, [::]:PORT all addresses
    /// (repeatable). Without it, there is no page.
    ///
    /// The page shows all nodes, who holds which GPUs and how well it is placed, what still fits,
    /// and the latest decisions of this replica. It needs the rights to list and watch
    /// NodeTopologies and pods. Whoever reaches the address sees the names of all pods that hold
    /// GPUs: protect it with --web.config.file.
    #[arg(
        long = "web.listen-address",
        env = "NVLINK_WEBHOOK_WEB_LISTEN_ADDRESS",
        value_delimiter = ',',
        value_name = "ADDRESS",
        value_parser = web::address
    )]
    pub listen_addresses: Vec<String>,
    /// File with TLS, client certificates, passwords and headers of the page, in the format of all
    /// Prometheus exporters.
    ///
    /// The format: <https://prometheus.io/docs/prometheus/latest/configuration/https/>. The file
    /// and the certificates that it names are read again when they change.
    #[arg(
        long = "web.config.file",
        env = "NVLINK_WEBHOOK_WEB_CONFIG_FILE",
        value_name = "FILE",
        requires = "listen_addresses"
    )]
    pub config_file: Option<PathBuf>,
}
