//! What DRA lists and allocates, as far as the queue asks.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::Arc,
};

use nvlink_api::{
    class::Class,
    crd::{GPU, GPU_DRIVER, domain_class::Mapping},
    pod::GPU_RESOURCES,
};
use nvlink_cluster::{
    gpus::{Claim, DeviceClass, Gpus, Slice, id},
    seen::Nodes,
};
use nvlink_planner::Name;

use super::{Feed, entry::Entry, nics::claimable};
use crate::{
    Placement,
    claim::{self, Asks},
    notice::NoDriver,
};

/// The set of nodes whose GPUs a claim can ask for. No class can have this name.
pub(super) const CLAIMABLE: &str = "nodes with claimable GPUs";

/// Returns the name of the set of nodes where pods get GPUs that request `resource` and no claim.
pub(super) fn serving(resource: &str) -> Name {
    format!("nodes that serve {resource}").into()
}

/// Returns the name of the set of nodes where new pods of a class get GPUs.
pub fn giving(class: &Class) -> Name {
    match class.mapping {
        Mapping::Claim => claimable(class, true),
        Mapping::DevicePlugin | Mapping::Preferred => serving(&class.resource),
    }
}

/// Returns the claim of the queue that a pod names. One of an earlier pod of its name is not its own.
pub(super) fn claim_of<'g>(gpus: &'g Gpus, pod: &Entry) -> Option<&'g Claim> {
    let name = &pod.claim.as_ref()?.name;
    let claim = gpus.devices().claim(&id(&pod.namespace, name));
    claim.filter(|claim| claim.is_of(&pod.uid))
}

/// Reports whether a pod names a claim of the queue that does not exist.
pub(super) fn lacks_claim(gpus: &Gpus, pod: &Entry) -> bool {
    pod.claim.is_some() && claim_of(gpus, pod).is_none()
}

impl Feed {
    /// Sets a ResourceSlice, or removes it.
    pub fn slice(&mut self, name: &str, slice: Option<Slice>) {
        let changed = self.gpus.set_slice(name, slice);
        self.changed.nodes.extend(changed);
    }

    /// Sets a ResourceClaim, or removes it.
    pub fn claim(&mut self, id: &Name, claim: Option<Claim>) {
        let changed = self.gpus.set_claim(id, claim);
        self.changed.nodes.extend(changed);
    }

    /// Sets a DeviceClass, or removes it.
    pub fn device_class(&mut self, name: &str, class: Option<DeviceClass>) {
        let changed = self.gpus.set_device_class(name, class);
        self.changed.nodes.extend(changed);
    }

    /// Removes all slices but these.
    pub fn retain_slices(&mut self, wanted: &HashSet<String>) {
        let changed = self.gpus.retain_slices(wanted);
        self.changed.nodes.extend(changed);
    }

    /// Removes all claims but these.
    pub fn retain_claims(&mut self, wanted: &HashSet<Name>) {
        let changed = self.gpus.retain_claims(wanted);
        self.changed.nodes.extend(changed);
    }

    /// Removes all DeviceClasses but these.
    pub fn retain_device_classes(&mut self, wanted: &HashSet<String>) {
        let changed = self.gpus.retain_device_classes(wanted);
        self.changed.nodes.extend(changed);
    }

    /// Returns the nodes of each class with the mapping `Claim` that have GPUs which the scheduler may
    /// allocate to several claims at a time. The queue uses none of these GPUs.
    #[must_use]
    pub fn shared_gpus(&self) -> Nodes {
        let nodes: BTreeSet<&Name> = self.gpus.devices().sharing().collect();
        let nodes: Vec<&Name> = nodes.into_iter().collect();
        let classes = self
            .classes
            .values()
            .filter_map(|known| known.as_ref().ok());
        let claiming = classes.filter(|class| class.mapping == Mapping::Claim);
        let of_class = |class: &Arc<Class>| (class.name.clone(), self.of_class(class, &nodes));
        claiming.map(of_class).collect()
    }

    /// Returns, for each class that queues, the DeviceClasses that give GPUs for a name that admission
    /// does not know, with that name; nothing if there are none.
    #[must_use]
    pub fn others(&self) -> BTreeMap<String, Vec<String>> {
        let classes = self.classes.values();
        let classes: Vec<_> = classes.filter_map(|known| known.as_ref().ok()).collect();
        let is_known = |resource: &str| {
            let mut slices = GPU_RESOURCES.iter();
            resource == GPU
                || slices.any(|prefix| resource.starts_with(prefix))
                || classes.iter().any(|class| class.resource == resource)
        };
        let all = self.gpus.devices().extended();
        let others = all.filter(|(_, resource)| !is_known(resource));
        let others: Vec<String> = others
            .map(|(name, resource)| format!("{name} ({resource})"))
            .collect();
        let queues = classes.iter().filter(|class| class.queue.is_some());
        let queues = queues.filter(|_| !others.is_empty());
        let of_class = |class: &&Arc<Class>| (class.name.clone(), others.clone());
        queues.map(of_class).collect()
    }

    /// Returns the names of those nodes that are of a class.
    pub(super) fn of_class(&self, class: &Class, nodes: &[&Name]) -> Vec<String> {
        let is_of = |name: &&&Name| {
            let node = self.nodes.get(**name);
            node.is_some_and(|node| node.is_of(class))
        };
        nodes
            .iter()
            .filter(is_of)
            .map(ToString::to_string)
            .collect()
    }

    /// Returns why the claims of a job get no GPUs on any node; `None` if they might, or if an autoscaler
    /// may add nodes.
    pub(super) fn no_driver(&self, job: &Name) -> Option<NoDriver> {
        let member = self.pods_of(job).find_map(|pod| self.member(pod))?;
        let class = self.classes.get(&member.class)?.as_ref().ok()?;
        match member.grows {
            true => None,
            false => self.lacks_driver(class),
        }
    }

    /// Returns why claims of a class get no GPUs on any node that exists; `None` if they might, or if the
    /// class gives GPUs otherwise.
    #[must_use]
    pub fn lacks_driver(&self, class: &Class) -> Option<NoDriver> {
        if class.mapping != Mapping::Claim {
            return None;
        }
        let devices = self.gpus.devices();
        match devices.listed().next() {
            _ if !devices.has_class(&class.device_class) => {
                Some(NoDriver::NoClass(class.device_class.as_str().into()))
            }
            None => Some(NoDriver::NoSlice),
            Some(_) => self.lacks_nics(class),
        }
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
        let node = placement.node.as_deref();
        let known = node.and_then(|node| self.gpus.known(node));
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
        let known = self.gpus.known(node)?;
        let uuid = |index: &u32| {
            let gpu = known.gpus.iter().find(|gpu| gpu.index == *index)?;
            gpu.uuid.clone()
        };
        gpus.iter().map(uuid).collect()
    }
}
