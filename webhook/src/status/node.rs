//! The nodes: their domains, and who holds what in them.

use std::{collections::BTreeMap, sync::Arc};

use nvlink_planner::Name;
use nvlink_topology::labels;
use serde_json::Value;

use super::{objects::Objects, state::Pod};
use crate::{
    class::{Class, GPU},
    decide::{pod, quantity},
    mirror::{self, Mirror, Published, watches},
    queue::{Life, Placement, feed::id},
};

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
    /// Who holds its GPUs.
    pub(super) held: Vec<Held>,
    pub(super) domains: Vec<Domain>,
}

/// A pod that holds GPUs of a node.
pub(super) struct Held {
    pub(super) pod: Name,
    /// Number of GPUs.
    pub(super) gpus: u32,
    /// Which ones; empty if nobody reported it yet.
    pub(super) indices: Vec<u32>,
}

/// A domain, or the GPUs of a node that are in none.
pub(super) struct Domain {
    /// Its id; empty for GPUs without NVLink between them.
    pub(super) id: String,
    pub(super) gpus: Vec<u32>,
    /// The fabric that it is part of: its free GPUs on all nodes are together.
    pub(super) fabric: Option<String>,
    /// Its free GPUs; `None` if nobody reports who holds them.
    pub(super) free: Option<u32>,
    /// GPUs that are marked as broken.
    pub(super) broken: u32,
}

impl Node {
    /// Returns what its exporter published, if it can be used.
    pub(super) fn known(&self) -> Option<&mirror::Node> {
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

    /// Returns the name of the pod and the number of GPUs of each that holds some of `domain`.
    pub(super) fn holders<'s>(
        &'s self,
        domain: &'s Domain,
    ) -> impl Iterator<Item = (&'s Held, u32)> {
        let alone = self.domains.len() == 1;
        self.held.iter().filter_map(move |held| {
            let inside = held.indices.iter().filter(|gpu| domain.gpus.contains(gpu));
            let inside = count(inside);
            let count = if held.indices.is_empty() && alone {
                held.gpus
            } else {
                inside
            };
            (count > 0).then_some((held, count))
        })
    }

    /// Returns the free GPUs of the whole node, as far as known.
    pub(super) fn free(&self) -> Option<u32> {
        if self.out {
            return Some(0);
        }
        if self.known().is_some() {
            let free: Option<Vec<u32>> = self.domains.iter().map(|one| one.free).collect();
            let unplaced = self.held.iter().filter(|one| one.indices.is_empty());
            // Of a node with one domain, they are counted there.
            let unplaced: u32 = match self.domains.len() {
                1 => 0,
                _ => unplaced.map(|one| one.gpus).sum(),
            };
            return Some(free?.iter().sum::<u32>().saturating_sub(unplaced));
        }
        let held: u32 = self.held.iter().map(|one| one.gpus).sum();
        Some(self.capacity.saturating_sub(held))
    }
}

