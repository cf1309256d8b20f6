//! Flags of the scheduler extender.

use std::net::SocketAddr;

use clap::Args;

/// Flags of the scheduler extender.
#[derive(Clone, Copy, Debug, Args)]
pub struct ExtenderArgs {
    /// Serve kube-scheduler's extender at this address, over TLS: see docs/extender.md.
    ///
    /// Needs the rights to list and watch NodeTopologies and pods.
    #[arg(long, env = "NVLINK_WEBHOOK_EXTENDER_LISTEN", value_name = "ADDR")]
    pub extender_listen: Option<SocketAddr>,
}
