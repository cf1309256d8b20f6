//! NICs that DRA drivers list, and which of them belongs to which GPU of a node.
//!
//! Each GPU has NICs of its own, which follow from what the drivers list. So two pods of a class with different
//! GPUs never want the same NIC, and a later leader finds the same ones.
//!
//! While a pod has a NIC, DRANET may see only its PCI function: where RDMA devices have one network namespace
//! each (`rdma system set netns exclusive`), the slice says nothing of the RDMA device then, nor afterwards until
//! DRANET looks again. So NICs are told apart by their PCI addresses, and what was one stays one, with its name.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, hash_map::Entry},
    hash::Hash,
};

use super::{
    Name,
    nearest::{nearest, position},
    nic_slice::{Device, Id, NicSlice},
};

/// The NICs of the cluster.
#[derive(Clone, Debug, Default)]
pub(super) struct Nics {
    slices: BTreeMap<String, NicSlice>,
    on_node: HashMap<Name, BTreeSet<String>>,
    /// The slices of each pool, by driver and name.
    in_pool: HashMap<(String, String), BTreeSet<String>>,
    /// The number of claims that have each device.
    held: HashMap<Id, u32>,
    /// What each device is that did RDMA at some time, or that no claim had.
    seen: HashMap<Id, Seen>,
    /// All claims are known.
    knows_claims: bool,
}

/// What a device turned out to be.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    /// No NIC that does RDMA.
    Other,
    /// One, with the name that a slice last gave its RDMA device.
    Rdma(Option<String>),
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
    /// Its PCI address, as [`position`] numbers it.
    pub(super) at: u64,
    pub(super) uuid: &'g str,
}

/// A NIC that belongs to a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nic {
    /// The driver that lists it.
    pub driver: String,
    /// Its PCI address.
    pub address: String,
    /// The attribute that has the address: its domain and its name.
    pub attribute: (String, &'static str),
    /// Its RDMA device, if it is known.
    pub rdma: Option<String>,
    /// A claim has it.
    pub held: bool,
}

