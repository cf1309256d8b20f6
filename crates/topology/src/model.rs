//! The NodeTopology document: one schema for recordings, the HTTP API and the
//! cluster-scoped object. Field names are camelCase in JSON. A key that does not apply is
//! absent, never null or zero.

mod derived;
mod measured;

use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

use crate::{Fault, Tray};

pub use derived::Interconnect;
pub use measured::{Comparison, Measured, MeasuredSet};

/// API group of all objects and labels of this project.
pub const GROUP: &str = "nvlink-domains.io";
/// API version inside [`GROUP`].
pub const VERSION: &str = "v1alpha1";
/// `GROUP/VERSION`, as in `apiVersion`.
pub const API_VERSION: &str = "nvlink-domains.io/v1alpha1";
/// Kind of [`NodeTopology`].
pub const KIND: &str = "NodeTopology";
/// The plural of the kind, as in URLs.
pub const PLURAL: &str = "nodetopologies";

/// One node: its GPUs, how they reach each other, and who uses them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeTopology {
    /// Always [`API_VERSION`].
    pub api_version: String,
    /// Always [`KIND`].
    pub kind: String,
    /// The object's name is the node's name.
    pub metadata: Metadata,
    /// The hardware.
    pub spec: NodeTopologySpec,
    /// The use of the hardware. It is separate from the spec so that a change of
    /// allocations does not notify the watchers of the hardware.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<NodeTopologyStatus>,
}

/// The part of Kubernetes object metadata that a recording keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metadata {
    /// The node's name.
    pub name: String,
}

/// The hardware of a node. It is written without `edges` and `domains` if the source
/// cannot determine them ([`NodeTopologySpec::knows_nvlink`]).
// `skip_serializing_if` only keeps a default out of the schema: with one, the API server
// would store an empty list where a key is absent. `derived` writes the document.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct NodeTopologySpec {
    /// The source of the topology.
    pub source: Source,
    /// The place of the node in its rack, if its GPUs report one and none reports another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tray: Option<Tray>,
    /// The GPUs, by ascending index.
    #[cfg_attr(feature = "schema", schemars(length(max = 128)))]
    pub gpus: Vec<Gpu>,
    /// GPUs that answered earlier and do not answer now, by ascending index. They are
    /// nowhere else in the document.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 128)))]
    pub lost: Vec<Lost>,
    /// Pairs connected by NVLink, each once, by ascending `(a, b)`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 8128)))]
    pub edges: Vec<Edge>,
    /// The best path between each two GPUs, each pair once.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(length(max = 8128)))]
    pub paths: Vec<Path>,
    /// Maximal sets of two or more GPUs that edges connect.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 64)))]
    pub domains: Vec<Domain>,
    /// Network devices that can do RDMA.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(length(max = 256)))]
    pub nics: Vec<Nic>,
    /// The measurements that replaced constants in the bandwidths of edges and paths.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 32)))]
    pub calibration: Vec<Measured>,
    /// How the node's own benchmarks compare with those of its siblings, which the calibration
    /// sums up. A node that is slower than its siblings comes after them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 64)))]
    pub comparisons: Vec<Comparison>,
}

/// The source from which a topology was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Source {
    /// The kind of source.
    pub kind: SourceKind,
    /// What was read: a path, a profile, a driver version.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub from: String,
}

/// The kinds of source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, IntoStaticStr)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum SourceKind {
    /// The driver's management library.
    Nvml,
    /// The kernel's PCI tree; NVLink is unknown.
    Sysfs,
    /// A recording or a capture.
    File,
    /// A simulated node.
    Sim,
}

impl SourceKind {
    /// Returns the word used in JSON and in label values.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// One GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Gpu {
    /// Index as NVML and `nvidia-smi` number it (PCI bus order).
    pub index: u32,
    /// `GPU-…`; absent if the source does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// PCI address as NVML prints it, `00000000:1A:00.0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci_bus_id: Option<String>,
    /// Product name, `NVIDIA H100 80GB HBM3`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// NUMA node of the GPU (the lowest, if the source names a range).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// Whether MIG splits the GPU. It then has no peer access, and its NVLinks are
    /// reported as down.
    // Absent if MIG does not split it, or if the source cannot determine it: see `knows_mig`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mig_enabled: bool,
    /// Whether the GPU is in a virtual machine, or is a share of one. The hypervisor then
    /// decides which links it has.
    // Absent if it is not, or if the source cannot determine it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub virtual_machine: bool,
    /// Why the GPU is broken, ascending; empty if it is healthy, or if the version that
    /// wrote the document marks no GPUs. Placements leave a broken GPU out, or rank it last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 32)))]
    pub faults: Vec<Fault>,
    /// The GPU's NVLinks; absent if the source cannot see links (sysfs, or `topo -m`
    /// where NVLink connects GPUs), empty if the GPU has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 64)))]
    pub links: Option<Vec<Link>>,
}

/// A GPU that answered earlier and does not answer now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Lost {
    /// Its last known index. Another GPU may have it now.
    pub index: u32,
    /// `GPU-…`; absent if the source does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// PCI address, as that of a [`Gpu`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci_bus_id: Option<String>,
}

/// One physical NVLink of one GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Link {
    /// Link number on its GPU.
    pub index: u32,
    /// Whether the link carries traffic, or sleeps and is ready to.
    pub up: bool,
    /// Line rate, bytes per second in one direction; absent while down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<u64>,
    /// The other end; absent if the source does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<Remote>,
}

/// The far end of a link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Remote {
    /// The kind of the other end.
    pub kind: RemoteKind,
    /// PCI address of the other end; absent for a switch that the node cannot see.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci_bus_id: Option<String>,
}