/// Returns all nodes with GPUs.
pub(super) fn all(
    objects: &Objects,
    classes: &BTreeMap<String, Result<Class, String>>,
    pods: &BTreeMap<Name, Pod<'_>>,
) -> BTreeMap<String, Node> {
    let mirror = Mirror::default();
    for ((_, name), object) in &objects.topologies.objects {
        if let Err(error) = watches::set_topology(&mirror, object.clone()) {
            let marks = mirror::Marks::default();
            mirror.set_node(name, Err(error.to_string()), marks, Ok(None));
        }
    }
    let mut nodes: BTreeMap<String, Node> = BTreeMap::new();
    for (name, published) in mirror.state().nodes {
        let node = nodes.entry(name).or_default();
        node.published = Some(published);
        let gpus = node.known().map_or(0, |known| known.gpus.len());
        node.capacity = u32::try_from(gpus).unwrap_or(u32::MAX);
    }
    for ((_, name), object) in &objects.nodes.objects {
        let known = nodes.contains_key(name);
        let gpus = capacity(object, classes);
        if known || gpus > 0 {
            let node = nodes.entry(name.clone()).or_default();
            node.read(object);
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
    let all_pods = objects.pods.known().is_some() && objects.namespace.is_none();
    hold(&mut nodes, all_pods, pods);
    nodes.values_mut().for_each(|node| node.divide(all_pods));
    nodes
}

/// Returns the GPUs that the scheduler may hand out.
fn capacity(node: &Value, classes: &BTreeMap<String, Result<Class, String>>) -> u32 {
    let usable = classes.values().filter_map(|class| class.as_ref().ok());
    let mut resources: Vec<&str> = usable.map(|class| class.resource.as_str()).collect();
    resources.push(GPU);
    resources.sort_unstable();
    resources.dedup();
    let amount = |name: &str| {
        let amount = pod::at(node, &["status", "allocatable", name]);
        amount.and_then(quantity::whole).unwrap_or(0)
    };
    resources.into_iter().map(amount).sum()
}

impl Node {
    fn read(&mut self, object: &Value) {
        let text = |value: &Value, key: &str| value.get(key)?.as_str().map(str::to_owned);
        let entries = pod::entries(object, &["metadata", "labels"]);
        let entries =
            entries.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
        self.labels = entries.collect();
        let mut conditions = pod::list(object, &["status", "conditions"]);
        let ready = conditions.find(|one| text(one, "type").as_deref() == Some("Ready"));
        let ready = ready.is_some_and(|one| text(one, "status").as_deref() == Some("True"));
        let drained = pod::at(object, &["spec", "unschedulable"]) == Some(&Value::Bool(true));
        let going = pod::at(object, &["metadata", "deletionTimestamp"]).is_some();
        self.out = drained || !ready || going;
    }

    fn is_of(&self, class: &Class) -> bool {
        let bandwidth = self.labels.get(labels::BANDWIDTH);
        let bandwidth = bandwidth.and_then(|text| text.parse().ok()).unwrap_or(0);
        let mut selector = class.selector.iter();
        selector.all(|(key, value)| self.labels.get(key) == Some(value))
            && bandwidth >= class.min_bandwidth.unwrap_or(0)
    }

    /// Counts what is free in each domain. Without all pods, only what is reported is known.
    fn divide(&mut self, all_pods: bool) {
        let Some(published) = self.known() else {
            return;
        };
        let parts = parts(published);
        let alone = parts.len() == 1;
        let unplaced = self.held.iter().filter(|held| held.indices.is_empty());
        let unplaced: u32 = unplaced.map(|held| held.gpus).sum();
        let reported = published.allocations.is_some();
        let broken = published.gpus.iter().filter(|gpu| !gpu.faults.is_empty());
        let broken: Vec<u32> = broken.map(|gpu| gpu.index).collect();
        let taken = |gpu: &&u32| self.held.iter().any(|held| held.indices.contains(gpu));
        let made = parts.into_iter().map(|(id, gpus, fabric)| {
            let free = count(gpus.iter().filter(|gpu| !taken(gpu)));
            let free = match (self.out, alone, reported) {
                (true, ..) => Some(0),
                (false, true, reported) => {
                    Some(free.saturating_sub(unplaced)).filter(|_| reported || all_pods)
                }
                (false, false, reported) => reported.then_some(free),
            };
            Domain {
                free,
                broken: count(gpus.iter().filter(|gpu| broken.contains(gpu))),
                id,
                gpus,
                fabric,
            }
        });
        self.domains = made.collect();
    }
}

fn count<T>(items: impl Iterator<Item = T>) -> u32 {
    u32::try_from(items.count()).unwrap_or(u32::MAX)
}

/// Returns the id, the GPUs and the fabric of each domain of a node, then the GPUs in none.
fn parts(published: &mirror::Node) -> Vec<(String, Vec<u32>, Option<String>)> {
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

/// Records who holds what. What the API says of a pod is newer than what its node's exporter
/// reported: a pod that has ended or is gone holds nothing.
fn hold(nodes: &mut BTreeMap<String, Node>, all_pods: bool, pods: &BTreeMap<Name, Pod<'_>>) {
    for node in nodes.values_mut() {
        let reported = node.known().and_then(|known| known.allocations.clone());
        let mut held: BTreeMap<Name, Held> = BTreeMap::new();
        for one in reported.into_iter().flatten() {
            let name = id(&one.namespace, &one.pod);
            let pod = pods.get(&name);
            let uid = pod.and_then(|pod| pod::at(pod.value, &["metadata", "uid"])?.as_str());
            let other = uid.zip(one.pod_uid.as_deref()).is_some_and(|(a, b)| a != b);
            let over = pod.is_some_and(|pod| matches!(pod.life, Life::Ended { .. }));
            if other || over || (all_pods && pod.is_none()) {
                continue;
            }
            let entry = held.entry(name.clone()).or_insert_with(|| Held {
                pod: name,
                gpus: 0,
                indices: Vec::new(),
            });
            entry.gpus += u32::try_from(one.gpus.len()).unwrap_or(0);
            entry.indices.extend(one.gpus);
        }
        node.held = held.into_values().collect();
    }
    for (name, pod) in pods {
        let placed = Placement::of(pod.value);
        let planned = placed.as_ref().and_then(|placed| placed.node.as_deref());
        let node = match pod.life {
            Life::Released => planned,
            _ => pod.life.node(),
        };
        let Some(node) = node
            .and_then(|node| nodes.get_mut(node))
            .filter(|_| pod.gpus > 0)
        else {
            continue;
        };
        if !node.held.iter().any(|held| held.pod == *name) {
            node.held.push(Held {
                pod: name.clone(),
                gpus: pod.gpus,
                indices: placed.map(|placed| placed.gpus).unwrap_or_default(),
            });
        }
    }
}
