//! The planner's state, from the objects of the cluster. Pure: objects come in, changes of the
//! planner go out.
//!
//! What the queue is writing counts as written ([`Feed::expect`]) until the answer is known
//! ([`Feed::settle`]).

mod demand;
pub(crate) mod entry;
mod job;
pub mod node;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use nvlink_planner::{self as planner, Held, Millis, Name, Planner, Seat, Settings as Rules};
use serde_json::Value;

use self::{
    demand::Demand,
    entry::{Entry, Expected, Pause},
    job::{Pods, Waits},
    node::Node,
};
use super::{Life, Object, Past, Placement, read};
use crate::{class::Class, crd::domain_class::Order, decide::Settings, mirror::Published};

/// For how long a pod waits for its class to come back, milliseconds.
const GRACE: Millis = 30_000;
/// The longest pause after failures, milliseconds.
const LONGEST: Millis = 60_000;

/// A class, or why it cannot be used.
pub type Known = Result<Arc<Class>, String>;

/// An object in a namespace.
pub type Place = (String, Object);

/// The objects of the cluster.
#[derive(Debug, Default)]
pub struct Feed {
    settings: Settings,
    nodes: BTreeMap<Name, Node>,
    topologies: HashMap<Name, Arc<Published>>,
    classes: BTreeMap<String, Known>,
    pods: BTreeMap<Name, Entry>,
    /// The pods of each job.
    jobs: HashMap<Name, BTreeSet<Name>>,
    /// The seats of gangs, also of pods that are gone.
    seats: HashMap<Name, Vec<Seat>>,
    demands: BTreeMap<String, (Name, Demand)>,
    objects: HashMap<Place, Option<Value>>,
    wanted: BTreeSet<Place>,
    past: Past,
    changed: Changed,
    /// Pods that the queue must not write yet.
    paused: BTreeSet<Name>,
    /// Waiting pods that no queue of a class takes.
    strays: BTreeSet<Name>,
    /// Pods that must follow others of their gang, by name.
    committed: BTreeMap<Name, Placement>,
}

/// What the planner has not been told yet.
#[derive(Debug, Default)]
struct Changed {
    nodes: BTreeSet<Name>,
    pods: BTreeSet<Name>,
    jobs: BTreeSet<Name>,
    classes: BTreeSet<String>,
}

/// A pod that leaves the queue without a place.
#[derive(Clone, Debug, PartialEq)]
pub struct Leaver {
    /// The pod.
    pub pod: Name,
    /// Why, for its author.
    pub why: String,
}

/// Returns the name of a pod.
#[must_use]
pub fn id(namespace: &str, name: &str) -> Name {
    format!("{namespace}/{name}").into()
}

