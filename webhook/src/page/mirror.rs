//! What the page knows of the cluster: a mirror of NodeTopologies and of the pods of
//! classes, which watches keep. The view that decisions use forgets both.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
    time::{Duration, Instant},
};

use nvlink_topology::{Allocation, NodeTopologySpec, Pattern};

use super::{
    judge::Judge,
    node::{Marks, Node},
};

/// What a node published, or why it cannot be shown.
pub type Published = Result<Node, String>;

/// Namespace and name of a pod.
pub type PodName = (String, String);

/// What the webhook wrote into a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    pub class: Option<String>,
    pub project: Option<String>,
    /// The communication pattern of its job.
    pub pattern: Option<Pattern>,
}

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

#[derive(Clone, Debug, Default)]
pub struct State {
    pub nodes: BTreeMap<String, Arc<Published>>,
    pub pods: HashMap<PodName, Arc<Pod>>,
    pub topologies: Sync,
    pub of_pods: Sync,
}

/// A shared handle to the state, which watches write and renderings copy.
#[derive(Clone, Debug, Default)]
pub struct Mirror(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    state: RwLock<State>,
    judge: Mutex<Judge>,
}

impl Mirror {
    /// Returns a copy: objects are shared.
    #[must_use]
    pub fn state(&self) -> State {
        self.read().clone()
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
            Ok(Node::new(spec, marks, allocations, &mut self.judge()))
        });
        let mut state = self.write();
        state.nodes.insert(name.to_owned(), Arc::new(node));
    }

    pub fn remove_node(&self, name: &str) {
        self.write().nodes.remove(name);
    }

    pub fn set_pod(&self, name: PodName, pod: Pod) {
        self.write().pods.insert(name, Arc::new(pod));
    }

    pub fn remove_pod(&self, name: &PodName) {
        self.write().pods.remove(name);
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
        state.pods.retain(|name, _| wanted(name));
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

    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.0.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.0.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn judge(&self) -> MutexGuard<'_, Judge> {
        self.0.judge.lock().unwrap_or_else(PoisonError::into_inner)
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
