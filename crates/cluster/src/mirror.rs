//! NodeTopologies with their graphs, and pods: what the view that decisions use forgets.
//!
//! The page and the extender read one mirror; [`watches`] keep it, and run only if one of
//! the two is on.

pub mod hardware;
pub mod node;
pub mod occupancy;
pub mod pod;
pub mod watches;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
    time::{Duration, Instant},
};

use nvlink_topology::{Allocation, NodeTopologySpec};

pub use hardware::Hardware;
use hardware::Hardwares;
pub use node::{Marks, Node};
pub use pod::Pod;

/// What a node published, or why it cannot be used.
pub type Published = Result<Node, String>;

/// Namespace and name of a pod.
pub type PodName = (String, String);

/// How current a kind of objects is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sync {
    /// Not all objects have been read yet.
    #[default]
    Reading,
    Follows,
    /// The watch has failed since this time: the last known state is shown.
    Fails(Instant),
}

impl Sync {
    /// Returns the state after an event or a failure of the watch.
    fn after(self, follows: bool, now: Instant) -> Self {
        match (self, follows) {
            (Self::Reading, _) => Self::Reading,
            (_, true) => Self::Follows,
            (Self::Fails(since), false) => Self::Fails(since),
            (Self::Follows, false) => Self::Fails(now),
        }
    }

    /// Returns the age of the data; `None` while there are none.
    #[must_use]
    pub fn age(self, now: Instant) -> Option<Duration> {
        match self {
            Self::Reading => None,
            Self::Follows => Some(Duration::ZERO),
            Self::Fails(since) => Some(now.saturating_duration_since(since)),
        }
    }
}

/// Which pods the mirror keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kept {
    /// Those of classes, without their nodes: only their metadata are read.
    #[default]
    OfClasses,
    /// All that request devices, with their nodes.
    WithDevices,
}

/// The objects of the mirror.
#[derive(Clone, Debug, Default)]
pub struct State {
    pub nodes: BTreeMap<String, Arc<Published>>,
    pub pods: HashMap<PodName, Arc<Pod>>,
    /// By the name of a node, the pods that are bound to it and have not ended.
    bound: HashMap<String, BTreeMap<PodName, Arc<Pod>>>,
    pub topologies: Sync,
    pub of_pods: Sync,
    /// Which pods are kept.
    pub kept: Kept,
}

impl State {
    /// Returns the pods that are bound to a node and have not ended, by name.
    pub fn bound(&self, node: &str) -> impl Iterator<Item = (&PodName, &Arc<Pod>)> {
        self.bound.get(node).into_iter().flatten()
    }

    fn set(&mut self, name: PodName, pod: Arc<Pod>) {
        self.remove(&name);
        if let Some(node) = pod.node() {
            let bound = self.bound.entry(node.to_owned()).or_default();
            bound.insert(name.clone(), Arc::clone(&pod));
        }
        self.pods.insert(name, pod);
    }

    fn remove(&mut self, name: &PodName) {
        let Some(old) = self.pods.remove(name) else {
            return;
        };
        let Some(node) = old.node() else { return };
        if let Some(bound) = self.bound.get_mut(node) {
            bound.remove(name);
            if bound.is_empty() {
                self.bound.remove(node);
            }
        }
    }
}

/// A shared handle to the state, which watches write.
#[derive(Clone, Debug, Default)]
pub struct Mirror(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    state: RwLock<State>,
    hardwares: Mutex<Hardwares>,
}

impl Mirror {
    /// Returns a copy: objects are shared.
    #[must_use]
    pub fn state(&self) -> State {
        self.read().clone()
    }

    /// Borrows the state. Watches wait meanwhile: copy what takes longer than a look.
    pub fn read(&self) -> RwLockReadGuard<'_, State> {
        self.0.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets which pods the mirror keeps; before any is set.
    pub fn keep(&self, kept: Kept) {
        self.write().kept = kept;
    }

    /// Adds or replaces a node. `allocations` are `None` if they are not known.
    pub fn set_node(
        &self,
        name: &str,
        spec: Result<&NodeTopologySpec, String>,
        marks: Marks,
        allocations: Result<Option<Vec<Allocation>>, String>,
    ) {
        let node = spec.and_then(|spec| {
            let allocations = allocations?;
            Ok(Node::new(spec, marks, allocations, &mut self.hardwares()))
        });
        let mut state = self.write();
        state.nodes.insert(name.to_owned(), Arc::new(node));
    }

    pub fn remove_node(&self, name: &str) {
        self.write().nodes.remove(name);
    }

    pub fn set_pod(&self, name: PodName, pod: Pod) {
        self.write().set(name, Arc::new(pod));
    }

    pub fn remove_pod(&self, name: &PodName) {
        self.write().remove(name);
    }

    /// Keeps only these nodes: all have been read.
    pub fn all_nodes(&self, wanted: impl Fn(&str) -> bool) {
        let mut state = self.write();
        state.nodes.retain(|name, _| wanted(name));
        state.topologies = Sync::Follows;
    }

    /// Keeps only these pods: all have been read.
    pub fn all_pods(&self, wanted: impl Fn(&PodName) -> bool) {
        let mut state = self.write();
        let names = state.pods.keys().filter(|name| !wanted(name));
        for name in names.cloned().collect::<Vec<_>>() {
            state.remove(&name);
        }
        state.of_pods = Sync::Follows;
    }

    /// Records whether the watch of topologies is in sync.
    pub fn nodes_follow(&self, follows: bool) {
        let mut state = self.write();
        state.topologies = state.topologies.after(follows, Instant::now());
    }

    /// Records whether the watch of pods is in sync.
    pub fn pods_follow(&self, follows: bool) {
        let mut state = self.write();
        state.of_pods = state.of_pods.after(follows, Instant::now());
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.0.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn hardwares(&self) -> MutexGuard<'_, Hardwares> {
        let all = &self.0.hardwares;
        all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_age_from_the_first_failure_of_their_watch() {
        let start = Instant::now();
        let later = start + Duration::from_secs(7);
        let failed = Sync::Follows.after(false, start).after(false, later);
        assert_eq!(failed.age(later), Some(Duration::from_secs(7)));
        assert_eq!(failed.after(true, later).age(later), Some(Duration::ZERO));
        assert_eq!(Sync::Reading.after(true, start).age(later), None);
    }
}
