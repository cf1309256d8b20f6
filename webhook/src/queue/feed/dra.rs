//! GPUs that DRA allocates: the devices in ResourceSlices, and the ResourceClaims that hold them.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use nvlink_planner::{Held, Name};
use nvlink_topology::labels;
use serde_json::Value;

use super::{Feed, entry::Entry, id};
use crate::{
    crd::GPU_DRIVER,
    decide::pod::{at, list},
    mirror::Published,
    queue::{
        Placement,
        claim::{self, Asks},
    },
};

/// The set of nodes whose GPUs a claim can ask for. No class can have this name.
pub(super) const CLAIMABLE: &str = "nodes with claimable GPUs";

/// The GPUs in a ResourceSlice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    node: Name,
    pool: String,
    generation: i64,
    /// By name.
    devices: BTreeMap<String, Device>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Device {
    /// The UUID of the GPU; of a part of one, that of the GPU that it is a part of.
    uuid: String,
    /// It is a whole GPU, which the scheduler allocates to claims that tolerate nothing.
    usable: bool,
}

impl Slice {
    /// Reads a ResourceSlice by its `spec`; `None` if it has no whole GPUs of a node.
    #[must_use]
    pub fn of(spec: &Value) -> Option<Self> {
        let text = |path: &[&str]| at(spec, path).and_then(Value::as_str);
        if text(&["driver"])? != GPU_DRIVER {
            return None;
        }
        let devices = list(spec, &["devices"]).filter_map(|device| {
            let name = device.get("name")?.as_str()?.to_owned();
            Some((name, Device::of(device)?))
        });
        Some(Self {
            node: text(&["nodeName"])?.into(),
            pool: text(&["pool", "name"])?.to_owned(),
            generation: at(spec, &["pool", "generation"]).and_then(Value::as_i64)?,
            devices: devices.collect(),
        })
    }
}

impl Device {
    /// Reads a device; `None` if it is no GPU and no part of one, or has no UUID.
    fn of(device: &Value) -> Option<Self> {
        let attribute = |name: &str| {
            let attributes = device.get("attributes")?;
            // The driver's own attributes may have its domain, but need not.
            let long = format!("{GPU_DRIVER}/{name}");
            let found = attributes.get(name).or_else(|| attributes.get(&long))?;
            found.get("string")?.as_str()
        };
        let part = attribute("parentUUID");
        if part.is_none() && attribute("type").is_some_and(|of| of != "gpu") {
            return None;
        }
        let keeps_off = |taint: &Value| {
            let effect = taint.get("effect").and_then(Value::as_str);
            matches!(effect, Some("NoSchedule" | "NoExecute"))
        };
        Some(Self {
            uuid: part.or_else(|| attribute("uuid"))?.to_owned(),
            usable: part.is_none() && !list(device, &["taints"]).any(keeps_off),
        })
    }
}

/// A ResourceClaim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Pool and name of each GPU that it holds.
    holds: Vec<(String, String)>,
    /// What it asks for, if it is not allocated.
    asks: Vec<String>,
    /// The scheduler has allocated it.
    allocated: bool,
    /// The pods that it is reserved for.
    users: Vec<Name>,
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
        // With adminAccess, a claim looks at devices that others hold.
        let looks = |one: &Value| one.get("adminAccess") == Some(&Value::Bool(true));
        let ours =
            results.filter(|one| text(one, "driver").as_deref() == Some(GPU_DRIVER) && !looks(one));
        let users = list(claim, &["status", "reservedFor"])
            .filter(|one| text(one, "resource").as_deref() == Some("pods"));
        let allocated = at(claim, &["status", "allocation"]).is_some_and(Value::is_object);
        let this = Self {
            asks: match allocated {
                true => Vec::new(),
                false => claim::expressions(claim),
            },
            holds: ours
                .filter_map(|one| Some((text(one, "pool")?, text(one, "device")?)))
                .collect(),
            allocated,
            users: users
                .filter_map(|one| Some(id(&namespace, &text(one, "name")?)))
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

/// The slices and claims of the cluster.
#[derive(Debug, Default)]
pub(super) struct Devices {
    slices: BTreeMap<String, Slice>,
    claims: HashMap<Name, Claim>,
    /// The slices of each node.
    on_node: HashMap<Name, BTreeSet<String>>,
    /// The nodes with each pool.
    nodes: HashMap<String, BTreeSet<Name>>,
    /// The claims with GPUs of each pool.
    in_pool: HashMap<String, BTreeSet<Name>>,
}

/// The GPUs of a node, by UUID.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct OnNode {
    /// Those that the scheduler may allocate, or has.
    pub(super) usable: BTreeSet<String>,
    /// Those that claims hold, by the pod that uses the claim, if there is one.
    held: BTreeMap<Option<Name>, BTreeSet<String>>,
}

