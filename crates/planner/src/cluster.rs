//! The nodes and the pods on them.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use nvlink_topology::GpuSet;

use crate::{
    Millis, Name, NodeState, PodState, Seat,
    capacity::{HOLD, Vacant, View},
    graphs::Graphs,
    node_entry::Node,
    search::Search,
};

/// The seats of a gang that was released.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Seats {
    pub(crate) seats: Vec<Seat>,
    pub(crate) released: Millis,
}

impl Seats {
    /// Returns until when the seats of lost members are kept.
    pub(crate) fn until(&self) -> Millis {
        self.released.saturating_add(HOLD)
    }
}

/// The nodes, the pods that hold GPUs, and the seats of gangs.
#[derive(Debug, Default)]
pub(crate) struct Cluster {
    graphs: Graphs,
    numbers: BTreeMap<Name, u32>,
    nodes: Vec<Option<Node>>,
    spare: Vec<u32>,
    pods: BTreeMap<Name, PodState>,
    on_node: HashMap<Name, BTreeSet<Name>>,
    seats: BTreeMap<Name, Seats>,
    /// The gangs with seats on a node.
    seats_on: HashMap<Name, BTreeSet<Name>>,
    by_quota: BTreeMap<(Name, Name), BTreeSet<Name>>,
    by_project: BTreeMap<Name, u64>,
    by_job: HashMap<Name, BTreeSet<Name>>,
    /// The nodes whose profile is to be built again.
    dirty: BTreeSet<Name>,
    /// The nodes that were removed.
    gone: Vec<u32>,
    /// When the profiles of nodes cease to be valid.
    expiring: BTreeSet<(Millis, u32)>,
    /// The nodes whose profile would differ at an earlier time.
    adjusted: BTreeSet<u32>,
    /// The time of the last refresh.
    now: Option<Millis>,
}

impl Cluster {
    /// Sets or removes a node.
    pub(crate) fn set_node(&mut self, name: &Name, state: Option<NodeState>) {
        let old = self.numbers.get(name).copied();
        if let Some(node) = old.and_then(|number| self.nodes[number as usize].as_ref()) {
            self.graphs.release(node.shared.number);
        }
        match (state, old) {
            (Some(state), _) => {
                let shared = self.graphs.share(state.graph.as_deref(), state.capacity);
                let node = Some(Node::new(name, state, shared));
                let number = old.unwrap_or_else(|| self.number(name));
                self.nodes[number as usize] = node;
                self.dirty.insert(name.clone());
            }
            (None, Some(number)) => {
                self.nodes[number as usize] = None;
                self.numbers.remove(name);
                self.spare.push(number);
                self.gone.push(number);
                self.dirty.remove(name);
            }
            (None, None) => {}
        }
    }

    fn number(&mut self, name: &Name) -> u32 {
        let number = self.spare.pop().unwrap_or_else(|| {
            self.nodes.push(None);
            // A cluster has far fewer than 2^32 nodes.
            u32::try_from(self.nodes.len() - 1).unwrap_or(u32::MAX)
        });
        self.numbers.insert(name.clone(), number);
        number
    }

    /// Sets or removes a pod. Reports whether that changes anything.
    pub(crate) fn set_pod(&mut self, id: &Name, pod: Option<PodState>) -> bool {
        if self.pods.get(id) == pod.as_ref() {
            return false;
        }
        if let Some(old) = self.pods.remove(id) {
            self.count(id, &old, false);
        }
        if let Some(pod) = pod {
            self.count(id, &pod, true);
            self.pods.insert(id.clone(), pod);
        }
        true
    }

