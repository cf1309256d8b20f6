//! The kinds that this process follows: one watch for each, whatever needs it.

mod optional;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use k8s_openapi::{
    api::{
        core::v1::{Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod},
        resource::v1::{self, ResourceClaim, ResourceSlice},
        storage,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client, ResourceExt,
    core::{ApiResource, DynamicObject, Object, PartialObjectMeta},
    runtime::watcher,
};
use nvlink_api::{
    class::{Broken, Class},
    crd::DomainClass,
    node_topology,
};
use nvlink_runtime::{
    supervise::{Supervisor, Weight},
    watch,
};
use nvlink_topology::labels;
use serde::Deserialize;
use serde_json::{Value, json};

use self::optional::keep_optional;
use crate::{
    gpus::{Claim, DeviceClass, Document, Hardwares, Published, Slice},
    informer::{Extent, Fan, Informer, Kind, Reader},
    volumes::{StorageClass, Volume, VolumeClaim},
};

/// One informer for each kind.
#[derive(Clone, Default)]
pub struct Informers {
    pub classes: Informer<ReadClass>,
    pub nodes: Informer<NodeObject>,
    pub namespaces: Informer<ObjectMeta>,
    pub topologies: Informer<Arc<Published>>,
    pub pods: Informer<PodObject>,
    /// `None`: the slice has no GPUs.
    pub slices: Informer<Option<Slice>>,
    /// `None`: the claim holds no GPUs and is not the queue's.
    pub claims: Informer<Option<Claim>>,
    pub device_classes: Informer<DeviceClass>,
    pub volume_claims: Informer<VolumeClaim>,
    pub volumes: Informer<Volume>,
    pub storage_classes: Informer<StorageClass>,
}

/// A class, as [`Class::read`] returns it.
pub type ReadClass = Result<Class, Box<Broken>>;

/// What is read of a node: most of its 20 KiB are the names of images.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NodeObject {
    pub metadata: ObjectMeta,
    pub spec: Value,
    /// The fields `conditions` and `allocatable`.
    pub status: Value,
}

/// What is read of a pod.
#[derive(Clone, Debug, Default)]
pub struct PodObject {
    pub metadata: ObjectMeta,
    /// The pod as JSON, without `managedFields`; `None` if only metadata are read.
    pub document: Option<Value>,
}

struct Classes;
struct Nodes;
struct Namespaces;
struct Topologies(Arc<Mutex<KnownTopologies>>);
struct Pods;
struct PodsOfClasses;
struct Slices;
struct Claims;
struct DeviceClasses;
struct VolumeClaims;
struct Volumes;
struct StorageClasses;

/// What outlives the watch of topologies.
#[derive(Default)]
struct KnownTopologies {
    hardwares: Hardwares,
    /// The NodeTopologies that could not be read, by node, and why.
    unreadable: BTreeMap<String, String>,
}

const CRDS: &str = ": install the CRDs of `nvlink-webhook crds`";
const DRA: &str = ", so it is not known which GPUs claims hold, and no pod leaves the queue";

impl Kind for Classes {
    /// Raw JSON, because a class that cannot be parsed is guarded by its known fields.
    type Object = DynamicObject;
    type Item = ReadClass;
    const KIND: &'static str = "DomainClass";
    const UNKNOWN: &'static str = CRDS;

    fn read(&mut self, object: DynamicObject) -> ReadClass {
        let spec = object.data.get("spec").unwrap_or(&Value::Null);
        Class::read(&object.name_any(), spec)
    }
}

/// The fields of a node's status that are read.
#[derive(Clone, Debug, Default, Deserialize)]
struct NodeStatus {
    #[serde(default)]
    conditions: Value,
    #[serde(default)]
    allocatable: Value,
}

impl Kind for Nodes {
    type Object = Object<Value, NodeStatus>;
    type Item = NodeObject;
    const KIND: &'static str = "Node";

