//! The slices, claims and DeviceClasses of the cluster, and what follows for each node.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use nvlink_api::{
    crd::{GPU_DRIVER, devices},
    pod::DEVICE_CLASSES,
};

use super::{
    Name, Node,
    dra::{Claim, DeviceClass, GpuSlice, Slice},
    nearest::position,
    nics::{Gpu, Nic, Nics, Wanted},
    on_node::OnNode,
};

/// The slices and claims of the cluster.
#[derive(Clone, Debug, Default)]
pub struct Devices {
    slices: BTreeMap<String, Arc<GpuSlice>>,
    nics: Nics,
    pub(super) claims: HashMap<Name, Arc<Claim>>,
    pub(super) classes: BTreeMap<String, DeviceClass>,
    /// The slices of each node.
    on_node: HashMap<Name, BTreeSet<String>>,
    /// The nodes with each pool.
    nodes: HashMap<String, BTreeSet<Name>>,
    /// The claims for GPUs of each pool.
    in_pool: HashMap<String, BTreeSet<Name>>,
}

impl Devices {
    /// Sets or removes a slice. Returns the nodes whose devices change.
    pub(super) fn set_slice(&mut self, name: &str, slice: Option<Slice>) -> Vec<Name> {
        let (gpus, nics) = match slice {
            Some(Slice::Gpus(gpus)) => (Some(gpus), None),
            Some(Slice::Nics(nics)) => (None, Some(nics)),
            None => (None, None),
        };
        let mut changed = self.set_gpus(name, gpus);
        changed.extend(self.nics.set(name, nics));
        changed
    }

    /// Records that all claims are known.
    pub(super) fn know_claims(&mut self) {
        self.nics.know_claims();
    }

    /// Returns the names of the slices.
    pub(super) fn slice_names(&self) -> impl Iterator<Item = &String> {
        self.slices.keys().chain(self.nics.names())
    }

