//! Flags of `status` and `explain`.

use std::{path::PathBuf, str::FromStr};

use clap::{Args, ValueEnum};
use nvlink_api::class::syntax::is_namespace;
use nvlink_runtime::client::Choice;

/// Flags that say which cluster and namespace, as kubectl has them.
#[derive(Clone, Debug, Args)]
pub struct ClusterArgs {
    /// Namespace of the pods; default: that of the context.
    #[arg(short, long, value_name = "NAME", value_parser = super::namespace)]
    pub namespace: Option<String>,
    /// Which cluster.
    #[command(flatten)]
    pub kubeconfig: KubeconfigArgs,
}

/// Flags that say which cluster, as kubectl has them.
#[derive(Clone, Debug, Args)]
pub struct KubeconfigArgs {
    /// Context of the kubeconfig; default: its current one.
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
    /// The kubeconfig; default: $KUBECONFIG, else ~/.kube/config, else the service account.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Impersonate this user; a service account is `system:serviceaccount:NAMESPACE:NAME`.
    #[arg(long = "as", value_name = "USER")]
    pub as_user: Option<String>,
    /// Impersonate this group (repeatable).
    #[arg(long = "as-group", value_name = "GROUP", requires = "as_user")]
    pub as_groups: Vec<String>,
}

impl KubeconfigArgs {
    /// Returns the cluster as the client wants it.
    #[must_use]
    pub fn choice(&self) -> Choice {
        Choice {
            kubeconfig: self.kubeconfig.clone(),
            context: self.context.clone(),
            user: self.as_user.clone(),
            groups: self.as_groups.clone(),
        }
    }
}

/// Flags of `status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Which cluster and namespace.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Show the waiting pods of all namespaces.
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub all_namespaces: bool,
    /// Show only this class.
    #[arg(long, value_name = "NAME")]
    pub class: Option<String>,
    /// Show at most this many domains and jobs; 0 shows all.
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub limit: usize,
    /// Show changes until interrupted: in place on a terminal, else one block after the other.
    #[arg(short, long)]
    pub watch: bool,
    /// What to print.
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    pub output: Format,
}

/// Flags of `explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// NAME, pod/NAME or NAMESPACE/NAME; or an owner such as job/NAME, for one of its pods, a waiting
    /// one if possible.
    #[arg(value_name = "POD")]
    pub pod: PodName,
    /// Which cluster and namespace.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// What to print.
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    pub output: Format,
}

/// The output format of `status` and `explain`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Text that fits the terminal, or 80 columns where there is none.
    Table,
    /// Text of any width: nothing is cut, and reasons are sentences.
    Wide,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
}

/// A pod or what owns it, and its namespace if it is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodName {
    /// Its namespace, or the word before the name.
    pub namespace: Option<String>,
    /// The kind, in lower case, of the owner that this word names; `None`: it is a namespace.
    pub owner: Option<String>,
    /// Its name.
    pub name: String,
}

/// Returns the kind in lower case that `word` is the singular or plural of, if it may own pods with GPUs.
fn owner(word: &str) -> Option<&str> {
    let kind = word.strip_suffix('s').unwrap_or(word);
    let mut known = nvlink_queue::OBJECTS
        .iter()
        .filter_map(|(_, plural)| plural.strip_suffix('s'));
    (known.any(|known| known == kind) || ["replicaset", "statefulset"].contains(&kind))
        .then_some(kind)
}

impl FromStr for PodName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let word = |text: &str| {
            let known = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
            !text.is_empty() && text.len() <= 253 && text.chars().all(known)
        };
        let (before, name) = match text.split_once('/') {
            Some((before, name)) => (Some(before), name),
            None => (None, text),
        };
        let before = before.filter(|kind| !["pod", "pods", "po"].contains(kind));
        let owner = before.and_then(owner);
        if !word(name) || !before.is_none_or(is_namespace) {
            return Err("use NAME, pod/NAME, NAMESPACE/NAME or job/NAME".to_owned());
        }
        Ok(Self {
            namespace: before.map(str::to_owned),
            owner: owner.map(str::to_owned),
            name: name.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_named_as_for_kubectl() {
        let named = |text: &str| text.parse::<PodName>().map(|pod| (pod.namespace, pod.name));
        assert_eq!(named("train-0"), Ok((None, "train-0".to_owned())));
        assert_eq!(named("pod/train-0"), Ok((None, "train-0".to_owned())));
        let both = Ok((Some("team".to_owned()), "a.b".to_owned()));
        assert_eq!(named("team/a.b"), both);
        let owned = |text: &str| {
            let pod = text.parse::<PodName>().unwrap();
            (pod.owner, pod.name)
        };
        for (text, kind) in [("job/a", "job"), ("jobs/a", "job"), ("jobset/a", "jobset")] {
            assert_eq!(owned(text), (Some(kind.to_owned()), "a".to_owned()));
        }
        for odd in ["", "/", "team/", "/a", "a/b/c", "A", "a b", "job/../x"] {
            assert!(named(odd).is_err(), "{odd}");
        }
    }
}
