//! The variables, by the class's fabric: the one place to add a row.

use crate::crd::environment::{
    AddressFamily, Distance, Environment, Fabric, Mnnvl, PeerToPeer, RoCE,
};

/// The jobs that a variable is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// Those whose GPUs talk to others, on a node or between nodes.
    Any,
    /// Those of one node.
    Node,
    /// Those that span pods.
    Network,
    /// The same, and it names an interface: the host has others than pods have.
    PodNetwork,
}

/// A variable, by the class's fabric.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) name: &'static str,
    reach: Reach,
    fabrics: &'static [Fabric],
    pub(super) value: fn(&Environment) -> Option<String>,
}

impl Row {
    /// Whether it names an interface of the pods' own networks.
    pub(super) fn names_interface(&self) -> bool {
        self.reach == Reach::PodNetwork
    }
}

/// The rows for a container whose GPUs talk to others; `spans`: in other pods.
pub(super) fn rows(environment: &Environment, spans: bool) -> impl Iterator<Item = &'static Row> {
    let fabric = environment.fabric;
    TABLE.iter().filter(move |row| {
        let reached = match row.reach {
            Reach::Any => true,
            Reach::Node => !spans,
            Reach::Network | Reach::PodNetwork => spans,
        };
        reached && row.fabrics.contains(&fabric)
    })
}

const EACH: &[Fabric] = &[
    Fabric::None,
    Fabric::Infiniband,
    Fabric::RoCE,
    Fabric::TCP,
    Fabric::MNNVL,
    Fabric::PCIe,
];
const NETWORKS: &[Fabric] = &[Fabric::Infiniband, Fabric::RoCE, Fabric::TCP, Fabric::MNNVL];
/// MNNVL may have RDMA between racks.
const RDMA: &[Fabric] = &[Fabric::Infiniband, Fabric::RoCE, Fabric::MNNVL];
const SOCKETS: &[Fabric] = &[Fabric::TCP, Fabric::MNNVL];

