//! Where the pods are that the queue placed, and which of that has changed.

use std::collections::BTreeSet;

use nvlink_api::crd::domain_class::Mapping;
use nvlink_planner::Name;
use nvlink_topology::{Allocation, Pattern};

use super::Feed;
use crate::outcome::{Compared, Found, Outcome};

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
        let here = self.gpus.of(node);
        let held = |own: bool| {
            let reported = here.reported();
            // A report without a UID may be about an earlier pod of this name.
            let is_own = move |one: &Allocation| {
                let name = one.namespace == member.namespace && one.pod == member.name;
                name && one.pod_uid.as_ref() == Some(&member.uid)
            };
            let gpus = reported.filter(move |(one, _)| is_own(one) == own);
            gpus.flat_map(|(_, gpus)| gpus)
        };
        let here = plan.node.as_deref() == Some(node);
        let planned = |gpu: &u32| here && plan.gpus.contains(gpu);
        let found = Found {
            node,
            gpus: held(true).collect(),
            taken: held(false)
                .filter(planned)
                .collect::<BTreeSet<u32>>()
                .into_iter()
                .collect(),
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
