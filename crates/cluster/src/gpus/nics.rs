//! NICs that DRA drivers list, and which of them belongs to which GPU of a node.
//!
//! Each GPU has NICs of its own, which follow from what the drivers list. So two pods with different GPUs never
//! want the same NIC, and a later leader finds the same ones.
//!
//! While a pod has a NIC, DRANET may see only its PCI function: where RDMA devices have one network namespace
//! each (`rdma system set netns exclusive`), the slice says nothing of the RDMA device then. So NICs are told
//! apart by their PCI addresses.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, hash_map::Entry},
    hash::Hash,
};

use k8s_openapi::api::resource::v1::{self, ResourceSliceSpec};

use super::{
    Name,
    nearest::{nearest, position},
};

/// The attributes with the PCIe root and the PCI address of a device, which Kubernetes defines for all
/// drivers.
pub const ROOT: &str = "resource.kubernetes.io/pcieRoot";
pub(super) const ADDRESS: &str = "resource.kubernetes.io/pciBusID";
/// The same address, and the name of the RDMA device of a NIC, in the domain of its driver (`AttrPCIAddress` and
/// `AttrRDMADevice` of pkg/apis/attributes.go, <https://github.com/kubernetes-sigs/dranet> of August 2026).
const OWN_ADDRESS: &str = "pciAddress";
const RDMA_DEVICE: &str = "rdmaDevice";

/// The devices of a ResourceSlice that may be NICs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicSlice {
    node: Name,
    driver: String,
    pool: String,
    generation: i64,
    /// By name.
    devices: BTreeMap<String, Device>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Device {
    root: String,
    address: Address,
    /// Its RDMA device; `None` if it has none, or if a pod has it.
    rdma: Option<String>,
}

/// The PCI address of a device, by which a claim can ask for it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Address {
    value: String,
    /// The attribute that has it: its domain and its name.
    of: (String, &'static str),
}

/// Driver, pool and name of a device.
pub(super) type Id = (String, String, String);

impl NicSlice {
    /// Reads a ResourceSlice by its `spec`; `None` if it has no devices of a node with PCIe roots.
    pub(super) fn of(spec: &ResourceSliceSpec) -> Option<Self> {
        let devices = spec.devices.iter().flatten();
        let devices = devices
            .filter_map(|device| Some((device.name.clone(), Device::of(device, &spec.driver)?)));
        let devices: BTreeMap<String, Device> = devices.collect();
        (!devices.is_empty()).then_some(Self {
            node: spec.node_name.as_deref()?.into(),
            driver: spec.driver.clone(),
            pool: spec.pool.name.clone(),
            generation: spec.pool.generation,
            devices,
        })
    }
}

impl NicSlice {
    /// Returns its driver and its pool.
    fn pool(&self) -> (String, String) {
        (self.driver.clone(), self.pool.clone())
    }
}

impl Device {
    fn of(device: &v1::Device, driver: &str) -> Option<Self> {
        let attributes = device.attributes.as_ref()?;
        let text = |name: &str| attributes.get(name)?.string.clone();
        // The driver's own attributes may have its domain, but need not.
        let own = |name: &str| text(&format!("{driver}/{name}")).or_else(|| text(name));
        let mut taints = device.taints.iter().flatten();
        let tainted = taints.any(|taint| matches!(&*taint.effect, "NoSchedule" | "NoExecute"));
        let standard = || {
            let (domain, name) = ADDRESS.split_once('/')?;
            Some((text(ADDRESS)?, (domain.to_owned(), name)))
        };
        let address = own(OWN_ADDRESS).map(|value| (value, (driver.to_owned(), OWN_ADDRESS)));
        let (value, of) = address.or_else(standard).filter(|_| !tainted)?;
        Some(Self {
            root: text(ROOT)?,
            address: Address { value, of },
            rdma: own(RDMA_DEVICE).filter(|name| is_device(name)),
        })
    }
}

/// Reports whether a text is the name of an RDMA device: it becomes part of lists.
fn is_device(name: &str) -> bool {
    let valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    (1..64).contains(&name.len()) && name.bytes().all(valid)
}

/// The NICs of the cluster.
#[derive(Clone, Debug, Default)]
pub(super) struct Nics {
    slices: BTreeMap<String, NicSlice>,
    on_node: HashMap<Name, BTreeSet<String>>,
    /// The slices of each pool, by driver and name.
    in_pool: HashMap<(String, String), BTreeSet<String>>,
    /// The number of claims that have each device.
    held: HashMap<Id, u32>,
}