impl Feed {
    /// Returns a feed without objects.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            ..Self::default()
        }
    }

    /// Sets a node, or removes it.
    pub fn node(&mut self, name: &str, node: Option<Node>) {
        let name = Name::from(name);
        let changed = self.nodes.get(&name) != node.as_ref();
        match node {
            Some(node) => self.nodes.insert(name.clone(), node),
            None => self.nodes.remove(&name),
        };
        if changed {
            self.changed.nodes.insert(name);
        }
    }

    /// Sets what a node published, or removes it.
    pub fn topology(&mut self, name: &str, published: Option<Arc<Published>>) {
        let name = Name::from(name);
        match published {
            Some(published) => self.topologies.insert(name.clone(), published),
            None => self.topologies.remove(&name),
        };
        self.changed.nodes.insert(name);
    }

    /// Sets a class, or removes it.
    pub fn class(&mut self, name: &str, class: Option<Known>) {
        if self.classes.get(name) == class.as_ref() {
            return;
        }
        match class {
            Some(class) => self.classes.insert(name.to_owned(), class),
            None => self.classes.remove(name),
        };
        self.changed.classes.insert(name.to_owned());
        // Which nodes it has, and which resources are GPUs.
        self.changed.nodes.extend(self.nodes.keys().cloned());
        let of_class = |pod: &Entry| pod.class.as_deref() == Some(name);
        let pods = self.pods.iter().filter(|(_, pod)| of_class(pod));
        let names: Vec<Name> = pods.map(|(name, _)| name.clone()).collect();
        names.iter().for_each(|name| self.reread(name));
    }

    /// Sets a pod. An older version than the known one has no effect.
    pub fn pod(&mut self, mut pod: Value) {
        let (mut entry, demand) = Entry::new(&mut pod);
        let name = crate::decide::pod::at(&pod, &["metadata", "name"]);
        let id = id(
            &entry.namespace,
            name.and_then(Value::as_str).unwrap_or_default(),
        );
        if let Some(old) = self.pods.get(&id) {
            if old.uid == entry.uid {
                if entry.version < old.version {
                    return;
                }
                entry.counted = old.counted;
                entry.orphan = old.orphan;
                entry.paused = old.paused;
                let waits = matches!(entry.life, Life::Waiting { .. });
                entry.expected = old.expected.clone().filter(|_| waits);
            } else {
                self.leave(&id);
            }
        }
        entry.demand = demand.map(|demand| self.demand(demand));
        self.read(&id, &mut entry, &pod);
        self.join(id, entry);
    }

    /// Removes a pod.
    pub fn gone(&mut self, id: &Name) {
        self.leave(id);
    }

    /// Removes all pods but these.
    pub fn retain_pods(&mut self, wanted: &HashSet<Name>) {
        let gone = self.pods.keys().filter(|id| !wanted.contains(*id));
        let gone: Vec<Name> = gone.cloned().collect();
        gone.iter().for_each(|id| self.leave(id));
    }

    /// Removes all nodes but these.
    pub fn retain_nodes(&mut self, wanted: &HashSet<Name>) {
        let gone = self.nodes.keys().filter(|name| !wanted.contains(*name));
        let gone: Vec<Name> = gone.cloned().collect();
        gone.iter().for_each(|name| self.node(name, None));
    }

    /// Removes all classes but these.
    pub fn retain_classes(&mut self, wanted: &HashSet<String>) {
        let gone = self.classes.keys().filter(|name| !wanted.contains(*name));
        let gone: Vec<String> = gone.cloned().collect();
        gone.iter().for_each(|name| self.class(name, None));
    }

    /// Returns the objects that are needed and not known, once.
    pub fn wanted(&mut self) -> BTreeSet<Place> {
        std::mem::take(&mut self.wanted)
    }

    /// Reports whether a waiting pod is of this object.
    #[must_use]
    pub fn needs(&self, place: &Place) -> bool {
        let of_object =
            |pod: &Entry| pod.namespace == place.0 && pod.object.as_ref() == Some(&place.1);
        self.pods.values().any(of_object)
    }

    /// Sets an object that was wanted; `None` if it does not exist.
    pub fn object(&mut self, place: Place, object: Option<Value>) {
        let of_object =
            |pod: &Entry| pod.namespace == place.0 && pod.object.as_ref() == Some(&place.1);
        let pods = self.pods.iter().filter(|(_, pod)| of_object(pod));
        let names: Vec<Name> = pods.map(|(name, _)| name.clone()).collect();
        self.objects.insert(place, object);
        names.iter().for_each(|name| self.reread(name));
    }

    /// Returns a waiting pod as the API server stores it, without what the queue never reads.
    #[must_use]
    pub fn document(&self, pod: &Name) -> Option<Value> {
        self.pods.get(pod)?.document()
    }

    /// Returns what the queue reads from a pod.
    #[must_use]
    pub fn member(&self, pod: &Name) -> Option<&super::Member> {
        self.pods.get(pod)?.member.as_ref()
    }

    /// Returns the pods of a job.
    #[must_use]
    pub fn pods_of(&self, job: &Name) -> Vec<Name> {
        let pods = self.jobs.get(job).into_iter().flatten();
        pods.cloned().collect()
    }

    /// Reports whether a pod waits.
    #[must_use]
    pub fn has_waiting(&self) -> bool {
        let mut pods = self.pods.values();
        pods.any(|pod| matches!(pod.life, Life::Waiting { .. }))
    }

    /// Reports whether the pods of a class wait.
    #[must_use]
    pub fn has_queue(&self) -> bool {
        let mut classes = self
            .classes
            .values()
            .filter_map(|class| class.as_ref().ok());
        classes.any(|class| class.queue.is_some())
    }

    /// Returns the name of the set of nodes that meet what `pod`, which need not exist, demands.
    pub(crate) fn demand_of(&mut self, pod: &Value) -> Name {
        self.demand(Demand::of(pod))
    }

    /// Returns the id of a domain that the planner names by its number on the node.
    #[must_use]
    pub fn domain(&self, node: &Name, number: &str) -> Option<String> {
        let published = self.topologies.get(node)?.as_ref().as_ref().ok()?;
        let domain = published.domains.get(number.parse::<usize>().ok()?)?;
        Some(domain.id.clone())
    }

    /// Records that the queue begins to put a pod there.
    pub fn expect(&mut self, pod: &Name, placement: Placement) {
        self.expected(pod, Some(Expected::Placed(placement)));
    }

    /// Records that the queue begins to let a pod go without a place.
    pub fn expect_leaving(&mut self, pod: &Name) {
        self.expected(pod, Some(Expected::Leaves));
    }

    /// Records that the queue has stopped writing a pod. After a failure, it does not begin again
    /// before a pause.
    pub fn settle(&mut self, pod: &Name, failed_at: Option<Millis>) {
        self.expected(pod, None);
        if let Some(entry) = self.pods.get_mut(pod) {
            entry.paused = failed_at.map(|now| {
                let failures = entry.paused.map_or(0, |pause| pause.failures) + 1;
                let pause = (500 << failures.min(7)).min(LONGEST);
                let until = now.saturating_add(pause);
                Pause { until, failures }
            });
            match entry.is_paused() {
                true => self.paused.insert(pod.clone()),
                false => self.paused.remove(pod),
            };
        }
    }

    fn expected(&mut self, pod: &Name, expected: Option<Expected>) {
        if let Some(entry) = self.pods.get_mut(pod) {
            entry.expected = expected;
            self.changed.pods.insert(pod.clone());
            self.changed.jobs.extend(entry.job.clone());
        }
    }

    /// Ends the pauses that are over, and returns when the next one is.
    pub fn resume(&mut self, now: Millis) -> Option<Millis> {
        let (mut next, mut over) = (None, Vec::new());
        for id in &self.paused {
            let pause = self.pods.get(id).and_then(|pod| pod.paused);
            match pause.filter(|pause| pause.until > now) {
                Some(pause) => next = earlier(next, pause.until),
                None => over.push(id.clone()),
            }
        }
        for id in over {
            self.paused.remove(&id);
            let Some(pod) = self.pods.get_mut(&id) else {
                continue;
            };
            if let Some(pause) = &mut pod.paused {
                pause.until = Millis::MIN;
            }
            self.changed.jobs.extend(pod.job.clone());
            self.changed.pods.insert(id);
        }
        next
    }

    /// Returns the pods that wait although others of their plan were released.
    #[must_use]
    pub fn committed(&self) -> Vec<(Name, Placement)> {
        let pairs = self.committed.iter();
        pairs
            .map(|(pod, placement)| (pod.clone(), placement.clone()))
            .collect()
    }

    /// Returns the waiting pods whose class does not queue, and when to look again.
    pub fn leavers(&mut self, now: Millis) -> (Vec<Leaver>, Option<Millis>) {
        let (mut leavers, mut next) = (Vec::new(), None);
        for id in &self.strays {
            let Some(pod) = self.pods.get_mut(id) else {
                continue;
            };
            if !pod.waits() || pod.is_paused() {
                continue;
            }
            let class = pod.class.as_deref();
            let class = class.map(|name| (name, self.classes.get(name)));
            let (why, grace) = match class {
                // It may be usable again soon.
                Some((_, Some(Err(_)))) => continue,
                Some((name, Some(Ok(class)))) => match class.queue {
                    None => (format!("class {name:?} does not queue any more"), 0),
                    Some(_) => (format!("it requests no GPU of class {name:?}"), 0),
                },
                Some((name, None)) => (format!("class {name:?} does not exist any more"), GRACE),
                None => ("it has no class".to_owned(), GRACE),
            };
            let due = pod.orphan.get_or_insert(now).saturating_add(grace);
            match due <= now {
                true => leavers.push(Leaver {
                    pod: id.clone(),
                    why,
                }),
                false => next = earlier(next, due),
            }
        }
        (leavers, next)
    }

    /// Tells the planner what has changed.
    pub fn flush(&mut self, planner: &mut Planner, now: Millis) {
        let changed = std::mem::take(&mut self.changed);
        self.flush_classes(&changed.classes, planner);
        for name in &changed.nodes {
            planner.node(name, self.node_state(name));
        }
        for id in &changed.pods {
            match self.pods.get(id) {
                // With its job.
                Some(pod) if pod.job.is_some() => {}
                Some(pod) => planner.pod(id, job::held(id, pod, None, &self.past)),
                None => planner.pod(id, None),
            }
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
            let rules = class.map(|class| planner::Class {
                max_gpus_per_project: class
                    .queue
                    .as_ref()
                    .and_then(|queue| queue.max_gpus_per_project),
                broken: class.broken_gpus,
                waiting_factor: class
                    .queue
                    .as_ref()
                    .and_then(|queue| queue.waiting_cost_percent)
                    .map(|percent| f64::from(percent) / 100.0),
            });
            planner.class(&name.as_str().into(), rules);
        }
    }

    fn flush_job(&mut self, id: &Name, planner: &mut Planner, now: Millis) {
        let Some(names) = self.jobs.get(id) else {
            self.seats.remove(id);
            planner.job(id, None);
            return;
        };
        let pods = names
            .iter()
            .filter_map(|name| Some((name, self.pods.get(name)?)));
        let pods = Pods(pods.collect());
        let mut members = pods.0.iter().filter_map(|(_, pod)| pod.class.as_deref());
        let class = members.find_map(|name| self.classes.get(name)?.as_ref().ok());
        let waits = class
            .and_then(|class| class.queue.as_ref())
            .map(|queue| Waits {
                then: queue.on_timeout,
            });
        let before = self.seats.get(id).map_or(&[][..], Vec::as_slice);
        let assembled = pods.assemble(id, waits, before, &self.past, now);
        for name in names {
            self.committed.remove(name);
        }
        self.committed.extend(assembled.committed);
        for (pod, state) in assembled.pods {
            planner.pod(&pod, state);
        }
        planner.job(id, assembled.job);
        self.seats.insert(id.clone(), assembled.seats);
    }

    fn node_state(&self, name: &Name) -> Option<planner::NodeState> {
        let node = self.nodes.get(name)?;
        let classes = || {
            self.classes
                .values()
                .filter_map(|class| class.as_ref().ok())
        };
        let is_gpu = |resource: &str| {
            resource == crate::class::GPU || classes().any(|class| class.resource == resource)
        };
        let topology = self.topologies.get(name).map(Arc::as_ref);
        let of_class = |class: &&Arc<Class>| {
            let mut selector = class.selector.iter();
            selector.all(|(key, value)| node.labels.get(key) == Some(value))
        };
        let sets = classes()
            .filter(of_class)
            .map(|class| Name::from(class.name.as_str()));
        let demands = self
            .demands
            .values()
            .filter(|(_, demand)| demand.is_met(name, node));
        let sets = sets.chain(demands.map(|(name, _)| name.clone())).collect();
        let held = self.held(topology);
        Some(node::state(
            node,
            topology,
            is_gpu,
            &self.settings,
            sets,
            held,
        ))
    }

    fn held(&self, topology: Option<&Published>) -> Vec<Held> {
        let known = topology.and_then(|published| published.as_ref().ok());
        let allocations = known.and_then(|known| known.allocations.as_ref());
        let held = allocations.into_iter().flatten().map(|one| {
            let id = id(&one.namespace, &one.pod);
            let uids = self
                .pods
                .get(&id)
                .map(|pod| &pod.uid)
                .zip(one.pod_uid.as_ref());
            let same = uids.is_none_or(|(known, reported)| known == reported);
            Held {
                // The planner knows no pod of the other name.
                pod: Some(if same {
                    id
                } else {
                    format!("{id} before").into()
                }),
                gpus: one.gpus.clone(),
            }
        });
        held.collect()
    }

    /// Returns the name of a demand. A new one changes the nodes that meet it.
    fn demand(&mut self, demand: Demand) -> Name {
        let key = demand.key();
        if let Some((name, _)) = self.demands.get(&key) {
            return name.clone();
        }
        let name = Name::from(format!("demand {}", self.demands.len()));
        let met = self
            .nodes
            .iter()
            .filter(|(name, node)| demand.is_met(name, node));
        self.changed.nodes.extend(met.map(|(name, _)| name.clone()));
        self.demands.insert(key, (name.clone(), demand));
        name
    }

    /// Reads a pod again whose class or object has changed.
    fn reread(&mut self, id: &Name) {
        let Some(mut entry) = self.pods.remove(id) else {
            return;
        };
        self.depart(id, &entry);
        if let Some(pod) = entry.document() {
            self.read(id, &mut entry, &pod);
        }
        self.join(id.clone(), entry);
    }

    /// Reads what depends on the pod's class and object.
    fn read(&mut self, id: &Name, entry: &mut Entry, pod: &Value) {
        let class = entry
            .class
            .as_deref()
            .and_then(|name| self.classes.get(name));
        let Some(Ok(class)) = class else {
            entry.member = None;
            entry.job = None;
            return;
        };
        let place = entry
            .object
            .clone()
            .map(|object| (entry.namespace.clone(), object));
        let object = place.as_ref().and_then(|place| self.objects.get(place));
        let asked = object.is_some();
        entry.member = read(pod, class, object.and_then(Option::as_ref)).ok();
        let gang = entry.member.as_ref().map(|member| member.gang.as_ref());
        entry.job = match gang {
            Some(Some(gang)) => Some(self::id(&entry.namespace, &gang.name)),
            Some(None) => Some(id.clone()),
            None => None,
        };
        if let (Some(Some(_)), Some(place), false) = (gang, place, asked) {
            self.wanted.insert(place);
        }
    }

    fn join(&mut self, id: Name, mut entry: Entry) {
        if let Some(member) = entry.member.as_ref().filter(|_| !entry.counted)
            && let Some(ran) = member.ran()
        {
            self.past.add(member.key(), ran);
            entry.counted = true;
        }
        if let Some(job) = &entry.job {
            self.jobs.entry(job.clone()).or_default().insert(id.clone());
            self.changed.jobs.insert(job.clone());
        }
        self.changed.pods.insert(id.clone());
        if matches!(entry.life, Life::Waiting { .. }) && !self.is_taken(&entry) {
            self.strays.insert(id.clone());
        } else {
            self.strays.remove(&id);
            entry.orphan = None;
        }
        if let Some(old) = self.pods.insert(id.clone(), entry) {
            let same = self.pods.get(&id).is_some_and(|new| new.job == old.job);
            if !same {
                self.depart(&id, &old);
            }
        }
    }

    /// Reports whether a pod waits in the queue of a class.
    fn is_taken(&self, pod: &Entry) -> bool {
        let class = pod.class.as_deref().and_then(|name| self.classes.get(name));
        let queues = matches!(class, Some(Ok(class)) if class.queue.is_some());
        queues && pod.member.is_some()
    }

    fn leave(&mut self, id: &Name) {
        let Some(old) = self.pods.remove(id) else {
            return;
        };
        // Reports about it are now about another pod.
        self.changed.nodes.extend(old.life.node().map(Name::from));
        self.changed.pods.insert(id.clone());
        self.strays.remove(id);
        self.paused.remove(id);
        self.depart(id, &old);
    }

    /// Removes a pod from its job.
    fn depart(&mut self, id: &Name, old: &Entry) {
        let Some(job) = &old.job else { return };
        if let Some(pods) = self.jobs.get_mut(job) {
            pods.remove(id);
            if pods.is_empty() {
                self.jobs.remove(job);
            }
        }
        self.changed.jobs.insert(job.clone());
    }
}

fn earlier(one: Option<Millis>, other: Millis) -> Option<Millis> {
    Some(one.map_or(other, |one| one.min(other)))
}
