//! Daemons of the platform: pods without GPUs that are to run on every node,
//! and what an administrator does for one that is refused.

use nvlink_topology::{GROUP, labels};

use super::{Case, devices, node_name};
use crate::{
    authorize::RESOURCE,
    class::{Class, GPU},
};

/// What helps a pod that is refused the nodes of a class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::decide) enum Remedy {
    /// This, or the right to the class.
    Else(String),
    /// This alone: the right would be given to a service account of all pods.
    Only(String),
}

impl Remedy {
    pub(super) fn text(&self) -> &str {
        match self {
            Self::Else(text) | Self::Only(text) => text,
        }
    }
}

/// Whether the pod may run on the nodes of `class` as a daemon, with what it has
/// of the host: the class lists its namespace, it asks for no class, and it
/// holds and sees no GPU.
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

/// What helps a pod that reaches for the nodes of `class` without naming it.
pub(super) fn remedy(case: Case<'_>, class: &Class) -> Remedy {
    let node = node_name(case.pod);
    match case.held.gpus || case.class().is_some() {
        true => Remedy::Else(exemption(case.namespace)),
        // Whoever creates it has named the node, as `kubectl debug` does.
        false if !node.is_empty() && !case.held.running => Remedy::Only(debugging(node)),
        false => Remedy::Else(listing(&class.name, case.namespace)),
    }
}

/// How the daemons of `namespace` are let onto the nodes of `class`.
pub(crate) fn listing(class: &str, namespace: &str) -> String {
    format!(
        "If it is a daemon, let those of namespace {namespace} onto the nodes of the class:\n\
         kubectl patch {RESOURCE}.{GROUP} {class} --type=json -p '[{{\"op\":\"add\",\"path\":\"/spec/access/daemonNamespaces/-\",\"value\":\"{namespace}\"}}]'\n\
         or take the namespace out of all these rules:\n{}",
        exempt(namespace)
    )
}

/// How a daemon is let in that no class can list: it looks at GPUs.
pub(crate) fn exemption(namespace: &str) -> String {
    format!(
        "If it is a daemon of the platform, take its namespace out of all these rules:\n{}",
        exempt(namespace)
    )
}

/// How somebody comes to a shell on `node`.
pub(crate) fn debugging(node: &str) -> String {
    format!(
        "To look at a node, use a namespace that is out of these rules:\n\
         kubectl debug node/{node} -n kube-system -it --image=busybox"
    )
}

fn exempt(namespace: &str) -> String {
    format!(
        "kubectl label namespace {namespace} {}=ignore",
        labels::OPT_OUT
    )
}