    /// Counts a pod in or out.
    fn count(&mut self, id: &Name, pod: &PodState, comes: bool) {
        member(&mut self.on_node, &pod.node, id, comes);
        self.dirty.insert(pod.node.clone());
        if let Some(job) = &pod.job {
            member(&mut self.by_job, job, id, comes);
            if let Some(seats) = self.seats.get(job) {
                let nodes = seats.seats.iter().filter_map(|seat| seat.node.clone());
                self.dirty.extend(nodes);
            }
        }
        if let Some(class) = &pod.class {
            let key = (class.clone(), pod.project.clone());
            let pods = self.by_quota.entry(key.clone()).or_default();
            if comes {
                pods.insert(id.clone());
            } else {
                pods.remove(id);
            }
            if pods.is_empty() {
                self.by_quota.remove(&key);
            }
        }
        let held = self.by_project.entry(pod.project.clone()).or_default();
        if comes {
            *held += u64::from(pod.gpus);
        } else {
            *held -= u64::from(pod.gpus);
        }
        if *held == 0 {
            self.by_project.remove(&pod.project);
        }
    }

    /// Sets or removes the seats of a gang. Reports whether that changes anything.
    pub(crate) fn set_seats(&mut self, job: &Name, seats: Option<Seats>) -> bool {
        if self.seats.get(job) == seats.as_ref() {
            return false;
        }
        if let Some(old) = self.seats.remove(job) {
            self.count_seats(job, &old, false);
        }
        if let Some(seats) = seats {
            self.count_seats(job, &seats, true);
            self.seats.insert(job.clone(), seats);
        }
        true
    }

    fn count_seats(&mut self, job: &Name, seats: &Seats, comes: bool) {
        for node in seats.seats.iter().filter_map(|seat| seat.node.as_ref()) {
            member(&mut self.seats_on, node, job, comes);
            self.dirty.insert(node.clone());
        }
    }

    /// Brings all profiles up to `now`. Returns the numbers of the nodes that changed, or of which
    /// the last round could not ask everything.
    pub(crate) fn refresh(&mut self, now: Millis, search: &mut Search) -> Vec<u32> {
        let open = search.begin();
        if self.graphs.prune() {
            search.clear();
        }
        if self.now.is_some_and(|last| now < last) {
            self.adjusted.iter().for_each(|&number| {
                let node = self.nodes[number as usize].as_ref();
                self.dirty.extend(node.map(|node| node.name.clone()));
            });
        }
        self.now = Some(now);
        let expired = self.expiring.range(..=(now, u32::MAX));
        let expired = expired.filter_map(|&(_, number)| self.nodes[number as usize].as_ref());
        self.dirty.extend(expired.map(|node| node.name.clone()));
        let mut changed = std::mem::take(&mut self.gone);
        let dirty = std::mem::take(&mut self.dirty);
        changed.extend(dirty.iter().filter_map(|name| self.numbers.get(name)));
        if !open.is_empty() {
            let asked = self
                .nodes()
                .filter(|(_, node)| open.contains(&node.shared.number));
            let asked: Vec<u32> = asked.map(|(number, _)| number).collect();
            changed.extend(asked);
        }
        changed.sort_unstable();
        changed.dedup();
        let stale: BTreeSet<u32> = changed.iter().copied().collect();
        self.expiring.retain(|(_, number)| !stale.contains(number));
        for &number in &changed {
            self.adjusted.remove(&number);
            let Some(mut node) = self.nodes[number as usize].take() else {
                continue;
            };
            let built = self.view(&node).profile(now);
            node.profile = built.profile;
            if built.valid < Millis::MAX {
                self.expiring.insert((built.valid, number));
            }
            if built.adjusted {
                self.adjusted.insert(number);
            }
            self.nodes[number as usize] = Some(node);
        }
        changed
    }

