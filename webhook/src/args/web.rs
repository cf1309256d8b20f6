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
    /// Serve the cluster page at this address; :PORT means all IPv4 addresses, [::]:PORT all
    /// addresses (repeatable).
    ///
    /// Needs the rights to list and watch NodeTopologies and pods. The page shows the names of all
    /// pods with GPUs: protect it with --web.config.file.
    #[arg(
        long = "web.listen-address",
        env = "NVLINK_WEBHOOK_WEB_LISTEN_ADDRESS",
        value_delimiter = ',',
        value_name = "ADDRESS",
        value_parser = web::address
    )]
    pub listen_addresses: Vec<String>,
    /// File with TLS, client certificates, passwords and headers of the page.
    ///
    /// See <https://prometheus.io/docs/prometheus/latest/configuration/https/>. Changes need no
    /// restart.
    #[arg(
        long = "web.config.file",
        env = "NVLINK_WEBHOOK_WEB_CONFIG_FILE",
        value_name = "FILE",
        requires = "listen_addresses"
    )]
    pub config_file: Option<PathBuf>,
}
