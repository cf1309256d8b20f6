//! The GPUs of the cluster's nodes, and the one answer to the question which pods hold which: by the
//! reports of exporters (NodeTopologies) and by what DRA lists and allocates. Admission's view, the
//! page, the extender, `status` and the queue all ask here.

pub mod devices;
mod document;
mod dra;
pub mod hardware;
mod nearest;
pub mod nic_slice;
pub mod nics;
pub mod node;
mod on_node;

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use nvlink_admission::view::Free;
use nvlink_api::crd::devices::Nics;
use nvlink_topology::Allocation;

use devices::Devices;
pub use document::Document;
pub use dra::{Claim, DeviceClass, GpuSlice, Slice, User};
pub use hardware::{Hardware, Hardwares};
pub use node::{Marks, Node};
pub use on_node::OnNode;

/// The name of a node, or namespace and name of a pod as [`id`] joins them.
pub type Name = Arc<str>;

/// What a node published, or why it cannot be used.
pub type Published = Result<Node, String>;

/// Joins namespace and name.
#[must_use]
pub fn id(namespace: &str, name: &str) -> Name {
    format!("{namespace}/{name}").into()
}

/// What is known of the GPUs of all nodes.
#[derive(Clone, Debug, Default)]
pub struct Gpus {
    topologies: BTreeMap<Name, Arc<Published>>,
    /// What nodes published before what cannot be used. Only for people: nothing is decided by it.
    earlier: BTreeMap<Name, Arc<Published>>,
    devices: Devices,
    /// All claims have been read.
    knows_claims: bool,
}

/// Somebody who holds GPUs of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// `None`: a claim that no pod uses.
    pub pod: Option<Holding>,
    /// The indices of its GPUs on the node.
    pub gpus: Vec<u32>,
}

/// A pod that is said to hold GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// As [`id`] joins it.
    pub id: Name,
    /// Distinguishes it from others of this name; `None` if that is not said.
    pub uid: Option<String>,
}

impl Gpus {
    /// Sets what a node published, or removes it.
    pub fn set_topology(&mut self, node: &str, published: Option<Arc<Published>>) {
        let broken = published.as_ref().is_some_and(|new| new.is_err());
        let before = match published {
            Some(published) => self.topologies.insert(node.into(), published),
            None => self.topologies.remove(node),
        };
        match before.filter(|before| before.is_ok()) {
            Some(good) if broken => self.earlier.insert(node.into(), good),
            _ if broken => None,
            _ => self.earlier.remove(node),
        };
    }

    /// Sets a ResourceSlice, or removes it. Returns the nodes whose GPUs change.
    pub fn set_slice(&mut self, name: &str, slice: Option<Slice>) -> Vec<Name> {
        self.devices.set_slice(name, slice)
    }

    /// Sets a ResourceClaim, or removes it. Returns the nodes whose GPUs it is or was for.
    pub fn set_claim(&mut self, id: &Name, claim: Option<Claim>) -> Vec<Name> {
        self.devices.set_claim(id, claim)
    }

    /// Sets a DeviceClass, or removes it. Returns the nodes whose GPUs change.
    pub fn set_device_class(&mut self, name: &str, class: Option<DeviceClass>) -> Vec<Name> {
        match self.devices.set_class(name, class) {
            true => self.devices.listed().cloned().collect(),
            false => Vec::new(),
        }
    }

    /// Removes all topologies but these. Returns the nodes that it removes.
    pub fn retain_topologies(&mut self, wanted: impl Fn(&str) -> bool) -> Vec<Name> {
        let gone = self.topologies.keys().filter(|name| !wanted(name));
        let gone: Vec<Name> = gone.cloned().collect();
        gone.iter().for_each(|name| self.set_topology(name, None));
        gone
    }

    /// Removes all slices but these. Returns the nodes whose GPUs change.
    pub fn retain_slices(&mut self, wanted: &HashSet<String>) -> Vec<Name> {
        let gone = self.devices.slice_names();
        let gone: Vec<String> = gone
            .filter(|name| !wanted.contains(*name))
            .cloned()
            .collect();
        let changed = gone.iter().map(|name| self.set_slice(name, None));
        changed.flatten().collect()
    }

    /// Removes all claims but these. Returns the nodes whose GPUs change.
    pub fn retain_claims(&mut self, wanted: &HashSet<Name>) -> Vec<Name> {
        let known = std::mem::replace(&mut self.knows_claims, true);
        let first = self.devices.listed().filter(|_| !known);
        let first: Vec<Name> = first.cloned().collect();
        let gone = self
            .devices
            .claims
            .keys()
            .filter(|id| !wanted.contains(*id));
        let gone: Vec<Name> = gone.cloned().collect();
        let changed = gone.iter().map(|id| self.set_claim(id, None));
        let changed: Vec<Name> = first.into_iter().chain(changed.flatten()).collect();
        self.devices.know_claims();
        changed
    }

    /// Removes all DeviceClasses but these. Returns the nodes whose GPUs change.
    pub fn retain_device_classes(&mut self, wanted: &HashSet<String>) -> Vec<Name> {
        let gone = self.devices.classes.keys();
        let gone: Vec<String> = gone
            .filter(|name| !wanted.contains(*name))
            .cloned()
            .collect();
        let changed = gone.iter().map(|name| self.set_device_class(name, None));
        changed.flatten().collect()
    }

    /// Returns what each node published, in the order of their names.
    pub fn topologies(&self) -> impl Iterator<Item = (&Name, &Arc<Published>)> {
        self.topologies.iter()
    }

    /// Returns what a node published, if it can be used.
    #[must_use]
    pub fn known(&self, node: &str) -> Option<&Node> {
        self.topologies.get(node)?.as_ref().as_ref().ok()
    }

