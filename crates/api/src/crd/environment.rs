//! The part of a `DomainClass` that becomes environment variables.

// The derive macro generates public types inside functions.
#![allow(unreachable_pub)]

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Environment variables for the containers that hold GPUs.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new(
        "self.fabric in ['Infiniband', 'RoCE', 'MNNVL'] || !has(self.rdmaDevices) || self.rdmaDevices.size() == 0"
    ).message("rdmaDevices belongs to the fabrics Infiniband, RoCE and MNNVL"),
    validation = Rule::new("!has(self.roce) || self.fabric == 'RoCE'")
        .message("roce belongs to the fabric RoCE"),
    validation = Rule::new("!has(self.mnnvl) || self.mnnvl == 'Disabled' || self.fabric == 'MNNVL'")
        .message("mnnvl belongs to the fabric MNNVL, unless it is Disabled"),
    validation = Rule::new("!has(self.mnnvl) || self.mnnvl != 'Managed' || !has(self.extra) || !('NCCL_MNNVL_ENABLE' in self.extra)")
        .message("extra must not set NCCL_MNNVL_ENABLE: with mnnvl Managed, the queue sets it for each job")
)]
pub struct Environment {
    /// The network between nodes.
    #[serde(default)]
    pub fabric: Fabric,
    /// Network interface of pods, such as `eth0`, that NCCL uses to connect the ranks. Not set for
    /// pods with `hostNetwork`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,14}$"))]
    pub network_interface: Option<String>,
    /// RDMA devices of a node, such as `mlx5_0`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(regex(pattern = r"^[A-Za-z0-9_-]{1,63}$")))]
    pub rdma_devices: Vec<String>,
    /// How the queue pairs of RoCE are marked and addressed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub roce: Option<RoCE>,
    /// Largest distance between a GPU and an RDMA device at which they transfer data directly.
    /// If absent, NCCL chooses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_direct: Option<Distance>,
    /// Whether jobs use NVLink between nodes. If absent, `Auto`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mnnvl: Option<Mnnvl>,
    /// How GPUs without NVLink between them transfer data. If absent, NCCL chooses, which is best
    /// unless measurements on these machines show otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer_to_peer: Option<PeerToPeer>,
    /// Further environment variables for the containers that hold GPUs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend(
        "maxProperties" = 64,
        "additionalProperties" = {"type": "string", "maxLength": 4096}
    ))]
    #[x_kube(
        validation = Rule::new("self.all(name, name.matches('^[A-Za-z_][A-Za-z0-9_]*$'))")
            .message("invalid variable name: use letters, digits and underscores, and do not start with a digit"),
        validation = Rule::new(
            "self.all(name, !(name in ['NVIDIA_VISIBLE_DEVICES', 'CUDA_VISIBLE_DEVICES', 'CUDA_DEVICE_ORDER']))"
        ).message("extra must not set the visible devices: they follow from the devices mapping"),
        validation = Rule::new(
r"!('UCX_TLS' in self) || self['UCX_TLS'].startsWith('^') != self['UCX_TLS'].matches(r'^\^?([^,]*,)*(cuda|all)(_[^,]*)?(,|$)')"
        ).message("UCX_TLS must include cuda: without cuda, UCX crashes on GPU memory")
    )]
    pub extra: BTreeMap<String, String>,
}

/// The network between nodes.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fabric {
    /// Unknown: no variables are set for it.
    #[default]
    None,
    /// InfiniBand.
    Infiniband,
    /// RDMA over Ethernet.
    RoCE,
    /// No RDMA.
    TCP,
    /// NVLink between nodes, optionally with RDMA between racks.
    MNNVL,
    /// No network: jobs stay on one node, whose GPUs communicate over PCIe.
    PCIe,
}

/// How the queue pairs of RoCE are marked and addressed. NCCL and UCX choose the
/// values of absent fields.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.gidIndex) || !has(self.addressFamily) && !has(self.addressRange)")
        .message("gidIndex fixes the address: leave out addressFamily and addressRange"),
    validation = Rule::new("!has(self.addressRange) || has(self.addressFamily)")
        .message("addressRange needs addressFamily")
)]
pub struct RoCE {
    /// Traffic class, with the DSCP in its upper six bits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 255))]
    pub traffic_class: Option<u32>,
    /// Service level.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 15))]
    pub service_level: Option<u32>,
    /// Index of the GID. Needed only for versions of NCCL that cannot choose it themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 255))]
    pub gid_index: Option<u32>,
    /// Family of the GID's address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address_family: Option<AddressFamily>,
    /// Range of the GID's address, such as `10.0.0.0/8` or `fd02::/16`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[0-9A-Fa-f.:]{2,39}/[0-9]{1,3}$"))]
    pub address_range: Option<String>,
}

/// Family of an address, as NCCL spells it.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AddressFamily {
    /// IPv4.
    #[serde(rename = "AF_INET")]
    V4,
    /// IPv6.
    #[serde(rename = "AF_INET6")]
    V6,
}

/// A distance between two PCI devices, as NCCL spells it, nearest first.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Distance {
    /// Never.
    LOC,
    /// Behind one PCI switch.
    PIX,
    /// Behind several PCI switches.
    PXB,
    /// Under one host bridge.
    PHB,
    /// Anywhere on the node.
    SYS,
}

/// The variable by which NCCL looks for NVLink between nodes, or does not.
pub const MNNVL: &str = "NCCL_MNNVL_ENABLE";

/// Whether jobs use NVLink between nodes. `Auto`: NCCL chooses, and ranks that share a fabric fail without
/// an IMEX channel. `Managed`: the queue gives gangs channels. `Required`: each pod has one. `Disabled`:
/// never.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mnnvl {
    /// NCCL chooses: between hosts whose ranks share a fabric.
    Auto,
    /// As `Auto`, and within one host too. Only if each pod is certain to have an
    /// IMEX channel. Ranks that share no fabric do not use it.
    Required,
    /// As `Auto`, with IMEX channels from the queue: each gang on several nodes of one fabric gets a
    /// ComputeDomain of NVIDIA's DRA driver, and each of its pods a channel. A gang in several fabrics
    /// uses the network between nodes. A node has one channel, so two pods of such gangs never share a
    /// node.
    Managed,
    /// Never: jobs use the network between nodes, and need no IMEX channel.
    Disabled,
}

/// How GPUs without NVLink between them transfer data.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PeerToPeer {
    /// Directly under one host bridge, through host memory otherwise.
    PHB,
    /// Directly, anywhere on the node.
    SYS,
    /// Always through host memory, even with NVLink: only if peer access is broken.
    Disabled,
}