impl Devices {
    /// Sets or removes a slice. Returns the nodes whose GPUs change.
    fn set_slice(&mut self, name: &str, slice: Option<Slice>) -> Vec<Name> {
        let old = self.slices.get(name);
        if old == slice.as_ref() {
            return Vec::new();
        }
        let changed = old.into_iter().chain(&slice).map(|one| one.node.clone());
        let changed = changed.collect();
        if let Some(old) = self.slices.remove(name) {
            if let Some(slices) = self.on_node.get_mut(&old.node) {
                slices.remove(name);
            }
            let more = self.slices_of(&old.node).any(|one| one.pool == old.pool);
            if !more && let Some(nodes) = self.nodes.get_mut(&old.pool) {
                nodes.remove(&old.node);
            }
        }
        if let Some(slice) = slice {
            let of_node = self.on_node.entry(slice.node.clone()).or_default();
            of_node.insert(name.to_owned());
            let nodes = self.nodes.entry(slice.pool.clone()).or_default();
            nodes.insert(slice.node.clone());
            self.slices.insert(name.to_owned(), slice);
        }
        self.on_node.retain(|_, slices| !slices.is_empty());
        self.nodes.retain(|_, nodes| !nodes.is_empty());
        changed
    }

    /// Sets or removes a claim. Returns the nodes whose GPUs it holds or held.
    fn set_claim(&mut self, name: &Name, claim: Option<Claim>) -> Vec<Name> {
        let old = self.claims.get(name);
        if old == claim.as_ref() {
            return Vec::new();
        }
        let pools = |claim: &Claim| -> Vec<String> {
            claim.holds.iter().map(|(pool, _)| pool.clone()).collect()
        };
        let (before, after) = (old.map(pools), claim.as_ref().map(pools));
        for pool in before.iter().flatten() {
            if let Some(claims) = self.in_pool.get_mut(pool) {
                claims.remove(name);
                if claims.is_empty() {
                    self.in_pool.remove(pool);
                }
            }
        }
        for pool in after.iter().flatten() {
            let claims = self.in_pool.entry(pool.clone()).or_default();
            claims.insert(name.clone());
        }
        match claim {
            Some(claim) => self.claims.insert(name.clone(), claim),
            None => self.claims.remove(name),
        };
        let pools = before.into_iter().chain(after).flatten();
        let nodes = pools.filter_map(|pool| self.nodes.get(&pool)).flatten();
        nodes.cloned().collect()
    }

    /// Returns a claim that is allocated or the queue's.
    pub(super) fn claim(&self, id: &Name) -> Option<&Claim> {
        self.claims.get(id)
    }

    /// Reports whether a pod names a claim of the queue that does not exist.
    pub(super) fn lacks_claim(&self, pod: &Entry) -> bool {
        let claim =
            |named: &claim::Named| self.claims.contains_key(&id(&pod.namespace, &named.name));
        pod.claim.as_ref().is_some_and(|named| !claim(named))
    }

