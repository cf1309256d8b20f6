//! The nodes: their domains, and who holds what in them.

use std::{collections::BTreeMap, sync::Arc};

use nvlink_api::class::{Class, GPU};
use nvlink_cluster::{
    gpus::{self, Hardwares, Published},
    kinds::NodeObject,
};
use nvlink_planner::{Job, Name, Room};
use nvlink_queue::feed::{self, giving};
use nvlink_topology::{BrokenGpus, labels};
use serde::Deserialize;
use serde_json::Value;

use super::objects::Objects;

/// A node with GPUs.
#[derive(Default)]
pub(super) struct Node {
    pub(super) labels: BTreeMap<String, String>,
    /// The classes whose nodes it is one of.
    pub(super) classes: Vec<String>,
    /// The GPUs that the scheduler may hand out.
    pub(super) capacity: u32,
    /// Whether no job may start on it: it is drained, not ready, or being deleted.
    pub(super) out: bool,
    /// What its exporter published, or why that cannot be used.
    published: Option<Arc<Published>>,
    /// What the queue's planner says of it; `None` for a node that is gone.
    pub(super) room: Option<Room>,
    pub(super) domains: Vec<Domain>,
}

/// A domain, or the GPUs of a node that are in none.
pub(super) struct Domain {
    /// Its id; empty for GPUs without NVLink between them.
    pub(super) id: String,
    pub(super) gpus: Vec<u32>,
    /// The fabric that it is part of: its free GPUs on all nodes are together.
    pub(super) fabric: Option<String>,
    /// Whether it is known who holds its GPUs.
    known: bool,
    /// GPUs that are marked as broken.
    pub(super) broken: u32,
}

impl Node {
    /// Returns what its exporter published, if it can be used.
    pub(super) fn known(&self) -> Option<&gpus::Node> {
        self.published.as_ref()?.as_ref().as_ref().ok()
    }

    /// Returns what its exporter published, or why that cannot be used.
    pub(super) fn published(&self) -> Option<Arc<Published>> {
        self.published.clone()
    }

    /// Returns why what its exporter published cannot be used.
    pub(super) fn unreadable(&self) -> Option<&str> {
        self.published
            .as_ref()?
            .as_ref()
            .as_ref()
            .err()
            .map(String::as_str)
    }

    /// Returns the node with each of its domains.
    pub(super) fn each_domain(&self) -> impl Iterator<Item = (&Self, &Domain)> {
        self.domains.iter().map(move |domain| (self, domain))
    }

    /// Returns the domain that the whole node is in, by its fabric if it is in one, and the number
    /// of GPUs that `class` may use; `None` if the node is in several.
    pub(super) fn whole(&self, class: &Class) -> Option<(&str, u32)> {
        let [domain] = &self.domains[..] else {
            return None;
        };
        let id = domain.fabric.as_ref().unwrap_or(&domain.id);
        let broken = match class.broken_gpus {
            BrokenGpus::Avoid => domain.broken,
            _ => 0,
        };
        let gpus = count(domain.gpus.iter()) - broken;
        (!id.is_empty()).then_some((id, gpus))
    }

    /// Returns the name of the pod and the number of GPUs of each that holds some of `domain`.
    pub(super) fn holders<'s>(
        &'s self,
        domain: &'s Domain,
    ) -> impl Iterator<Item = (&'s Name, u32)> {
        let alone = self.domains.len() == 1;
        let held = self.room.iter().flat_map(|room| &room.held);
        held.filter_map(move |held| {
            let inside = held.gpus.iter().filter(|gpu| domain.gpus.contains(gpu));
            let count = match held.gpus.is_empty() && alone {
                true => held.count,
                false => count(inside),
            };
            (count > 0).then_some((&held.pod, count))
        })
    }

    /// Returns how many GPUs of `domain` a job can get now that uses only nodes in one of `sets`;
    /// `None` if nobody reports who holds them.
    pub(super) fn free_in(&self, domain: &Domain, sets: &Sets) -> Option<u32> {
        let free = |within: &Vec<Name>| self.room.as_ref()?.free(Some(&domain.gpus), within).into();
        domain
            .known
            .then(|| sets.0.iter().filter_map(free).max().unwrap_or(0))
    }

    /// Returns how many GPUs of the whole node such a job can get now, as far as known.
    pub(super) fn free(&self, sets: &Sets) -> Option<u32> {
        let free = |within: &Vec<Name>| self.room.as_ref()?.free(None, within).into();
        let known = self.domains.iter().all(|one| one.known);
        known.then(|| sets.0.iter().filter_map(free).max().unwrap_or(0))
    }
}

/// The sets of nodes that jobs may use: each job only nodes that are in all of one of them.
pub(super) struct Sets(Vec<Vec<Name>>);

impl Sets {
    /// Returns those of the pods of a class.
    pub(super) fn of(class: &Class) -> Self {
        let own = Name::from(class.name.as_str());
        let open = feed::open_to(class, true);
        Self(vec![[own, giving(class)].into_iter().chain(open).collect()])
    }

