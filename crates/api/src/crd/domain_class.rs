//! The `DomainClass`: which NVLink domains, who may use them, what pods get.

// The derive macro generates public types inside functions.
#![allow(unreachable_pub)]

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use super::access::{Access, AccessMode};
use super::condition::{self, Condition};
pub use super::devices::{Devices, Mapping, Nics};
pub use super::environment::{Environment, Fabric};
pub use super::scope_labels::ScopeLabels;
use super::with_unit;

/// A class of NVLink domains, cluster-scoped like a StorageClass.
///
/// It says which pods get it, who may use it, which nodes it covers, and how close together the
/// GPUs of a job must be. Nothing in it is silently ignored: the API server warns about fields
/// that this version does not know (or rejects them, with strict field validation), and the
/// webhook refuses pods of a class that requests a feature this version does not have.
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
    doc = "A class of NVLink domains: which nodes, who may use them, and what their pods get.",
    printcolumn(name = "Access", type_ = "string", json_path = ".spec.access.mode"),
    printcolumn(name = "Scope", type_ = "string", json_path = ".spec.placement.scope"),
    printcolumn(name = "MinBandwidth", type_ = "string", json_path = ".spec.minBandwidth"),
    printcolumn(
        name = "MinGpus",
        type_ = "integer",
        json_path = ".spec.appliesTo.minGpus",
        description = "Minimum GPUs of pods that get the class without naming it"
    ),
    printcolumn(
        name = "Queue",
        type_ = "string",
        json_path = ".spec.placement.whenUnavailable",
        description = "What happens to a job while no node has a good place for it"
    ),
    printcolumn(
        name = "Isolated",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Isolated')].status",
        description = "Whether taints keep all other pods off the nodes of a restricted class; the message of the condition names what is missing"
    ),
    printcolumn(
        name = "Accepted",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Accepted')].status",
        description = "Whether the webhook can use the class; the message of the condition has the reason"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("self.metadata.name.size() <= 63")
        .message("the name becomes a label value: use at most 63 characters")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new(
        "self.placement.whenUnavailable != 'Queue' || self.scheduler.integration == 'Gate'"
    ).message("whenUnavailable Queue needs the scheduler integration Gate: other schedulers have their own queues"),
    validation = Rule::new(
        "self.devices.mapping != 'Claim' || self.placement.whenUnavailable == 'Queue'"
    ).message("the devices mapping Claim needs whenUnavailable Queue: the queue chooses the GPUs"),
    validation = Rule::new("!has(self.devices.nics) || self.devices.mapping == 'Claim'")
        .message("devices.nics needs the mapping Claim: the claim of a pod requests them with its GPUs"),
    validation = Rule::new(
        "!has(self.devices.nics) || has(self.environment) && self.environment.fabric in ['Infiniband', 'RoCE'] && (!has(self.environment.rdmaDevices) || self.environment.rdmaDevices.size() == 0)"
    ).message("devices.nics needs environment.fabric Infiniband or RoCE, without rdmaDevices: each pod uses the NICs of its claim"),
    validation = Rule::new(
        "!has(self.environment) || !(self.environment.fabric in ['Infiniband', 'RoCE']) || has(self.devices.nics) || has(self.environment.rdmaDevices) && self.environment.rdmaDevices.size() > 0"
    ).message(Message::Expression("'fabric ' + self.environment.fabric + ' needs rdmaDevices or devices.nics'".to_owned())),
    validation = Rule::new(
        "!has(self.environment) || !has(self.environment.gpuDirect) || has(self.devices.nics) || has(self.environment.rdmaDevices) && self.environment.rdmaDevices.size() > 0"
    ).message("environment.gpuDirect is a distance to RDMA devices: set rdmaDevices or devices.nics"),
    validation = Rule::new(
        "!has(self.environment) || !has(self.environment.mnnvl) || self.environment.mnnvl != 'Managed' || self.placement.whenUnavailable == 'Queue'"
    ).message("environment.mnnvl Managed needs whenUnavailable Queue: the queue makes the IMEX channels"),
    validation = Rule::new(
        "!has(self.access.maxGpusPerProject) || self.placement.whenUnavailable == 'Queue'"
    ).message("access.maxGpusPerProject needs whenUnavailable Queue: the queue counts what a project holds"),
    validation = Rule::new(
        "!has(self.placement.maxPlaceholderPods) || self.placement.whenUnavailable == 'Queue' && self.devices.mapping != 'Claim'"
    ).message("placement.maxPlaceholderPods needs whenUnavailable Queue, and pods that request their GPUs as a resource: autoscalers know no nodes that a ResourceClaim of the queue would need")
)]
pub struct DomainClassSpec {
    /// Nodes that belong to the class. If absent, every node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<NodeSelector>,
    /// Minimum NVLink bandwidth per GPU in one direction, in whole GB/s with the unit, such as
    /// `400GBps`; a number alone is refused.
    #[serde(
        default,
        deserialize_with = "with_unit::bandwidth",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(regex(pattern = r"^[1-9][0-9]{0,5}GBps$"))]
    pub min_bandwidth: Option<String>,
    /// Pods that get the class without naming it. If absent, none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applies_to: Option<AppliesTo>,
    /// Who may use the class.
    #[serde(default)]
    pub access: Access,
    /// How close together a pod's GPUs must be.
    #[serde(default)]
    pub placement: Placement,
    /// How a pod requests GPUs.
    #[serde(default)]
    pub devices: Devices,
    /// The scheduler that places the pods.
    #[serde(default)]
    pub scheduler: Scheduler,
    /// Environment variables for the containers that hold GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<Environment>,
}

