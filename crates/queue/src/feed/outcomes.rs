//! Where the pods are that the queue placed, and which of that has changed.

use std::collections::BTreeSet;

use nvlink_api::crd::domain_class::Mapping;
use nvlink_planner::Name;
use nvlink_topology::{Allocation, Pattern};

use super::{Feed, entry::Entry};
use crate::{
    Member, Placement,
    outcome::{Compared, Found, Mate, Outcome},
};

/// What has changed since it was last asked for.
#[derive(Debug, Default)]
pub struct Moved {
    /// Pods that came, changed or went.
    pub pods: BTreeSet<Name>,
    /// Nodes whose reports changed.
    pub nodes: BTreeSet<Name>,
}

/// A pod on a node, which the queue put on GPUs.
#[derive(Clone, Debug, PartialEq)]
pub struct Seated {
    /// Its UID.
    pub uid: String,
    /// Its resourceVersion.
    pub version: u64,
    /// Its class.
    pub class: String,
    /// The node to which it is bound.
    pub node: Name,
    /// Best possible cost on empty nodes of its class over that of the plan, in (0, 1].
    pub quality: f64,
    /// What a leader wrote into its condition.
    pub told: Option<Outcome>,
    /// It is being deleted.
    pub ends: bool,
    /// The plan compared with what it has; `None` while that is not known.
    pub compared: Option<Compared>,
}

impl Feed {
    /// Returns what has changed, once.
    pub fn moved(&mut self) -> Moved {
        std::mem::take(&mut self.moved)
    }

    /// Returns where a pod is that the queue put on GPUs; `None` without a node or such a plan.
    #[must_use]
    pub fn seated(&self, id: &Name) -> Option<Seated> {
        let pod = self.pods.get(id)?;
        let (node, plan) = (pod.life.node()?, pod.placement.as_ref()?);
        if plan.node.is_none() || plan.gpus.is_empty() {
            return None;
        }
        let member = pod.member.as_ref()?;
        let class = self.classes.get(&member.class)?.as_ref().ok()?;
        let found = Found {
            node,
            gpus: self.reported(node, member),
            taken: self.taken(node, member, plan),
            mates: match class.shared_host {
                true => self.mates(id, pod, plan, node),
                false => Vec::new(),
            },
        };
        let cost = |node: &str, gpus: &[u32]| self.cost(node, gpus, member.pattern);
        Some(Seated {
            uid: pod.uid.clone(),
            version: pod.version,
            class: member.class.clone(),
            node: node.into(),
            quality: plan.quality.clamp(0.0, 1.0),
            told: pod.told,
            ends: !pod.life.is_live(),
            compared: Compared::new(plan, class.mapping, &found, cost),
        })
    }

    /// Returns the GPUs that the exporter of `node` reports for a pod.
    fn reported(&self, node: &str, pod: &Member) -> Vec<u32> {
        let node = self.gpus.of(node);
        let reported = node.reported();
        let own = reported.filter(|(one, _)| is_of(one, pod));
        own.flat_map(|(_, gpus)| gpus).collect()
    }

    /// Returns the GPUs of the plan of `pod` that its node reports for other pods.
    fn taken(&self, node: &str, pod: &Member, plan: &Placement) -> Vec<u32> {
        if plan.node.as_deref() != Some(node) {
            return Vec::new();
        }
        let node = self.gpus.of(node);
        let reported = node.reported();
        let others = reported.filter(|(one, _)| !is_of(one, pod));
        let taken = others.flat_map(|(_, gpus)| gpus);
        let taken: BTreeSet<u32> = taken.filter(|gpu| plan.gpus.contains(gpu)).collect();
        taken.into_iter().collect()
    }

    /// Returns the other pods of the gang of `pod`, which NCCL takes for one host with it; none if
    /// the gang has pods on other nodes, which it reaches over the network. One that is not bound yet has
    /// no GPUs: its report brings this pod back.
    fn mates(&self, id: &Name, pod: &Entry, plan: &Placement, node: &str) -> Vec<Mate> {
        let gang = pod.job.as_ref().filter(|_| plan.is_of_gang());
        let gang = gang
            .and_then(|job| self.jobs.get(job))
            .into_iter()
            .flatten();
        let others = gang.filter(|name| *name != id);
        let others = others.filter_map(|name| self.pods.get(name));
        let mut mates = Vec::new();
        for (other, plan) in others.filter_map(|other| Some((other, other.placement.as_ref()?))) {
            let (Some(member), true) = (&other.member, other.life.is_live()) else {
                continue;
            };
            if plan.node.as_deref() != Some(node) {
                return Vec::new();
            }
            let actual = match other.life.node() {
                Some(bound) if bound == node => self.reported(node, member),
                Some(_) => return Vec::new(),
                None => Vec::new(),
            };
            mates.push(Mate {
                planned: plan.gpus.clone(),
                actual,
            });
        }
        mates
    }

    /// Returns the classes that queue, and what chooses the GPUs of their pods.
    pub fn mappings(&self) -> impl Iterator<Item = (&str, Mapping)> {
        let classes = self
            .classes
            .values()
            .filter_map(|class| class.as_ref().ok());
        classes
            .filter(|class| class.queue.is_some())
            .map(|class| (class.name.as_str(), class.mapping))
    }

    fn cost(&self, node: &str, gpus: &[u32], pattern: Pattern) -> Option<f64> {
        self.gpus.known(node)?.hardware.cost(gpus, pattern)
    }
}

/// Reports whether an allocation is that of a pod. One without a UID may be about an earlier pod of
/// this name.
fn is_of(allocation: &Allocation, pod: &Member) -> bool {
    let name = allocation.namespace == pod.namespace && allocation.pod == pod.name;
    name && allocation.pod_uid.as_ref() == Some(&pod.uid)
}
