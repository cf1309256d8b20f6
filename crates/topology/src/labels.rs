//! The label and annotation names that this project writes on Nodes and pods, and their
//! values on a Node.

use std::collections::BTreeMap;

use crate::{
    NodeTopology,
    descriptor::{Capacity, Descriptor, short_value},
    missing_gpus,
};

/// Node label: number of GPUs in the node's largest domain; `1` without NVLink.
pub const DOMAIN_SIZE: &str = "nvlink-domains.io/domain-size";
/// Node label: number of GPUs in one domain that are not marked as broken, at most; `1` if
/// such GPUs are in no domain, `0` if there are none.
pub const HEALTHY_DOMAIN_SIZE: &str = "nvlink-domains.io/healthy-domain-size";
/// Node label: id of the domain, if the whole node is in one.
pub const DOMAIN: &str = "nvlink-domains.io/domain";
/// Node label: `nvswitch`, `nvlink` or `pcie`.
pub const INTERCONNECT: &str = "nvlink-domains.io/interconnect";
/// Node label: NVLink GB/s per GPU, one direction, whole number.
pub const BANDWIDTH: &str = "nvlink-domains.io/bandwidth";
/// Node label: `true` if the node's benchmarks measure below those of its siblings
/// ([`NodeTopologySpec::slow`](crate::NodeTopologySpec::slow)); absent otherwise.
pub const SLOW: &str = "nvlink-domains.io/slow";
/// Node label: number of GPUs that the node's board has and that do not answer
/// ([`crate::missing_gpus`]); absent if none is missing, or if it is not known.
pub const MISSING_GPUS: &str = "nvlink-domains.io/missing-gpus";
/// Node label: what decides which GPUs a container gets; [`PREFERRED`], or absent where the vendor's
/// device plugin does. `nvlink-exporter device-plugin` writes it.
pub const DEVICES: &str = "nvlink-domains.io/devices";
/// Value of [`DEVICES`]: `nvlink-exporter device-plugin` runs, and chooses the best GPUs that are
/// free.
pub const PREFERRED: &str = "preferred";
/// Node label that an administrator sets: how many GPUs the NVLink fabric of the node has when it is
/// complete ([`fabric_gpus`]). Of several numbers, the largest counts.
pub const FABRIC_GPUS: &str = "nvlink-domains.io/fabric-gpus";
/// Node annotation: a [`Descriptor`].
pub const TOPOLOGY: &str = "nvlink-domains.io/topology";
/// Node annotation: a [`Capacity`].
pub const CAPACITY: &str = "nvlink-domains.io/capacity";

/// All labels that describe a node.
pub const NODE_LABELS: [&str; 7] = [
    DOMAIN_SIZE,
    HEALTHY_DOMAIN_SIZE,
    DOMAIN,
    INTERCONNECT,
    BANDWIDTH,
    SLOW,
    MISSING_GPUS,
];
/// All annotations that describe a node.
pub const NODE_ANNOTATIONS: [&str; 2] = [TOPOLOGY, CAPACITY];

