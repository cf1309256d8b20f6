//! The watches of what the queue needs. Each tells the controller of its changes, in order.

use std::{collections::HashSet, marker::PhantomData, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1;
use kube::{
    Api, Client, ResourceExt,
    api::ListParams,
    core::{ApiResource, DynamicObject, GroupVersionKind, Object},
    runtime::watcher,
};
use nvlink_api::{class::Class, crd::DomainClass};
use nvlink_cluster::mirror::{self, Published, watches};
use nvlink_planner::Name;
use nvlink_runtime::watch::{self, Key, Mirror};
use serde_json::{Value, json};
use tokio::{sync::mpsc, task::JoinSet};

use super::{
    claim::API_VERSION,
    feed::{Claim, DeviceClass, Feed, Known, Slice, entry::concerns, load::Load, node::Node},
    placement::id,
};

/// The pause after a question to the API server that failed.
const AGAIN: Duration = Duration::from_secs(1);
/// Time until the API server is asked again for kinds that it does not have.
const LATER: Duration = Duration::from_secs(60);

/// A change of an object of the cluster.
#[derive(Debug)]
pub(super) enum Event {
    Node(String, Option<Node>),
    AllNodes(HashSet<Name>),
    Topology(String, Option<Arc<Published>>),
    AllTopologies,
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
}

impl Synced {
    /// Reports whether all kinds have been read.
    pub(super) fn all(self) -> bool {
        let dra = self.slices && self.claims && self.device_classes;
        self.nodes && self.topologies && self.classes && self.pods && dra
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
            Self::AllTopologies => synced.topologies = true,
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
        }
    }
}

type Sender = mpsc::UnboundedSender<Event>;

/// A kind of objects that a watch follows.
trait Kind: 'static {
    type Object: kube::Resource
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned
        + Send
        + 'static;
    const KIND: &'static str;
    const UNKNOWN: &'static str = "";
    const FORBIDDEN: &'static str = ", so no pod leaves the queue";

    fn set(object: Self::Object) -> Event;
    fn gone(key: &Key) -> Event;
    fn all(keys: &HashSet<Key>) -> Event;
}

/// Sends the events of a watch.
struct Follower<K>(Sender, PhantomData<fn() -> K>);

impl<K: Kind> Mirror for Follower<K> {
    type Object = K::Object;
    const KIND: &'static str = K::KIND;
    const UNKNOWN: &'static str = K::UNKNOWN;
    const FORBIDDEN: &'static str = K::FORBIDDEN;

    // An error means that the controller has ended, and this watch is about to.
    fn set(&mut self, object: K::Object) {
        let _ = self.0.send(K::set(object));
    }

    fn remove(&mut self, key: &Key) {
        let _ = self.0.send(K::gone(key));
    }

    fn retain(&mut self, keys: &HashSet<Key>) {
        let _ = self.0.send(K::all(keys));
    }
}

struct Nodes;
struct Classes;
struct Pods;
struct Slices;
struct Claims;
struct DeviceClasses;

impl Kind for Nodes {
    type Object = Object<Value, Value>;
    const KIND: &'static str = "Node";

    fn set(object: Self::Object) -> Event {
        let name = object.name_any();
        let status = object.status.unwrap_or_default();
        Event::Node(name, Some(Node::of(object.metadata, &object.spec, &status)))
    }

    fn gone((_, name): &Key) -> Event {
        Event::Node(name.clone(), None)
    }

    fn all(keys: &HashSet<Key>) -> Event {
        Event::AllNodes(
            keys.iter()
                .map(|(_, name)| Name::from(name.as_str()))
                .collect(),
        )
    }
}

impl Kind for Classes {
    type Object = DynamicObject;
    const KIND: &'static str = "DomainClass";
    const UNKNOWN: &'static str = ": install the CRDs of `nvlink-webhook crds`";

    fn set(object: Self::Object) -> Event {
        let name = object.name_any();
        let spec = object.data.get("spec").unwrap_or(&Value::Null);
        let class = Class::read(&name, spec);
        let class = class.map(Arc::new).map_err(|broken| broken.reason);
        Event::Class(name, Some(class))
    }