/// What a container gets whose GPUs talk to others.
const TABLE: &[Row] = &[
    // Only restricts: what is farther goes through memory. So never by itself.
    Row {
        name: "NCCL_P2P_LEVEL",
        reach: Reach::Any,
        fabrics: EACH,
        value: |environment| match environment.peer_to_peer? {
            PeerToPeer::PHB => Some("PHB".to_owned()),
            PeerToPeer::SYS => Some("SYS".to_owned()),
            PeerToPeer::Disabled => None,
        },
    },
    // Turns NVLink off as well: only where an IOMMU or ACS breaks peer access.
    Row {
        name: "NCCL_P2P_DISABLE",
        reach: Reach::Any,
        fabrics: EACH,
        value: |environment| {
            let disabled = environment.peer_to_peer == Some(PeerToPeer::Disabled);
            disabled.then(|| "1".to_owned())
        },
    },
    // Without network there is nothing to try; a list without `cuda` makes UCX crash.
    Row {
        name: "UCX_TLS",
        reach: Reach::Node,
        fabrics: &[Fabric::PCIe],
        value: |_| Some("cuda,sm,self".to_owned()),
    },
    // NCCL reads a list of prefixes (eth1 is also eth10) unless it starts with `=`.
    Row {
        name: "NCCL_SOCKET_IFNAME",
        reach: Reach::PodNetwork,
        fabrics: NETWORKS,
        value: |environment| {
            let name = environment.network_interface.as_ref();
            name.map(|name| format!("={name}"))
        },
    },
    // Without `=` mlx5_1 is also mlx5_10: a storage or management card would carry traffic.
    Row {
        name: "NCCL_IB_HCA",
        reach: Reach::Network,
        fabrics: RDMA,
        value: |environment| listed(environment, |devices| format!("={}", devices.join(","))),
    },
    // A stray RDMA card without a route would be chosen and then fail.
    Row {
        name: "NCCL_IB_DISABLE",
        reach: Reach::Network,
        fabrics: &[Fabric::TCP],
        value: |_| Some("1".to_owned()),
    },
    // NCCL's own limit suits bare machines; in virtual ones PCI is not what it seems.
    Row {
        name: "NCCL_NET_GDR_LEVEL",
        reach: Reach::Network,
        fabrics: RDMA,
        value: |environment| Some(distance(environment.gpu_direct?).to_owned()),
    },
    // Lossless Ethernet carries only the traffic that is marked as the switches expect.
    Row {
        name: "NCCL_IB_TC",
        reach: Reach::Network,
        fabrics: &[Fabric::RoCE],
        value: |environment| number(environment, |roce| roce.traffic_class),
    },
    // As above, by priority.
    Row {
        name: "NCCL_IB_SL",
        reach: Reach::Network,
        fabrics: &[Fabric::RoCE],
        value: |environment| number(environment, |roce| roce.service_level),
    },
    // NCCL finds the index itself since 2.21; a fixed one is wrong as soon as cards differ.
    Row {
        name: "NCCL_IB_GID_INDEX",
        reach: Reach::Network,
        fabrics: &[Fabric::RoCE],
        value: |environment| number(environment, |roce| roce.gid_index),
    },
    // Which of a card's addresses NCCL takes where it finds the index itself.
    Row {
        name: "NCCL_IB_ADDR_FAMILY",
        reach: Reach::Network,
        fabrics: &[Fabric::RoCE],
        value: address_family,
    },
    // As above.
    Row {
        name: "NCCL_IB_ADDR_RANGE",
        reach: Reach::Network,
        fabrics: &[Fabric::RoCE],
        value: address_range,
    },
    // By itself (2) NCCL looks whether ranks of several hosts share a fabric, and
    // then fails where their memory cannot be shared, for want of an IMEX channel.
    // 1 is no stricter: NCCL looks within one host as well, and ranks that share
    // no fabric run without. 0 never looks. (`ncclMnnvlCheck` of
    // https://github.com/NVIDIA/nccl/blob/master/src/mnnvl.cc, and its one call in
    // src/init.cc; the documentation says that 1 fails and 2 does not.)
    Row {
        name: super::MNNVL,
        reach: Reach::Network,
        fabrics: EACH,
        value: |environment| match environment.mnnvl? {
            Mnnvl::Auto => None,
            Mnnvl::Required => Some("1".to_owned()),
            Mnnvl::Disabled => Some("0".to_owned()),
        },
    },
    // A list without `cuda` makes UCX crash on GPU buffers.
    Row {
        name: "UCX_TLS",
        reach: Reach::Network,
        fabrics: RDMA,
        value: |environment| listed(environment, |_| "rc,cuda,sm,self".to_owned()),
    },
    // As above. Over MNNVL GPU buffers go by `cuda`, and the rest is small.
    Row {
        name: "UCX_TLS",
        reach: Reach::Network,
        fabrics: SOCKETS,
        value: |environment| {
            let sockets = environment.rdma_devices.is_empty();
            sockets.then(|| "tcp,cuda,sm,self".to_owned())
        },
    },
    // UCX takes every device unless told; the list names device and port.
    Row {
        name: "UCX_NET_DEVICES",
        reach: Reach::Network,
        fabrics: RDMA,
        value: |environment| listed(environment, first_ports),
    },
    // UCX takes every interface unless told, the container bridge too.
    Row {
        name: "UCX_NET_DEVICES",
        reach: Reach::PodNetwork,
        fabrics: SOCKETS,
        value: |environment| {
            let sockets = environment.rdma_devices.is_empty();
            environment.network_interface.clone().filter(|_| sockets)
        },
    },
    // UCX does not find the index itself.
    Row {
        name: "UCX_IB_GID_INDEX",
        reach: Reach::Network,
        fabrics: &[Fabric::RoCE],
        value: |environment| number(environment, |roce| roce.gid_index),
    },
    // As for NCCL.
    Row {
        name: "UCX_IB_TRAFFIC_CLASS",
        reach: Reach::Network,
        fabrics: &[Fabric::RoCE],
        value: |environment| number(environment, |roce| roce.traffic_class),
    },
    // DeepEP and PyTorch's symmetric memory talk by NVSHMEM, which has NCCL's
    // settings by names of its own (https://docs.nvidia.com/nvshmem/api/gen/env.html).
    // Where this one is not set, PyTorch gives it the value of NCCL_IB_HCA, whose
    // `=` NVSHMEM takes for a part of the name (torch/csrc/distributed/c10d/symm_mem/
    // NVSHMEMSymmetricMemory.cu of https://github.com/pytorch/pytorch).
    Row {
        name: HCA_LIST,
        reach: Reach::Network,
        fabrics: RDMA,
        value: |environment| listed(environment, first_ports),
    },
    // A prefix, as all its documentation has it.
    Row {
        name: "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME",
        reach: Reach::PodNetwork,
        fabrics: NETWORKS,
        value: |environment| environment.network_interface.clone(),
    },
    // As for NCCL, and the following.
    Row {
        name: "NVSHMEM_IB_TRAFFIC_CLASS",
        reach: Reach::Network,
        fabrics: &[Fabric::RoCE],
        value: |environment| number(environment, |roce| roce.traffic_class),
    },
    Row {
        name: "NVSHMEM_IB_SL",
        reach: Reach::Network,
        fabrics: &[Fabric::RoCE],
        value: |environment| number(environment, |roce| roce.service_level),
    },
    Row {
        name: "NVSHMEM_IB_GID_INDEX",
        reach: Reach::Network,
        fabrics: &[Fabric::RoCE],
        value: |environment| number(environment, |roce| roce.gid_index),
    },
    Row {
        name: "NVSHMEM_IB_ADDR_FAMILY",
        reach: Reach::Network,
        fabrics: &[Fabric::RoCE],
        value: address_family,
    },
    Row {
        name: "NVSHMEM_IB_ADDR_RANGE",
        reach: Reach::Network,
        fabrics: &[Fabric::RoCE],
        value: address_range,
    },
];

/// NVSHMEM's devices, and the finer map for which it has no eyes beside them.
pub(super) const HCA_LIST: &str = "NVSHMEM_HCA_LIST";
pub(super) const HCA_MAP: &str = "NVSHMEM_HCA_PE_MAPPING";

fn listed(environment: &Environment, text: fn(&[String]) -> String) -> Option<String> {
    let devices = &environment.rdma_devices[..];
    (!devices.is_empty()).then(|| text(devices))
}

/// The devices with the port that nearly all have.
fn first_ports(devices: &[String]) -> String {
    let ports: Vec<_> = devices.iter().map(|name| format!("{name}:1")).collect();
    ports.join(",")
}

fn number(environment: &Environment, field: fn(&RoCE) -> Option<u32>) -> Option<String> {
    environment
        .roce
        .as_ref()
        .and_then(field)
        .map(|number| number.to_string())
}

fn distance(distance: Distance) -> &'static str {
    match distance {
        Distance::LOC => "LOC",
        Distance::PIX => "PIX",
        Distance::PXB => "PXB",
        Distance::PHB => "PHB",
        Distance::SYS => "SYS",
    }
}

fn address_family(environment: &Environment) -> Option<String> {
    let name = match environment.roce.as_ref()?.address_family? {
        AddressFamily::V4 => "AF_INET",
        AddressFamily::V6 => "AF_INET6",
    };
    Some(name.to_owned())
}

fn address_range(environment: &Environment) -> Option<String> {
    environment.roce.as_ref()?.address_range.clone()
}
