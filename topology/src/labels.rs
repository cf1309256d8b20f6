//! The names that this project writes on Nodes and pods, and the values on a Node.

use std::collections::BTreeMap;

use crate::{
    NodeTopology,
    descriptor::{Capacity, Descriptor, short_value},
};

/// Node label: GPUs in the node's largest domain; `1` where there is no NVLink.
pub const DOMAIN_SIZE: &str = "nvlink-domains.io/domain-size";
/// Node label: id of the domain, when the whole node lies in one.
pub const DOMAIN: &str = "nvlink-domains.io/domain";
/// Node label: `nvswitch`, `nvlink` or `pcie`.
pub const INTERCONNECT: &str = "nvlink-domains.io/interconnect";
/// Node label: NVLink GB/s per GPU, one direction, whole number.
pub const BANDWIDTH: &str = "nvlink-domains.io/bandwidth";
/// Node annotation: a [`Descriptor`].
pub const TOPOLOGY: &str = "nvlink-domains.io/topology";
/// Node annotation: a [`Capacity`].
pub const CAPACITY: &str = "nvlink-domains.io/capacity";

/// Pod annotation: the class that a job asks for. Pod label: the class that it was given.
pub const CLASS: &str = "nvlink-domains.io/class";
/// Pod annotation: how close the job's GPUs must be.
pub const SCOPE: &str = "nvlink-domains.io/scope";
/// Pod annotation: the communication pattern or shape.
pub const PATTERN: &str = "nvlink-domains.io/pattern";
/// Pod annotation, and the label that pod affinity selects by: the gang's name.
pub const GANG: &str = "nvlink-domains.io/gang";
/// Pod annotation: number of pods in the gang.
pub const GANG_SIZE: &str = "nvlink-domains.io/gang-size";
/// Pod annotation: `none` switches off the injection of environment variables.
pub const ENVIRONMENT: &str = "nvlink-domains.io/environment";
/// Pod label: the project that the pod belongs to.
pub const PROJECT: &str = "nvlink-domains.io/project";
/// Pod annotation: what the webhook set, and why; short JSON.
pub const DECISION: &str = "nvlink-domains.io/decision";
/// Namespace annotation: the class of its GPU pods that name none.
pub const DEFAULT_CLASS: &str = "nvlink-domains.io/default-class";

/// The labels that describe `node`, ready for its Node object.
#[must_use]
pub fn node_labels(node: &NodeTopology) -> BTreeMap<&'static str, String> {
    let spec = &node.spec;
    let mut labels = BTreeMap::from([
        (DOMAIN_SIZE, spec.largest_domain().to_string()),
        (INTERCONNECT, spec.interconnect().as_str().to_owned()),
        (BANDWIDTH, (Capacity::of(spec).per_gpu() / GIGA).to_string()),
    ]);
    if let [domain] = &spec.domains[..]
        && domain.gpus.len() == spec.gpus.len()
    {
        labels.insert(DOMAIN, short_value(&domain.id));
    }
    labels
}

const GIGA: u64 = 1_000_000_000;

/// The same facts under the names that published guides use. `*.k8s.io` is
/// reserved for Kubernetes, so these are written only when asked for.
#[must_use]
pub fn alias_labels(node: &NodeTopology) -> BTreeMap<&'static str, String> {
    let spec = &node.spec;
    let own = node_labels(node);
    let mut labels = BTreeMap::from([
        ("node.k8s.io/gpu-count", spec.gpus.len().to_string()),
        (
            "node.k8s.io/nvlink-bandwidth",
            format!("{}GBps", own[BANDWIDTH]),
        ),
        ("k8s.node/bus-topology", own[INTERCONNECT].clone()),
        (
            "k8s.node/nvlink-capacity",
            format!("{}GBps", own[BANDWIDTH]),
        ),
        ("gpu.topology/nvlink-domain-size", own[DOMAIN_SIZE].clone()),
        ("gpu.topology/interconnect", own[INTERCONNECT].clone()),
        (
            "nvidia.com/nvswitch.present",
            (spec.interconnect() == crate::Interconnect::Nvswitch).to_string(),
        ),
    ]);
    if let Some(domain) = own.get(DOMAIN) {
        labels.insert("topology.k8s.io/nvlink-domain", domain.clone());
        labels.insert("gpu.topology/nvlink-domain", domain.clone());
    }
    labels
}

/// The annotations that describe `node`, ready for its Node object.
#[must_use]
pub fn node_annotations(node: &NodeTopology) -> BTreeMap<&'static str, String> {
    BTreeMap::from([
        (TOPOLOGY, Descriptor::of(&node.spec).to_string()),
        (CAPACITY, Capacity::of(&node.spec).to_string()),
    ])
}