/// Removes a name from the set of a key.
fn leave<K: Hash + Eq>(sets: &mut HashMap<K, BTreeSet<String>>, key: &K, name: &str) {
    if let Some(names) = sets.get_mut(key) {
        names.remove(name);
        if names.is_empty() {
            sets.remove(key);
        }
    }
}

/// A GPU for which NICs are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Gpu<'g> {
    pub(super) root: &'g str,
    pub(super) address: &'g str,
    pub(super) uuid: &'g str,
}

/// A NIC that belongs to a GPU.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Nic {
    /// Its PCI address.
    pub address: String,
    /// The attribute that has the address: its domain and its name.
    pub attribute: (String, &'static str),
    /// Its RDMA device; `None` while a claim has the NIC.
    pub rdma: Option<String>,
}

impl Nics {
    /// Sets or removes a slice. Returns the nodes whose NICs change.
    pub(super) fn set(&mut self, name: &str, slice: Option<NicSlice>) -> Vec<Name> {
        if self.slices.get(name) == slice.as_ref() {
            return Vec::new();
        }
        let old = self.slices.remove(name);
        let changed = old.iter().chain(&slice).map(|one| one.node.clone());
        let changed = changed.collect();
        if let Some(old) = old {
            leave(&mut self.on_node, &old.node, name);
            leave(&mut self.in_pool, &old.pool(), name);
        }
        if let Some(slice) = slice {
            let names = self.on_node.entry(slice.node.clone()).or_default();
            names.insert(name.to_owned());
            let names = self.in_pool.entry(slice.pool()).or_default();
            names.insert(name.to_owned());
            self.slices.insert(name.to_owned(), slice);
        }
        changed
    }

    /// Records that a claim has no longer, or that it has, these devices. Returns the nodes of these.
    pub(super) fn hold(&mut self, before: &[Id], after: &[Id]) -> Vec<Name> {
        for id in after {
            *self.held.entry(id.clone()).or_default() += 1;
        }
        for id in before {
            if let Entry::Occupied(mut claims) = self.held.entry(id.clone()) {
                *claims.get_mut() -= 1;
                if *claims.get() == 0 {
                    claims.remove();
                }
            }
        }
        let ids = before.iter().chain(after);
        let pools = ids.map(|(driver, pool, _)| (driver.clone(), pool.clone()));
        let pools: BTreeSet<_> = pools.collect();
        let slices = pools.iter().filter_map(|pool| self.in_pool.get(pool));
        let slices = slices.flatten().filter_map(|name| self.slices.get(name));
        slices.map(|slice| slice.node.clone()).collect()
    }

    /// Returns the names of the slices.
    pub(super) fn names(&self) -> impl Iterator<Item = &String> {
        self.slices.keys()
    }

