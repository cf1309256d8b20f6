//! Tells the planner what has changed.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use nvlink_api::crd::domain_class::Order;
use nvlink_cluster::gpus::{Holding, OnNode};
use nvlink_planner::{self as planner, Held, Millis, Name, Planner, Seat, Settings as Rules};

use super::{
    Feed, Vacated,
    dra::{CLAIMABLE, serving},
    job::{Context, Pods, Waits},
    load, node,
};
use crate::rules;

impl Vacated {
    /// Sets the seats of a gang that are lost at `now`, as none of its `pods` has them, and returns when
    /// the last one was lost. `now` is `None` for a gang that was not known before: it may have lost
    /// them long ago.
    fn lose(
        all: &mut HashMap<Name, Self>,
        id: &Name,
        seats: &[Seat],
        pods: &BTreeSet<Name>,
        now: Option<Millis>,
    ) -> Option<Millis> {
        if seats.is_empty() {
            all.remove(id);
            return None;
        }
        let lost = seats.iter().map(|seat| &seat.pod);
        let lost: BTreeSet<Name> = lost.filter(|pod| !pods.contains(*pod)).cloned().collect();
        let gang = all.entry(id.clone()).or_default();
        if !lost.is_subset(&gang.pods) {
            gang.at = now.or(gang.at);
        }
        gang.pods = lost;
        gang.at
    }
}

impl Feed {
    /// Tells the planner what has changed.
    pub fn flush(&mut self, planner: &mut Planner, now: Millis) {
        self.redemand();
        self.retie();
        self.respare();
        let changed = std::mem::take(&mut self.changed);
        if !changed.nodes.is_empty() || !changed.classes.is_empty() {
            self.nic_classes.take();
        }
        self.flush_classes(&changed.classes, planner);
        for name in &changed.nodes {
            planner.node(name, self.steady_state(name, now));
        }
        for name in changed.nodes.union(&changed.loads) {
            planner.pod(&load::id(name), self.load_state(name));
        }
        let context = self.context(now);
        for id in &changed.pods {
            match self.pods.get(id) {
                // With its job.
                Some(pod) if pod.job.is_some() => {}
                Some(pod) => {
                    let held = context.held(id, pod, None);
                    planner.pod(id, held.map(|held| self.counted(held)));
                }
                None => planner.pod(id, None),
            }
        }
        for id in &changed.pods {
            self.committed.remove(id);
        }
        for job in &changed.jobs {
            self.flush_job(job, planner, now);
        }
    }

    fn flush_classes(&self, changed: &BTreeSet<String>, planner: &mut Planner) {
        if changed.is_empty() {
            return;
        }
        let queues = || {
            let classes = self
                .classes
                .values()
                .filter_map(|class| class.as_ref().ok());
            classes.filter_map(|class| class.queue.as_ref())
        };
        planner.settings(Rules {
            fair_share: queues().any(|queue| queue.order == Order::FairShare),
            ..Rules::default()
        });
        for name in changed {
            let class = self.classes.get(name).and_then(|class| class.as_ref().ok());
            let usual_run = self.past.usual(name);
            let class = class.map(|class| planner::Class {
                usual_run,
                ..rules(class)
            });
            planner.class(&name.as_str().into(), class);
        }
    }

    fn flush_job(&mut self, id: &Name, planner: &mut Planner, now: Millis) {
        let Some(names) = self.jobs.get(id) else {
            self.seats.remove(id);
            self.vacated.remove(id);
            self.obstacles.remove(id);
            self.incomplete.remove(id);
            planner.job(id, None);
            return;
        };
        let pods = names
            .iter()
            .filter_map(|name| Some((name, self.pods.get(name)?)));
        let pods = Pods(pods.collect());
        let mut members = pods.0.iter().filter_map(|(_, pod)| pod.class.as_deref());
        let class = members.find_map(|name| self.classes.get(name)?.as_ref().ok());
        let waits = class.and_then(|class| {
            Some(Waits {
                then: class.queue.as_ref()?.on_timeout,
                class,
            })
        });
        let before = self.seats.get(id).map(Vec::as_slice);
        let known = before.is_some();
        let mut assembled = pods.assemble(id, waits, before, &self.context(now));
        let at = Vacated::lose(
            &mut self.vacated,
            id,
            &assembled.seats,
            names,
            known.then_some(now),
        );
        if let (Some(job), Some(at)) = (&mut assembled.job, at) {
            job.released = job.released.max(at);
        }
        for name in names {
            self.committed.remove(name);
        }
        self.committed.extend(assembled.committed);
        for (pod, state) in assembled.pods {
            planner.pod(&pod, state);
        }
        planner.job(id, assembled.job);
        match assembled.incomplete {
            true => self.incomplete.add(id, names, now),
            false => self.incomplete.remove(id),
        }
        match assembled.obstacle {
            Some(obstacle) => self.obstacles.insert(id.clone(), obstacle),
            None => self.obstacles.remove(id),
        };
        self.seats.insert(id.clone(), assembled.seats);
    }