/// Node labels; all of them must match.
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
        ).message("invalid label key: use letters, digits, '-', '_' and '.', optionally after a DNS name and '/'")
    )]
    pub match_labels: BTreeMap<String, String>,
}

/// Pods that get the class without naming it, if they may use it.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.maxGpus) || self.maxGpus >= self.minGpus")
        .message("maxGpus must be at least minGpus")
        .field_path(".maxGpus")
)]
pub struct AppliesTo {
    /// Minimum number of GPUs of a pod.
    #[schemars(range(min = 1, max = 1024))]
    #[serde(default = "one")]
    pub min_gpus: u32,
    /// Maximum number of GPUs of a pod. If absent, no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub max_gpus: Option<u32>,
    /// Communication patterns; if empty, all. A shape such as `tp=4,pp=2` counts as `all-reduce` if
    /// tp or dp is above 1, and as `pipeline` if pp is above 1.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 5))]
    pub patterns: Vec<PatternName>,
    /// If several classes claim a pod, the highest precedence wins, then the first name.
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
    /// Data or tensor parallel.
    AllReduce,
    /// Expert parallel.
    AllToAll,
    /// Pipeline parallel.
    Pipeline,
    /// A star around rank 0.
    ParameterServer,
    /// No traffic between GPUs.
    None,
}

/// How close together a pod's GPUs must be.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new(
        "self.whenUnavailable == 'Queue' || !has(self.queueTimeout) && !has(self.onQueueTimeout) && !has(self.order) && !has(self.waitingCostPercent)"
    ).message("queueTimeout, onQueueTimeout, order and waitingCostPercent belong to whenUnavailable Queue"),
    validation = Rule::new(
        "!has(self.spareNodes) || self.whenUnavailable == 'Queue' && !has(self.maxPlaceholderPods)"
    ).message("spareNodes needs whenUnavailable Queue, without maxPlaceholderPods: an autoscaler takes spare nodes for free ones")
)]
pub struct Placement {
    /// How close the GPUs of each pod must be, for pods that name no scope. `rack` and `zone` mean
    /// `node` with that `gangScope`.
    #[serde(default)]
    pub scope: ScopeName,
    /// How far apart the pods of a gang may be, for pods that name no gang scope. They are as close
    /// as what is free allows: in one NVLink fabric over several nodes, else on one node, in one
    /// rack, in one zone.
    #[serde(default)]
    pub gang_scope: GangScopeName,
    /// The pods of a gang that are on one node are one host for NCCL, so that they reach each other
    /// over NVLink: you give them the settings of docs/gangs.md, such as `hostNetwork` and `hostIPC`. If
    /// false, they communicate over the network.
    #[serde(default)]
    pub shared_host: bool,
    /// The nodes of the class may be taken away while a job runs, as spot and preemptible instances are.
    /// A job of several GPUs then needs the annotation `nvlink-domains.io/checkpoint: "true"` of its
    /// pods, which says that it resumes where it was.
    #[serde(default)]
    pub preemptible: bool,
    /// What happens with nodes whose domains are large enough only with GPUs that are marked as
    /// broken.
    #[serde(default)]
    pub broken_gpus: BrokenGpus,
    /// What happens to a pod while no domain is free.
    #[serde(default)]
    pub when_unavailable: WhenUnavailable,
    /// How long a pod may wait in the queue, with the unit, such as `150s`, `90m` or `2h`; a number
    /// alone is refused. If absent, less than the time after which the CI system of the pod gives up by
    /// default (`150s` for GitLab Runner, `4m` for Prow, `9m` for ARC, `14m` for Buildkite, `30m` for Tekton), and
    /// forever for all others.
    #[serde(
        default,
        deserialize_with = "with_unit::duration",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(regex(pattern = r"^[1-9][0-9]{0,5}[smh]$"))]
    pub queue_timeout: Option<String>,
    /// What happens to a pod after `queueTimeout`. If absent, `Reject`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_queue_timeout: Option<OnQueueTimeout>,
    /// The order of waiting pods of equal priority. If absent, `Age`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<Order>,
    /// For pools that an autoscaler resizes: at most so many placeholder pods request nodes at a time for
    /// jobs that more nodes would start. A placeholder requests what a waiting pod requests, never runs,
    /// and is deleted when its job waits no more. The autoscaler does not see the waiting pods
    /// themselves. Needs `webhook.placeholders.enabled` of the chart. If absent, none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub max_placeholder_pods: Option<u32>,
    /// Of the nodes of the class in each NVLink fabric, new pods leave so many free for pods that take the place
    /// of lost ones of a gang. An unused node that is cordoned, not ready, silent, or lacks a GPU or has a broken
    /// one, counts as one of them for new gangs. If absent, 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub spare_nodes: Option<u32>,
    /// What one second of waiting costs, in percent of one second of running. A pod that could
    /// start with less bandwidth than the best placement in its scope waits for that one, or starts
    /// now where its run becomes longer by less than the wait would cost: with 100, as soon as it
    /// would end earlier that way. If absent, a pod starts as soon as its scope has room.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub waiting_cost_percent: Option<u32>,
}

