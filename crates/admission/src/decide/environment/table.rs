//! The table of variables by the class's fabric. Add new variables here.

use nvlink_api::crd::environment::{
    AddressFamily, Distance, Environment, Fabric, Mnnvl, PeerToPeer, RoCE,
};
use nvlink_topology::labels;

use crate::decide::claim;

/// The jobs that a variable is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// Jobs whose GPUs communicate, on a node or between nodes.
    Any,
    /// Jobs on one node.
    Node,
    /// Jobs that span pods.
    Network,
    /// Jobs that span pods. The variable names a network interface, and those of the host differ
    /// from those of pods.
    PodNetwork,
}

/// A variable, with the fabrics that use it.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) name: &'static str,
    reach: Reach,
    fabrics: &'static [Fabric],
    pub(super) value: Value,
}

/// What the value of a variable follows from.
#[derive(Debug)]
pub(super) enum Value {
    /// The environment of the class.
    Class(fn(&Environment) -> Option<String>),
    /// The same, in classes without RDMA devices.
    Sockets(fn(&Environment) -> Option<String>),
    /// The RDMA devices: those of the class, or those of the NICs that a pod gets by its claim.
    Devices(&'static List),
    /// None, in classes with RDMA devices.
    Rdma(&'static str),
    /// None, in classes whose pods get one NIC with each GPU.
    NicOfGpu(&'static str),
}

/// A list of RDMA devices.
#[derive(Debug)]
pub(super) struct List {
    /// The list of known ones.
    pub(super) of: fn(&[String]) -> String,
    /// What the annotation with the list of those of the NICs of a container begins with.
    pub(super) annotation: &'static str,
}

const NAMES: List = List {
    of: |devices| claim::hcas(devices),
    annotation: labels::QUEUE_HCAS,
};
const PORTS: List = List {
    of: |devices| claim::ports(devices),
    annotation: labels::QUEUE_HCA_PORTS,
};

impl Row {
    /// Reports whether it names a network interface of pods.
    pub(super) fn names_interface(&self) -> bool {
        self.reach == Reach::PodNetwork
    }
}

/// Returns the rows for a container whose GPUs communicate; `spans`: with GPUs of other pods.
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
/// Fabrics with RDMA devices. MNNVL may have RDMA between racks.
const RDMA: &[Fabric] = &[Fabric::Infiniband, Fabric::RoCE, Fabric::MNNVL];
const SOCKETS: &[Fabric] = &[Fabric::TCP, Fabric::MNNVL];

/// The variables for containers whose GPUs communicate.
const TABLE: &[Row] = &[
    // This only restricts: GPUs that are farther apart use host memory. So there is no default.
    Row {
        name: "NCCL_P2P_LEVEL",
        reach: Reach::Any,
        fabrics: EACH,
        value: Value::Class(|environment| match environment.peer_to_peer? {
            PeerToPeer::PHB => Some("PHB".to_owned()),
            PeerToPeer::SYS => Some("SYS".to_owned()),
            PeerToPeer::Disabled => None,
        }),
    },
    // This also turns NVLink off: only for nodes where an IOMMU or ACS breaks peer access.
    Row {
        name: "NCCL_P2P_DISABLE",
        reach: Reach::Any,
        fabrics: EACH,
        value: Value::Class(|environment| {
            let disabled = environment.peer_to_peer == Some(PeerToPeer::Disabled);
            disabled.then(|| "1".to_owned())
        }),
    },
    // Without a network, no other transport is useful. A list without `cuda` makes UCX crash.
    Row {
        name: "UCX_TLS",
        reach: Reach::Node,
        fabrics: &[Fabric::PCIe],
        value: Value::Class(|_| Some("cuda,sm,self".to_owned())),
    },
    // NCCL reads the list as prefixes (eth1 also matches eth10), unless it starts with `=`.
    Row {
        name: "NCCL_SOCKET_IFNAME",
        reach: Reach::PodNetwork,
        fabrics: NETWORKS,
        value: Value::Class(|environment| {
            let name = environment.network_interface.as_ref();
            name.map(|name| format!("={name}"))
        }),
    },
    Row {
        name: "NCCL_IB_HCA",
        reach: Reach::Network,
        fabrics: RDMA,
        value: Value::Devices(&NAMES),
    },
    // NCCL would choose any RDMA card, even one without a route, and then fail.
    Row {
        name: "NCCL_IB_DISABLE",
        reach: Reach::Network,
        fabrics: &[Fabric::TCP],
        value: Value::Class(|_| Some("1".to_owned())),
    },
    // NCCL's default is right on bare metal; virtual machines show another PCI topology.
    Row {
        name: "NCCL_NET_GDR_LEVEL",
        reach: Reach::Network,
        fabrics: RDMA,
        value: Value::Class(|environment| Some(distance(environment.gpu_direct?).to_owned())),
    },
    // Ethernet is lossless only for traffic that is marked as the switches expect.
    Row {
        name: "NCCL_IB_TC",
        reach: Reach::Network,
        fabrics: &[Fabric::RoCE],
        value: Value::Class(|environment| number(environment, |roce| roce.traffic_class)),
    },
    // The same, by priority.
    Row {
        name: "NCCL_IB_SL",
        reach: Reach::Network,
        fabrics: &[Fabric::RoCE],
        value: Value::Class(|environment| number(environment, |roce| roce.service_level)),
    },
    // NCCL finds the index itself since 2.21; a fixed index is wrong as soon as cards differ.
    Row {
        name: "NCCL_IB_GID_INDEX",
        reach: Reach::Network,
        fabrics: &[Fabric::RoCE],
        value: Value::Class(|environment| number(environment, |roce| roce.gid_index)),
    },
    // Selects the card's address that NCCL uses if it finds the index itself.
    Row {
        name: "NCCL_IB_ADDR_FAMILY",
        reach: Reach::Network,
        fabrics: &[Fabric::RoCE],
        value: Value::Class(address_family),
    },
    // The same, by address range.
    Row {
        name: "NCCL_IB_ADDR_RANGE",
        reach: Reach::Network,
        fabrics: &[Fabric::RoCE],
        value: Value::Class(address_range),
    },
    // By default (2), NCCL checks whether ranks of several hosts share a fabric. If they do, it
    // fails if their memory cannot be shared for lack of an IMEX channel. 1 is not stricter: NCCL
    // also checks within one host, and ranks that share no fabric run without it.
    // With 0, NCCL never checks. (`ncclMnnvlCheck` of
    // https://github.com/NVIDIA/nccl/blob/master/src/mnnvl.cc, and its only call in src/init.cc;
    // the documentation says that 1 fails and 2 does not.)
    Row {
        name: super::MNNVL,
        reach: Reach::Network,
        fabrics: EACH,
        value: Value::Class(|environment| match environment.mnnvl? {
            // With `Managed`, the queue decides for each gang.
            Mnnvl::Auto | Mnnvl::Managed => None,
            Mnnvl::Required => Some("1".to_owned()),
            Mnnvl::Disabled => Some("0".to_owned()),
        }),
    },
    // A list without `cuda` makes UCX crash on GPU buffers.
    Row {
        name: "UCX_TLS",
        reach: Reach::Network,
        fabrics: RDMA,
        value: Value::Rdma("rc,cuda,sm,self"),
    },
    // The same. With MNNVL, `cuda` carries GPU buffers, and all other traffic is small.
    Row {
        name: "UCX_TLS",
        reach: Reach::Network,
        fabrics: SOCKETS,
        value: Value::Sockets(|_| Some("tcp,cuda,sm,self".to_owned())),
    },
    // UCX uses every device by default; the list names device and port.
    Row {
        name: "UCX_NET_DEVICES",
        reach: Reach::Network,
        fabrics: RDMA,
        value: Value::Devices(&PORTS),
    },
    // UCX uses every interface by default, including the container bridge.
    Row {
        name: "UCX_NET_DEVICES",
        reach: Reach::PodNetwork,
        fabrics: SOCKETS,
        value: Value::Sockets(|environment| environment.network_interface.clone()),
    },
    // UCX does not find the index itself.
    Row {
        name: "UCX_IB_GID_INDEX",
        reach: Reach::Network,
        fabrics: &[Fabric::RoCE],
        value: Value::Class(|environment| number(environment, |roce| roce.gid_index)),
    },
    // The same as for NCCL.
    Row {
        name: "UCX_IB_TRAFFIC_CLASS",
        reach: Reach::Network,
        fabrics: &[Fabric::RoCE],
        value: Value::Class(|environment| number(environment, |roce| roce.traffic_class)),
    },
    // DeepEP and PyTorch's symmetric memory use NVSHMEM, which has NCCL's settings under its own
    // names (https://docs.nvidia.com/nvshmem/api/gen/env.html). If this one is not set, PyTorch
    // sets it to the value of NCCL_IB_HCA, and NVSHMEM reads the `=` as part of the name
    // (torch/csrc/distributed/c10d/symm_mem/NVSHMEMSymmetricMemory.cu of
    // https://github.com/pytorch/pytorch).
    Row {
        name: HCA_LIST,
        reach: Reach::Network,
        fabrics: RDMA,
        value: Value::Devices(&PORTS),
    },
    // Without it, NVSHMEM ignores the list; with it, the first rank of a pod gets the first device, and so on.
    Row {
        name: "NVSHMEM_ENABLE_NIC_PE_MAPPING",
        reach: Reach::Network,
        fabrics: RDMA,
        value: Value::NicOfGpu("1"),
    },
    // The value is a prefix, as everywhere in NVSHMEM's documentation.
    Row {
        name: "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME",
        reach: Reach::PodNetwork,
        fabrics: NETWORKS,
        value: Value::Class(|environment| environment.network_interface.clone()),
    },
    // This row and the following: the same as for NCCL.
    Row {
        name: "NVSHMEM_IB_TRAFFIC_CLASS",
        reach: Reach::Network,
        fabrics: &[Fabric::RoCE],
        value: Value::Class(|environment| number(environment, |roce| roce.traffic_class)),
    },
    Row {
        name: "NVSHMEM_IB_SL",
        reach: Reach::Network,
        fabrics: &[Fabric::RoCE],
        value: Value::Class(|environment| number(environment, |roce| roce.service_level)),
    },
    Row {
        name: "NVSHMEM_IB_GID_INDEX",
        reach: Reach::Network,
        fabrics: &[Fabric::RoCE],
        value: Value::Class(|environment| number(environment, |roce| roce.gid_index)),
    },
    Row {
        name: "NVSHMEM_IB_ADDR_FAMILY",
        reach: Reach::Network,
        fabrics: &[Fabric::RoCE],
        value: Value::Class(address_family),
    },
    Row {
        name: "NVSHMEM_IB_ADDR_RANGE",
        reach: Reach::Network,
        fabrics: &[Fabric::RoCE],
        value: Value::Class(address_range),
    },
];

/// NVSHMEM's list of devices, and its finer map, which NVSHMEM ignores if the list is set.
pub(super) const HCA_LIST: &str = "NVSHMEM_HCA_LIST";
pub(super) const HCA_MAP: &str = "NVSHMEM_HCA_PE_MAPPING";

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