    /// Returns what a node published, or why it cannot be used.
    #[must_use]
    pub fn published(&self, node: &str) -> Option<&Arc<Published>> {
        self.topologies.get(node)
    }

    /// Returns what a node published before what cannot be used, since this program started.
    #[must_use]
    pub fn earlier(&self, node: &str) -> Option<&Arc<Published>> {
        self.earlier.get(node)
    }

    /// Returns what DRA lists and allocates.
    #[must_use]
    pub fn devices(&self) -> &Devices {
        &self.devices
    }

    /// Returns the NICs of each GPU of a node that has as many as `wanted`, by its UUID; `gpus` is what DRA lists
    /// of the node.
    #[must_use]
    pub fn nics(
        &self,
        node: &str,
        gpus: &OnNode,
        wanted: &Nics,
    ) -> BTreeMap<String, Vec<nics::Nic>> {
        self.devices.nics(node, gpus, self.known(node), wanted)
    }

    /// Returns what is known of the GPUs of a node.
    #[must_use]
    pub fn of(&self, node: &str) -> OfNode<'_> {
        OfNode {
            published: self.topologies.get(node),
            devices: self.devices.of_node(node),
            knows_claims: self.knows_claims,
        }
    }
}

/// What is known of the GPUs of a node.
#[derive(Debug)]
pub struct OfNode<'g> {
    /// What its exporter published.
    pub published: Option<&'g Arc<Published>>,
    /// What a DRA driver lists and claims hold; `None` if no slice lists GPUs of it.
    pub devices: Option<OnNode>,
    knows_claims: bool,
}

impl<'g> OfNode<'g> {
    /// Returns what its exporter published, if it can be used.
    #[must_use]
    pub fn known(&self) -> Option<&'g Node> {
        self.published?.as_ref().as_ref().ok()
    }

    /// Returns the allocations by its exporter's report, with their GPUs. Where claims say that a pod
    /// only looks at a GPU, it does not hold it: an exporter that cannot read claims does not know.
    pub fn reported(&self) -> impl Iterator<Item = (&'g Allocation, Vec<u32>)> {
        let known = self.known().into_iter();
        known.flat_map(move |known| {
            let allocations = known.allocations.iter().flatten();
            allocations.map(move |one| (one, self.held_of(known, one)))
        })
    }

    fn held_of(&self, known: &Node, one: &Allocation) -> Vec<u32> {
        let pod = id(&one.namespace, &one.pod);
        let looked_at = self.devices.as_ref();
        let looked_at = looked_at.map(|all| all.only_looked_at(&pod, one.pod_uid.as_deref()));
        let looked_at = looked_at.unwrap_or_default();
        let holds = |index: &&u32| {
            let gpu = known.gpus.iter().find(|gpu| gpu.index == **index);
            let uuid = gpu.and_then(|gpu| gpu.uuid.as_deref());
            !uuid.is_some_and(|uuid| looked_at.contains(uuid))
        };
        one.gpus.iter().filter(holds).copied().collect()
    }

    /// Returns who holds its GPUs: the pods of the report, and the users of claims, which know it
    /// before the exporter sees the containers. A pod may be named more than once, and may have ended.
    #[must_use]
    pub fn holders(&self) -> Vec<Holder> {
        let reported = self.reported().map(|(one, gpus)| Holder {
            pod: Some(Holding {
                id: id(&one.namespace, &one.pod),
                uid: one.pod_uid.clone(),
            }),
            gpus,
        });
        let mut all: Vec<Holder> = reported.collect();
        if let (Some(devices), Some(known)) = (&self.devices, self.known()) {
            all.extend(devices.holders(known));
        }
        all
    }

    /// Returns the GPUs that a DRA driver does not let the scheduler allocate to one claim alone,
    /// and that no claim holds: they are tainted, shared, or not listed.
    #[must_use]
    pub fn out(&self) -> Vec<u32> {
        let devices = self.devices.as_ref().zip(self.known());
        devices.map_or_else(Vec::new, |(devices, known)| devices.out(known))
    }

    /// Returns the GPUs that nobody holds for whom `counts` says so, by index, ascending; `None` if
    /// neither an exporter nor a DRA driver says who holds what.
    pub fn free(&self, counts: impl Fn(&Holding) -> bool) -> Option<Vec<u32>> {
        self.free_of(&self.holders(), counts)
    }

    /// Returns the same, if these are its holders.
    pub(super) fn free_of(
        &self,
        holders: &[Holder],
        counts: impl Fn(&Holding) -> bool,
    ) -> Option<Vec<u32>> {
        let known = self.known()?;
        let claims = self.knows_claims && self.devices.is_some();
        if known.allocations.is_none() && !claims {
            return None;
        }
        let holders = holders.iter();
        let held = holders.filter(|one| one.pod.as_ref().is_none_or(&counts));
        let held: HashSet<u32> = held.flat_map(|one| one.gpus.iter().copied()).collect();
        let all = known.gpus.iter().map(|gpu| gpu.index);
        let mut free: Vec<u32> = all.filter(|gpu| !held.contains(gpu)).collect();
        free.sort_unstable();
        Some(free)
    }

    /// Returns how many of the GPUs that [`Self::free`] returns are in one domain, at most.
    pub fn most_free(&self, counts: impl Fn(&Holding) -> bool) -> Option<Free> {
        let (known, free) = (self.known()?, self.free(counts)?);
        let most = |gpus: &[u32]| u32::try_from(known.largest_set(gpus)).unwrap_or(u32::MAX);
        Some(Free {
            all: most(&free),
            healthy: most(&known.healthy(&free)),
        })
    }
}
