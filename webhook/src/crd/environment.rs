//! The part of a `DomainClass` that becomes environment variables.

// The derive makes public types inside functions.
#![allow(unreachable_pub)]

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which variables are set in the containers that hold GPUs.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new(
        "!(self.fabric in ['Infiniband', 'RoCE']) || has(self.rdmaDevices) && self.rdmaDevices.size() > 0"
    ).message(Message::Expression("'fabric ' + self.fabric + ' needs rdmaDevices'".to_owned())),
    validation = Rule::new(
        "self.fabric in ['Infiniband', 'RoCE', 'MNNVL'] || !has(self.rdmaDevices) || self.rdmaDevices.size() == 0"
    ).message("rdmaDevices belongs to the fabrics Infiniband, RoCE and MNNVL"),
    validation = Rule::new("!has(self.gpuDirect) || has(self.rdmaDevices) && self.rdmaDevices.size() > 0")
        .message("gpuDirect is a distance to the rdmaDevices, of which there are none"),
    validation = Rule::new("!has(self.roce) || self.fabric == 'RoCE'")
        .message("roce belongs to the fabric RoCE"),
    validation = Rule::new("!has(self.mnnvl) || self.mnnvl == 'Disabled' || self.fabric == 'MNNVL'")
        .message("mnnvl belongs to the fabric MNNVL, but for Disabled")
)]
pub struct Environment {
    /// The network between nodes.
    #[serde(default)]
    pub fabric: Fabric,
    /// Interface of pods that NCCL starts up over: `eth0`. Not for pods with `hostNetwork`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,14}$"))]
    pub network_interface: Option<String>,
    /// RDMA devices of a node: `mlx5_0`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(regex(pattern = r"^[A-Za-z0-9_-]{1,63}$")))]
    pub rdma_devices: Vec<String>,
    /// How the queue pairs of RoCE are marked and addressed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub roce: Option<RoCE>,
    /// Farthest distance between a GPU and an RDMA device over which they talk
    /// directly; absent: NCCL's own choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_direct: Option<Distance>,
    /// Whether NVLink between nodes is used; absent: `Auto`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mnnvl: Option<Mnnvl>,
    /// How GPUs without NVLink between them talk; absent: NCCL's own choice,
    /// which is the best one unless measured otherwise on these machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer_to_peer: Option<PeerToPeer>,
    /// Further variables for the containers that hold GPUs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend(
        "maxProperties" = 64,
        "additionalProperties" = {"type": "string", "maxLength": 4096}
    ))]
    #[x_kube(
        validation = Rule::new("self.all(name, name.matches('^[A-Za-z_][A-Za-z0-9_]*$'))")
            .message("a variable's name has letters, digits and underscores"),
        validation = Rule::new(
            "self.all(name, !(name in ['NVIDIA_VISIBLE_DEVICES', 'CUDA_VISIBLE_DEVICES', 'CUDA_DEVICE_ORDER']))"
        ).message("the visible devices follow from the devices mapping"),
        validation = Rule::new(
r"!('UCX_TLS' in self) || self['UCX_TLS'].startsWith('^') != self['UCX_TLS'].matches(r'^\^?([^,]*,)*(cuda|all)(_[^,]*)?(,|$)')"
        ).message("a list of UCX_TLS without cuda makes UCX crash on the memory of GPUs")
    )]
    pub extra: BTreeMap<String, String>,
}

/// The network between nodes.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fabric {
    /// Not said: nothing is set for it.
    #[default]
    None,
    /// InfiniBand.
    Infiniband,
    /// RDMA over Ethernet.
    RoCE,
    /// No RDMA.
    TCP,
    /// NVLink between nodes, and perhaps RDMA between racks.
    MNNVL,
    /// None: jobs stay on one node, whose GPUs talk over PCIe.
    PCIe,
}

/// How the queue pairs of RoCE are marked and addressed. What is absent is
/// left to NCCL and UCX.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.gidIndex) || !has(self.addressFamily) && !has(self.addressRange)")
        .message("gidIndex fixes the address: leave out addressFamily and addressRange"),
    validation = Rule::new("!has(self.addressRange) || has(self.addressFamily)")
        .message("addressRange needs its addressFamily")
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
    /// Index of the GID; only for versions of NCCL that cannot choose it themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 255))]
    pub gid_index: Option<u32>,
    /// Family of the GID's address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address_family: Option<AddressFamily>,
    /// Range of the GID's address: `10.0.0.0/8`, `fd02::/16`.
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

/// Whether NVLink between nodes is used. Ranks that share a fabric and have no
/// IMEX channel fail, unless it is `Disabled`.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mnnvl {
    /// As NCCL chooses: between hosts whose ranks share a fabric.
    Auto,
    /// As `Auto`, and within one host too, where each pod surely has an IMEX
    /// channel. Ranks that share no fabric go without.
    Required,
    /// Never: jobs take the network between nodes, and need no IMEX channel.
    Disabled,
}

/// How GPUs without NVLink between them talk.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PeerToPeer {
    /// Directly under one host bridge, through memory beyond.
    PHB,
    /// Directly, anywhere on the node.
    SYS,
    /// Through memory, NVLink too: only where peer access is broken.
    Disabled,
}
