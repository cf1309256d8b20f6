//! Pods without GPUs and other devices. They hold CPU, memory and their place among the pods of a
//! node; nothing else is kept of them, because a cluster may have a hundred thousand. Pure.

use std::collections::{HashMap, HashSet};

use nvlink_api::class::GPU;
use nvlink_planner::{Name, PodState};
use serde_json::{Value, json};

use super::{
    Feed,
    amounts::{Amounts, Sum},
    neighbours::Standing,
};
use crate::Life;

/// The scheduler of pods that name none. Every cluster has it.
const USUAL: &str = "default-scheduler";

/// The most schedulers that are known to have bound pods.
const MOST_SCHEDULERS: usize = 1_000;

/// What a pod without devices takes of its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load {
    node: Name,
    amounts: Amounts,
    /// Where it is, for those that must be near it.
    pub(super) standing: Option<Standing>,
    /// The scheduler that bound it.
    pub(super) scheduler: Option<Box<str>>,
}

impl Load {
    /// Reads `pod`; `None` if it is on no node, or has ended.
    #[must_use]
    pub fn of(pod: &Value) -> Option<Self> {
        let node = Life::of(pod).node().map(Name::from)?;
        let amounts = Amounts::of_pod(pod);
        let standing = Standing::of(pod);
        Some(Self {
            node,
            amounts,
            standing,
            scheduler: Some(scheduler(pod)),
        })
    }
}

/// Returns the scheduler that a pod names.
pub(super) fn scheduler(pod: &Value) -> Box<str> {
    let name = nvlink_api::pod::text(pod, &["spec", "schedulerName"]);
    if name.is_empty() { USUAL } else { name }.into()
}

/// Returns the parts of a pod that its [`Load`] is read from.
pub fn slim(pod: &Value) -> Value {
    let fields = |value: &Value, keys: &[&str]| -> Value {
        let all = value.as_object().into_iter().flatten();
        let kept = all.filter(|(key, _)| keys.contains(&key.as_str()));
        kept.map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    };
    let part = |name: &str| pod.get(name).unwrap_or(&Value::Null);
    let mut spec = fields(
        part("spec"),
        &[
            "nodeName",
            "schedulerName",
            "containers",
            "initContainers",
            "resources",
            "overhead",
        ],
    );
    for list in ["containers", "initContainers"] {
        let list = spec.get_mut(list).and_then(Value::as_array_mut);
        for container in list.into_iter().flatten() {
            *container = fields(container, &["name", "restartPolicy", "resources"]);
        }
    }
    json!({
        "metadata": fields(part("metadata"), &["namespace", "name", "uid", "labels"]),
        "spec": spec,
        "status": fields(part("status"), &["phase"]),
    })
}

/// The loads of all nodes.
#[derive(Debug, Default)]
pub(super) struct Loads {
    pods: HashMap<Name, Load>,
    nodes: HashMap<Name, Sum>,
}

impl Loads {
    /// Sets what the pod `id` takes, or that it takes nothing. Returns the nodes whose load changes.
    pub(super) fn set(&mut self, id: &Name, load: Option<Load>) -> [Option<Name>; 2] {
        let mut changed = [None, None];
        if self.pods.get(id) == load.as_ref() {
            return changed;
        }
        if let Some(old) = self.pods.remove(id) {
            if let Some(sum) = self.nodes.get_mut(&old.node) {
                sum.subtract(&old.amounts);
                if sum.count == 0 {
                    self.nodes.remove(&old.node);
                }
            }
            changed[0] = Some(old.node);
        }
        if let Some(mut load) = load {
            if let Some((node, _)) = self.nodes.get_key_value(&load.node) {
                // One text for all pods of a node.
                load.node = node.clone();
            }
            let sum = self.nodes.entry(load.node.clone()).or_default();
            sum.add(&load.amounts);
            changed[1] = Some(load.node.clone());
            self.pods.insert(id.clone(), load);
        }
        changed
    }

