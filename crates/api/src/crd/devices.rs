//! The part of a `DomainClass` that says how its pods get their devices.

// The derive macro generates public types inside functions.
#![allow(unreachable_pub)]

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

/// How a pod requests GPUs.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Devices {
    /// What allocates the GPUs.
    #[serde(default)]
    pub mapping: Mapping,
    /// The extended resource that stands for one whole GPU.
    #[schemars(regex(pattern = r"^nvidia\.com/[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"))]
    #[x_kube(
        validation = Rule::new("!self.startsWith('nvidia.com/mig-')")
            .message("a MIG slice has no NVLink: name the resource of whole GPUs"),
        validation = Rule::new("!self.endsWith('.shared')")
            .message("a job cannot be placed on shared GPUs: name the resource of whole GPUs")
    )]
    #[serde(default = "gpu")]
    pub resource_name: String,
    /// The DeviceClass of whole GPUs, by which the mapping Claim requests them.
    #[schemars(
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"),
        length(max = 253)
    )]
    #[serde(default = "device_class")]
    pub device_class_name: String,
    /// The NICs that a pod gets with each of its GPUs, by the mapping Claim. If absent, none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nics: Option<Nics>,
}

/// NICs that share the PCIe root of the GPU that they are for.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Nics {
    /// The DeviceClass of the NICs.
    #[schemars(
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"),
        length(max = 253)
    )]
    pub device_class_name: String,
    /// How many NICs each GPU gets.
    #[schemars(range(min = 1, max = 8))]
    #[serde(default = "one")]
    pub per_gpu: u32,
}

fn one() -> u32 {
    1
}

impl Default for Devices {
    fn default() -> Self {
        Self {
            mapping: Mapping::DevicePlugin,
            resource_name: gpu(),
            device_class_name: device_class(),
            nics: None,
        }
    }
}

/// The resource that stands for one whole GPU, unless a class names another.
pub const GPU: &str = "nvidia.com/gpu";

fn gpu() -> String {
    GPU.to_owned()
}

/// NVIDIA's DRA driver: its name, and that of its DeviceClass of whole GPUs.
pub const GPU_DRIVER: &str = "gpu.nvidia.com";

fn device_class() -> String {
    GPU_DRIVER.to_owned()
}

/// What allocates GPUs to containers.
#[derive(
    JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoStaticStr,
)]
#[strum(const_into_str)]
pub enum Mapping {
    /// The device plugin, for an extended resource.
    #[default]
    DevicePlugin,
    /// The device plugin, on nodes where `nvlink-exporter device-plugin` stands between it and the
    /// kubelet: a container gets the best GPUs of those that are free, in the order of their ring.
    Preferred,
    /// A resource claim, which the queue creates with one request for each rank.
    Claim,
}

impl Mapping {
    /// Returns in words who chooses the GPUs of a container, and so how sure it is which it gets.
    #[must_use]
    pub fn certainty(self) -> &'static str {
        match self {
            Self::DevicePlugin => {
                "the node's device plugin chooses the GPUs, which may be others, in any order"
            }
            Self::Preferred => {
                "the container gets the best of the GPUs that are free when it starts, in the order of their ring"
            }
            Self::Claim => "the container gets exactly the GPUs that the queue chooses",
        }
    }
}
