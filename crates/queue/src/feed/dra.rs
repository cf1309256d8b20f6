//! GPUs that DRA allocates: the devices in ResourceSlices, the ResourceClaims that hold them, and
//! the DeviceClasses by which the scheduler serves plain requests.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::Arc,
};

use nvlink_api::{
    class::Class,
    crd::{GPU_DRIVER, domain_class::Mapping},
    pod::{self, at, list},
};
use nvlink_cluster::exclusive::SharedGpus;
use nvlink_planner::Name;
use nvlink_topology::labels;
use serde_json::Value;

use super::{Feed, id};
use crate::{
    Placement,
    claim::{self, Asks},
};

/// The attribute with the PCI address of a device, which Kubernetes defines for all drivers.
const ADDRESS: &str = "resource.kubernetes.io/pciBusID";
/// The driver's attributes with the partitions of the Fabric Manager that a GPU is in: the size
/// follows, and the value is the number of the one partition of this size
/// (`FabricManagerPartitioning`, <https://github.com/kubernetes-sigs/dra-driver-nvidia-gpu>).
const PARTITION: &str = "partition";

/// The set of nodes whose GPUs a claim can ask for. No class can have this name.
pub(super) const CLAIMABLE: &str = "nodes with claimable GPUs";

/// Returns the name of the set of nodes where pods get GPUs that request `resource` and no claim.
pub(super) fn serving(resource: &str) -> Name {
    format!("nodes that serve {resource}").into()
}

/// Returns the name of the set of nodes where new pods of a class get GPUs.
pub fn giving(class: &Class) -> Name {
    match class.mapping {
        Mapping::Claim => CLAIMABLE.into(),
        Mapping::DevicePlugin | Mapping::Preferred => serving(&class.resource),
    }
}

/// The GPUs in a ResourceSlice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    pub(super) node: Name,
    pub(super) pool: String,
    pub(super) generation: i64,
    /// By name.
    pub(super) devices: BTreeMap<String, Device>,
    /// The scheduler may allocate a GPU among them to several claims at a time.
    pub(super) shares: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Device {
    /// The UUID of the GPU; of a part of one, that of the GPU that it is a part of. `None` for
    /// another device of a GPU, which has its address: `gpu-vfio-0` passes it through to a virtual
    /// machine.
    pub(super) uuid: Option<String>,
    /// The PCI address of the GPU.
    pub(super) address: Option<String>,
    /// It is a whole GPU, which the scheduler allocates to claims that tolerate nothing, and to one
    /// claim at a time.
    pub(super) usable: bool,
    /// The numbers of the partitions that it is in, by size.
    pub(super) partitions: BTreeMap<usize, i64>,
}

impl Slice {
    /// Reads a ResourceSlice by its `spec`; `None` if it has no whole GPUs of a node.
    #[must_use]
    pub fn of(spec: &Value) -> Option<Self> {
        let text = |path: &[&str]| at(spec, path).and_then(Value::as_str);
        if text(&["driver"])? != GPU_DRIVER {
            return None;
        }
        let known =
            list(spec, &["devices"]).filter_map(|device| Some((device, Device::of(device)?)));
        let known: Vec<(&Value, Device)> = known.collect();
        let shares = known.iter().any(|(device, _)| is_shared(device));
        let devices = known.into_iter().filter_map(|(device, known)| {
            let name = device.get("name")?.as_str()?.to_owned();
            Some((name, known))
        });
        Some(Self {
            node: text(&["nodeName"])?.into(),
            pool: text(&["pool", "name"])?.to_owned(),
            generation: at(spec, &["pool", "generation"]).and_then(Value::as_i64)?,
            devices: devices.collect(),
            shares,
        })
    }
}

/// Reports whether the scheduler may allocate a device to several claims at a time (KEP-5075).
fn is_shared(device: &Value) -> bool {
    device.get("allowMultipleAllocations") == Some(&Value::Bool(true))
}

impl Device {
    /// Reads a device; `None` if it is no GPU, no part of one and no other device of one.
    fn of(device: &Value) -> Option<Self> {
        let attribute = |name: &str| {
            let attributes = device.get("attributes")?;
            // The driver's own attributes may have its domain, but need not.
            let long = format!("{GPU_DRIVER}/{name}");
            let found = attributes.get(name).or_else(|| attributes.get(&long))?;
            found.get("string")?.as_str()
        };
        let part = attribute("parentUUID");
        let whole = part.is_none() && attribute("type").is_none_or(|of| of == "gpu");
        let uuid = part.or_else(|| attribute("uuid").filter(|_| whole));
        let address = attribute(ADDRESS);
        let keeps_off = |taint: &Value| {
            let effect = taint.get("effect").and_then(Value::as_str);
            matches!(effect, Some("NoSchedule" | "NoExecute"))
        };
        let tainted = list(device, &["taints"]).any(keeps_off);
        (uuid.is_some() || address.is_some() && !whole).then(|| Self {
            uuid: uuid.map(str::to_owned),
            address: address.map(str::to_owned),
            usable: whole && !is_shared(device) && !tainted,
            partitions: partitions(device),
        })
    }
}