    fn set_gpus(&mut self, name: &str, slice: Option<GpuSlice>) -> Vec<Name> {
        let old = self.slices.get(name);
        if old.map(Arc::as_ref) == slice.as_ref() {
            return Vec::new();
        }
        let before = old.map(|one| one.node.clone());
        let changed = before
            .into_iter()
            .chain(slice.iter().map(|one| one.node.clone()));
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
            self.slices.insert(name.to_owned(), Arc::new(slice));
        }
        self.on_node.retain(|_, slices| !slices.is_empty());
        self.nodes.retain(|_, nodes| !nodes.is_empty());
        changed
    }

    /// Sets or removes a claim. Returns the nodes whose GPUs it is or was for.
    pub(super) fn set_claim(&mut self, name: &Name, claim: Option<Claim>) -> Vec<Name> {
        let old = self.claims.get(name);
        if old.map(Arc::as_ref) == claim.as_ref() {
            return Vec::new();
        }
        let pools = |claim: &Claim| -> Vec<String> {
            let all = claim.holds.iter().chain(&claim.looks);
            all.map(|(pool, _)| pool.clone()).collect()
        };
        let before = old.map(|old| pools(old));
        let after = claim.as_ref().map(pools);
        let others = |claim: Option<&Claim>| claim.map_or_else(Vec::new, |one| one.others.clone());
        let (had, has) = (others(old.map(Arc::as_ref)), others(claim.as_ref()));
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
            Some(claim) => self.claims.insert(name.clone(), Arc::new(claim)),
            None => self.claims.remove(name),
        };
        let pools = before.into_iter().chain(after).flatten();
        let nodes = pools.filter_map(|pool| self.nodes.get(&pool)).flatten();
        let mut changed: Vec<Name> = nodes.cloned().collect();
        if had != has {
            changed.extend(self.nics.hold(&had, &has));
        }
        changed
    }

    /// Sets or removes a DeviceClass. Reports whether that changes something.
    pub(super) fn set_class(&mut self, name: &str, class: Option<DeviceClass>) -> bool {
        let changed = self.classes.get(name) != class.as_ref();
        match class {
            Some(class) => self.classes.insert(name.to_owned(), class),
            None => self.classes.remove(name),
        };
        changed
    }

    /// Returns the nodes of which a slice lists GPUs.
    pub fn listed(&self) -> impl Iterator<Item = &Name> {
        self.on_node.keys()
    }

    /// Reports whether a slice lists GPUs of a node.
    #[must_use]
    pub fn lists(&self, node: &str) -> bool {
        self.on_node.contains_key(node)
    }

    /// Returns the nodes with GPUs that the scheduler may allocate to several claims at a time.
    pub fn sharing(&self) -> impl Iterator<Item = &Name> {
        let shares = self.slices.values().filter(|slice| slice.shares);
        shares.map(|slice| &slice.node)
    }

    /// Reports whether the scheduler serves plain requests for a resource by claims
    /// (KEP-5004, DRAExtendedResource).
    #[must_use]
    pub fn serves(&self, resource: &str) -> bool {
        let named = resource.strip_prefix(DEVICE_CLASSES);
        let named = named.is_some_and(|name| self.classes.contains_key(name));
        let mut classes = self.classes.values();
        named || classes.any(|class| class.resource.as_deref() == Some(resource))
    }

    /// Reports whether a DeviceClass exists.
    #[must_use]
    pub fn has_class(&self, name: &str) -> bool {
        self.classes.contains_key(name)
    }

    /// Returns the names of the DeviceClasses of GPUs, with the extended resources that they serve.
    pub fn extended(&self) -> impl Iterator<Item = (&str, &str)> {
        let gpus = self
            .classes
            .iter()
            .filter(|(_, class)| class.is_for(GPU_DRIVER));
        gpus.filter_map(|(name, class)| Some((name.as_str(), class.resource.as_deref()?)))
    }

    /// Returns a claim that is allocated or the queue's.
    #[must_use]
    pub fn claim(&self, id: &Name) -> Option<&Claim> {
        self.claims.get(id).map(Arc::as_ref)
    }

    /// Returns the NICs of each GPU of a node that has as many as `wanted`, by its UUID; `known` is what its exporter
    /// published.
    pub(super) fn nics(
        &self,
        node: &str,
        gpus: &OnNode,
        known: Option<&Node>,
        wanted: &devices::Nics,
    ) -> BTreeMap<String, Vec<Nic>> {
        let Some(class) = self.classes.get(&wanted.device_class_name) else {
            return BTreeMap::new();
        };
        let at = |uuid: &str| {
            known?
                .gpus
                .iter()
                .find(|gpu| gpu.uuid.as_deref() == Some(uuid))?
                .at
        };
        let all = gpus.roots.iter().filter_map(|(uuid, (root, address))| {
            let own = address.as_deref().map(position);
            let at = own.or_else(|| at(uuid))?;
            Some(Gpu { root, at, uuid })
        });
        let all: Vec<Gpu<'_>> = all.collect();
        let names = known.into_iter().flat_map(|known| &known.nics);
        let wanted = Wanted {
            per_gpu: wanted.per_gpu as usize,
            serves: &|driver| class.is_for(driver),
            names: &names.map(|(at, name)| (*at, &**name)).collect(),
        };
        self.nics.of_gpus(node, &all, wanted)
    }

    fn slices_of(&self, node: &str) -> impl Iterator<Item = &GpuSlice> {
        let names = self.on_node.get(node).into_iter().flatten();
        names.filter_map(|name| self.slices.get(name).map(Arc::as_ref))
    }

    /// Returns the GPUs of a node; `None` if no slice lists any.
    pub(super) fn of_node(&self, node: &str) -> Option<OnNode> {
        let mut newest: BTreeMap<&str, i64> = BTreeMap::new();
        for slice in self.slices_of(node) {
            let known = newest.entry(&slice.pool).or_insert(slice.generation);
            *known = slice.generation.max(*known);
        }
        // A driver replaces the slices of a pool one by one.
        let valid = self
            .slices_of(node)
            .filter(|slice| newest.get(&*slice.pool) == Some(&slice.generation));
        let valid: Vec<&GpuSlice> = valid.collect();
        let uuids = uuids(&valid);
        if uuids.is_empty() {
            return None;
        }
        let devices = valid.iter().flat_map(|slice| slice.devices.values());
        let usable = devices.filter(|device| device.usable);
        let mut found = OnNode {
            usable: usable.filter_map(|device| device.uuid.clone()).collect(),
            partitions: partitions(&valid),
            roots: roots(&valid),
            ..OnNode::default()
        };
        let claims = newest.keys().filter_map(|pool| self.in_pool.get(*pool));
        let claims: BTreeSet<&Name> = claims.flatten().collect();
        for claim in claims.into_iter().filter_map(|name| self.claims.get(name)) {
            found.add(claim, &uuids);
        }
        Some(found)
    }
}