    fn gone((_, name): &Key) -> Event {
        Event::Class(name.clone(), None)
    }

    fn all(keys: &HashSet<Key>) -> Event {
        Event::AllClasses(keys.iter().map(|(_, name)| name.clone()).collect())
    }
}

impl Kind for Pods {
    type Object = Object<Value, Value>;
    const KIND: &'static str = "Pod";

    fn set(mut object: Self::Object) -> Event {
        object.metadata.managed_fields = None;
        let id = id(
            object.metadata.namespace.as_deref().unwrap_or_default(),
            object.metadata.name.as_deref().unwrap_or_default(),
        );
        let pod = json!({
            "metadata": object.metadata, "spec": object.spec, "status": object.status
        });
        match concerns(&pod) {
            true => Event::Pod(Box::new(pod)),
            false => Event::Load(id, Load::of(&pod)),
        }
    }

    fn gone((namespace, name): &Key) -> Event {
        Event::PodGone(id(namespace, name))
    }

    fn all(keys: &HashSet<Key>) -> Event {
        let ids = keys.iter().map(|(namespace, name)| id(namespace, name));
        Event::AllPods(ids.collect())
    }
}

impl Kind for Slices {
    type Object = Object<Value, Value>;
    const KIND: &'static str = "ResourceSlice";

    fn set(object: Self::Object) -> Event {
        let name = object.name_any();
        Event::Slice(name, Slice::of(&object.spec))
    }

    fn gone((_, name): &Key) -> Event {
        Event::Slice(name.clone(), None)
    }

    fn all(keys: &HashSet<Key>) -> Event {
        Event::AllSlices(keys.iter().map(|(_, name)| name.clone()).collect())
    }
}

impl Kind for Claims {
    type Object = Object<Value, Value>;
    const KIND: &'static str = "ResourceClaim";

    fn set(object: Self::Object) -> Event {
        let metadata = &object.metadata;
        let id = id(
            metadata.namespace.as_deref().unwrap_or_default(),
            metadata.name.as_deref().unwrap_or_default(),
        );
        let claim = json!({
            "metadata": metadata, "spec": object.spec, "status": object.status
        });
        Event::Claim(id, Claim::of(&claim))
    }

    fn gone((namespace, name): &Key) -> Event {
        Event::Claim(id(namespace, name), None)
    }

    fn all(keys: &HashSet<Key>) -> Event {
        let ids = keys.iter().map(|(namespace, name)| id(namespace, name));
        Event::AllClaims(ids.collect())
    }
}

impl Kind for DeviceClasses {
    type Object = Object<Value, Value>;
    const KIND: &'static str = "DeviceClass";

    fn set(object: Self::Object) -> Event {
        let name = object.name_any();
        Event::DeviceClass(name, Some(DeviceClass::of(&object.spec)))
    }

    fn gone((_, name): &Key) -> Event {
        Event::DeviceClass(name.clone(), None)
    }

    fn all(keys: &HashSet<Key>) -> Event {
        Event::AllDeviceClasses(keys.iter().map(|(_, name)| name.clone()).collect())
    }
}

