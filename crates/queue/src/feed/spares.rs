//! Spare nodes: which nodes of each NVLink fabric the jobs of a class leave free for gangs that lose one.
//!
//! The spares of a fabric are nodes that nobody uses, before others, and then the last ones by name. New pods
//! keep off them; pods that take the place of lost ones of their gang do not. A node of the fabric that no job
//! can use counts as one spare: gangs, which may begin anew without it, get another one for it, but single pods
//! do not.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use nvlink_api::class::Class;
use nvlink_planner::Name;
use nvlink_topology::Fabric;

use super::{
    Feed,
    entry::{Entry, Expected},
    node::Node,
};

/// For each set of nodes without the spares of a class, by its name, the nodes.
#[derive(Debug, Default)]
pub(super) struct Spares(BTreeMap<Name, BTreeSet<Name>>);

/// What a node of a fabric is for jobs, as spares are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Free,
    /// Pods hold GPUs of it.
    Busy,
    /// No job can use it, or it has a broken GPU.
    Broken,
}

/// Returns the name of the set of nodes that new gangs or single pods of a class may use; `None` if it
/// leaves no spares. No class can have this name.
pub fn open_to(class: &Class, gangs: bool) -> Option<Name> {
    let pods = if gangs { "gangs" } else { "single pods" };
    let spares = class.queue.as_ref()?.spare_nodes;
    (spares > 0).then(|| format!("nodes of {} for {pods}", class.name).into())
}

impl Spares {
    /// Returns the sets that a node is in.
    pub(super) fn sets(&self, node: &Name) -> impl Iterator<Item = Name> {
        let open = self.0.iter().filter(|(_, nodes)| nodes.contains(node));
        open.map(|(set, _)| set.clone())
    }

    /// Returns the nodes whose sets differ.
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
        let classes = self.classes.values().filter_map(|one| one.as_ref().ok());
        let classes = classes.filter(|class| open_to(class, true).is_some());
        let mut classes = classes.peekable();
        if classes.peek().is_none() {
            return Spares::default();
        }
        let held = self.pods.values().filter_map(held);
        let busy: BTreeSet<&str> = held.collect();
        let sets = classes.flat_map(|class| {
            let spares = class.queue.as_ref().map_or(0, |queue| queue.spare_nodes) as usize;
            self.open_nodes(class, spares, &busy)
        });
        Spares(sets.collect())
    }

    /// Returns the nodes of a class that its gangs may use, and those that its single pods may use.
    fn open_nodes(
        &self,
        class: &Class,
        spares: usize,
        busy: &BTreeSet<&str>,
    ) -> Vec<(Name, BTreeSet<Name>)> {
        let nodes = || self.nodes.iter().filter(|(_, node)| node.is_of(class));
        let mut fabrics: BTreeMap<&Fabric, Vec<(State, Reverse<&Name>)>> = BTreeMap::new();
        for (name, node) in nodes() {
            if let Some((fabric, state)) = self.state_in_fabric(name, node, busy) {
                let trays = fabrics.entry(fabric).or_default();
                trays.push((state, Reverse(name)));
            }
        }
        for trays in fabrics.values_mut() {
            trays.sort_unstable();
        }
        let open = |gangs: bool| {
            let kept = fabrics.values().flat_map(|trays| {
                let works = |(state, _): &&(State, _)| *state != State::Broken;
                let broken = trays.len() - trays.iter().filter(works).count();
                let spares = if gangs {
                    spares.saturating_sub(broken)
                } else {
                    spares
                };
                trays.iter().filter(works).take(spares).map(|one| one.1.0)
            });
            let kept: BTreeSet<&Name> = kept.collect();
            let open = nodes()
                .map(|(name, _)| name)
                .filter(|name| !kept.contains(name));
            Some((open_to(class, gangs)?, open.cloned().collect()))
        };
        [true, false].into_iter().filter_map(open).collect()
    }

    /// Returns the fabric of a node, also of one that has become silent, and what the node is for jobs.
    fn state_in_fabric(
        &self,
        name: &Name,
        node: &Node,
        busy: &BTreeSet<&str>,
    ) -> Option<(&Fabric, State)> {
        let now = self.gpus.known(name);
        let known = now.or_else(|| self.gpus.earlier(name)?.as_ref().as_ref().ok())?;
        let fabric = known.domains.iter().find_map(|one| one.fabric.as_ref())?;
        let broken = known.gpus.iter().any(|gpu| !gpu.faults.is_empty());
        let state = match busy.contains(&**name) {
            _ if node.out || now.is_none() || broken => State::Broken,
            true => State::Busy,
            false => State::Free,
        };
        Some((fabric, state))
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
