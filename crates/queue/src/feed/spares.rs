//! Spare nodes: which nodes of each NVLink fabric the jobs of a class leave free for gangs that lose one.
//!
//! The spares of a fabric are nodes that nobody uses, before others, and then the last ones by name. New pods
//! keep off them; pods that take the place of lost ones of their gang do not. A node that no job can use, and
//! nobody uses any more, counts as one spare: gangs, which may begin anew without it, get another one for it,
//! but single pods do not.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::Arc,
};

use nvlink_api::class::Class;
use nvlink_planner::Name;
use nvlink_topology::labels;

use super::{
    Feed,
    entry::{Entry, Expected},
    node::Node,
};

/// The nodes that new gangs and new single pods of classes leave free, by the name of the set of the other
/// nodes.
#[derive(Debug, Default)]
pub(super) struct Spares(BTreeMap<Name, BTreeSet<Name>>);

/// What a node of a fabric is for jobs, as spares are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Free,
    /// Pods hold GPUs of it, or a seat there is kept for one.
    Busy,
    /// The same, but no other job can use it.
    Failing,
    /// No job can use it, and nobody does.
    Broken,
}

/// Returns the name of the set of nodes that new gangs or single pods of a class may use; `None` if it
/// leaves no spares. No class can have this name.
#[must_use]
pub fn open_to(class: &Class, gangs: bool) -> Option<Name> {
    let pods = if gangs { "gangs" } else { "single pods" };
    let spares = class.queue.as_ref()?.spare_nodes;
    (spares > 0).then(|| format!("nodes of {} for {pods}", class.name).into())
}

impl Spares {
    /// Returns the nodes of which one of the sets differs.
    fn differ(&self, other: &Self) -> BTreeSet<Name> {
        let none = BTreeSet::new();
        let names = self.0.keys().chain(other.0.keys());
        let differ = names.flat_map(|name| {
            let of = |spares: &Self| spares.0.get(name).unwrap_or(&none).clone();
            &of(self) ^ &of(other)
        });
        differ.collect()
    }
}

impl Feed {
    /// Returns the classes that leave spares.
    fn sparing(&self) -> impl Iterator<Item = &Arc<Class>> {
        let classes = self.classes.values().filter_map(|one| one.as_ref().ok());
        classes.filter(|class| open_to(class, true).is_some())
    }

    /// Returns the sets without spares that a node is in.
    pub(super) fn open_sets(&self, name: &Name, node: &Node) -> impl Iterator<Item = Name> {
        let classes = self.sparing().filter(|class| node.is_of(class));
        let sets = classes.flat_map(|class| [true, false].map(|gangs| open_to(class, gangs)));
        sets.flatten().filter(|set| {
            let spares = self.spares.0.get(set);
            !spares.is_some_and(|spares| spares.contains(name))
        })
    }

    /// Finds the spares anew, if something has changed. Nodes that become spares, or cease to be, have
    /// changed.
    pub(super) fn respare(&mut self) {
        let changed = &self.changed;
        let nothing = [&changed.nodes, &changed.pods, &changed.jobs].map(BTreeSet::is_empty);
        if nothing == [true; 3] && changed.classes.is_empty() {
            return;
        }
        let spares = self.find_spares();
        self.changed.nodes.extend(self.spares.differ(&spares));
        self.spares = spares;
    }

    fn find_spares(&self) -> Spares {
        let mut classes = self.sparing().peekable();
        if classes.peek().is_none() {
            return Spares::default();
        }
        let used = self.used_nodes();
        let sets = classes.flat_map(|class| self.spares_of(class, &used));
        Spares(sets.collect())
    }

    /// Returns the spares that gangs of a class leave free, and those that its single pods do.
    fn spares_of(&self, class: &Class, used: &HashSet<&str>) -> Vec<(Name, BTreeSet<Name>)> {
        let wanted = class.queue.as_ref().map_or(0, |queue| queue.spare_nodes) as usize;
        let mut fabrics: BTreeMap<String, Vec<(State, Reverse<&Name>)>> = BTreeMap::new();
        for (name, node) in self.nodes.iter().filter(|(_, node)| node.is_of(class)) {
            if let Some((fabric, state)) = self.in_fabric(name, node, used) {
                let nodes = fabrics.entry(fabric).or_default();
                nodes.push((state, Reverse(name)));
            }
        }
        for nodes in fabrics.values_mut() {
            nodes.sort_unstable();
        }
        let spares = |gangs: bool| {
            let spares = fabrics.values().flat_map(|nodes| {
                let broken = nodes.iter().filter(|(state, _)| *state == State::Broken);
                let more = if gangs { broken.count() } else { 0 };
                let works = nodes.iter().filter(|(state, _)| *state <= State::Busy);
                works.take(wanted.saturating_sub(more))
            });
            let names = spares.map(|(_, Reverse(name))| (*name).clone());
            Some((open_to(class, gangs)?, names.collect()))
        };
        [true, false].into_iter().filter_map(spares).collect()
    }

    /// Returns the fabric of a node, and what the node is for jobs.
    fn in_fabric(&self, name: &Name, node: &Node, used: &HashSet<&str>) -> Option<(String, State)> {
        let known = self.gpus.known(name);
        let fabric = match known {
            Some(known) => {
                let mut domains = known.domains.iter();
                domains.find_map(|domain| domain.fabric.as_ref())?.id()
            }
            // Its label stays when it publishes nothing that can be read. A node of no fabric is alone there.
            None => node.labels.get(labels::DOMAIN)?.clone(),
        };
        let whole = known.is_some_and(|known| {
            let mut gpus = known.gpus.iter();
            known.lost.is_empty() && known.missing == 0 && gpus.all(|gpu| gpu.faults.is_empty())
        });
        let steady = !self.graphs.is_unsteady(name) && self.has_gpus(name);
        let state = match (whole && steady && !node.out, used.contains(&**name)) {
            (true, false) if self.gpus.of(name).holders().is_empty() => State::Free,
            (true, _) => State::Busy,
            (false, true) => State::Failing,
            (false, false) => State::Broken,
        };
        Some((fabric, state))
    }

    /// Returns the nodes of which pods hold GPUs or are about to, and those of the seats that are kept for
    /// lost pods of gangs.
    fn used_nodes(&self) -> HashSet<&str> {
        let gangs = self.seats.iter().filter(|(job, _)| self.runs(job));
        let seats = gangs.flat_map(|(_, seats)| seats);
        let seats = seats.filter_map(|seat| seat.node.as_deref());
        self.pods.values().filter_map(held).chain(seats).collect()
    }
}

/// Returns the node of which a pod holds GPUs, or is about to.
fn held(pod: &Entry) -> Option<&str> {
    let next = match &pod.expected {
        Some(Expected::Placed(placement)) => placement.node.as_deref(),
        Some(Expected::Leaves) | None => None,
    };
    let node = next.or_else(|| pod.life.node()).or_else(|| pod.awaited())?;
    (pod.member.is_some() || pod.gpus > 0).then_some(node)
}