/// Follows what DRA allocates, as soon as the API server has the version that the queue uses.
async fn follow_dra(client: Client, config: watcher::Config, sender: Sender) {
    let mut failed = false;
    loop {
        let missing =
            |error: &kube::Error| matches!(error, kube::Error::Api(status) if status.code == 404);
        let wait = match client.list_api_group_resources(API_VERSION).await {
            Ok(kinds) if kinds.resources.iter().any(|one| one.kind == Claims::KIND) => break,
            Err(error) if !missing(&error) => {
                if !std::mem::replace(&mut failed, true) {
                    let what = "the queue waits: cannot ask whether the API server has ResourceClaims; trying again";
                    tracing::warn!(%error, "{what}");
                }
                AGAIN
            }
            // An API server that is upgraded, or another one, may have it later.
            _ => {
                let _ = sender.send(Event::AllSlices(HashSet::new()));
                let _ = sender.send(Event::AllClaims(HashSet::new()));
                let _ = sender.send(Event::AllDeviceClasses(HashSet::new()));
                LATER
            }
        };
        tokio::time::sleep(wait).await;
    }
    let kind = |kind: &str, plural: &str| {
        let (group, version) = API_VERSION.split_once('/').unwrap_or_default();
        let kind = GroupVersionKind::gvk(group, version, kind);
        ApiResource::from_gvk_with_plural(&kind, plural)
    };
    let slices = Api::all_with(client.clone(), &kind(Slices::KIND, "resourceslices"));
    let claims = Api::all_with(client.clone(), &kind(Claims::KIND, "resourceclaims"));
    let classes = Api::all_with(client, &kind(DeviceClasses::KIND, "deviceclasses"));
    let classes = follow_device_classes(classes, config.clone(), sender.clone());
    let slices = watch::follow(slices, config.clone(), follower::<Slices>(&sender));
    let claims = watch::follow(claims, config, follower::<Claims>(&sender));
    tokio::join!(slices, claims, classes);
}

/// Follows DeviceClasses. Without the right to see them, which a ClusterRole of an earlier version
/// lacks, the queue goes on as if there were none: only nodes with DRA drivers need them.
async fn follow_device_classes(
    api: Api<<DeviceClasses as Kind>::Object>,
    config: watcher::Config,
    sender: Sender,
) {
    let (mut warned, mut failed) = (false, false);
    loop {
        let wait = match api.list(&ListParams::default().limit(1)).await {
            Ok(_) => break,
            Err(kube::Error::Api(status)) if status.code == 403 => {
                if !std::mem::replace(&mut warned, true) {
                    let what = "the webhook may not list DeviceClasses, so only classes with the mapping Claim get nodes of DRA drivers: run helm upgrade, which brings the right";
                    tracing::warn!(reason = status.message, "{what}");
                }
                let _ = sender.send(Event::AllDeviceClasses(HashSet::new()));
                LATER
            }
            Err(error) => {
                if !std::mem::replace(&mut failed, true) {
                    tracing::warn!(%error, "the queue waits: cannot list DeviceClasses; trying again");
                }
                AGAIN
            }
        };
        tokio::time::sleep(wait).await;
    }
    watch::follow(api, config, follower::<DeviceClasses>(&sender)).await;
}

/// Starts the watches, which end with `tasks`.
pub(super) fn follow(client: &Client, tasks: &mut JoinSet<()>) -> mpsc::UnboundedReceiver<Event> {
    let (sender, receiver) = mpsc::unbounded_channel();
    // A node or a pod has up to 20 KiB.
    let config = watcher::Config::default().page_size(100);
    let nodes = Api::all_with(client.clone(), &ApiResource::erase::<v1::Node>(&()));
    let pods = Api::all_with(client.clone(), &ApiResource::erase::<v1::Pod>(&()));
    let classes = Api::all_with(client.clone(), &ApiResource::erase::<DomainClass>(&()));
    tasks.spawn(watch::follow(
        nodes,
        config.clone(),
        follower::<Nodes>(&sender),
    ));
    tasks.spawn(watch::follow(
        pods,
        config.clone(),
        follower::<Pods>(&sender),
    ));
    let of_dra = follow_dra(client.clone(), config.clone(), sender.clone());
    tasks.spawn(of_dra);
    tasks.spawn(watch::follow(classes, config, follower::<Classes>(&sender)));
    let (client, nodes) = (client.clone(), mirror::Mirror::default());
    tasks.spawn(async move {
        let mirror = nodes.clone();
        let told = move |name: Option<&str>| {
            let event = match name {
                Some(name) => {
                    let published = nodes.read().nodes.get(name).cloned();
                    Event::Topology(name.to_owned(), published)
                }
                None => Event::AllTopologies,
            };
            let _ = sender.send(event);
        };
        watches::follow_topologies(&client, mirror, told).await;
    });
    receiver
}

fn follower<K: Kind>(sender: &Sender) -> Follower<K> {
    Follower(sender.clone(), PhantomData)
}
