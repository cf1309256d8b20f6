//! The flags of `policies`.

use clap::Args;
use nvlink_admission::policies::{LEASE_NAMESPACE, Site};

use super::ExemptArgs;

/// Flags of `policies`.
#[derive(Debug, Args)]
pub struct PoliciesArgs {
    /// Name the policies of the cluster that are missing or changed.
    #[arg(long)]
    pub check: bool,
    /// Like --check, with a unified diff.
    #[arg(long)]
    pub diff: bool,
    /// Print the cluster's ClassIndex, which the policies read: apply it where no controller does.
    #[arg(long, conflicts_with_all = ["check", "diff"])]
    pub index: bool,
    /// Namespace of the webhook, whose service accounts the policies limit.
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
