//! The messages of the kubelet's device plugin API, `v1beta1`, as far as the harness uses them.
//!
//! Source: `k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1/api.proto`.

use std::collections::HashMap;

use prost::Message;

pub(super) const VERSION: &str = "v1beta1";
pub(super) const REGISTER: &str = "/v1beta1.Registration/Register";
pub(super) const OPTIONS: &str = "/v1beta1.DevicePlugin/GetDevicePluginOptions";
pub(super) const LIST_AND_WATCH: &str = "/v1beta1.DevicePlugin/ListAndWatch";
pub(super) const PREFER: &str = "/v1beta1.DevicePlugin/GetPreferredAllocation";
pub(super) const ALLOCATE: &str = "/v1beta1.DevicePlugin/Allocate";
pub(super) const HEALTHY: &str = "Healthy";

#[derive(Clone, PartialEq, Message)]
pub(super) struct Empty {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Registration {
    #[prost(string, tag = "1")]
    pub(super) version: String,
    /// The name of the plugin's socket, in the kubelet's directory.
    #[prost(string, tag = "2")]
    pub(super) endpoint: String,
    #[prost(string, tag = "3")]
    pub(super) resource: String,
    #[prost(message, optional, tag = "4")]
    pub(super) options: Option<Options>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct Options {
    #[prost(bool, tag = "1")]
    pub(super) pre_start: bool,
    #[prost(bool, tag = "2")]
    pub(super) prefers: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Devices {
    #[prost(message, repeated, tag = "1")]
    pub(super) devices: Vec<Device>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Device {
    #[prost(string, tag = "1")]
    pub(super) id: String,
    #[prost(string, tag = "2")]
    pub(super) health: String,
    #[prost(message, optional, tag = "3")]
    pub(super) topology: Option<Topology>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Topology {
    #[prost(message, repeated, tag = "1")]
    pub(super) nodes: Vec<NumaNode>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct NumaNode {
    #[prost(int64, tag = "1")]
    pub(super) id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PreferRequest {
    #[prost(message, repeated, tag = "1")]
    pub(super) containers: Vec<Wish>,
}

/// Which devices of a container the kubelet asks about.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Wish {
    #[prost(string, repeated, tag = "1")]
    pub(super) available: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub(super) required: Vec<String>,
    #[prost(int32, tag = "3")]
    pub(super) size: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PreferResponse {
    #[prost(message, repeated, tag = "1")]
    pub(super) containers: Vec<Ids>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Ids {
    #[prost(string, repeated, tag = "1")]
    pub(super) ids: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AllocateRequest {
    #[prost(message, repeated, tag = "1")]
    pub(super) containers: Vec<Ids>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AllocateResponse {
    #[prost(message, repeated, tag = "1")]
    pub(super) containers: Vec<Allocation>,
}

/// What a container gets.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Allocation {
    #[prost(map = "string, string", tag = "1")]
    pub(super) environment: HashMap<String, String>,
}