    /// Returns the pods that are not among these.
    pub(super) fn others(&self, wanted: &HashSet<Name>) -> Vec<Name> {
        let others = self.pods.keys().filter(|id| !wanted.contains(*id));
        others.cloned().collect()
    }

    /// Returns the loads of a node as one pod, which the planner takes to stay forever: nobody
    /// knows when such pods end, so no job waits for it on GPUs that others could use. They have `more`
    /// besides.
    pub(super) fn of_node(
        &self,
        node: &Name,
        others: &[Name],
        more: Option<&Amounts>,
    ) -> Option<PodState> {
        let known = self.nodes.get(node);
        let mut sum = known.cloned().unwrap_or_default();
        more.into_iter().for_each(|more| sum.add(more));
        if sum.count == 0 {
            return None;
        }
        Some(PodState {
            node: node.clone(),
            gpus: 0,
            planned: Vec::new(),
            bound: true,
            since: 0,
            end: None,
            job: None,
            class: None,
            project: "".into(),
            priority: 0,
            resources: sum.vector(others),
        })
    }
}

impl Feed {
    /// Reports whether a resource is one of GPUs.
    pub(super) fn is_gpu(&self, resource: &str) -> bool {
        let mut classes = self
            .classes
            .values()
            .filter_map(|class| class.as_ref().ok());
        resource == GPU || classes.any(|class| class.resource == resource)
    }

    /// Reports whether a node has GPUs, as far as its object and a DRA driver say.
    pub(super) fn has_gpus(&self, name: &Name) -> bool {
        let node = self.nodes.get(name);
        let has = node.is_some_and(|node| node.capacity(|resource| self.is_gpu(resource)) > 0);
        has || self.gpus.devices().lists(name)
    }

    /// Finds out which resources the planner's vectors have. Where that changes, all vectors do.
    pub(super) fn order_resources(&mut self) {
        let others = self.offered.iter().filter(|name| !self.is_gpu(name));
        let others: Vec<Name> = others.cloned().collect();
        if others != self.others {
            self.others = others;
            self.changed.nodes.extend(self.nodes.keys().cloned());
            self.changed.pods.extend(self.pods.keys().cloned());
            self.changed.jobs.extend(self.jobs.keys().cloned());
        }
    }

    /// Sets what a pod without devices takes of its node; `None` if that is nothing.
    pub fn load(&mut self, id: &Name, mut load: Option<Load>) {
        self.leave(id);
        let standing = load.as_mut().and_then(|load| load.standing.take());
        self.stand(id, standing);
        let scheduler = load.as_mut().and_then(|load| load.scheduler.take());
        self.binds(scheduler);
        self.set_load(id, load);
    }

    /// Records that a scheduler has bound a pod.
    pub(super) fn binds(&mut self, scheduler: Option<Box<str>>) {
        // Anybody can write names into pods.
        if self.schedulers.len() < MOST_SCHEDULERS {
            self.schedulers.extend(scheduler);
        }
    }

    /// Returns the scheduler of a waiting pod, if it has bound no pod so far: perhaps there is none of this
    /// name.
    pub(crate) fn unseen_scheduler(&self, pod: &Name) -> Option<&str> {
        let name = &*self.pods.get(pod)?.scheduler;
        (name != USUAL && !self.schedulers.contains(name)).then_some(name)
    }

    pub(super) fn set_load(&mut self, id: &Name, load: Option<Load>) {
        let changed = self.loads.set(id, load);
        let changed = changed.into_iter().flatten();
        let changed = changed.filter(|node| self.has_gpus(node));
        let changed: Vec<Name> = changed.collect();
        self.changed.loads.extend(changed);
    }
}

/// Returns the id by which the planner knows the loads of a node. No pod has it: their ids have a
/// slash, which names of nodes cannot have.
pub(super) fn id(node: &Name) -> Name {
    format!("pods without devices on {node}").into()
}
