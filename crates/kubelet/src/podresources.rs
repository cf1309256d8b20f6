//! The parts of the kubelet's API `v1.PodResourcesLister` that are read
//! (`k8s.io/kubelet/pkg/apis/podresources/v1/api.proto`). Other fields are skipped.

use prost::Message;

/// The call, as a path.
pub const LIST: &str = "/v1.PodResourcesLister/List";

/// The request of `List`.
#[derive(Clone, PartialEq, Message)]
pub struct ListPodResourcesRequest {}

/// The answer of `List`.
#[derive(Clone, PartialEq, Message)]
pub struct ListPodResourcesResponse {
    /// The pods of the node.
    #[prost(message, repeated, tag = "1")]
    pub pod_resources: Vec<PodResources>,
}

#[derive(Clone, PartialEq, Message)]
pub struct PodResources {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub namespace: String,
    #[prost(message, repeated, tag = "3")]
    pub containers: Vec<ContainerResources>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ContainerResources {
    #[prost(string, tag = "1")]
    pub name: String,
    /// Devices that device plugins allocated.
    #[prost(message, repeated, tag = "2")]
    pub devices: Vec<ContainerDevices>,
    /// Devices that DRA drivers allocated.
    #[prost(message, repeated, tag = "5")]
    pub dynamic_resources: Vec<DynamicResource>,
}

/// Devices of one resource of a device plugin.
#[derive(Clone, PartialEq, Message)]
pub struct ContainerDevices {
    /// `nvidia.com/gpu`.
    #[prost(string, tag = "1")]
    pub resource_name: String,
    /// The plugin's names of the devices.
    #[prost(string, repeated, tag = "2")]
    pub device_ids: Vec<String>,
}

/// The devices of one claim.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct DynamicResource {
    #[prost(string, tag = "2")]
    pub claim_name: String,
    #[prost(string, tag = "3")]
    pub claim_namespace: String,
    #[prost(message, repeated, tag = "4")]
    pub claim_resources: Vec<ClaimResource>,
}

/// One device of a claim.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct ClaimResource {
    /// The devices as passed to the container runtime.
    #[prost(message, repeated, tag = "1")]
    pub cdi_devices: Vec<CdiDevice>,
    /// `gpu.nvidia.com`.
    #[prost(string, tag = "2")]
    pub driver_name: String,
    /// The node's name, for devices of a node.
    #[prost(string, tag = "3")]
    pub pool_name: String,
    /// The device's name in its ResourceSlice, `gpu-0`.
    #[prost(string, tag = "4")]
    pub device_name: String,
}

/// A device of the Container Device Interface.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct CdiDevice {
    /// `k8s.gpu.nvidia.com/claim=UID-gpu-0`.
    #[prost(string, tag = "1")]
    pub name: String,
}