/// The kind of device at the other end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, IntoStaticStr)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum RemoteKind {
    /// Another GPU.
    Gpu,
    /// An NVSwitch.
    Switch,
    /// The driver does not report it.
    Unknown,
}

impl RemoteKind {
    /// Returns the word used in JSON and in label values.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// Two GPUs that reach each other over NVLink.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Edge {
    /// GPU index, the lower of the two.
    pub a: u32,
    /// GPU index, the higher of the two.
    pub b: u32,
    /// How the two GPUs are connected.
    pub via: Via,
    /// Number of links that carry traffic between them: the links that connect them
    /// directly, or the smaller number of their active switch links.
    pub links: u32,
    /// Usable bandwidth, bytes per second in one direction.
    pub bytes_per_second: u64,
}

/// How an edge connects two GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, IntoStaticStr)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Via {
    /// Links from GPU to GPU.
    Direct,
    /// Through the node's NVSwitches.
    Switch,
    /// Through the NVLink fabric, to a GPU of another node.
    Fabric,
}

impl Via {
    /// Returns the word used in JSON and in label values.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// The best path between two GPUs of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Path {
    /// GPU index, the lower of the two.
    pub a: u32,
    /// GPU index, the higher of the two.
    pub b: u32,
    /// The hardware that the path crosses.
    pub class: PathClass,
    /// Usable bandwidth, bytes per second in one direction.
    pub bytes_per_second: u64,
    /// Whether the bandwidth is an assumed constant, because the source does not report it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub assumed: bool,
}

/// The hardware that a path crosses, nearest first, in the words of `nvidia-smi topo -m`.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, IntoStaticStr,
)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "UPPERCASE")]
#[strum(serialize_all = "UPPERCASE")]
pub enum PathClass {
    /// NVLink.
    Nvlink,
    /// At most one PCIe switch.
    Pix,
    /// Several PCIe switches, no host bridge.
    Pxb,
    /// A PCIe host bridge.
    Phb,
    /// The interconnect between host bridges of one NUMA node.
    Node,
    /// The interconnect between NUMA nodes.
    Sys,
}

impl PathClass {
    /// Returns the word used in JSON, in label values and in `topo -m`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// A maximal set of two or more GPUs that edges connect.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Domain {
    /// Id, unique in the cluster: `NODE.N` for a domain that ends at its node, or
    /// `CLUSTER-UUID.CLIQUE` (like the label `nvidia.com/gpu.clique`) for a domain that
    /// spans nodes. `-2` and so on is appended if the node has several parts of it that
    /// no edge connects.
    pub id: String,
    /// Indices of the domain's GPUs on this node, ascending.
    pub gpus: Vec<u32>,
    /// The fabric that the domain is part of, if it spans nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric: Option<Fabric>,
    /// What is wrong with all its GPUs alike, ascending, such as `missing-links` after a switch has
    /// failed: a fault of the domain and not of a GPU. Placements use the GPUs, at the bandwidth that
    /// is left.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 32)))]
    pub faults: Vec<Fault>,
}

/// A partition of a multi-node NVLink fabric. Two nodes share a domain if both fields are equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Fabric {
    /// Cluster UUID as NVML reports it; never all zero, which means that there is no fabric.
    pub cluster_uuid: String,
    /// Clique inside the cluster.
    pub clique: u32,
}

/// A network device that can do RDMA.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Nic {
    /// Device name, `mlx5_0`.
    pub name: String,
    /// PCI address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci_bus_id: Option<String>,
    /// Node GUID as the kernel writes it, `b83f:d203:0012:3456`. Fabric managers use it
    /// to find the switch to which the NIC is cabled, which no node can see.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guid: Option<String>,
    /// NUMA node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// Rate of its fastest active port, bytes per second in one direction; absent if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<u64>,
    /// Whether none of its ports is active.
    // Absent if one is, or if the source cannot determine it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub down: bool,
    /// Indices of the GPUs nearest to the NIC, ascending; empty if none is nearer than
    /// the others.
    #[serde(default)]
    pub gpus: Vec<u32>,
}

/// The use of a node's GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct NodeTopologyStatus {
    /// The containers that hold GPUs, by namespace, pod, container.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(length(max = 1024)))]
    pub allocations: Vec<Allocation>,
}

/// GPUs that one container holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Allocation {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub pod: String,
    /// UID of the pod, which distinguishes it from others with the same name; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,
    /// Name of the container.
    pub container: String,
    /// Indices of the GPUs, ascending.
    pub gpus: Vec<u32>,
    /// GPUs that no other container held when the pod came, including its own GPUs,
    /// ascending; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 128)))]
    pub free_when_placed: Option<Vec<u32>>,
    /// Since when its NVLinks have been idle, in UTC, if that was at least 30 minutes ago: they carried less
    /// than 0.05 % of their bandwidth, although one domain has all its GPUs and they should communicate. It
    /// begins anew when the exporter restarts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("format" = "date-time")))]
    pub idle_since: Option<String>,
}

impl NodeTopology {
    /// Returns a document of this version for the node `name`.
    #[must_use]
    pub fn new(name: impl Into<String>, spec: NodeTopologySpec) -> Self {
        Self {
            api_version: API_VERSION.to_owned(),
            kind: KIND.to_owned(),
            metadata: Metadata { name: name.into() },
            spec,
            status: None,
        }
    }

    /// Returns the GPUs that no allocation names.
    #[must_use]
    pub fn free_gpus(&self) -> Vec<u32> {
        self.spec.free_gpus(self.status.as_ref())
    }
}