/// Returns the partitions of the Fabric Manager, by the UUIDs of their GPUs: those of which all GPUs are
/// listed. `None` if the driver lists no partition, so that claims may have any GPUs.
fn partitions(slices: &[&GpuSlice]) -> Option<Vec<BTreeSet<String>>> {
    let devices = slices.iter().flat_map(|slice| slice.devices.values());
    let mut found: BTreeMap<(usize, i64), BTreeSet<String>> = BTreeMap::new();
    for device in devices {
        for (&size, &number) in &device.partitions {
            let gpus = found.entry((size, number)).or_default();
            gpus.extend(device.uuid.clone());
        }
    }
    let whole =
        |((size, _), gpus): ((usize, i64), BTreeSet<String>)| (gpus.len() == size).then_some(gpus);
    (!found.is_empty()).then(|| found.into_iter().filter_map(whole).collect())
}

/// Returns PCIe root and PCI address of each GPU whose root is known, by UUID.
fn roots(slices: &[&GpuSlice]) -> BTreeMap<String, (String, Option<String>)> {
    let devices = slices.iter().flat_map(|slice| slice.devices.values());
    let known = devices.filter_map(|device| {
        let at = (device.root.clone()?, device.address.clone());
        Some((device.uuid.clone()?, at))
    });
    known.collect()
}