/// Pod annotation: the class that a job requests. Pod label: the class that the pod got.
pub const CLASS: &str = "nvlink-domains.io/class";
/// Pod annotation: how close the job's GPUs must be.
pub const SCOPE: &str = "nvlink-domains.io/scope";
/// Pod annotation: how far apart the pods of the gang may be.
pub const GANG_SCOPE: &str = "nvlink-domains.io/gang-scope";
/// Pod annotation: the communication pattern or shape.
pub const PATTERN: &str = "nvlink-domains.io/pattern";
/// Pod annotation, and the label that pod affinity selects by: the name of the gang.
pub const GANG: &str = "nvlink-domains.io/gang";
/// Pod annotation: number of pods in the gang.
pub const GANG_SIZE: &str = "nvlink-domains.io/gang-size";
/// Says that the job resumes from a checkpoint when its pods are taken away: `true` or `false`.
pub const CHECKPOINT: &str = "nvlink-domains.io/checkpoint";
/// Pod annotation: how long the job will run, such as `90m`.
pub const EXPECTED_DURATION: &str = "nvlink-domains.io/expected-duration";
/// Pod annotation: `none` disables the injection of environment variables.
pub const ENVIRONMENT: &str = "nvlink-domains.io/environment";
/// Pod label: the project that the pod belongs to.
pub const PROJECT: &str = "nvlink-domains.io/project";
/// Pod label: with the value `true`, the pod runs a benchmark whose results the exporter reads.
pub const BENCHMARK: &str = "nvlink-domains.io/benchmark";
/// Pod annotation: what the webhook set, and why, as short JSON.
pub const DECISION: &str = "nvlink-domains.io/decision";
/// Key of the taint of devices whose GPU is marked as broken.
pub const BROKEN: &str = "nvlink-domains.io/broken";
/// Scheduling gate of a pod that waits in the queue.
pub const QUEUE_GATE: &str = "nvlink-domains.io/queue";
/// Prefix of the pod annotations in which the queue keeps its state. No new pod may have one.
pub const QUEUE_STATE: &str = "nvlink-domains.io/queue-";
/// Pod annotation: where the queue put the pod, and why, as short JSON.
pub const QUEUE_PLACEMENT: &str = "nvlink-domains.io/queue-placement";
/// Label of the placeholder pods of the queue: the class for which they request a node.
pub const PLACEHOLDER: &str = "nvlink-domains.io/placeholder";
/// Annotation of a placeholder pod: the waiting pod that it stands for, as namespace/name.
pub const PLACEHOLDER_FOR: &str = "nvlink-domains.io/placeholder-for";
/// Pod annotation: the number of the term of the leader that released the pod.
pub const QUEUE_TERM: &str = "nvlink-domains.io/queue-term";
/// Pod annotation: why the pod waits in the queue: a word and a sentence, `Insufficient: …`.
pub const QUEUE_REASON: &str = "nvlink-domains.io/queue-reason";
/// Pod annotation: the position of the waiting pod's job among those of its class, from 1.
pub const QUEUE_POSITION: &str = "nvlink-domains.io/queue-position";
/// Pod annotation: when the waiting pod is expected to start, RFC 3339.
pub const QUEUE_ETA: &str = "nvlink-domains.io/queue-eta";
/// Pod annotation: since when the waiting pod waits by the API server's present clock, RFC 3339, if that
/// clock was set since it stamped the pod.
pub const QUEUE_SINCE: &str = "nvlink-domains.io/queue-since";
/// Prefix of the pod annotations that say in which order a container sees the GPUs of its claim; its
/// first and last rank and their number follow. The value is one of `CUDA_VISIBLE_DEVICES`.
pub const QUEUE_ORDER: &str = "nvlink-domains.io/queue-order.";
/// Prefix of the pod annotations that list the GPUs of the claim of a container by UUID, in rank order;
/// the same follows.
pub const QUEUE_GPUS: &str = "nvlink-domains.io/queue-gpus.";
/// Prefix of the annotations that list the RDMA devices of a container's NICs, in the order of its GPUs, as
/// `NCCL_IB_HCA` does.
pub const QUEUE_HCAS: &str = "nvlink-domains.io/queue-hcas.";
/// The same with their ports, as `UCX_NET_DEVICES` and `NVSHMEM_HCA_LIST` do.
pub const QUEUE_HCA_PORTS: &str = "nvlink-domains.io/queue-hca-ports.";
/// The entry of a pod's `resourceClaims` by which it gets its GPUs from the queue.
pub const CLAIM: &str = "nvlink-domains";
/// The entry of a pod's `resourceClaims` by which it gets its IMEX channel from the queue.
pub const CHANNEL: &str = "nvlink-domains-channel";
/// Pod annotation: whether NCCL may use NVLink between the pods of the gang, as a value of
/// `NCCL_MNNVL_ENABLE`: 2 with IMEX channels, 0 without.
pub const QUEUE_MNNVL: &str = "nvlink-domains.io/queue-mnnvl";
/// The names of the ResourceClaims and ComputeDomains of the queue begin with this.
pub const CLAIM_PREFIX: &str = "nvlink-domains-";
/// Type of a pod's condition: whether it waits in the queue, and why.
pub const QUEUED: &str = "nvlink-domains.io/Queued";
/// Type of a pod's condition: whether it has the GPUs that the queue planned, and why not.
pub const PLACED: &str = "nvlink-domains.io/PlacedAsPlanned";
/// Class annotation: with the value `true`, a condition of the open class lists the pods that would be
/// refused if it were restricted.
pub const PREVIEW_RESTRICTED: &str = "nvlink-domains.io/preview-restricted";
/// Namespace annotation: the class of GPU pods that name none.
pub const DEFAULT_CLASS: &str = "nvlink-domains.io/default-class";
/// Namespace label: with the value `ignore`, no rule applies to the namespace's pods.
pub const OPT_OUT: &str = "nvlink-domains.io/webhook";

/// Returns the labels that describe `node`, ready for its Node object; none if the source
/// cannot determine how NVLink connects the GPUs and nothing was measured.
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
    if let Some(size) = spec.largest_healthy_domain() {
        labels.insert(HEALTHY_DOMAIN_SIZE, size.to_string());
    }
    if let [domain] = &spec.domains[..]
        && domain.gpus.len() == spec.gpus.len()
    {
        labels.insert(DOMAIN, short_value(&domain.id));
    }
    if spec.slow().is_some() {
        labels.insert(SLOW, "true".to_owned());
    }
    if let Some(missing) = missing_gpus(spec).filter(|missing| *missing > 0) {
        labels.insert(MISSING_GPUS, missing.to_string());
    }
    labels
}

const GIGA: u64 = 1_000_000_000;

/// Label names from published guides, each with the label whose value it has.
const ALIASES: [(&str, &str); 5] = [
    ("k8s.node/bus-topology", INTERCONNECT),
    ("gpu.topology/nvlink-domain-size", DOMAIN_SIZE),
    ("gpu.topology/interconnect", INTERCONNECT),
    ("topology.k8s.io/nvlink-domain", DOMAIN),
    ("gpu.topology/nvlink-domain", DOMAIN),
];

/// Returns the same values under the names that published guides use. `*.k8s.io` is
/// reserved for Kubernetes, so these labels are written only on request.
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

/// Returns the annotations that describe `node`, ready for its Node object; only those
/// that the source can determine.
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

/// Reads a value of [`FABRIC_GPUS`], such as `72`; `None` if it is not a number of at least 1.
#[must_use]
pub fn fabric_gpus(value: &str) -> Option<u32> {
    value.parse().ok().filter(|&gpus| gpus > 0)
}
