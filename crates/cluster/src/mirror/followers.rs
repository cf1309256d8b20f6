//! Who writes the mirror.

use std::{collections::HashSet, sync::Arc};

use nvlink_runtime::watch::Key;

use super::{Mirror, Pod, State};
use crate::{
    gpus::{Claim, Published, Slice, id},
    informer::{Extent, Follower},
    kinds::{Informers, PodObject},
};

impl Mirror {
    /// Follows the NodeTopologies, by which the view counts free GPUs.
    pub fn follow(&self, informers: &Informers) {
        let topologies = Topologies(self.clone());
        informers.topologies.keep(Extent::Whole, topologies);
    }

    /// Follows also the pods, to this extent, and what DRA lists and allocates.
    pub fn follow_pods(&self, informers: &Informers, extent: Extent) {
        informers.pods.keep(extent, Pods(self.clone()));
        informers.slices.keep(Extent::Whole, Slices(self.clone()));
        informers.claims.keep(Extent::Whole, Claims(self.clone()));
    }
}

struct Topologies(Mirror);
struct Pods(Mirror);
struct Slices(Mirror);
struct Claims(Mirror);

impl Follower<Arc<Published>> for Topologies {
    fn set(&mut self, (_, name): &Key, published: &Arc<Published>) {
        self.0.set_node(name, Arc::clone(published));
    }

    fn remove(&mut self, (_, name): &Key) {
        self.0.remove_node(name);
    }

    fn retain(&mut self, keys: &HashSet<Key>, _: Extent) {
        let wanted = |name: &str| keys.contains(&(String::new(), name.to_owned()));
        self.0.all_nodes(wanted);
    }

    fn follows(&mut self, follows: bool) {
        self.0.nodes_follow(follows);
    }
}

impl Follower<PodObject> for Pods {
    fn set(&mut self, key: &Key, pod: &PodObject) {
        match Pod::of(pod) {
            Some(pod) => self.0.set_pod(key.clone(), pod),
            None => self.0.remove_pod(key),
        }
    }

    fn remove(&mut self, key: &Key) {
        self.0.remove_pod(key);
    }

    fn begins(&mut self) {
        self.0.reads_pods();
    }

    fn retain(&mut self, keys: &HashSet<Key>, extent: Extent) {
        self.0.all_pods(|name| keys.contains(name), extent);
    }

    fn follows(&mut self, follows: bool) {
        self.0.pods_follow(follows);
    }
}

impl Follower<Option<Slice>> for Slices {
    fn set(&mut self, (_, name): &Key, slice: &Option<Slice>) {
        let change = |state: &mut State| state.gpus.set_slice(name, slice.clone());
        self.0.change(change);
    }

    fn remove(&mut self, (_, name): &Key) {
        self.0.change(|state| state.gpus.set_slice(name, None));
    }

    fn retain(&mut self, keys: &HashSet<Key>, _: Extent) {
        let names: HashSet<String> = keys.iter().map(|(_, name)| name.clone()).collect();
        self.0.change(|state| state.gpus.retain_slices(&names));
    }
}

impl Follower<Option<Claim>> for Claims {
    fn set(&mut self, (namespace, name): &Key, claim: &Option<Claim>) {
        let id = id(namespace, name);
        let change = |state: &mut State| state.gpus.set_claim(&id, claim.clone());
        self.0.change(change);
    }

    fn remove(&mut self, (namespace, name): &Key) {
        let id = id(namespace, name);
        self.0.change(|state| state.gpus.set_claim(&id, None));
    }

    fn retain(&mut self, keys: &HashSet<Key>, _: Extent) {
        let ids: HashSet<_> = keys
            .iter()
            .map(|(namespace, name)| id(namespace, name))
            .collect();
        self.0.change(|state| state.gpus.retain_claims(&ids));
    }
}
