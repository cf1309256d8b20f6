//! The flags of `policies`.

use clap::Args;
use nvlink_admission::policies::{LEASE_NAMESPACE, Site};

use super::ExemptArgs;

/// Flags of `policies`.
#[derive(Debug, Args)]
pub struct PoliciesArgs {
    /// Compare with the policies of the cluster, and name those that are missing or changed.
    #[arg(long, env = "NVLINK_WEBHOOK_CHECK")]
    pub check: bool,
    /// Like --check, and print the differences as a unified diff.
    #[arg(long, env = "NVLINK_WEBHOOK_DIFF")]
    pub diff: bool,
    /// Print the index of the cluster's classes, a ClassIndex. The policies read it. The controller
    /// keeps it up to date: apply it by hand only where none runs.
    #[arg(long, env = "NVLINK_WEBHOOK_INDEX", conflicts_with_all = ["check", "diff"])]
    pub index: bool,
    /// Namespace of the webhook, whose service accounts may write only what these policies allow.
    #[arg(
        long,
        env = "NVLINK_WEBHOOK_LEASE_NAMESPACE",
        value_name = "NAME",
        default_value = LEASE_NAMESPACE
    )]
    pub lease_namespace: String,
    /// Namespaces without rules.
    #[command(flatten)]
    pub exempt: ExemptArgs,
}

impl PoliciesArgs {
    /// Returns the cluster that the policies are for.
    #[must_use]
    pub fn site(&self) -> Site {
        Site {
            exempt: self.exempt.exempt_namespaces.clone(),
            lease_namespace: self.lease_namespace.clone(),
        }
    }
}
