//! Daemons of the platform: pods without GPUs that run on every node, and what an administrator
//! can do if one is refused.

use nvlink_api::{
    ci::CiSystem,
    class::{Class, GPU},
};
use nvlink_topology::{GROUP, labels};
use serde_json::Value;

use super::{Case, devices, node_name};
use crate::authorize::RESOURCE;

/// What to do about a pod that is refused because it targets the nodes of a class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::decide) enum Remedy {
    /// This, or a grant of the right to the class.
    Else(String),
    /// Only this: a grant would go to a service account that all pods share.
    Only(String),
}

impl Remedy {
    pub(super) fn text(&self) -> &str {
        match self {
            Self::Else(text) | Self::Only(text) => text,
        }
    }
}

/// Reports whether the pod may run on the nodes of `class` as a daemon, with its access to the
/// host: the class lists the pod's namespace, and the pod requests no class and neither holds nor
/// sees a GPU.
pub(super) fn is_let_in(case: Case<'_>, class: &Class) -> bool {
    let mut listed = class.daemon_namespaces.iter();
    listed.any(|own| own == case.namespace)
        && case.class().is_none()
        && !case.held.gpus
        && case.held.containers.iter().all(|one| {
            let told = devices::check_variables(one.name(), one.value(), None);
            !one.holds_gpu(GPU) && told.is_ok()
        })
}

/// Returns what to do about a pod that targets the nodes of `class` without naming the class.
pub(super) fn remedy(case: Case<'_>, class: &Class) -> Remedy {
    let node = node_name(case.pod);
    match case.held.gpus || case.class().is_some() {
        true => Remedy::Else(remedy_of(case.pod, case.namespace)),
        // The creator has named the node, as `kubectl debug` does.
        false if !node.is_empty() && !case.held.running => Remedy::Only(debugging(node)),
        false => Remedy::Else(listing(&class.name, case.namespace)),
    }
}

/// Explains how to admit the daemons of `namespace` to the nodes of `class`.
pub(crate) fn listing(class: &str, namespace: &str) -> String {
    format!(
        "If the pod is a daemon, admit the daemons of namespace {namespace} to the nodes of the class:\n\
         kubectl patch {RESOURCE}.{GROUP} {class} --type=json -p '[{{\"op\":\"add\",\"path\":\"/spec/access/daemonNamespaces/-\",\"value\":\"{namespace}\"}}]'\n\
         or exempt the namespace from all rules of nvlink-domains:\n{}",
        exempt(namespace)
    )
}

/// Explains how to admit a pod that sees GPUs: for one of a CI job, nobody takes the namespace out of the
/// rules.
pub(crate) fn remedy_of(pod: &Value, namespace: &str) -> String {
    match CiSystem::of(pod) {
        None => exemption(namespace),
        Some(system) => format!(
            "If the job does not set this, ask for it to be removed from {}, which configures all jobs of {}",
            system.configuration(),
            system.name()
        ),
    }
}

/// Explains how to admit a daemon that sees GPUs, which no class can list.
pub(crate) fn exemption(namespace: &str) -> String {
    format!(
        "If the pod is a daemon of the platform, exempt its namespace from all rules of nvlink-domains:\n{}",
        exempt(namespace)
    )
}

/// Explains how to get a shell on `node`.
pub(crate) fn debugging(node: &str) -> String {
    format!(
        "To debug a node, use a namespace that is exempt from these rules:\n\
         kubectl debug node/{node} -n kube-system -it --image=busybox"
    )
}

fn exempt(namespace: &str) -> String {
    format!(
        "kubectl label namespace {namespace} {}=ignore",
        labels::OPT_OUT
    )
}