    fn read(&mut self, object: Self::Object) -> NodeObject {
        let status = object.status.unwrap_or_default();
        NodeObject {
            metadata: object.metadata,
            spec: object.spec,
            status: json!({"conditions": status.conditions, "allocatable": status.allocatable}),
        }
    }
}

impl Kind for Namespaces {
    type Object = PartialObjectMeta<Namespace>;
    type Item = ObjectMeta;
    const KIND: &'static str = "Namespace";

    fn read(&mut self, object: Self::Object) -> ObjectMeta {
        object.metadata
    }
}

impl Kind for Topologies {
    type Object = Document;
    type Item = Arc<Published>;
    const KIND: &'static str = "NodeTopology";
    const UNKNOWN: &'static str = CRDS;

    fn read(&mut self, object: Document) -> Arc<Published> {
        let name = object.name_any();
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let published = known.hardwares.read(object);
        match &published {
            Ok(_) => _ = known.unreadable.remove(&name),
            Err(error) => {
                if known.unreadable.get(&name) != Some(error) {
                    tracing::warn!(node = name, %error, "cannot parse the NodeTopology; using the node's labels");
                    known.unreadable.insert(name, error.clone());
                }
            }
        }
        Arc::new(published)
    }
}

impl Kind for Pods {
    type Object = Object<Value, Value>;
    type Item = PodObject;
    const KIND: &'static str = "Pod";
    const FORBIDDEN: &'static str =
        ", so no pod leaves the queue, and it is not known which pods are bound";

    fn read(&mut self, mut object: Self::Object) -> PodObject {
        object.metadata.managed_fields = None;
        let document = json!({
            "metadata": object.metadata, "spec": object.spec, "status": object.status,
        });
        PodObject {
            metadata: object.metadata,
            document: Some(document),
        }
    }
}

impl Kind for PodsOfClasses {
    type Object = PartialObjectMeta<Pod>;
    type Item = PodObject;
    const KIND: &'static str = "Pod";
    const FORBIDDEN: &'static str = ", so the page shows no classes and projects";

    fn read(&mut self, object: Self::Object) -> PodObject {
        PodObject {
            metadata: object.metadata,
            document: None,
        }
    }
}

impl Kind for Slices {
    type Object = ResourceSlice;
    type Item = Option<Slice>;
    const KIND: &'static str = "ResourceSlice";
    const FORBIDDEN: &'static str = DRA;

    fn read(&mut self, object: Self::Object) -> Option<Slice> {
        Slice::of(&object.spec)
    }
}

impl Kind for Claims {
    type Object = ResourceClaim;
    type Item = Option<Claim>;
    const KIND: &'static str = "ResourceClaim";
    const FORBIDDEN: &'static str = DRA;

    fn read(&mut self, object: Self::Object) -> Option<Claim> {
        Claim::of(&object)
    }
}

impl Kind for DeviceClasses {
    type Object = v1::DeviceClass;
    type Item = DeviceClass;
    const KIND: &'static str = "DeviceClass";
    const FORBIDDEN: &'static str = DRA;

    fn read(&mut self, object: Self::Object) -> DeviceClass {
        DeviceClass::of(&object.spec)
    }
}

impl Kind for VolumeClaims {
    type Object = PersistentVolumeClaim;
    type Item = VolumeClaim;
    const KIND: &'static str = "PersistentVolumeClaim";

    fn read(&mut self, object: PersistentVolumeClaim) -> VolumeClaim {
        VolumeClaim::of(&object)
    }
}

impl Kind for Volumes {
    type Object = PersistentVolume;
    type Item = Volume;
    const KIND: &'static str = "PersistentVolume";

    fn read(&mut self, object: PersistentVolume) -> Volume {
        Volume::of(&object)
    }
}

impl Kind for StorageClasses {
    type Object = storage::v1::StorageClass;
    type Item = StorageClass;
    const KIND: &'static str = "StorageClass";

    fn read(&mut self, object: storage::v1::StorageClass) -> StorageClass {
        StorageClass::of(&object)
    }
}