    /// Counts a pod without a class for the restricted class that queues on its node, if there is one: it
    /// got past that queue, but not past the quota of its project.
    fn counted(&self, held: planner::PodState) -> planner::PodState {
        let usable = self
            .classes
            .values()
            .filter_map(|class| class.as_ref().ok());
        let mut guarded = usable.filter(|class| class.restricted && class.queue.is_some());
        let node = self.nodes.get(&held.node);
        let own = node.and_then(|node| guarded.find(|class| node.is_of(class)));
        planner::PodState {
            class: held
                .class
                .or_else(|| own.map(|class| class.name.as_str().into())),
            ..held
        }
    }

    fn context(&self, now: Millis) -> Context<'_> {
        Context {
            neighbours: &self.neighbours,
            past: &self.past,
            others: &self.others,
            now,
        }
    }

    /// Returns what the pods without devices take of a node with GPUs.
    fn load_state(&self, name: &Name) -> Option<planner::PodState> {
        let more = self.taken_channel(name);
        let has_gpus = self.has_gpus(name);
        has_gpus.then(|| self.loads.of_node(name, &self.others, more.as_ref()))?
    }

    pub(super) fn node_state(&self, name: &Name) -> Option<planner::NodeState> {
        let node = self.nodes.get(name)?;
        let gpus = self.gpus.of(name);
        let devices = gpus.devices.as_ref();
        let sets = self.classes_and_resources(node, devices);
        let held = gpus.holders().into_iter().map(|one| Held {
            pod: one.pod.map(|pod| self.holder(name, pod)),
            gpus: one.gpus,
        });
        let nics = devices.map_or_else(BTreeMap::new, |on| self.nics_of_node(name, node, on));
        let mut out = gpus.out();
        out.extend(Self::without_nics(&gpus, &nics));
        let out = (!out.is_empty()).then_some(Held {
            pod: None,
            gpus: out,
        });
        let held = held.chain(out).collect();
        // A claim names GPUs by UUID.
        let known = gpus.known();
        let named = known.is_some_and(|known| {
            let graph = known.hardware.shared_graph();
            graph.is_some() && known.gpus.iter().all(|gpu| gpu.uuid.is_some())
        });
        let partitions = devices.zip(known);
        let partitions = partitions.and_then(|(devices, known)| devices.partitions(known));
        let named = named && devices.is_some();
        let named = named.then(|| nics.into_keys().chain([Name::from(CLAIMABLE)]));
        let named = named.into_iter().flatten();
        let sets = sets.into_iter().chain(named);
        let sets = sets
            .chain(self.demands.met(name, node, &self.near))
            .chain(self.open_sets(name, node))
            .collect();
        // Of a known node, also those that cannot be allocated: `held` has them.
        let allocated =
            devices.map(|devices| known.map_or(devices.usable.len(), |known| known.gpus.len()));
        let state = node::state(
            node,
            gpus.published.map(std::convert::AsRef::as_ref),
            match allocated {
                Some(gpus) => u32::try_from(gpus).unwrap_or(u32::MAX),
                None => node.capacity(|resource| self.is_gpu(resource)),
            },
            &self.settings,
            sets,
            held,
            self.amounts(name, node).vector(&self.others),
        );
        Some(planner::NodeState {
            partitions,
            ..state
        })
    }

    /// Returns the sets of the classes of a node, and of the resources that it serves.
    fn classes_and_resources(&self, node: &node::Node, devices: Option<&OnNode>) -> Vec<Name> {
        let classes = || {
            self.classes
                .values()
                .filter_map(|class| class.as_ref().ok())
        };
        let sets = classes()
            .filter(|class| node.is_of(class))
            .map(|class| Name::from(class.name.as_str()));
        // A DRA driver takes the place of a device plugin. Of GPUs in partitions, the scheduler would
        // allocate any to the claims that it makes itself, and the driver would refuse most of them.
        let divided = devices.is_some_and(OnNode::is_divided);
        let serves = |resource: &&str| {
            let by_claims = !divided && self.gpus.devices().serves(resource);
            devices.is_none() || node.has(resource) || by_claims
        };
        let resources: BTreeSet<&str> = classes().map(|class| &*class.resource).collect();
        sets.chain(resources.into_iter().filter(serves).map(serving))
            .collect()
    }

    /// Returns how the planner calls a pod that is said to hold GPUs of `node`: it must not take an
    /// earlier pod of the same name for the present one, nor for one that comes later. Without a UID,
    /// a report is about the pod that is bound there: one that is yet to come has no GPUs.
    fn holder(&self, node: &Name, pod: Holding) -> Name {
        let known = self.pods.get(&pod.id);
        let is = match &pod.uid {
            Some(uid) => known.is_some_and(|known| known.uid == *uid),
            None => known.is_none_or(|known| known.node.as_ref() == Some(node)),
        };
        match is {
            true => pod.id,
            false => format!("{} before", pod.id).into(),
        }
    }
}