/// Returns the UUID of the GPU of each device, by pool and name.
fn uuids<'s>(slices: &[&'s GpuSlice]) -> HashMap<(&'s str, &'s str), &'s str> {
    let devices = || slices.iter().flat_map(|slice| slice.devices.values());
    let at: HashMap<&str, &str> = devices()
        .filter_map(|device| Some((device.address.as_deref()?, device.uuid.as_deref()?)))
        .collect();
    let all = slices.iter().flat_map(|slice| {
        let devices = slice.devices.iter();
        devices.map(|(name, device)| ((&*slice.pool, &**name), device))
    });
    all.filter_map(|(name, device)| {
        let address = device.address.as_deref();
        let twin = || at.get(address?).copied();
        Some((name, device.uuid.as_deref().or_else(twin)?))
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use nvlink_api::crd::GPU_DRIVER;
    use serde_json::{Value, json};

    use super::*;
    use crate::gpus::User;

    fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    fn slice(generation: i64, devices: Value) -> Option<Slice> {
        Slice::of(&read(json!({
            "driver": GPU_DRIVER, "nodeName": "n1",
            "pool": {"name": "p", "generation": generation, "resourceSliceCount": 1},
            "devices": devices,
        })))
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
        let node = devices.of_node("n1").unwrap();
        assert_eq!(node.usable, BTreeSet::from(["GPU-0".to_owned()]));
        let part = Claim::of(&read(json!({
            "metadata": {"namespace": "n", "name": "c"},
            "status": {"allocation": {"devices": {"results": [
                {"driver": GPU_DRIVER, "pool": "p", "device": "mig"},
                {"driver": GPU_DRIVER, "pool": "p", "device": "b", "adminAccess": true},
            ]}}},
        })));
        devices.set_claim(&"n/c".into(), part);
        let held = devices.of_node("n1").unwrap().held;
        let all: Vec<_> = held.into_values().flatten().collect();
        assert_eq!(
            all,
            ["GPU-0"],
            "a part holds its GPU, and who looks holds nothing"
        );
        devices.set_claim(&"n/c".into(), None);
        assert_eq!(
            Slice::of(&read(json!({"driver": "nic", "nodeName": "n1"}))),
            None
        );
        assert_eq!(devices.of_node("n2"), None);
        devices.set_slice("s", None);
        let node = devices.of_node("n1").unwrap();
        assert_eq!(node.usable, BTreeSet::from(["GPU-9".to_owned()]));
        devices.set_slice("old", None);
        assert!(devices.on_node.is_empty() && devices.nodes.is_empty());
    }

    #[test]
    fn gpus_that_claims_share_cannot_be_had_and_a_vfio_device_holds_its_gpu() {
        let mut devices = Devices::default();
        let at = |mut device: Value, address: &str| {
            let attributes = &mut device["attributes"];
            attributes["resource.kubernetes.io/pciBusID"] = json!({"string": address});
            device
        };
        let mut twin = at(gpu("gpu-vfio-0", "27ab9a0c", "None"), "0000:0f:00.0");
        twin["attributes"]["type"] = json!({"string": "vfio"});
        let mut shared = gpu("gpu-2", "GPU-2", "None");
        shared["allowMultipleAllocations"] = json!(true);
        // An index is no number of a device file.
        let of_twin = at(gpu("gpu-1", "GPU-0", "None"), "0000:0f:00.0");
        let all = json!([twin, of_twin, shared]);
        devices.set_slice("s", slice(1, all));
        let node: Name = "n1".into();
        let usable = devices.of_node(&node).unwrap().usable;
        assert_eq!(usable, BTreeSet::from(["GPU-0".to_owned()]));
        assert!(devices.slices["s"].shares);
        let claim = Claim::of(&read(json!({
            "metadata": {"namespace": "n", "name": "c"},
            "status": {
                "reservedFor": [{"resource": "pods", "name": "vm", "uid": "1"}],
                "allocation": {"devices": {"results": [
                    {"driver": GPU_DRIVER, "pool": "p", "device": "gpu-vfio-0"},
                ]}},
            },
        })));
        devices.set_claim(&"n/c".into(), claim);
        assert!(!devices.of_node(&node).unwrap().is_free("GPU-0", &|_| true));
    }

    #[test]
    fn a_pod_only_looks_at_gpus_that_none_of_its_claims_holds() {
        let mut devices = Devices::default();
        let all = json!([gpu("a", "GPU-0", "None"), gpu("b", "GPU-1", "None")]);
        devices.set_slice("s", slice(1, all));
        let node: Name = "n1".into();
        let claim = |results: Value| {
            let claim = Claim::of(&read(json!({
                "metadata": {"namespace": "n", "name": "c"},
                "status": {
                    "reservedFor": [{"resource": "pods", "name": "pod", "uid": "1"}],
                    "allocation": {"devices": {"results": results}},
                },
            })));
            assert!(claim.is_some());
            claim
        };
        let looks = |name: &str| {
            let result = json!({"driver": GPU_DRIVER, "pool": "p", "device": name});
            let mut looks = result;
            looks["adminAccess"] = json!(true);
            looks
        };
        let changed = devices.set_claim(&"n/looks".into(), claim(json!([looks("a"), looks("b")])));
        assert!(changed.contains(&node), "{changed:?}");
        let only = |devices: &Devices, pod: &str, uid: Option<&str>| {
            let node = devices.of_node(&node).unwrap();
            let only = node.only_looked_at(&pod.into(), uid);
            only.into_iter().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(only(&devices, "n/pod", Some("1")), "GPU-0 GPU-1");
        assert_eq!(only(&devices, "n/pod", None), "GPU-0 GPU-1");
        assert_eq!(only(&devices, "n/pod", Some("2")), "", "another pod");
        assert_eq!(only(&devices, "n/other", None), "");
        let held = json!([{"driver": GPU_DRIVER, "pool": "p", "device": "b"}]);
        devices.set_claim(&"n/holds".into(), claim(held));
        assert_eq!(only(&devices, "n/pod", Some("1")), "GPU-0");
    }

    #[test]
    fn a_claim_holds_its_gpus_for_the_pods_that_use_it() {
        let mut devices = Devices::default();
        let all = json!([gpu("a", "GPU-0", "None"), gpu("b", "GPU-1", "None")]);
        devices.set_slice("s", slice(1, all));
        let claim = |reserved: Value| {
            Claim::of(&read(json!({
                "metadata": {"namespace": "n", "name": "c"},
                "status": {"reservedFor": reserved, "allocation": {"devices": {"results": [
                    {"driver": GPU_DRIVER, "pool": "p", "device": "a"},
                    {"driver": "nic", "pool": "p", "device": "b"},
                ]}}},
            })))
        };
        let id: Name = "n/c".into();
        let used = claim(json!([{"resource": "pods", "name": "pod", "uid": "1"}]));
        assert_eq!(devices.set_claim(&id, used), ["n1".into()]);
        let node = || devices.of_node("n1").unwrap();
        let (live, gone) = (|user: &User| &*user.pod == "n/pod", |_: &User| false);
        assert!(!node().is_free("GPU-0", &live) && node().is_free("GPU-1", &live));
        assert!(node().is_free("GPU-0", &gone), "its pod has ended");
        devices.set_claim(&id, claim(json!([])));
        let held = devices.of_node("n1").unwrap().held;
        assert_eq!(held.keys().collect::<Vec<_>>(), [&None], "nobody uses it");
        devices.set_claim(&id, None);
        assert!(devices.in_pool.is_empty());
    }
}