/// What is wanted of a node.
#[derive(Clone, Copy)]
pub(super) struct Wanted<'w> {
    pub(super) per_gpu: usize,
    /// Reports whether a driver can serve it.
    pub(super) serves: &'w dyn Fn(&str) -> bool,
    /// The RDMA devices that the exporter sees on the node, by their positions.
    pub(super) names: &'w BTreeMap<u64, &'w str>,
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
        if let Some(old) = &old {
            leave(&mut self.on_node, &old.node, name);
            leave(&mut self.in_pool, &old.pool(), name);
        }
        if let Some(slice) = slice {
            let names = self.on_node.entry(slice.node.clone()).or_default();
            names.insert(name.to_owned());
            let names = self.in_pool.entry(slice.pool()).or_default();
            names.insert(name.to_owned());
            self.see(&slice);
            self.slices.insert(name.to_owned(), slice);
        }
        if let Some(old) = old.filter(|old| !self.in_pool.contains_key(&old.pool())) {
            for device in old.devices.keys() {
                self.seen.remove(&old.id(device));
            }
        }
        changed
    }

    fn see(&mut self, slice: &NicSlice) {
        for (name, device) in &slice.devices {
            let id = slice.id(name);
            if device.does_rdma {
                let known = match self.seen.remove(&id) {
                    Some(Seen::Rdma(known)) => known,
                    Some(Seen::Other) | None => None,
                };
                let name = device.rdma.clone().or(known);
                self.seen.insert(id, Seen::Rdma(name));
            } else if self.knows_claims && !self.held.contains_key(&id) {
                self.seen.entry(id).or_insert(Seen::Other);
            }
        }
    }

    /// Records that all claims are known: a device that none has, and that does no RDMA, never did.
    pub(super) fn know_claims(&mut self) {
        if !std::mem::replace(&mut self.knows_claims, true) {
            let slices: Vec<NicSlice> = self.slices.values().cloned().collect();
            slices.iter().for_each(|slice| self.see(slice));
        }
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

    /// Returns the NICs that belong to the GPUs of a node, by UUID. A GPU that would get too few gets none.
    pub(super) fn of_gpus(
        &self,
        node: &str,
        gpus: &[Gpu<'_>],
        wanted: Wanted<'_>,
    ) -> BTreeMap<String, Vec<Nic>> {
        let mut at_root: BTreeMap<&str, Vec<Gpu<'_>>> = BTreeMap::new();
        for gpu in gpus {
            at_root.entry(gpu.root).or_default().push(*gpu);
        }
        let mut nics = self.at_roots(node, wanted);
        let given = at_root.into_iter().flat_map(|(root, mut gpus)| {
            gpus.sort_unstable();
            let nics = nics.remove(root).unwrap_or_default();
            share(&gpus, nics, wanted.per_gpu)
        });
        given.collect()
    }

    /// Returns the NICs of a node by PCIe root and position, each with whether its interface is down.
    fn at_roots(
        &self,
        node: &str,
        wanted: Wanted<'_>,
    ) -> BTreeMap<&str, BTreeMap<u64, (Nic, bool)>> {
        let names = self.on_node.get(node).into_iter().flatten();
        let slices = names.filter_map(|name| self.slices.get(name));
        let slices = slices.filter(|slice| (wanted.serves)(&slice.driver));
        // A driver replaces the slices of a pool one by one.
        let mut newest: BTreeMap<(&str, &str), i64> = BTreeMap::new();
        for slice in slices.clone() {
            let pool = (&*slice.driver, &*slice.pool);
            let known = newest.entry(pool).or_insert(slice.generation);
            *known = slice.generation.max(*known);
        }
        let valid = slices
            .filter(|slice| newest.get(&(&*slice.driver, &*slice.pool)) == Some(&slice.generation));
        let mut found: BTreeMap<&str, BTreeMap<u64, (Nic, bool)>> = BTreeMap::new();
        for slice in valid {
            for (name, device) in &slice.devices {
                let Some(nic) = self.nic(slice, name, device, wanted) else {
                    continue;
                };
                let at_root = found.entry(&device.root).or_default();
                let at = position(&device.address);
                // Two drivers may list the same card, and a claim may have it by either.
                let held = nic.held;
                let (known, _) = at_root.entry(at).or_insert((nic, device.down));
                known.held |= held;
            }
        }
        found
    }

    /// Returns a device as a NIC that does RDMA; `None` if it is none. One that a claim has had since before this
    /// process saw it is taken for one.
    fn nic(
        &self,
        slice: &NicSlice,
        name: &str,
        device: &Device,
        wanted: Wanted<'_>,
    ) -> Option<Nic> {
        let id = slice.id(name);
        let held = self.held.contains_key(&id);
        let before = match self.seen.get(&id) {
            Some(Seen::Rdma(name)) => name.clone(),
            Some(Seen::Other) => return None,
            None if held => None,
            None => return None,
        };
        let known = || wanted.names.get(&position(&device.address));
        let rdma = device.rdma.clone();
        let rdma = rdma.or_else(|| known().map(|name| (*name).to_owned()));
        Some(Nic {
            driver: slice.driver.clone(),
            address: device.address.clone(),
            attribute: device.attribute.clone(),
            rdma: rdma.or(before),
            held,
        })
    }
}

/// Gives each of the GPUs at a PCIe root `per_gpu` of its NICs, both in the order of their addresses, so that
/// the sum of the distances is least. Firmware and kernel number buses depth first, so devices below one switch have
/// neighbouring addresses. NICs that are down are for want of others only. If there are too few, the last GPUs
/// get none.
fn share(
    gpus: &[Gpu<'_>],
    nics: BTreeMap<u64, (Nic, bool)>,
    per_gpu: usize,
) -> Vec<(String, Vec<Nic>)> {
    let up = nics.values().filter(|(_, down)| !down).count();
    let enough = up >= gpus.len().saturating_mul(per_gpu);
    let nics = nics.into_iter().filter(|(_, (_, down))| !enough || !down);
    let (places, nics): (Vec<u64>, Vec<Nic>) = nics.map(|(at, (nic, _))| (at, nic)).unzip();
    let fed = gpus.len().min(nics.len() / per_gpu.max(1));
    let wants = gpus[..fed].iter();
    let wants = wants.flat_map(|gpu| std::iter::repeat_n(gpu.at, per_gpu));
    let chosen = nearest(&wants.collect::<Vec<_>>(), &places);
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
    use crate::gpus::nic_slice::ROOT;

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
            at: 0x1000,
            uuid: "G0",
        },
        Gpu {
            root: "a",
            at: 0x2000,
            uuid: "G1",
        },
    ];

    const NONE: &BTreeMap<u64, &str> = &BTreeMap::new();

    fn wanted(per_gpu: usize, serves: &dyn Fn(&str) -> bool) -> Wanted<'_> {
        Wanted {
            per_gpu,
            serves,
            names: NONE,
        }
    }

    fn shown(nics: &Nics, gpus: &[Gpu<'_>], per_gpu: usize) -> String {
        let given = nics.of_gpus("n1", gpus, wanted(per_gpu, &|driver| driver == "dra.net"));
        let name = |nic: &Nic| {
            let name = nic.rdma.clone().unwrap_or_else(|| nic.address.clone());
            if nic.held { format!("{name}!") } else { name }
        };
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
        assert!(nics.of_gpus("n2", &PAIR, wanted(1, &|_| true)).is_empty());
        assert!(nics.of_gpus("n1", &PAIR, wanted(1, &|_| false)).is_empty());
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
        assert_eq!(shown(&nics, &PAIR, 1), "G0:mlx5_0! G1:mlx5_1");
        // DRANET sees no RDMA device of it now.
        nics.set("s", listed(&[("11", "a", None), free[1]]));
        assert_eq!(shown(&nics, &PAIR, 1), "G0:mlx5_0! G1:mlx5_1");
        // The claim is gone, and DRANET has not looked again.
        assert_eq!(nics.hold(&[id], &[]), ["n1".into()]);
        assert_eq!(shown(&nics, &PAIR, 1), "G0:mlx5_0 G1:mlx5_1");
        nics.set("s", listed(&free));
        assert_eq!(shown(&nics, &PAIR, 1), "G0:mlx5_0 G1:mlx5_1");
        assert!(nics.held.is_empty());
    }

    #[test]
    fn a_device_without_rdma_is_no_nic_although_a_claim_has_it() {
        let of = |name: &str| ("dra.net".to_owned(), "n1".to_owned(), name.to_owned());
        let all = || listed(&[("11", "a", Some("mlx5_0")), ("10", "a", None)]);
        let mut nics = Nics::default();
        nics.set("s", all());
        nics.know_claims();
        nics.hold(&[], &[of("0000-10-00-0")]);
        assert_eq!(shown(&nics, &PAIR[..1], 1), "G0:mlx5_0");
        // A leader that saw neither of them without a claim takes both for NICs, in whatever order it reads.
        let away = || listed(&[("11", "a", None), ("10", "a", None)]);
        let mut later = Nics::default();
        let mut other = Nics::default();
        other.set("s", away());
        for nics in [&mut later, &mut other] {
            nics.hold(&[], &[of("0000-10-00-0"), of("0000-11-00-0")]);
            nics.know_claims();
            nics.set("s", away());
            let both = "G0:0000:10:00.0!+0000:11:00.0!";
            assert_eq!(shown(nics, &PAIR[..1], 2), both);
        }
        later.set("s", None);
        assert!(later.seen.is_empty());
    }

    /// Up to v1.4.0, DRANET says of a NIC with an interface that it does RDMA, but not by which device.
    #[test]
    fn the_exporter_knows_names_that_the_driver_does_not() {
        let mut nics = Nics::default();
        let mut old = device("0000:11:00.0", "a", &Value::Null);
        old["attributes"]["dra.net/rdma"] = json!({"bool": true});
        nics.set("s", slice("dra.net", 1, &[old]));
        assert_eq!(shown(&nics, &PAIR[..1], 1), "G0:0000:11:00.0", "unknown");
        let names = BTreeMap::from([(0x1100, "mlx5_4")]);
        let known = Wanted {
            names: &names,
            ..wanted(1, &|_| true)
        };
        let given = nics.of_gpus("n1", &PAIR[..1], known);
        assert_eq!(given["G0"][0].rdma.as_deref(), Some("mlx5_4"));
    }

    #[test]
    fn nics_that_are_down_are_for_want_of_others() {
        let mut down = device("0000:10:00.1", "a", &json!("mlx5_0"));
        down["attributes"]["dra.net/state"] = json!({"string": "down"});
        let up = device("0000:12:00.0", "a", &json!("mlx5_1"));
        let mut nics = Nics::default();
        nics.set("s", slice("dra.net", 1, &[down, up]));
        assert_eq!(shown(&nics, &PAIR[..1], 1), "G0:mlx5_1");
        assert_eq!(shown(&nics, &PAIR, 1), "G0:mlx5_0 G1:mlx5_1");
    }

    #[test]
    fn a_card_that_two_drivers_list_is_taken_if_either_gave_it_away() {
        let mut nics = Nics::default();
        let one = |driver: &str| {
            let mut device = device("0000:11:00.0", "a", &json!("mlx5_0"));
            device["attributes"]["rdmaDevice"] = json!({"string": "mlx5_0"});
            device["attributes"]["pciAddress"] = json!({"string": "0000:11:00.0"});
            slice(driver, 1, &[device])
        };
        nics.set("s", one("dra.net"));
        nics.set("t", one("sriov"));
        let id = (
            "sriov".to_owned(),
            "n1".to_owned(),
            "0000-11-00-0".to_owned(),
        );
        nics.hold(&[], &[id]);
        let given = nics.of_gpus("n1", &PAIR[..1], wanted(1, &|_| true));
        assert!(given["G0"][0].held);
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
}