    /// Returns those of a job that waits.
    pub(super) fn of_job(job: &Job) -> Self {
        let class = std::slice::from_ref(&job.class);
        Self(vec![[&job.within, class].concat()])
    }

    /// Returns those of the pods of any of these classes; without a class, of any pod.
    pub(super) fn of_any<'c>(classes: impl Iterator<Item = &'c Class>) -> Self {
        let mut sets: Vec<Vec<Name>> = classes.flat_map(|class| Self::of(class).0).collect();
        if sets.is_empty() {
            sets.push(Vec::new());
        }
        Self(sets)
    }
}

/// Returns all nodes with GPUs.
pub(super) fn all(
    objects: &Objects,
    classes: &BTreeMap<String, Result<Class, String>>,
) -> BTreeMap<String, Node> {
    let mut nodes: BTreeMap<String, Node> = BTreeMap::new();
    let mut hardwares = Hardwares::default();
    for ((_, name), object) in &objects.topologies.objects {
        let node = nodes.entry(name.clone()).or_default();
        node.published = Some(Arc::new(hardwares.read_json(object.clone())));
        let gpus = node.known().map_or(0, |known| known.gpus.len());
        node.capacity = u32::try_from(gpus).unwrap_or(u32::MAX);
    }
    for ((_, name), object) in &objects.nodes.objects {
        let known = nodes.contains_key(name);
        let object = read(object);
        let gpus = capacity(&object, classes);
        if known || gpus > 0 {
            let node = nodes.entry(name.clone()).or_default();
            (node.labels, node.out) = (object.labels, object.out);
            node.capacity = gpus;
        }
    }
    let only = objects.nodes.known().is_some();
    for (name, node) in &mut nodes {
        // What is published about a node that is gone remains for a while.
        node.out |= only
            && !objects
                .nodes
                .objects
                .contains_key(&(String::new(), name.clone()));
        let usable = classes.values().filter_map(|class| class.as_ref().ok());
        let covers = usable.filter(|class| node.is_of(class));
        node.classes = covers.map(|class| class.name.clone()).collect();
    }
    let all_pods = objects.has_all_pods();
    nodes.values_mut().for_each(|node| node.divide(all_pods));
    nodes
}

/// Reads the object of a node.
pub(super) fn read(object: &Value) -> feed::node::Node {
    let object = NodeObject::deserialize(object).unwrap_or_default();
    feed::node::Node::of(&object)
}

/// Returns the GPUs that the scheduler may hand out.
fn capacity(node: &feed::node::Node, classes: &BTreeMap<String, Result<Class, String>>) -> u32 {
    let is_gpu = |resource: &str| {
        let mut usable = classes.values().filter_map(|class| class.as_ref().ok());
        resource == GPU || usable.any(|class| class.resource == resource)
    };
    node.capacity(is_gpu)
}

impl Node {
    fn is_of(&self, class: &Class) -> bool {
        let bandwidth = self.labels.get(labels::BANDWIDTH);
        let bandwidth = bandwidth.and_then(|text| text.parse().ok()).unwrap_or(0);
        let mut selector = class.selector.iter();
        selector.all(|(key, value)| self.labels.get(key) == Some(value))
            && bandwidth >= class.min_bandwidth.unwrap_or(0)
    }

    /// Divides the GPUs into domains.
    fn divide(&mut self, all_pods: bool) {
        let Some(published) = self.known() else {
            return;
        };
        let parts = parts(published);
        // Without a report, the pods say how many of all GPUs they hold, but not which ones.
        let known = published.allocations.is_some() || self.out || (all_pods && parts.len() == 1);
        let broken = published.gpus.iter().filter(|gpu| !gpu.faults.is_empty());
        let broken: Vec<u32> = broken.map(|gpu| gpu.index).collect();
        let made = parts.into_iter().map(|(id, gpus, fabric)| Domain {
            known,
            broken: count(gpus.iter().filter(|gpu| broken.contains(gpu))),
            id,
            gpus,
            fabric,
        });
        self.domains = made.collect();
    }
}

fn count<T>(items: impl Iterator<Item = T>) -> u32 {
    u32::try_from(items.count()).unwrap_or(u32::MAX)
}

/// Returns the id, the GPUs and the fabric of each domain of a node, then the GPUs in none.
fn parts(published: &gpus::Node) -> Vec<(String, Vec<u32>, Option<String>)> {
    let domain = |one: &nvlink_topology::Domain| {
        let fabric = one.fabric.as_ref().map(nvlink_topology::Fabric::id);
        (one.id.clone(), one.gpus.clone(), fabric)
    };
    let mut parts: Vec<_> = published.domains.iter().map(domain).collect();
    let all = published.gpus.iter().map(|gpu| gpu.index);
    let alone: Vec<u32> = all
        .filter(|&gpu| published.domain_of(gpu).is_none())
        .collect();
    if !alone.is_empty() {
        parts.push((String::new(), alone, None));
    }
    parts
}