    /// Returns who holds the GPUs of a node.
    pub(crate) fn view<'a>(&'a self, node: &'a Node) -> View<'a> {
        let partial = self.gangs_on(&node.name);
        let partial = partial.filter(|(_, gang)| self.is_partial(gang));
        let vacant = partial.map(|(job, gang)| {
            let lost = gang.seats.iter().filter(|seat| {
                seat.node.as_ref() == Some(&node.name) && self.pod(&seat.pod).is_none()
            });
            Vacant {
                job,
                set: lost.fold(GpuSet::EMPTY, |set, seat| {
                    set.union(node.positions(&seat.gpus))
                }),
                until: gang.until(),
            }
        });
        View::new(node, self.pods_on(&node.name).collect(), vacant.collect())
    }

    /// Returns when the first profile ceases to be valid.
    pub(crate) fn valid(&self) -> Option<Millis> {
        self.expiring.first().map(|&(valid, _)| valid)
    }

    /// Returns a node by its number.
    pub(crate) fn node(&self, number: u32) -> Option<&Node> {
        self.nodes.get(number as usize)?.as_ref()
    }

    /// Returns the number of a node.
    pub(crate) fn number_of(&self, name: &Name) -> Option<u32> {
        self.numbers.get(name).copied()
    }

    /// Returns all nodes with their numbers, in the order of their names.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = (u32, &Node)> {
        let node = |&number: &u32| Some((number, self.node(number)?));
        self.numbers.values().filter_map(node)
    }

    /// Returns one more than the highest number of a node.
    pub(crate) fn numbers(&self) -> usize {
        self.nodes.len()
    }

    /// Returns a pod.
    pub(crate) fn pod(&self, id: &Name) -> Option<&PodState> {
        self.pods.get(id)
    }

    /// Returns the pods on a node, in the order of their ids.
    pub(crate) fn pods_on(&self, node: &Name) -> impl Iterator<Item = (&Name, &PodState)> {
        let ids = self.on_node.get(node).into_iter().flatten();
        ids.filter_map(|id| Some((id, self.pods.get(id)?)))
    }

    /// Returns the pods of a job, in the order of their ids.
    pub(crate) fn pods_of(&self, job: &Name) -> impl Iterator<Item = (&Name, &PodState)> {
        let ids = self.by_job.get(job).into_iter().flatten();
        ids.filter_map(|id| Some((id, self.pods.get(id)?)))
    }

    /// Returns the pods that count for a quota.
    pub(crate) fn pods_in(&self, quota: &(Name, Name)) -> impl Iterator<Item = &PodState> {
        let ids = self.by_quota.get(quota).into_iter().flatten();
        ids.filter_map(|id| self.pods.get(id))
    }

    /// Returns the GPUs that projects hold.
    pub(crate) fn projects(&self) -> &BTreeMap<Name, u64> {
        &self.by_project
    }

    /// Returns the gangs with seats on a node.
    pub(crate) fn gangs_on(&self, node: &Name) -> impl Iterator<Item = (&Name, &Seats)> {
        let jobs = self.seats_on.get(node).into_iter().flatten();
        jobs.filter_map(|job| Some((job, self.seats.get(job)?)))
    }

    /// Returns all gangs with seats.
    pub(crate) fn gangs(&self) -> impl Iterator<Item = (&Name, &Seats)> {
        self.seats.iter()
    }

    /// Returns the seats of a gang.
    pub(crate) fn seats(&self, job: &Name) -> Option<&Seats> {
        self.seats.get(job)
    }

    /// Reports whether some of a gang's pods are there and others are not.
    pub(crate) fn is_partial(&self, seats: &Seats) -> bool {
        let there = |seat: &Seat| self.pods.contains_key(&seat.pod);
        seats.seats.iter().any(there) && !seats.seats.iter().all(there)
    }
}

/// Adds a member to a set by key, or removes it.
fn member(sets: &mut HashMap<Name, BTreeSet<Name>>, key: &Name, id: &Name, comes: bool) {
    if comes {
        sets.entry(key.clone()).or_default().insert(id.clone());
    } else if let Some(set) = sets.get_mut(key) {
        set.remove(id);
        if set.is_empty() {
            sets.remove(key);
        }
    }
}