    fn slices_of(&self, node: &Name) -> impl Iterator<Item = &Slice> {
        let names = self.on_node.get(node).into_iter().flatten();
        names.filter_map(|name| self.slices.get(name))
    }

    /// Returns the GPUs of a node; `None` if no slice lists any.
    pub(super) fn of_node(&self, node: &Name) -> Option<OnNode> {
        let mut newest: BTreeMap<&str, i64> = BTreeMap::new();
        for slice in self.slices_of(node) {
            let known = newest.entry(&slice.pool).or_insert(slice.generation);
            *known = slice.generation.max(*known);
        }
        // A driver replaces the slices of a pool one by one.
        let valid = self
            .slices_of(node)
            .filter(|slice| newest.get(&*slice.pool) == Some(&slice.generation));
        let mut found = OnNode::default();
        let mut uuids: HashMap<(&str, &str), &str> = HashMap::new();
        for slice in valid {
            for (name, device) in &slice.devices {
                uuids.insert((&slice.pool, name), &device.uuid);
                if device.usable {
                    found.usable.insert(device.uuid.clone());
                }
            }
        }
        if uuids.is_empty() {
            return None;
        }
        let claims = newest.keys().filter_map(|pool| self.in_pool.get(*pool));
        let claims: BTreeSet<&Name> = claims.flatten().collect();
        for claim in claims.into_iter().filter_map(|name| self.claims.get(name)) {
            let held = claim.holds.iter().filter_map(|(pool, device)| {
                let uuid = uuids.get(&(pool.as_str(), device.as_str()))?;
                Some((*uuid).to_owned())
            });
            let held: BTreeSet<String> = held.collect();
            let users: Vec<Option<Name>> = match claim.users.is_empty() {
                true => vec![None],
                false => claim.users.iter().cloned().map(Some).collect(),
            };
            for user in users {
                let known = found.held.entry(user).or_default();
                known.extend(held.iter().cloned());
            }
        }
        Some(found)
    }
}

impl OnNode {
    /// Reports whether the scheduler can allocate a GPU that no pod holds for which `counts` says
    /// so. One that is held for no pod is about to be free.
    pub(super) fn is_free(&self, uuid: &str, counts: &impl Fn(&Name) -> bool) -> bool {
        let users = self.held.iter().filter(|(_, held)| held.contains(uuid));
        let held = users.filter_map(|(user, _)| user.as_ref()).any(counts);
        self.usable.contains(uuid) && !held
    }

