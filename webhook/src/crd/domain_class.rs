//! The `DomainClass`: which NVLink domains, who may use them, what is injected.

// The derive makes public types inside functions.
#![allow(unreachable_pub)]

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use super::access::{Access, AccessMode};
use super::condition::{self, Condition};
pub use super::environment::{Environment, Fabric};

/// A class of NVLink domains, cluster-scoped as a StorageClass is.
///
/// Nothing in it is ignored in silence: what this version does not know the API
/// server warns of (or refuses, with strict field validation), and pods of a
/// class that asks for what this version cannot do are refused.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "nvlink-domains.io",
    version = "v1alpha1",
    kind = "DomainClass",
    plural = "domainclasses",
    shortname = "dclass",
    category = "nvlink",
    status = "DomainClassStatus",
    derive = "PartialEq",
    doc = "A class of NVLink domains: which nodes, who may use them, and what is set in the pods that do.",
    printcolumn(name = "Access", type_ = "string", json_path = ".spec.access.mode"),
    printcolumn(name = "Scope", type_ = "string", json_path = ".spec.placement.scope"),
    printcolumn(name = "MinBandwidth", type_ = "string", json_path = ".spec.minBandwidth"),
    printcolumn(
        name = "MinGpus",
        type_ = "integer",
        json_path = ".spec.appliesTo.minGpus",
        description = "Pods with at least so many GPUs get the class without naming it"
    ),
    printcolumn(
        name = "Accepted",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Accepted')].status",
        description = "Whether the webhook can use the class; its condition says why not"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("self.metadata.name.size() <= 63")
        .message("the name becomes a label value: use at most 63 characters")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new(
        "self.placement.whenUnavailable != 'Queue' || self.scheduler.integration == 'Gate'"
    ).message("whenUnavailable Queue needs the scheduler integration Gate: other schedulers keep queues of their own"),
    validation = Rule::new(
        "!(self.devices.mapping in ['Claim', 'Mapped']) || self.placement.whenUnavailable == 'Queue'"
    ).message("the devices mappings Claim and Mapped need whenUnavailable Queue: the queue chooses the GPUs")
)]
pub struct DomainClassSpec {
    /// Nodes that belong to the class; absent: every node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<NodeSelector>,
    /// Least NVLink bandwidth per GPU in one direction, in whole GB/s: `400GBps`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[1-9][0-9]{0,5}GBps$"))]
    pub min_bandwidth: Option<String>,
    /// Pods that get the class without naming it; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applies_to: Option<AppliesTo>,
    /// Who may use the class.
    #[serde(default)]
    pub access: Access,
    /// How close a pod's GPUs must be.
    #[serde(default)]
    pub placement: Placement,
    /// How a pod asks for GPUs.
    #[serde(default)]
    pub devices: Devices,
    /// Who places the pods.
    #[serde(default)]
    pub scheduler: Scheduler,
    /// Which variables are set in the containers that hold GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<Environment>,
}

/// Node labels, all of which must match.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeSelector {
    /// Label keys and the values that they must have.
    #[serde(default)]
    #[schemars(extend(
        "maxProperties" = 32,
        "additionalProperties" = {
            "type": "string", "maxLength": 63,
            "pattern": "^(([A-Za-z0-9][A-Za-z0-9._-]*)?[A-Za-z0-9])?$"
        }
    ))]
    #[x_kube(
        validation = Rule::new(
            r"self.all(key, key.size() <= 317 && key.matches('^([a-z0-9]([a-z0-9-]*[a-z0-9])?([.][a-z0-9]([a-z0-9-]*[a-z0-9])?)*/)?([A-Za-z0-9][A-Za-z0-9._-]{0,61})?[A-Za-z0-9]$'))"
        ).message("a key is not one of a label: letters, digits, '-', '_' and '.', perhaps behind a DNS name and '/'")
    )]
    pub match_labels: BTreeMap<String, String>,
}

/// Pods that get the class without naming it, if their subject may use it.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.maxGpus) || self.maxGpus >= self.minGpus")
        .message("maxGpus must be at least minGpus")
        .field_path(".maxGpus")
)]
pub struct AppliesTo {
    /// Fewest GPUs of a pod.
    #[schemars(range(min = 1, max = 1024))]
    #[serde(default = "one")]
    pub min_gpus: u32,
    /// Most GPUs of a pod; absent: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub max_gpus: Option<u32>,
    /// Communication patterns; none named: each. A shape such as `tp=4,pp=2`
    /// is `all-to-all` where tp is above 1, `all-reduce` where dp is, `pipeline` where pp is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 5))]
    pub patterns: Vec<PatternName>,
    /// Where several classes claim a pod the highest wins, then the first by name.
    #[schemars(range(min = -1_000_000, max = 1_000_000))]
    #[serde(default)]
    pub precedence: i32,
}

