//! Flags of the scheduler extender.

use std::net::SocketAddr;

use clap::Args;

/// Flags of the scheduler extender.
#[derive(Clone, Copy, Debug, Args)]
pub struct ExtenderArgs {
    /// Address of kube-scheduler's extender, over TLS with the certificate of the webhook. Without
    /// it, there is no extender.
    ///
    /// It serves /scheduler/filter and /scheduler/prioritize: docs/extender.md. It needs the rights
    /// to list and watch NodeTopologies and pods. With --client-ca-file, the scheduler needs a
    /// certificate of that CA too.
    #[arg(long, env = "NVLINK_WEBHOOK_EXTENDER_LISTEN", value_name = "ADDR")]
    pub extender_listen: Option<SocketAddr>,
}