    /// Returns who holds the GPUs of a node with this topology: the users of claims, and nobody in
    /// the cluster those that the scheduler does not allocate.
    pub(super) fn held(&self, topology: &Published) -> Vec<Held> {
        let Ok(known) = topology else {
            return Vec::new();
        };
        let gpus = || known.gpus.iter();
        let indices = |uuids: &BTreeSet<String>| -> Vec<u32> {
            let named = gpus().filter(|gpu| gpu.uuid.as_ref().is_some_and(|it| uuids.contains(it)));
            named.map(|gpu| gpu.index).collect()
        };
        let mut all: Vec<Held> = self
            .held
            .iter()
            .map(|(pod, uuids)| Held {
                pod: pod.clone(),
                gpus: indices(uuids),
            })
            .collect();
        let unusable = gpus().filter(|gpu| {
            let usable = |uuid: &String| {
                let mut held = self.held.values();
                self.usable.contains(uuid) || held.any(|held| held.contains(uuid))
            };
            !gpu.uuid.as_ref().is_some_and(usable)
        });
        let gpus: Vec<u32> = unusable.map(|gpu| gpu.index).collect();
        if !gpus.is_empty() {
            all.push(Held { pod: None, gpus });
        }
        all
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

    fn slice(generation: i64, devices: Value) -> Option<Slice> {
        Slice::of(&json!({
            "driver": GPU_DRIVER, "nodeName": "n1",
            "pool": {"name": "p", "generation": generation, "resourceSliceCount": 1},
            "devices": devices,
        }))
    }

    fn gpu(name: &str, uuid: &str, effect: &str) -> Value {
        json!({
            "name": name, "attributes": {"uuid": {"string": uuid}},
            "taints": [{"key": "k", "effect": effect}],
        })
    }

    #[test]
    fn only_whole_gpus_of_the_newest_generation_count() {
        let mut devices = Devices::default();
        let mut part = gpu("mig", "MIG-1", "None");
        part["attributes"]["parentUUID"] = json!({"string": "GPU-0"});
        let all = json!([
            gpu("a", "GPU-0", "None"),
            gpu("b", "GPU-1", "NoSchedule"),
            part
        ]);
        assert_eq!(devices.set_slice("s", slice(2, all)), ["n1".into()]);
        devices.set_slice("old", slice(1, json!([gpu("c", "GPU-9", "None")])));
        let node = devices.of_node(&"n1".into()).unwrap();
        assert_eq!(node.usable, BTreeSet::from(["GPU-0".to_owned()]));
        let part = Claim::of(&json!({
            "metadata": {"namespace": "n", "name": "c"},
            "status": {"allocation": {"devices": {"results": [
                {"driver": GPU_DRIVER, "pool": "p", "device": "mig"},
                {"driver": GPU_DRIVER, "pool": "p", "device": "b", "adminAccess": true},
            ]}}},
        }));
        devices.set_claim(&"n/c".into(), part);
        let held = devices.of_node(&"n1".into()).unwrap().held;
        let all: Vec<_> = held.into_values().flatten().collect();
        assert_eq!(
            all,
            ["GPU-0"],
            "a part holds its GPU, and who looks holds nothing"
        );
        devices.set_claim(&"n/c".into(), None);
        assert_eq!(Slice::of(&json!({"driver": "nic", "nodeName": "n1"})), None);
        assert_eq!(devices.of_node(&"n2".into()), None);
        devices.set_slice("s", None);
        let node = devices.of_node(&"n1".into()).unwrap();
        assert_eq!(node.usable, BTreeSet::from(["GPU-9".to_owned()]));
        devices.set_slice("old", None);
        assert!(devices.on_node.is_empty() && devices.nodes.is_empty());
    }

    #[test]
    fn a_claim_holds_its_gpus_for_the_pods_that_use_it() {
        let mut devices = Devices::default();
        let all = json!([gpu("a", "GPU-0", "None"), gpu("b", "GPU-1", "None")]);
        devices.set_slice("s", slice(1, all));
        let claim = |reserved: Value| {
            Claim::of(&json!({
                "metadata": {"namespace": "n", "name": "c"},
                "status": {"reservedFor": reserved, "allocation": {"devices": {"results": [
                    {"driver": GPU_DRIVER, "pool": "p", "device": "a"},
                    {"driver": "nic", "pool": "p", "device": "b"},
                ]}}},
            }))
        };
        let id: Name = "n/c".into();
        let used = claim(json!([{"resource": "pods", "name": "pod", "uid": "1"}]));
        assert_eq!(devices.set_claim(&id, used), ["n1".into()]);
        let node = || devices.of_node(&"n1".into()).unwrap();
        let (live, gone) = (|pod: &Name| &**pod == "n/pod", |_: &Name| false);
        assert!(!node().is_free("GPU-0", &live) && node().is_free("GPU-1", &live));
        assert!(node().is_free("GPU-0", &gone), "its pod has ended");
        devices.set_claim(&id, claim(json!([])));
        let held = devices.of_node(&"n1".into()).unwrap().held;
        assert_eq!(held.keys().collect::<Vec<_>>(), [&None], "nobody uses it");
        devices.set_claim(&id, None);
        assert!(devices.in_pool.is_empty());
    }

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
