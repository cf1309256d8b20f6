//! Flags of `preview`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::ExemptArgs;

/// Flags of `preview`.
#[derive(Debug, Args)]
pub struct PreviewArgs {
    /// Pods or objects with pod templates, YAML or JSON: files, directories, or `-` for stdin.
    #[arg(
        short,
        long = "filename",
        value_name = "PATH",
        value_delimiter = ',',
        required = true
    )]
    pub filenames: Vec<PathBuf>,
    /// Objects of the cluster, files or directories: DomainClasses, Nodes, NodeTopologies (as of
    /// `nvlink-exporter record`) and Namespaces (default class and exemption).
    #[arg(long, value_name = "PATH", value_delimiter = ',')]
    pub cluster: Vec<PathBuf>,
    /// Default class of namespaces that --cluster does not have.
    #[arg(long, value_name = "CLASS")]
    pub namespace_default: Option<String>,
    /// Namespace of documents that have none.
    #[arg(short, long, value_name = "NAME", default_value = "default")]
    pub namespace: String,
    /// User who creates the pods; a service account is `system:serviceaccount:NAMESPACE:NAME`.
    ///
    /// Applies to pods, not to templates.
    #[arg(
        long,
        visible_alias = "as",
        value_name = "USER",
        default_value = "preview"
    )]
    pub user: String,
    /// Restricted classes that everybody may use, not only their CI projects; `*` means all.
    #[arg(long, value_name = "CLASS", value_delimiter = ',')]
    pub allow_use: Vec<String>,
    /// Treat this class of --cluster as restricted: show what would be refused, and what admits it.
    ///
    /// Leaves out pods with a controller, whose template decides.
    #[arg(long, value_name = "CLASS")]
    pub restrict: Option<String>,
    /// What to print.
    #[arg(short, long, value_enum, default_value_t = Output::Yaml)]
    pub output: Output,
    /// Fail also if the input has no pod (status 2), or no node of --cluster could hold one with all GPUs
    /// free (status 1).
    #[arg(long)]
    pub strict: bool,
    /// Namespaces without rules.
    #[command(flatten)]
    pub exempt: ExemptArgs,
    /// Node label of the rack, if --cluster has no class from a cluster with the webhook.
    #[arg(long, value_name = "KEY")]
    pub rack_label: Option<String>,
    /// Node label of the zone, likewise.
    #[arg(long, value_name = "KEY")]
    pub zone_label: Option<String>,
}

/// The output format of `preview`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// The resulting documents, YAML.
    Yaml,
    /// A unified diff of the YAML.
    Diff,
    /// The JSON Patch of each document.
    Patch,
    /// The resulting documents, JSON.
    Json,
    /// The decision on each pod and its reason, for people, on stdout even for refused pods.
    Text,
    /// The same for programs: a JSON array with an entry for each pod or template.
    Report,
}