/// Returns the numbers of the partitions that a device is in, by size.
fn partitions(device: &Value) -> BTreeMap<usize, i64> {
    let attributes = pod::entries(device, &["attributes"]);
    let partition = |(name, value): (&String, &Value)| {
        let own = name.strip_prefix(GPU_DRIVER);
        let name = own.and_then(|own| own.strip_prefix('/')).unwrap_or(name);
        let size = name.strip_prefix(PARTITION)?.parse().ok()?;
        Some((size, value.get("int")?.as_i64()?))
    };
    attributes.filter_map(partition).collect()
}

/// A ResourceClaim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Pool and name of each GPU that it holds.
    pub(super) holds: Vec<(String, String)>,
    /// Those that its pods look at with admin access. Others may hold them.
    pub(super) looks: Vec<(String, String)>,
    /// What it asks for, if it is not allocated.
    asks: Vec<String>,
    /// The scheduler has allocated it.
    allocated: bool,
    /// The pods that it is reserved for.
    pub(super) users: Vec<User>,
}

/// A pod for which a claim is reserved.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct User {
    pub(super) pod: Name,
    pub(super) uid: String,
}

/// What a DeviceClass says about plain requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceClass {
    /// The extended resource that the scheduler serves by claims of this class.
    pub(super) resource: Option<String>,
}

impl DeviceClass {
    /// Reads a DeviceClass by its `spec`.
    #[must_use]
    pub fn of(spec: &Value) -> Self {
        let resource = at(spec, &["extendedResourceName"]).and_then(Value::as_str);
        Self {
            resource: resource.map(str::to_owned),
        }
    }
}

impl Claim {
    /// Reads a ResourceClaim; `None` if it is neither allocated nor the queue's, or being deleted
    /// without having been allocated.
    #[must_use]
    pub fn of(claim: &Value) -> Option<Self> {
        let text = |value: &Value, key: &str| Some(value.get(key)?.as_str()?.to_owned());
        let metadata = claim.get("metadata")?;
        let namespace = text(metadata, "namespace")?;
        let results = list(claim, &["status", "allocation", "devices", "results"]);
        let ours = results.filter(|one| text(one, "driver").as_deref() == Some(GPU_DRIVER));
        let looks = |one: &&Value| one.get("adminAccess") == Some(&Value::Bool(true));
        let (looks, holds): (Vec<&Value>, Vec<&Value>) = ours.partition(looks);
        let names = |of: Vec<&Value>| -> Vec<(String, String)> {
            let name = |one: &Value| Some((text(one, "pool")?, text(one, "device")?));
            of.into_iter().filter_map(name).collect()
        };
        let users = list(claim, &["status", "reservedFor"])
            .filter(|one| text(one, "resource").as_deref() == Some("pods"));
        let allocated = at(claim, &["status", "allocation"]).is_some_and(Value::is_object);
        let this = Self {
            asks: match allocated {
                true => Vec::new(),
                false => claim::expressions(claim),
            },
            holds: names(holds),
            looks: names(looks),
            allocated,
            users: users
                .filter_map(|one| {
                    let pod = id(&namespace, &text(one, "name")?);
                    let uid = text(one, "uid")?;
                    Some(User { pod, uid })
                })
                .collect(),
        };
        let name = text(metadata, "name")?;
        let ends = text(metadata, "deletionTimestamp").is_some();
        (this.allocated || !ends && name.starts_with(labels::CLAIM_PREFIX)).then_some(this)
    }
}

impl Claim {
    /// Reports whether the scheduler has allocated it.
    pub(super) fn is_allocated(&self) -> bool {
        self.allocated
    }

    /// Reports whether it asks for these GPUs, in this order.
    pub(super) fn is_for(&self, uuids: &[String]) -> bool {
        claim::is_for(&self.asks, uuids)
    }
}

impl Feed {
    /// Sets a ResourceSlice, or removes it.
    pub fn slice(&mut self, name: &str, slice: Option<Slice>) {
        let changed = self.devices.set_slice(name, slice);
        self.changed.nodes.extend(changed);
    }

