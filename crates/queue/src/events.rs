//! What happens to the objects that the queue needs. The informers tell the controller of it, in the
//! order in which it happens to each kind.

use std::{collections::HashSet, sync::Arc};

use nvlink_cluster::{
    gpus::{Claim, DeviceClass, Published, Slice, id},
    informer::{Extent, Follower, Informer},
    kinds::{Informers, PodObject, ReadClass},
    volumes::{StorageClass, Volume, VolumeClaim},
};
use nvlink_planner::Name;
use nvlink_runtime::watch::Key;
use serde_json::Value;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

use super::feed::{Feed, Known, entry::concerns, load::Load, node::Node};

/// A change of an object of the cluster.
#[derive(Debug)]
pub(super) enum Event {
    Node(String, Option<Node>),
    AllNodes(HashSet<String>),
    Topology(String, Option<Arc<Published>>),
    AllTopologies(HashSet<String>),
    Class(String, Option<Known>),
    AllClasses(HashSet<String>),
    Pod(Box<Value>),
    Load(Name, Option<Load>),
    PodGone(Name),
    AllPods(HashSet<Name>),
    Slice(String, Option<Slice>),
    AllSlices(HashSet<String>),
    Claim(Name, Option<Claim>),
    AllClaims(HashSet<Name>),
    DeviceClass(String, Option<DeviceClass>),
    AllDeviceClasses(HashSet<String>),
    Storage(Storage),
}

/// A change of what volumes need.
#[derive(Debug)]
pub(super) enum Storage {
    Claim(Name, Option<VolumeClaim>),
    AllClaims(HashSet<Name>),
    Volume(String, Option<Volume>),
    AllVolumes(HashSet<String>),
    Class(String, Option<StorageClass>),
    AllClasses(HashSet<String>),
}

/// Which kinds have been read as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Synced {
    nodes: bool,
    topologies: bool,
    classes: bool,
    pods: bool,
    slices: bool,
    claims: bool,
    device_classes: bool,
    volume_claims: bool,
    volumes: bool,
    storage_classes: bool,
}

impl Synced {
    /// Reports whether all kinds have been read.
    pub(super) fn all(self) -> bool {
        let dra = self.slices && self.claims && self.device_classes;
        let volumes = self.volume_claims && self.volumes && self.storage_classes;
        self.nodes && self.topologies && self.classes && self.pods && dra && volumes
    }
}

impl Event {
    /// Applies the change.
    pub(super) fn apply(self, feed: &mut Feed, synced: &mut Synced) {
        match self {
            Self::Node(name, node) => feed.node(&name, node),
            Self::Topology(name, published) => feed.topology(&name, published),
            Self::Class(name, class) => feed.class(&name, class),
            Self::Pod(pod) => feed.pod(*pod),
            Self::Load(id, load) => feed.load(&id, load),
            Self::PodGone(id) => feed.gone(&id),
            Self::AllNodes(names) => {
                feed.retain_nodes(&names);
                synced.nodes = true;
            }
            Self::AllTopologies(names) => {
                feed.retain_topologies(&names);
                synced.topologies = true;
            }
            Self::AllClasses(names) => {
                feed.retain_classes(&names);
                synced.classes = true;
            }
            Self::AllPods(ids) => {
                feed.retain_pods(&ids);
                synced.pods = true;
            }
            Self::Slice(name, slice) => feed.slice(&name, slice),
            Self::AllSlices(names) => {
                feed.retain_slices(&names);
                synced.slices = true;
            }
            Self::Claim(id, claim) => feed.claim(&id, claim),
            Self::AllClaims(ids) => {
                feed.retain_claims(&ids);
                synced.claims = true;
            }
            Self::DeviceClass(name, class) => feed.device_class(&name, class),
            Self::AllDeviceClasses(names) => {
                feed.retain_device_classes(&names);
                synced.device_classes = true;
            }
            Self::Storage(storage) => storage.apply(feed, synced),
        }
    }
}

impl Storage {
    fn apply(self, feed: &mut Feed, synced: &mut Synced) {
        match self {
            Self::Claim(id, claim) => feed.volume_claim(&id, claim),
            Self::AllClaims(ids) => {
                feed.retain_volume_claims(&ids);
                synced.volume_claims = true;
            }
            Self::Volume(name, volume) => feed.volume(&name, volume),
            Self::AllVolumes(names) => {
                feed.retain_volumes(&names);
                synced.volumes = true;
            }
            Self::Class(name, class) => feed.storage_class(&name, class),
            Self::AllClasses(names) => {
                feed.retain_storage_classes(&names);
                synced.storage_classes = true;
            }
        }
    }
}

impl From<Storage> for Event {
    fn from(storage: Storage) -> Self {
        Self::Storage(storage)
    }
}

/// Sends what happens to the objects of a kind.
struct Sends<T> {
    sender: UnboundedSender<Event>,
    set: fn(&Key, &T) -> Event,
    gone: fn(&Key) -> Event,
    all: fn(&HashSet<Key>) -> Event,
}

// An error means that the controller has ended, and this follower is about to.
impl<T> Follower<T> for Sends<T> {
    fn set(&mut self, key: &Key, item: &T) {
        let _ = self.sender.send((self.set)(key, item));
    }

