//! A node: what its object says, and the form that the planner needs.

use nvlink_admission::{decide::Settings, view::Labels};
use nvlink_api::{class::Class, pod, quantity};
use nvlink_cluster::{gpus::Published, kinds::NodeObject};
use nvlink_planner::{Availability, Held, Name, NodeState};
use nvlink_topology::Interconnect;
use serde_json::Value;

use super::amounts::Amounts;

/// What the object of a node says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Node {
    /// Its labels.
    pub labels: Labels,
    /// Its taints, without those by which Kubernetes reports conditions.
    pub taints: Vec<Value>,
    /// What the scheduler may hand out, by resource.
    pub allocatable: Vec<(String, u32)>,
    /// The same for all resources, with their units.
    pub amounts: Amounts,
    /// Whether it is drained, not ready, or being deleted.
    pub out: bool,
}

/// Taints of the conditions of a node begin with this.
const CONDITIONS: &str = "node.kubernetes.io/";

impl Node {
    /// Reads a node.
    #[must_use]
    pub fn of(object: &NodeObject) -> Self {
        let NodeObject {
            metadata,
            spec,
            status,
        } = object;
        let text = |value: &Value, key: &str| value.get(key)?.as_str().map(str::to_owned);
        let mut conditions = pod::list(status, &["conditions"]);
        let ready = conditions.find(|one| text(one, "type").as_deref() == Some("Ready"));
        let ready = ready.is_some_and(|one| text(one, "status").as_deref() == Some("True"));
        let drained = spec.get("unschedulable") == Some(&Value::Bool(true));
        let own =
            |taint: &&Value| text(taint, "key").is_none_or(|key| !key.starts_with(CONDITIONS));
        let devices = |(name, amount): (&String, &Value)| {
            let amount = quantity::whole(amount).filter(|_| name.contains('/'))?;
            Some((name.clone(), amount))
        };
        let allocatable = pod::entries(status, &["allocatable"]);
        Self {
            taints: pod::list(spec, &["taints"]).filter(own).cloned().collect(),
            allocatable: allocatable.filter_map(devices).collect(),
            amounts: Amounts::of_node(status),
            out: drained || !ready || metadata.deletion_timestamp.is_some(),
            labels: metadata.labels.clone().unwrap_or_default(),
        }
    }

    /// Reports whether it is a node of a class.
    pub(super) fn is_of(&self, class: &Class) -> bool {
        let mut selector = class.selector.iter();
        selector.all(|(key, value)| self.labels.get(key) == Some(value))
    }

    /// Reports whether the scheduler may hand out a resource.
    pub(super) fn has(&self, resource: &str) -> bool {
        let mut all = self.allocatable.iter();
        all.any(|(name, amount)| name == resource && *amount > 0)
    }

    /// Returns the number of GPUs that the scheduler may hand out; `is_gpu` says which resources
    /// are GPUs.
    #[must_use]
    pub fn capacity(&self, is_gpu: impl Fn(&str) -> bool) -> u32 {
        let gpus = self.allocatable.iter().filter(|(name, _)| is_gpu(name));
        gpus.fold(0, |sum, (_, amount)| sum.saturating_add(*amount))
    }
}

/// Returns a node in the planner's form.
pub(super) fn state(
    node: &Node,
    topology: Option<&Published>,
    capacity: u32,
    settings: &Settings,
    sets: Vec<Name>,
    held: Vec<Held>,
    resources: Vec<u64>,
) -> NodeState {
    let label = |key: &str| node.labels.get(key).map(|value| Name::from(value.as_str()));
    let unknown = matches!(topology, Some(Err(_)));
    let known = topology.and_then(|published| published.as_ref().ok());
    let broken = known.into_iter().flat_map(|known| &known.gpus);
    let broken = broken.filter(|gpu| !gpu.faults.is_empty());
    let mut domains = known.into_iter().flat_map(|known| &known.domains);
    NodeState {
        graph: known.and_then(|known| known.hardware.shared_graph()),
        capacity,
        held,
        broken: broken.map(|gpu| gpu.index).collect(),
        partitions: None,
        availability: match (node.out, unknown) {
            (true, _) => Availability::Out,
            (false, true) => Availability::Silent,
            (false, false) => Availability::Ready,
        },
        interconnect: known
            .and_then(|known| known.interconnect)
            .unwrap_or(Interconnect::Pcie),
        fabric: domains.find_map(|domain| domain.fabric.clone()),
        rack: label(&settings.rack_label),
        network: settings
            .network_labels
            .iter()
            .map(|key| label(key))
            .collect(),
        zone: label(&settings.zone_label),
        network_bytes_per_second: known.and_then(|known| known.network),
        slow: 0,
        sets,
        resources,
    }
}