/// What happens with nodes whose domains are large enough only with GPUs that are marked as broken.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum BrokenGpus {
    /// They come after all other nodes.
    #[default]
    RankLast,
    /// No pod of the class runs there.
    Avoid,
}

/// What happens to a pod while no domain is free.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum WhenUnavailable {
    /// It is Pending, like any pod that no node fits.
    #[default]
    Pending,
    /// It waits behind a scheduling gate, in order.
    Queue,
}

/// What happens to a pod that has waited too long.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnQueueTimeout {
    /// It fails, and reports why.
    #[default]
    Reject,
    /// It is scheduled outside a domain, and reports it.
    Spread,
}

/// The order of waiting pods of equal priority.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// The oldest first.
    #[default]
    Age,
    /// The pods of the project that holds the fewest GPUs first, then the oldest.
    FairShare,
}

/// The name of a scope.
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

/// The name of the scope of a gang's pods.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GangScopeName {
    /// One NVLink domain over which pods reach each other.
    NvlinkDomain,
    /// One node.
    Node,
    /// One rack.
    Rack,
    /// One zone.
    Zone,
    /// Anywhere in the cluster.
    #[default]
    Cluster,
}

/// The scheduler that places the pods of a class. The webhook always writes their
/// node affinity.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.integration == 'KAI' ? has(self.topology) : !has(self.topology) && !has(self.queue)")
        .message("topology and queue belong to the integration KAI, which needs the name of its Topology"),
    validation = Rule::new("(self.integration == 'Volcano') == has(self.highestTier)")
        .message("highestTier belongs to the integration Volcano, which needs it")
)]
pub struct Scheduler {
    /// The scheduler whose labels and annotations the webhook writes into the pods.
    #[serde(default)]
    pub integration: Integration,
    /// KAI queue for pods that name none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"))]
    pub queue: Option<String>,
    /// Name of the KAI Topology for the required placement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$"))]
    pub topology: Option<String>,
    /// Highest HyperNode tier of Volcano that a job may span.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub highest_tier: Option<u32>,
}

/// The scheduler whose labels and annotations the webhook writes into the pods.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Integration {
    /// None: the webhook writes affinity, and a scheduling gate if the class queues.
    #[default]
    Gate,
    /// Kueue's topology request, in pods that Kueue manages.
    Kueue,
    /// KAI's topology request, in pods that KAI schedules.
    KAI,
    /// Volcano's network topology, in pods that Volcano schedules.
    Volcano,
    /// None: the webhook writes affinity, but never a scheduling gate.
    None,
}

/// The status of a class.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DomainClassStatus {
    /// Conditions, one of each type.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "condition::list_schema")]
    pub conditions: Vec<Condition>,
    /// The node labels by which the webhook judges the scopes `rack` and `zone`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope_labels: Option<ScopeLabels>,
}
