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

/// All labels that describe a node.
pub const NODE_LABELS: [&str; 4] = [DOMAIN_SIZE, DOMAIN, INTERCONNECT, BANDWIDTH];
/// All annotations that do.
pub const NODE_ANNOTATIONS: [&str; 2] = [TOPOLOGY, CAPACITY];

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
/// Namespace label: no rule holds for its pods when its value is `ignore`.
pub const OPT_OUT: &str = "nvlink-domains.io/webhook";

/// The labels that describe `node`, ready for its Node object; none where the
/// source cannot tell how NVLink joins the GPUs.
#[must_use]
pub fn node_labels(node: &NodeTopology) -> BTreeMap<&'static str, String> {
    let spec = &node.spec;
    let mut labels = BTreeMap::new();
    if let (Some(size), Some(interconnect)) = (spec.largest_domain(), spec.interconnect()) {
        labels.insert(DOMAIN_SIZE, size.to_string());
        labels.insert(INTERCONNECT, interconnect.as_str().to_owned());
        let bandwidth = Capacity::of(spec).per_gpu() / GIGA;
        labels.insert(BANDWIDTH, bandwidth.to_string());
    }
    if let [domain] = &spec.domains[..]
        && domain.gpus.len() == spec.gpus.len()
    {
        labels.insert(DOMAIN, short_value(&domain.id));
    }
    labels
}

const GIGA: u64 = 1_000_000_000;

/// Names of published guides, each with the label whose value it has.
const ALIASES: [(&str, &str); 5] = [
    ("k8s.node/bus-topology", INTERCONNECT),
    ("gpu.topology/nvlink-domain-size", DOMAIN_SIZE),
    ("gpu.topology/interconnect", INTERCONNECT),
    ("topology.k8s.io/nvlink-domain", DOMAIN),
    ("gpu.topology/nvlink-domain", DOMAIN),
];

/// The same facts under the names that published guides use. `*.k8s.io` is
/// reserved for Kubernetes, so these are written only when asked for.
#[must_use]
pub fn alias_labels(node: &NodeTopology) -> BTreeMap<&'static str, String> {
    let spec = &node.spec;
    let own = node_labels(node);
    let mut labels = BTreeMap::from([("node.k8s.io/gpu-count", spec.gpus.len().to_string())]);
    for (alias, name) in ALIASES {
        labels.extend(own.get(name).map(|value| (alias, value.clone())));
    }
    if let Some(bandwidth) = own.get(BANDWIDTH) {
        for alias in ["node.k8s.io/nvlink-bandwidth", "k8s.node/nvlink-capacity"] {
            labels.insert(alias, format!("{bandwidth}GBps"));
        }
    }
    if let Some(interconnect) = spec.interconnect() {
        let present = interconnect == crate::Interconnect::Nvswitch;
        labels.insert("nvidia.com/nvswitch.present", present.to_string());
    }
    labels
}

/// The annotations that describe `node`, ready for its Node object; only what
/// the source can tell.
#[must_use]
pub fn node_annotations(node: &NodeTopology) -> BTreeMap<&'static str, String> {
    let capacity = Capacity::of(&node.spec);
    let mut annotations = BTreeMap::new();
    if node.spec.knows_nvlink() {
        annotations.insert(TOPOLOGY, Descriptor::of(&node.spec).to_string());
    }
    if node.spec.knows_nvlink() || capacity.inter_node.is_some() {
        annotations.insert(CAPACITY, capacity.to_string());
    }
    annotations
}