    fn remove(&mut self, key: &Key) {
        let _ = self.sender.send((self.gone)(key));
    }

    fn retain(&mut self, keys: &HashSet<Key>, _: Extent) {
        let _ = self.sender.send((self.all)(keys));
    }
}

/// The events, until this is dropped.
pub(super) struct Events {
    pub(super) receiver: UnboundedReceiver<Event>,
    /// Dropped, they end the watches that nobody else needs.
    subscriptions: Vec<Box<dyn Send>>,
}

impl Events {
    /// Follows all kinds from now on.
    #[must_use]
    pub(super) fn follow(informers: &Informers) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        let subscriptions = vec![
            sends(
                &informers.nodes,
                &sender,
                |(_, name), object| Event::Node(name.clone(), Some(Node::of(object))),
                |(_, name)| Event::Node(name.clone(), None),
                |keys| Event::AllNodes(names(keys)),
            ),
            sends(
                &informers.topologies,
                &sender,
                |(_, name), published| Event::Topology(name.clone(), Some(Arc::clone(published))),
                |(_, name)| Event::Topology(name.clone(), None),
                |keys| Event::AllTopologies(names(keys)),
            ),
            sends(
                &informers.classes,
                &sender,
                class,
                |(_, name)| Event::Class(name.clone(), None),
                |keys| Event::AllClasses(names(keys)),
            ),
            sends(
                &informers.pods,
                &sender,
                pod,
                |(namespace, name)| Event::PodGone(id(namespace, name)),
                |keys| Event::AllPods(ids(keys)),
            ),
        ];
        let mut events = Self {
            receiver,
            subscriptions,
        };
        events.follow_dra(informers, &sender);
        events.follow_volumes(informers, &sender);
        events
    }

    fn follow_dra(&mut self, informers: &Informers, sender: &UnboundedSender<Event>) {
        self.subscriptions.extend([
            sends(
                &informers.slices,
                sender,
                |(_, name), slice| Event::Slice(name.clone(), slice.clone()),
                |(_, name)| Event::Slice(name.clone(), None),
                |keys| Event::AllSlices(names(keys)),
            ),
            sends(
                &informers.claims,
                sender,
                |(namespace, name), claim| Event::Claim(id(namespace, name), claim.clone()),
                |(namespace, name)| Event::Claim(id(namespace, name), None),
                |keys| Event::AllClaims(ids(keys)),
            ),
            sends(
                &informers.device_classes,
                sender,
                |(_, name), class| Event::DeviceClass(name.clone(), Some(class.clone())),
                |(_, name)| Event::DeviceClass(name.clone(), None),
                |keys| Event::AllDeviceClasses(names(keys)),
            ),
        ]);
    }

    fn follow_volumes(&mut self, informers: &Informers, sender: &UnboundedSender<Event>) {
        self.subscriptions.extend([
            sends(
                &informers.volume_claims,
                sender,
                |(namespace, name), claim| {
                    Storage::Claim(id(namespace, name), Some(claim.clone())).into()
                },
                |(namespace, name)| Storage::Claim(id(namespace, name), None).into(),
                |keys| Storage::AllClaims(ids(keys)).into(),
            ),
            sends(
                &informers.volumes,
                sender,
                |(_, name), volume| Storage::Volume(name.clone(), Some(volume.clone())).into(),
                |(_, name)| Storage::Volume(name.clone(), None).into(),
                |keys| Storage::AllVolumes(names(keys)).into(),
            ),
            sends(
                &informers.storage_classes,
                sender,
                |(_, name), class| Storage::Class(name.clone(), Some(class.clone())).into(),
                |(_, name)| Storage::Class(name.clone(), None).into(),
                |keys| Storage::AllClasses(names(keys)).into(),
            ),
        ]);
    }
}

fn sends<T: 'static>(
    informer: &Informer<T>,
    sender: &UnboundedSender<Event>,
    set: fn(&Key, &T) -> Event,
    gone: fn(&Key) -> Event,
    all: fn(&HashSet<Key>) -> Event,
) -> Box<dyn Send> {
    let sender = sender.clone();
    let sends = Sends {
        sender,
        set,
        gone,
        all,
    };
    Box::new(informer.subscribe(Extent::Whole, sends))
}

fn class((_, name): &Key, class: &ReadClass) -> Event {
    let class = class.clone().map(Arc::new);
    Event::Class(name.clone(), Some(class.map_err(|broken| broken.reason)))
}

fn pod((namespace, name): &Key, pod: &PodObject) -> Event {
    // Without a document it comes again: the queue needs all.
    let document = pod.document.as_ref().unwrap_or(&Value::Null);
    match concerns(document) {
        true => Event::Pod(Box::new(document.clone())),
        false => Event::Load(id(namespace, name), Load::of(document)),
    }
}

fn names(keys: &HashSet<Key>) -> HashSet<String> {
    keys.iter().map(|(_, name)| name.clone()).collect()
}

fn ids(keys: &HashSet<Key>) -> HashSet<Name> {
    let ids = keys.iter().map(|(namespace, name)| id(namespace, name));
    ids.collect()
}