    /// Returns the NICs that belong to the GPUs of a node, by UUID: `per_gpu` each, of drivers for which
    /// `serves` says so. A GPU that would get fewer gets none.
    pub(super) fn of_gpus(
        &self,
        node: &str,
        gpus: &[Gpu<'_>],
        per_gpu: u32,
        serves: impl Fn(&str) -> bool,
    ) -> BTreeMap<String, Vec<Nic>> {
        let names = self.on_node.get(node).into_iter().flatten();
        let slices = names.filter_map(|name| self.slices.get(name));
        let slices = slices.filter(|slice| serves(&slice.driver));
        // A driver replaces the slices of a pool one by one.
        let mut newest: BTreeMap<(&str, &str), i64> = BTreeMap::new();
        for slice in slices.clone() {
            let pool = (&*slice.driver, &*slice.pool);
            let known = newest.entry(pool).or_insert(slice.generation);
            *known = slice.generation.max(*known);
        }
        let valid = slices
            .filter(|slice| newest.get(&(&*slice.driver, &*slice.pool)) == Some(&slice.generation));
        let mut at_root: BTreeMap<&str, (Vec<Gpu<'_>>, Vec<Nic>)> = BTreeMap::new();
        for gpu in gpus {
            at_root.entry(gpu.root).or_default().0.push(*gpu);
        }
        for (slice, name, device) in valid.flat_map(|slice| {
            let devices = slice.devices.iter();
            devices.map(move |(name, device)| (slice, name, device))
        }) {
            let nic = self.nic(slice, name, device);
            if let (Some(nic), Some((_, nics))) = (nic, at_root.get_mut(&*device.root)) {
                nics.push(nic);
            }
        }
        let given = at_root.into_values().flat_map(|(mut gpus, mut nics)| {
            gpus.sort_by_cached_key(|gpu| (position(gpu.address), gpu.uuid));
            nics.sort_by_cached_key(|nic| (position(&nic.address), nic.clone()));
            // Two drivers may list the same device.
            nics.dedup_by(|a, b| a.address == b.address);
            share(&gpus, &nics, per_gpu as usize)
        });
        given.collect()
    }

    /// Returns a device as a NIC that does RDMA; `None` if it is none. One that a claim has is one, whatever
    /// the slice says now.
    fn nic(&self, slice: &NicSlice, name: &str, device: &Device) -> Option<Nic> {
        let id = (slice.driver.clone(), slice.pool.clone(), name.to_owned());
        let held = self.held.contains_key(&id);
        (held || device.rdma.is_some()).then(|| Nic {
            address: device.address.value.clone(),
            attribute: device.address.of.clone(),
            rdma: device.rdma.clone().filter(|_| !held),
        })
    }
}

/// Gives each of the GPUs at a PCIe root `per_gpu` of its NICs, both in the order of their addresses, so that
/// the sum of the distances is least. Firmware and kernel number buses depth first, so devices below one switch have
/// neighbouring addresses. If there are too few NICs, the last GPUs get none.
fn share(gpus: &[Gpu<'_>], nics: &[Nic], per_gpu: usize) -> Vec<(String, Vec<Nic>)> {
    let fed = gpus.len().min(nics.len() / per_gpu.max(1));
    let wants: Vec<u64> = gpus[..fed]
        .iter()
        .flat_map(|gpu| std::iter::repeat_n(position(gpu.address), per_gpu))
        .collect();
    let places: Vec<u64> = nics.iter().map(|nic| position(&nic.address)).collect();
    let chosen = nearest(&wants, &places);
    let of = |at: usize| {
        let own = &chosen[at * per_gpu..(at + 1) * per_gpu];
        own.iter().map(|nic| nics[*nic].clone()).collect()
    };
    (0..fed)
        .map(|at| (gpus[at].uuid.to_owned(), of(at)))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn device(name: &str, root: &str, rdma: &Value) -> Value {
        let mut attributes = json!({
            "dra.net/pciAddress": {"string": name}, ROOT: {"string": root},
        });
        if rdma.is_string() {
            attributes["dra.net/rdmaDevice"] = json!({"string": rdma});
        }
        json!({"name": name.replace([':', '.'], "-"), "attributes": attributes})
    }

    fn slice(driver: &str, generation: i64, devices: &[Value]) -> Option<NicSlice> {
        let spec = json!({
            "driver": driver, "nodeName": "n1", "devices": devices,
            "pool": {"name": "n1", "generation": generation, "resourceSliceCount": 1},
        });
        NicSlice::of(&serde_json::from_value(spec).unwrap())
    }

    fn listed(nics: &[(&str, &str, Option<&str>)]) -> Option<NicSlice> {
        let device = |(address, root, rdma): &(&str, &str, Option<&str>)| {
            device(&format!("0000:{address}:00.0"), root, &json!(rdma))
        };
        slice("dra.net", 1, &nics.iter().map(device).collect::<Vec<_>>())
    }

    const PAIR: [Gpu<'_>; 2] = [
        Gpu {
            root: "a",
            address: "0000:10:00.0",
            uuid: "G0",
        },
        Gpu {
            root: "a",
            address: "0000:20:00.0",
            uuid: "G1",
        },
    ];

    fn shown(nics: &Nics, gpus: &[Gpu<'_>], per_gpu: u32) -> String {
        let given = nics.of_gpus("n1", gpus, per_gpu, |driver| driver == "dra.net");
        let name = |nic: &Nic| nic.rdma.clone().unwrap_or_else(|| nic.address.clone());
        let gpus = given.iter().map(|(uuid, own)| {
            let own: Vec<String> = own.iter().map(name).collect();
            format!("{uuid}:{}", own.join("+"))
        });
        gpus.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn each_gpu_has_the_nearest_nics_at_its_root() {
        let mut nics = Nics::default();
        let all = [
            ("11", "a", Some("mlx5_0")),
            ("21", "a", Some("mlx5_1")),
            ("22", "a", Some("mlx5_2")),
            ("12", "b", Some("mlx5_3")),
        ];
        assert_eq!(nics.set("s", listed(&all)), ["n1".into()]);
        assert_eq!(nics.set("s", listed(&all)), [] as [Name; 0]);
        assert_eq!(shown(&nics, &PAIR, 1), "G0:mlx5_0 G1:mlx5_1");
        assert_eq!(shown(&nics, &PAIR[1..], 2), "G1:mlx5_1+mlx5_2");
        // Three NICs are too few for two GPUs with two each.
        assert_eq!(shown(&nics, &PAIR, 2), "G0:mlx5_0+mlx5_1");
        let elsewhere = [Gpu {
            root: "c",
            ..PAIR[0]
        }];
        assert_eq!(shown(&nics, &elsewhere, 1), "");
        assert!(nics.of_gpus("n2", &PAIR, 1, |_| true).is_empty());
        assert!(nics.of_gpus("n1", &PAIR, 1, |_| false).is_empty());
    }

    #[test]
    fn a_nic_that_a_pod_has_stays_that_of_its_gpu() {
        let mut nics = Nics::default();
        let free = [("11", "a", Some("mlx5_0")), ("21", "a", Some("mlx5_1"))];
        nics.set("s", listed(&free));
        let id = (
            "dra.net".to_owned(),
            "n1".to_owned(),
            "0000-11-00-0".to_owned(),
        );
        assert_eq!(nics.hold(&[], std::slice::from_ref(&id)), ["n1".into()]);
        assert_eq!(shown(&nics, &PAIR, 1), "G0:0000:11:00.0 G1:mlx5_1");
        // DRANET sees no RDMA device of it now.
        nics.set("s", listed(&[("11", "a", None), free[1]]));
        assert_eq!(shown(&nics, &PAIR, 1), "G0:0000:11:00.0 G1:mlx5_1");
        // The claim is gone, and DRANET has not looked again.
        assert_eq!(nics.hold(&[id], &[]), ["n1".into()]);
        assert_eq!(shown(&nics, &PAIR, 1), "G0:mlx5_1");
        nics.set("s", listed(&free));
        assert_eq!(shown(&nics, &PAIR, 1), "G0:mlx5_0 G1:mlx5_1");
        assert!(nics.held.is_empty());
    }

    #[test]
    fn only_the_newest_slices_count() {
        let mut nics = Nics::default();
        let of = |driver: &str, generation, rdma: &str| {
            slice(
                driver,
                generation,
                &[device("0000:11:00.0", "a", &json!(rdma))],
            )
        };
        nics.set("old", of("dra.net", 1, "mlx5_0"));
        nics.set("new", of("dra.net", 2, "mlx5_1"));
        nics.set("other", of("sriov", 9, "mlx5_7"));
        assert_eq!(shown(&nics, &PAIR[..1], 1), "G0:mlx5_1");
        nics.set("new", None);
        assert_eq!(shown(&nics, &PAIR[..1], 1), "G0:mlx5_0");
        nics.set("old", None);
        nics.set("other", None);
        assert!(nics.slices.is_empty() && nics.on_node.is_empty() && nics.in_pool.is_empty());
    }

    #[test]
    fn addresses_may_be_those_of_kubernetes_and_odd_devices_are_no_nics() {
        let nic = |attributes: Value, taints: Value| {
            let device = json!({"name": "d", "attributes": attributes, "taints": taints});
            let mut nics = Nics::default();
            nics.set("s", slice("dra.net", 1, &[device]));
            shown(&nics, &PAIR[..1], 1)
        };
        let text = |text: &str| json!({"string": text});
        let good =
            json!({ROOT: text("a"), ADDRESS: text("0000:11:00.0"), "rdmaDevice": text("mlx5_0")});
        assert_eq!(nic(good.clone(), json!([])), "G0:mlx5_0");
        assert_eq!(
            nic(
                good.clone(),
                json!([{"key": "bad", "effect": "NoSchedule"}])
            ),
            ""
        );
        for (key, value) in [
            (ROOT, json!({"int": 1})),
            (ADDRESS, json!({"bool": true})),
            ("rdmaDevice", text("mlx5_0,mlx5_1")),
            ("rdmaDevice", text("")),
        ] {
            let mut bad = good.clone();
            bad[key] = value;
            assert_eq!(nic(bad, json!([])), "", "{key}");
        }
    }
}