    /// Sets a ResourceClaim, or removes it.
    pub fn claim(&mut self, id: &Name, claim: Option<Claim>) {
        let changed = self.devices.set_claim(id, claim);
        self.changed.nodes.extend(changed);
    }

    /// Sets a DeviceClass, or removes it.
    pub fn device_class(&mut self, name: &str, class: Option<DeviceClass>) {
        if self.devices.set_class(name, class) {
            // Which of their GPUs a class can get.
            self.changed.nodes.extend(self.devices.listed().cloned());
        }
    }

    /// Returns the nodes of each class with the mapping `Claim` that have GPUs which the scheduler may
    /// allocate to several claims at a time. The queue uses none of these GPUs.
    #[must_use]
    pub fn shared_gpus(&self) -> SharedGpus {
        let shares = self.devices.slices.values().filter(|slice| slice.shares);
        let nodes: BTreeSet<&Name> = shares.map(|slice| &slice.node).collect();
        let classes = self
            .classes
            .values()
            .filter_map(|known| known.as_ref().ok());
        let claiming = classes.filter(|class| class.mapping == Mapping::Claim);
        let of_class = |class: &Arc<Class>| {
            let is_of = |name: &&&Name| {
                let labels = self.nodes.get(**name).map(|node| &node.labels);
                let mut selector = class.selector.iter();
                labels.is_some_and(|labels| {
                    selector.all(|(key, value)| labels.get(key) == Some(value))
                })
            };
            let nodes = nodes.iter().filter(is_of).map(ToString::to_string);
            (class.name.clone(), nodes.collect())
        };
        claiming.map(of_class).collect()
    }

    /// Removes all DeviceClasses but these.
    pub fn retain_device_classes(&mut self, wanted: &HashSet<String>) {
        let gone = self.devices.classes.keys();
        let gone: Vec<String> = gone
            .filter(|name| !wanted.contains(*name))
            .cloned()
            .collect();
        gone.iter().for_each(|name| self.device_class(name, None));
    }

    /// Removes all slices but these.
    pub fn retain_slices(&mut self, wanted: &HashSet<String>) {
        let gone = self.devices.slices.keys();
        let gone: Vec<String> = gone
            .filter(|name| !wanted.contains(*name))
            .cloned()
            .collect();
        gone.iter().for_each(|name| self.slice(name, None));
    }

    /// Removes all claims but these.
    pub fn retain_claims(&mut self, wanted: &HashSet<Name>) {
        let gone = self.devices.claims.keys();
        let gone: Vec<Name> = gone.filter(|id| !wanted.contains(*id)).cloned().collect();
        gone.iter().for_each(|id| self.claim(id, None));
    }

    /// Returns what a pod says of the claim by which it gets its GPUs; `None` if it needs none.
    #[must_use]
    pub fn named(&self, pod: &Name) -> Option<&claim::Named> {
        self.pods.get(pod)?.claim.as_ref()
    }

    /// Returns how the claim of a pod requests its GPUs.
    #[must_use]
    pub fn asks(&self, pod: &Name, placement: &Placement) -> Asks {
        let class = self.pods.get(pod).and_then(|pod| pod.class.as_deref());
        let class = class.and_then(|name| self.classes.get(name)?.as_ref().ok());
        let node = placement.node.as_deref().map(Name::from);
        let topology = node.and_then(|node| self.topologies.get(&node));
        let known = topology.and_then(|published| published.as_ref().as_ref().ok());
        let mut gpus = known.into_iter().flat_map(|known| &known.gpus);
        Asks {
            device_class: class
                .map_or_else(|| GPU_DRIVER.to_owned(), |class| class.device_class.clone()),
            broken: gpus.any(|gpu| placement.gpus.contains(&gpu.index) && !gpu.faults.is_empty()),
        }
    }

    /// Returns the UUIDs of GPUs of a node, in the given order; `None` if one is not known.
    #[must_use]
    pub fn uuids(&self, node: &Name, gpus: &[u32]) -> Option<Vec<String>> {
        let known = self.topologies.get(node)?.as_ref().as_ref().ok()?;
        let uuid = |index: &u32| {
            let gpu = known.gpus.iter().find(|gpu| gpu.index == *index)?;
            gpu.uuid.clone()
        };
        gpus.iter().map(uuid).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn claims_that_hold_nothing_count_only_if_they_are_the_queues() {
        let named = |name: &str| {
            let claim = json!({"metadata": {"namespace": "n", "name": name}});
            Claim::of(&claim).is_some()
        };
        assert!(named("nvlink-domains-train-1") && !named("mine"));
        assert_eq!(Claim::of(&json!({"metadata": 7})), None);
    }
}
