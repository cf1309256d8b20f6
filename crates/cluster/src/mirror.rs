//! The GPUs of nodes and the pods on them, in one state that all parts of the process read: what
//! admission's view says of free GPUs, the page and the extender.

mod followers;
pub mod occupancy;
pub mod pod;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
    time::{Duration, Instant},
};

use nvlink_admission::view::SharedView;

use crate::{
    gpus::{Gpus, Name, Published},
    informer::Extent,
};
pub use pod::Pod;

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

/// The objects of the mirror.
#[derive(Clone, Debug, Default)]
pub struct State {
    pub gpus: Gpus,
    pub pods: HashMap<PodName, Arc<Pod>>,
    /// By the name of a node, the pods that are bound to it and have not ended.
    bound: HashMap<String, BTreeMap<PodName, Arc<Pod>>>,
    pub topologies: Sync,
    pub of_pods: Sync,
    /// Which pods have been read.
    extent: Extent,
}

impl State {
    /// Returns the pods that are bound to a node and have not ended, by name.
    pub fn bound(&self, node: &str) -> impl Iterator<Item = (&PodName, &Arc<Pod>)> {
        self.bound.get(node).into_iter().flatten()
    }

    /// Sets or removes a pod. Returns the nodes that it was and is on.
    fn set(&mut self, name: PodName, pod: Option<Arc<Pod>>) -> Vec<String> {
        let mut nodes = Vec::new();
        if let Some(node) = self.pods.remove(&name).as_ref().and_then(|old| old.node()) {
            if let Some(bound) = self.bound.get_mut(node) {
                bound.remove(&name);
                if bound.is_empty() {
                    self.bound.remove(node);
                }
            }
            nodes.push(node.to_owned());
        }
        let Some(pod) = pod else { return nodes };
        if let Some(node) = pod.node() {
            let bound = self.bound.entry(node.to_owned()).or_default();
            bound.insert(name.clone(), Arc::clone(&pod));
            nodes.push(node.to_owned());
        }
        self.pods.insert(name, pod);
        nodes
    }

    /// Returns the nodes whose free GPUs depend on which pods are known.
    fn counted_by_pods(&self) -> Vec<Name> {
        let known = self.extent == Extent::Whole;
        let nodes = self.gpus.topologies().filter(|_| known);
        nodes.map(|(name, _)| name.clone()).collect()
    }
}

/// A shared handle to the state, which followers of the informers write.
#[derive(Clone, Debug, Default)]
pub struct Mirror(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    state: RwLock<State>,
    /// Where the free GPUs of nodes are counted, for admission.
    view: Option<SharedView>,
}

impl Mirror {
    /// Returns a mirror that counts the free GPUs of nodes in `view`.
    #[must_use]
    pub fn counting(view: SharedView) -> Self {
        Self(Arc::new(Inner {
            state: RwLock::default(),
            view: Some(view),
        }))
    }

    /// Returns a copy: objects are shared.
    #[must_use]
    pub fn state(&self) -> State {
        self.read().clone()
    }

    /// Borrows the state. Watches wait meanwhile: copy what takes longer than a look.
    pub fn read(&self) -> RwLockReadGuard<'_, State> {
        self.0.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds or replaces a node.
    pub fn set_node(&self, name: &str, published: Arc<Published>) {
        self.change(|state| {
            state.gpus.set_topology(name, Some(published));
            vec![name]
        });
    }

    /// Removes a node.
    pub fn remove_node(&self, name: &str) {
        self.change(|state| {
            state.gpus.set_topology(name, None);
            vec![name]
        });
    }

    /// Adds or replaces a pod.
    pub fn set_pod(&self, name: PodName, pod: Pod) {
        self.change(|state| state.set(name, Some(Arc::new(pod))));
    }

    /// Removes a pod.
    pub fn remove_pod(&self, name: &PodName) {
        self.change(|state| state.set(name.clone(), None));
    }

    /// Keeps only these nodes: all have been read.
    pub fn all_nodes(&self, wanted: impl Fn(&str) -> bool) {
        self.change(|state| {
            state.topologies = Sync::Follows;
            state.gpus.retain_topologies(wanted)
        });
    }

    /// Keeps only these pods: all have been read, to this extent.
    pub fn all_pods(&self, wanted: impl Fn(&PodName) -> bool, extent: Extent) {
        self.change(|state| {
            let names = state.pods.keys().filter(|name| !wanted(name));
            for name in names.cloned().collect::<Vec<_>>() {
                state.set(name, None);
            }
            state.of_pods = Sync::Follows;
            state.extent = extent;
            state.counted_by_pods()
        });
    }

    /// All pods are about to be read. Until they are, nobody is said to be gone.
    pub(crate) fn reads_pods(&self) {
        self.write().extent = Extent::default();
    }

    /// Records whether the watch of topologies is in sync.
    pub fn nodes_follow(&self, follows: bool) {
        let mut state = self.write();
        state.topologies = state.topologies.after(follows, Instant::now());
    }

    /// Records whether the watch of pods is in sync.
    pub fn pods_follow(&self, follows: bool) {
        let now = self.read().of_pods;
        let next = now.after(follows, Instant::now());
        if next != now {
            self.change(|state| {
                state.of_pods = next;
                state.counted_by_pods()
            });
        }
    }

    /// Changes the state, and counts the free GPUs of the nodes that `change` returns.
    fn change<N: AsRef<str>>(&self, change: impl FnOnce(&mut State) -> Vec<N>) {
        let nodes = change(&mut self.write());
        let Some(view) = self.0.view.as_ref().filter(|_| !nodes.is_empty()) else {
            return;
        };
        // Nobody changes the state before the view has what follows from it.
        let state = self.read();
        let counted = nodes.iter().map(|node| {
            let gpus = state.gpus.of(node.as_ref());
            let free = gpus.most_free(|pod| !state.is_over(node.as_ref(), pod));
            (
                node.as_ref(),
                free,
                gpus.known().is_some_and(|known| known.mig),
            )
        });
        let counted: Vec<_> = counted.collect();
        let mut view = view.write();
        for (node, free, mig) in counted {
            view.set_free(node, free);
            view.set_mig(node, mig);
        }
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.0.state.write().unwrap_or_else(PoisonError::into_inner)
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