/// Returns how a kind is read. With pages, API servers do not return all objects at once; a node, a
/// pod or a NodeTopology has 20 KiB.
fn pages(size: u32) -> watcher::Config {
    watcher::Config::default().page_size(size)
}

impl Informers {
    /// Keeps the informers running. Those are vital by which admission decides.
    pub fn start(&self, client: &Client, supervisor: &Supervisor) {
        let api = Api::all_with(client.clone(), &ApiResource::erase::<DomainClass>(&()));
        let classes = move |_, fan| watch::follow(api.clone(), pages(500), Reader(Classes, fan));
        keep(
            "watch of classes",
            Weight::Vital,
            &self.classes,
            supervisor,
            classes,
        );
        let api = Api::all_with(client.clone(), &ApiResource::erase::<Node>(&()));
        let nodes = move |_, fan| watch::follow(api.clone(), pages(100), Reader(Nodes, fan));
        keep(
            "watch of nodes",
            Weight::Vital,
            &self.nodes,
            supervisor,
            nodes,
        );
        let api = Api::all(client.clone());
        let namespaces =
            move |_, fan| watch::follow(api.clone(), pages(500), Reader(Namespaces, fan));
        keep(
            "watch of namespaces",
            Weight::Vital,
            &self.namespaces,
            supervisor,
            namespaces,
        );
        let api = Api::all_with(client.clone(), &node_topology::resource());
        let known = Arc::<Mutex<KnownTopologies>>::default();
        let topologies = move |_, fan| {
            let kind = Topologies(Arc::clone(&known));
            watch::follow(api.clone(), pages(100), Reader(kind, fan))
        };
        keep(
            "watch of topologies",
            Weight::Vital,
            &self.topologies,
            supervisor,
            topologies,
        );
        self.start_minor(client, supervisor);
    }

    /// Keeps those running without which admission decides.
    fn start_minor(&self, client: &Client, supervisor: &Supervisor) {
        let api = client.clone();
        let pods = move |extent, fan| follow_pods(api.clone(), extent, fan);
        keep("watch of pods", Weight::Minor, &self.pods, supervisor, pods);
        keep_optional(
            (client, supervisor),
            "watch of ResourceSlices",
            &self.slices,
            || Slices,
        );
        keep_optional(
            (client, supervisor),
            "watch of ResourceClaims",
            &self.claims,
            || Claims,
        );
        keep_optional(
            (client, supervisor),
            "watch of DeviceClasses",
            &self.device_classes,
            || DeviceClasses,
        );
        keep_optional(
            (client, supervisor),
            "watch of PersistentVolumeClaims",
            &self.volume_claims,
            || VolumeClaims,
        );
        keep_optional(
            (client, supervisor),
            "watch of PersistentVolumes",
            &self.volumes,
            || Volumes,
        );
        keep_optional(
            (client, supervisor),
            "watch of StorageClasses",
            &self.storage_classes,
            || StorageClasses,
        );
    }
}

/// Keeps an informer running, by `watch`.
fn keep<T: 'static, F>(
    name: &'static str,
    weight: Weight,
    informer: &Informer<T>,
    supervisor: &Supervisor,
    watch: impl Fn(Extent, Fan<T>) -> F + Clone + Send + Sync + 'static,
) where
    F: Future<Output = ()> + Send,
{
    let informer = informer.clone();
    supervisor.keep(name, weight, move || informer.clone().run(watch.clone()));
}

async fn follow_pods(client: Client, extent: Extent, fan: Fan<PodObject>) {
    match extent {
        Extent::OfClasses => {
            let config = pages(100).labels(labels::CLASS);
            watch::follow(Api::all(client), config, Reader(PodsOfClasses, fan)).await;
        }
        Extent::Whole => {
            let pods = Api::all_with(client, &ApiResource::erase::<Pod>(&()));
            watch::follow(pods, pages(100), Reader(Pods, fan)).await;
        }
    }
}