fn one() -> u32 {
    1
}

impl Default for AppliesTo {
    fn default() -> Self {
        Self {
            min_gpus: 1,
            max_gpus: None,
            patterns: Vec::new(),
            precedence: 0,
        }
    }
}

/// A communication pattern by name.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PatternName {
    /// Data parallel.
    AllReduce,
    /// Expert or tensor parallel.
    AllToAll,
    /// Pipeline parallel.
    Pipeline,
    /// A star around rank 0.
    ParameterServer,
    /// No traffic between GPUs.
    None,
}

/// How close a pod's GPUs must be.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new(
        "self.whenUnavailable == 'Queue' || !has(self.queueTimeout) && !has(self.onQueueTimeout)"
    ).message("queueTimeout and onQueueTimeout belong to whenUnavailable Queue")
)]
pub struct Placement {
    /// The scope of a pod that names none.
    #[serde(default)]
    pub scope: ScopeName,
    /// What happens to a pod while no domain is free.
    #[serde(default)]
    pub when_unavailable: WhenUnavailable,
    /// How long a pod may wait in the queue: `150s`, `90m`, `2h`; absent: for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[1-9][0-9]{0,5}[smh]$"))]
    pub queue_timeout: Option<String>,
    /// What happens then; absent: `Reject`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_queue_timeout: Option<OnQueueTimeout>,
}

/// What happens to a pod while no domain is free.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum WhenUnavailable {
    /// It is pending at the scheduler, as any pod that fits nowhere.
    #[default]
    Pending,
    /// It waits behind a scheduling gate, in order.
    Queue,
}

/// What happens to a pod that has waited too long.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnQueueTimeout {
    /// It fails, and says why.
    #[default]
    Reject,
    /// It is let go without the domain, and says so.
    Spread,
}

/// How close GPUs must be, by name.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScopeName {
    /// One GPU.
    Gpu,
    /// One NVLink domain.
    #[default]
    NvlinkDomain,
    /// One node.
    Node,
    /// One rack.
    Rack,
    /// One zone.
    Zone,
}

/// How a pod asks for GPUs.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Devices {
    /// Who hands the GPUs out.
    #[serde(default)]
    pub mapping: Mapping,
    /// The extended resource that stands for one whole GPU.
    #[schemars(regex(pattern = r"^nvidia\.com/[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"))]
    #[x_kube(
        validation = Rule::new("!self.startsWith('nvidia.com/mig-')")
            .message("a MIG slice has no NVLink: name the resource of whole GPUs"),
        validation = Rule::new("!self.endsWith('.shared')")
            .message("a shared GPU is none to place a job on: name the resource of whole GPUs")
    )]
    #[serde(default = "gpu")]
    pub resource_name: String,
}

impl Default for Devices {
    fn default() -> Self {
        Self {
            mapping: Mapping::DevicePlugin,
            resource_name: gpu(),
        }
    }
}

/// The resource that stands for one whole GPU, unless a class names another.
pub const GPU: &str = "nvidia.com/gpu";

fn gpu() -> String {
    GPU.to_owned()
}

/// Who hands GPUs to containers.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mapping {
    /// The device plugin, by an extended resource.
    #[default]
    DevicePlugin,
    /// A resource claim, which the queue makes with one request for each rank.
    Claim,
    /// The container runtime, from the UUIDs that the queue writes into the pod.
    Mapped,
}

/// Who places the pods of a class. Their node affinity is written in any case.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.integration == 'KAI' ? has(self.topology) : !has(self.topology) && !has(self.queue)")
        .message("topology and queue belong to the integration KAI, which needs the name of its Topology"),
    validation = Rule::new("(self.integration == 'Volcano') == has(self.highestTier)")
        .message("highestTier belongs to the integration Volcano, which needs it")
)]
pub struct Scheduler {
    /// Whose names are written into the pods.
    #[serde(default)]
    pub integration: Integration,
    /// KAI's queue for pods that name none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"))]
    pub queue: Option<String>,
    /// KAI's Topology, in which the placement is required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$"))]
    pub topology: Option<String>,
    /// Volcano's highest HyperNode tier that a job may span.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub highest_tier: Option<u32>,
}

/// Whose names are written into the pods of a class.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Integration {
    /// Our own: affinity, and a scheduling gate where the class queues.
    #[default]
    Gate,
    /// Kueue's topology request, in pods that Kueue manages.
    Kueue,
    /// KAI's topology request, in pods that KAI schedules.
    KAI,
    /// Volcano's network topology, in pods that Volcano schedules.
    Volcano,
    /// Our affinity, and never a gate.
    None,
}

/// What is known about a class.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DomainClassStatus {
    /// Conditions, one of each type.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "condition::list_schema")]
    pub conditions: Vec<Condition>,
}
