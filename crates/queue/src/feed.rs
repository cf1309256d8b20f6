//! The planner's state, from the objects of the cluster. Pure: objects come in, changes of the
//! planner go out.
//!
//! What the queue is writing counts as written ([`Feed::expect`]) until the answer is known
//! ([`Feed::settle`]).

pub mod amounts;
mod channels;
mod demand;
pub mod dra;
pub mod entry;
mod flush;
mod job;
pub mod load;
mod lost;
mod neighbours;
mod nics;
pub mod node;
mod objects;
mod outcomes;
mod shown;
mod spares;
mod steady;
mod successors;
mod unclaimed;
mod volumes;
mod writing;

use std::{
    cell::OnceCell,
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use nvlink_admission::decide::Settings;
use nvlink_api::class::Class;
use nvlink_cluster::gpus::{Gpus, Published};
use nvlink_planner::{Millis, Name, Seat};
use serde_json::Value;

use self::{
    demand::Demands,
    entry::{Entry, concerns},
    load::{Load, Loads},
    neighbours::{Near, Neighbours, Standing},
    node::Node,
    objects::Incomplete,
    spares::Spares,
    steady::Graphs,
    successors::{Line, Successors},
    volumes::Volumes,
};
use super::{Life, Object, Past, Placement, notice::Obstacle, placement::id, read};

pub use dra::giving;
pub use lost::Lost;
pub use outcomes::{Moved, Seated};
pub use shown::{Left, Unaccepted};
pub use spares::open_to;
pub use unclaimed::Unclaimed;
pub use writing::Leaver;

/// A class, or why it cannot be used.
pub type Known = Result<Arc<Class>, String>;

/// An object in a namespace.
pub type Place = (String, Object);

/// The objects of the cluster.
#[derive(Debug, Default)]
pub struct Feed {
    settings: Settings,
    nodes: BTreeMap<Name, Node>,
    classes: BTreeMap<String, Known>,
    pods: BTreeMap<Name, Entry>,
    /// Who holds the GPUs of nodes.
    gpus: Gpus,
    /// The classes whose nodes have NICs for them, since something changed.
    nic_classes: OnceCell<BTreeSet<String>>,
    /// The graphs that the planner knows of nodes.
    graphs: Graphs,
    /// The pods without devices.
    loads: Loads,
    /// The nodes that new pods leave free.
    spares: Spares,
    /// The schedulers that have bound pods.
    schedulers: HashSet<Box<str>>,
    /// Where pods are, and what the demands of waiting pods need of that.
    neighbours: Neighbours,
    near: HashMap<Name, Near>,
    /// The volumes that waiting pods use.
    volumes: Volumes,
    /// The demands for which that is to be found out anew.
    stale: BTreeSet<Name>,
    /// The names of the resources that nodes were seen to have, besides CPU, memory, storage and
    /// pods. A resource that no node has is not counted: DRA or a scheduler's extender may have it.
    offered: Vec<Name>,
    /// Those of them that are not GPUs, in the order of the planner's vectors.
    others: Vec<Name>,
    /// The pods of each job.
    jobs: HashMap<Name, BTreeSet<Name>>,
    /// The seats of gangs, also of pods that are gone.
    seats: HashMap<Name, Vec<Seat>>,
    /// The members that gangs have lost, and when the last one was.
    vacated: HashMap<Name, Vacated>,
    /// The turns of pods that the queue had to fail, for their successors.
    successors: Successors,
    demands: Demands,
    /// What keeps jobs from starting, besides GPUs.
    obstacles: HashMap<Name, Obstacle>,
    objects: HashMap<Place, Option<Value>>,
    /// The pods of each object.
    owned: HashMap<Place, BTreeSet<Name>>,
    wanted: BTreeSet<Place>,
    incomplete: Incomplete,
    past: Past,
    changed: Changed,
    /// Pods that the queue must not write yet.
    paused: BTreeSet<Name>,
    /// Waiting pods that no queue of a class takes.
    strays: BTreeSet<Name>,
    /// Pods that wait no more, although their condition says so.
    left: BTreeSet<Name>,
    /// Pods that were released to a node and are not bound.
    awaited: BTreeSet<Name>,
    /// Pods that must follow others of their gang, by name.
    committed: BTreeMap<Name, Placement>,
    /// What may change where pods are.
    moved: Moved,
}

/// The members that a gang has lost, and when the last one was.
#[derive(Debug, Default)]
struct Vacated {
    pods: BTreeSet<Name>,
    at: Option<Millis>,
}

/// What the planner has not been told yet.
#[derive(Debug, Default)]
struct Changed {
    nodes: BTreeSet<Name>,
    pods: BTreeSet<Name>,
    jobs: BTreeSet<Name>,
    classes: BTreeSet<String>,
    /// Nodes on which other pods without devices are.
    loads: BTreeSet<Name>,
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
        let before = self.nodes.get(&name);
        let changed = before != node.as_ref();
        let tied = self.demands.tied();
        let moved = tied.filter(|(_, ties)| ties.differ(before, node.as_ref()));
        let moved: Vec<Name> = moved.map(|(name, _)| name.clone()).collect();
        self.stale.extend(moved);
        let offers = node.iter().flat_map(|node| node.amounts.names());
        let new = offers.filter(|resource| !self.offered.contains(resource));
        let new: Vec<Name> = new.cloned().collect();
        if !new.is_empty() {
            self.offered.extend(new);
            self.order_resources();
        }
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
        self.gpus.set_topology(name, published);
        let name = Name::from(name);
        self.moved.nodes.insert(name.clone());
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
        self.order_resources();
        // Which nodes it has, and which resources are GPUs.
        self.changed.nodes.extend(self.nodes.keys().cloned());
        let of_class = |pod: &Entry| pod.class.as_deref() == Some(name);
        let pods = self.pods.iter().filter(|(_, pod)| of_class(pod));
        let names: Vec<Name> = pods.map(|(name, _)| name.clone()).collect();
        names.iter().for_each(|name| self.reread(name));
    }

    /// Reports whether something has changed since the planner was told.
    #[must_use]
    pub fn has_changed(&self) -> bool {
        let Changed {
            nodes,
            pods,
            jobs,
            classes,
            loads,
        } = &self.changed;
        let names = [nodes, pods, jobs, loads];
        let told = names.iter().all(|names| names.is_empty()) && classes.is_empty();
        let settled = self.stale.is_empty() && self.volumes.is_settled();
        !told || !self.wanted.is_empty() || !settled
    }

    /// Sets a pod. An older version than the known one has no effect.
    pub fn pod(&mut self, mut pod: Value) {
        let concerns = concerns(&pod);
        let (line, lost) = (Line::of(&pod), successors::lost_its_turn(&pod));
        let standing = Standing::of(&pod);
        let (mut entry, demand) = Entry::new(&mut pod);
        let name = nvlink_api::pod::at(&pod, &["metadata", "name"]);
        let id = id(
            &entry.namespace,
            name.and_then(Value::as_str).unwrap_or_default(),
        );
        if !concerns {
            self.load(&id, Load::of(&pod));
            return;
        }
        self.set_load(&id, None);
        let old = self.pods.get(&id);
        if !old.is_some_and(|old| old.uid == entry.uid && old.node == entry.node) {
            // A report may be about it, or about an earlier pod of its name.
            self.changed.nodes.extend(entry.node.clone());
        }
        if entry.channel {
            // Whether others have the channel of its node.
            self.changed.loads.extend(entry.node.clone());
        }
        if let Some(old) = old {
            if old.uid == entry.uid {
                if entry.version < old.version {
                    return;
                }
                entry.counted = old.counted;
                entry.orphan = old.orphan;
                entry.paused = old.paused.clone();
                entry.shifts = old.shifts.clone();
                let waits = matches!(entry.life, Life::Waiting { .. });
                // A released pod may fail, or get other GPUs, until it is bound.
                let open = waits || entry.awaited().is_some();
                entry.expected = old.expected.clone().filter(|_| open);
            } else {
                self.leave(&id);
            }
        }
        let bound = standing.is_some().then(|| entry.scheduler.clone());
        self.stand(&id, standing);
        self.binds(bound);
        entry.turn = self.turn(&id, &entry, line, lost);
        if let Some(demand) = demand {
            self.set_demand(&mut entry, demand);
        }
        self.read(&mut entry, &pod);
        self.join(id, entry);
    }

    /// Removes a pod.
    pub fn gone(&mut self, id: &Name) {
        self.load(id, None);
    }

    /// Removes all pods but these.
    pub fn retain_pods(&mut self, wanted: &HashSet<Name>) {
        let gone = self.pods.keys().filter(|id| !wanted.contains(*id));
        let gone: Vec<Name> = gone.cloned().collect();
        gone.iter().for_each(|id| self.load(id, None));
        let gone = self.loads.others(wanted);
        gone.iter().for_each(|id| self.load(id, None));
    }

    /// Removes all nodes but these.
    pub fn retain_nodes(&mut self, wanted: &HashSet<String>) {
        let gone = self.nodes.keys().filter(|name| !wanted.contains(&***name));
        let gone: Vec<Name> = gone.cloned().collect();
        gone.iter().for_each(|name| self.node(name, None));
    }

    /// Removes what all nodes but these published.
    pub fn retain_topologies(&mut self, wanted: &HashSet<String>) {
        let gone = self.gpus.retain_topologies(|name| wanted.contains(name));
        self.moved.nodes.extend(gone.iter().cloned());
        self.changed.nodes.extend(gone);
    }

    /// Removes all classes but these.
    pub fn retain_classes(&mut self, wanted: &HashSet<String>) {
        let gone = self.classes.keys().filter(|name| !wanted.contains(*name));
        let gone: Vec<String> = gone.cloned().collect();
        gone.iter().for_each(|name| self.class(name, None));
    }

    /// Returns what the queue reads from a pod.
    #[must_use]
    pub fn member(&self, pod: &Name) -> Option<&super::Member> {
        self.pods.get(pod)?.member.as_ref()
    }

    /// Returns the UID of a pod; `None` if there is none of this name.
    #[must_use]
    pub fn uid(&self, pod: &Name) -> Option<&str> {
        self.pods.get(pod).map(|pod| pod.uid.as_str())
    }

    /// Returns the id of a domain that the planner names by its number on the node.
    #[must_use]
    pub fn domain(&self, node: &Name, number: &str) -> Option<String> {
        let domain = self
            .gpus
            .known(node)?
            .domains
            .get(number.parse::<usize>().ok()?)?;
        Some(domain.id.clone())
    }

    /// Reads a pod again whose class or object has changed.
    fn reread(&mut self, id: &Name) {
        let Some(mut entry) = self.pods.remove(id) else {
            return;
        };
        self.depart(id, &entry);
        self.demands.leave(entry.demand.as_ref());
        let job = entry
            .place()
            .and_then(|place| self.objects.get(&place)?.as_ref());
        if let Some(pod) = entry.document() {
            self.read(&mut entry, &pod);
        } else if let (Some(member), Some(job)) = (&mut entry.member, job) {
            member.limits = member.limits.within(job, member.created);
        }
        self.join(id.clone(), entry);
    }

    /// Reads what depends on the pod's class and object.
    fn read(&mut self, entry: &mut Entry, pod: &Value) {
        let class = entry
            .class
            .as_deref()
            .and_then(|name| self.classes.get(name));
        let Some(Ok(class)) = class else {
            entry.member = None;
            entry.job = None;
            return;
        };
        let place = entry.place();
        let object = place.as_ref().and_then(|place| self.objects.get(place));
        let asked = object.is_some();
        entry.member = read(pod, class, object.and_then(Option::as_ref)).ok();
        let Some(member) = &entry.member else {
            entry.job = None;
            return;
        };
        entry.job = Some(member.job_id());
        // A Job may limit the run of a pod that is not in a gang.
        let needs = member.gang.is_some()
            || member.limits.is_unknown() && self.past.spread(&member.key()).is_none();
        if let (Some(place), true, false) = (place, needs, asked) {
            self.wanted.insert(place);
        }
        entry.forget();
    }

    fn join(&mut self, id: Name, mut entry: Entry) {
        if let Some(member) = entry.member.as_ref().filter(|_| !entry.counted) {
            let usual = self.past.usual(&member.class);
            entry.counted = member.record(&mut self.past);
            if self.past.usual(&member.class) != usual {
                self.changed.classes.insert(member.class.clone());
            }
        }
        if let Some(job) = &entry.job {
            self.jobs.entry(job.clone()).or_default().insert(id.clone());
            self.changed.jobs.insert(job.clone());
        }
        self.changed.pods.insert(id.clone());
        self.moved.pods.insert(id.clone());
        match entry.has_left() {
            true => self.left.insert(id.clone()),
            false => self.left.remove(&id),
        };
        let stray = matches!(entry.life, Life::Waiting { .. }) && !self.is_taken(&entry);
        let awaited = entry.awaited().is_some();
        for (set, member) in [(&mut self.strays, stray), (&mut self.awaited, awaited)] {
            match member {
                true => set.insert(id.clone()),
                false => set.remove(&id),
            };
        }
        if !stray && !awaited {
            entry.orphan = None;
        }
        self.demands.join(entry.demand.as_ref());
        match entry.demand.is_some() {
            true => self.volumes.join(&id, &entry.claims),
            false => self.volumes.leave(&id, &entry.claims),
        }
        let (job, place) = (entry.job.clone(), entry.place());
        if let Some(place) = &place {
            let pods = self.owned.entry(place.clone()).or_default();
            pods.insert(id.clone());
        }
        if let Some(old) = self.pods.insert(id.clone(), entry) {
            self.demands.leave(old.demand.as_ref());
            if old.job != job {
                self.depart(&id, &old);
            }
            if old.place() != place {
                self.disown(&id, &old);
            }
        }
    }

    /// Removes a pod from its object, which is forgotten with its last pod.
    fn disown(&mut self, id: &Name, old: &Entry) {
        let Some(place) = old.place() else { return };
        if let Some(pods) = self.owned.get_mut(&place) {
            pods.remove(id);
            if pods.is_empty() {
                self.owned.remove(&place);
                self.objects.remove(&place);
                self.wanted.remove(&place);
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
        self.changed.nodes.extend(old.node.clone());
        self.changed.pods.insert(id.clone());
        self.moved.pods.insert(id.clone());
        self.strays.remove(id);
        self.awaited.remove(id);
        self.paused.remove(id);
        self.left.remove(id);
        self.volumes.leave(id, &old.claims);
        self.demands.leave(old.demand.as_ref());
        self.depart(id, &old);
        self.disown(id, &old);
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
