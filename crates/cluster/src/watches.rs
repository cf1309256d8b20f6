//! Watches that keep the [`View`] in sync with the cluster.

use std::{collections::HashSet, fmt::Debug, marker::PhantomData, sync::Arc};

use k8s_openapi::api::core::v1::{Namespace, Node, Taint};
use kube::{
    Api, Client, Resource, ResourceExt,
    core::{ApiResource, DynamicObject, NotUsed, Object, PartialObjectMeta},
    runtime::watcher,
};
use nvlink_admission::view::{SharedView, View};
use nvlink_api::{class::Class, crd::DomainClass, node_topology};
use nvlink_runtime::{
    supervise::{Supervisor, Weight},
    watch::{self, Key, Mirror},
};
use nvlink_topology::labels;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::sync::watch as channel;

use crate::{extent::Extent, metrics::Metrics};

/// A kind of object that the view uses.
trait Mirrored {
    type Object: Resource + Clone + Debug + DeserializeOwned + Send + 'static;
    const KIND: &'static str;
    /// The supervisor's name of its watch.
    const WATCH: &'static str;
    /// Objects per page of a list.
    const PAGE: u32 = 500;
    /// Whether decisions need it: no decision is made before all its objects were read.
    const DECIDES: bool = true;

    fn set(view: &mut View, name: &str, object: Self::Object);
    fn remove(view: &mut View, name: &str);
    /// Returns the names of all objects that may be in the view.
    fn names(view: &View) -> Vec<String>;
}

struct Classes;
struct Nodes;
struct Namespaces;
struct Topologies;

impl Mirrored for Classes {
    /// Raw JSON, because a class that cannot be parsed is guarded by its known fields.
    type Object = DynamicObject;
    const KIND: &'static str = "DomainClass";
    const WATCH: &'static str = "watch of classes";

    fn set(view: &mut View, name: &str, object: Self::Object) {
        let spec = object.data.get("spec").unwrap_or(&Value::Null);
        let class = Class::read(name, spec);
        if let Err(broken) = &class {
            let reason = &broken.reason;
            tracing::warn!(class = name, reason, "class cannot be used");
        }
        view.set_read_class(name, class);
    }

    fn remove(view: &mut View, name: &str) {
        view.remove_class(name);
    }

    fn names(view: &View) -> Vec<String> {
        view.class_names().map(str::to_owned).collect()
    }
}

/// The part of a node's spec that decisions need: its taints, which are not in its metadata.
#[derive(Clone, Debug, Deserialize)]
struct NodeSpec {
    #[serde(default)]
    taints: Vec<Taint>,
}

impl NodeSpec {
    /// Returns the classes whose taint keeps pods off the node.
    fn classes(self) -> Vec<String> {
        let ours = |taint: &Taint| taint.key == labels::CLASS && taint.effect == "NoSchedule";
        let ours = self.taints.into_iter().filter(ours);
        ours.filter_map(|taint| taint.value).collect()
    }
}

impl Mirrored for Nodes {
    type Object = Object<NodeSpec, NotUsed>;
    const KIND: &'static str = "Node";
    const WATCH: &'static str = "watch of nodes";
    /// A node has 20 KiB, most of it images.
    const PAGE: u32 = 100;

    fn set(view: &mut View, name: &str, mut object: Self::Object) {
        view.set_node(name, object.metadata.labels.take().unwrap_or_default());
        view.set_tainted(name, object.spec.classes());
    }

    fn remove(view: &mut View, name: &str) {
        view.remove_node(name);
    }

    fn names(view: &View) -> Vec<String> {
        view.nodes()
    }
}

impl Mirrored for Namespaces {
    type Object = PartialObjectMeta<Namespace>;
    const KIND: &'static str = "Namespace";
    const WATCH: &'static str = "watch of namespaces";

    fn set(view: &mut View, name: &str, object: Self::Object) {
        let class = object.annotations().get(labels::DEFAULT_CLASS);
        view.set_default_class(name, class.map(String::as_str));
    }

    fn remove(view: &mut View, name: &str) {
        view.set_default_class(name, None);
    }

    fn names(view: &View) -> Vec<String> {
        view.namespaces()
    }
}

impl Mirrored for Topologies {
    type Object = Extent;
    const KIND: &'static str = "NodeTopology";
    const WATCH: &'static str = "watch of topologies";
    /// A NodeTopology has 20 KiB.
    const PAGE: u32 = 100;
    /// Only the warning that all nodes are in use needs it, and the order of devices, which makes no
    /// difference on most nodes. Unknown nodes count as free, and their GPUs as whole.
    const DECIDES: bool = false;

    fn set(view: &mut View, name: &str, object: Self::Object) {
        let (free, mig) = object.read().unwrap_or_else(|error| {
            tracing::warn!(node = name, %error, "cannot parse the NodeTopology; using the node's labels");
            (None, false)
        });
        view.set_free(name, free);
        view.set_mig(name, mig);
    }

    fn remove(view: &mut View, name: &str) {
        view.set_free(name, None);
        view.set_mig(name, false);
    }

    fn names(view: &View) -> Vec<String> {
        view.nodes()
    }
}

/// Applies the events of a watch to the view and to the metrics.
struct Follower<M> {
    view: SharedView,
    metrics: Arc<Metrics>,
    synced: channel::Sender<bool>,
    kind: PhantomData<fn() -> M>,
}

impl<M: Mirrored> Mirror for Follower<M> {
    type Object = M::Object;
    const KIND: &'static str = M::KIND;
    const UNKNOWN: &'static str = ": install the CRDs of `nvlink-webhook crds`";

    fn set(&mut self, object: Self::Object) {
        let name = object.name_any();
        M::set(&mut self.view.write(), &name, object);
    }

    fn remove(&mut self, (_, name): &Key) {
        M::remove(&mut self.view.write(), name);
    }

    fn retain(&mut self, keys: &HashSet<Key>) {
        let mut view = self.view.write();
        for name in M::names(&view) {
            let key = (String::new(), name);
            if !keys.contains(&key) {
                M::remove(&mut view, &key.1);
            }
        }
        drop(view);
        if !self.synced.send_replace(true) {
            tracing::info!(kind = M::KIND, "cache synced");
        }
    }

    fn follows(&mut self, follows: bool) {
        self.metrics.watch(M::KIND, follows);
    }
}

/// The watches, and whether those that decisions need have been in sync once.
pub struct Watches {
    synced: Vec<channel::Receiver<bool>>,
}

impl Watches {
    #[must_use]
    pub fn start(
        client: &Client,
        view: &SharedView,
        metrics: &Arc<Metrics>,
        supervisor: &Supervisor,
    ) -> Self {
        let mut watches = Self { synced: Vec::new() };
        let classes = ApiResource::erase::<DomainClass>(&());
        let classes = Api::all_with(client.clone(), &classes);
        watches.add::<Classes>(classes, view, metrics, supervisor);
        let nodes = Api::all_with(client.clone(), &ApiResource::erase::<Node>(&()));
        watches.add::<Nodes>(nodes, view, metrics, supervisor);
        watches.add::<Namespaces>(Api::all(client.clone()), view, metrics, supervisor);
        let topologies = Api::all_with(client.clone(), &node_topology::resource());
        watches.add::<Topologies>(topologies, view, metrics, supervisor);
        watches
    }

    fn add<M: Mirrored + 'static>(
        &mut self,
        api: Api<M::Object>,
        view: &SharedView,
        metrics: &Arc<Metrics>,
        supervisor: &Supervisor,
    ) where
        <M::Object as Resource>::DynamicType: Clone + Debug + Send + Sync + 'static,
    {
        let (sender, receiver) = channel::channel(false);
        if M::DECIDES {
            self.synced.push(receiver);
        }
        let (view, metrics) = (view.clone(), Arc::clone(metrics));
        supervisor.keep(M::WATCH, Weight::Vital, move || {
            let follower = Follower::<M> {
                view: view.clone(),
                metrics: Arc::clone(&metrics),
                synced: sender.clone(),
                kind: PhantomData,
            };
            // Not `any_semantic`: with it API servers return all objects at once.
            let config = watcher::Config::default().page_size(M::PAGE);
            watch::follow(api.clone(), config, follower)
        });
    }

    /// Waits until every kind that decisions need has been in sync once.
    pub async fn synced(self) {
        for mut receiver in self.synced {
            // An error means that the supervisor is gone: the process ends.
            drop(receiver.wait_for(|synced| *synced).await);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use serde_json::json;

    use super::*;

    fn class(name: &str, spec: serde_json::Value) -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": nvlink_topology::API_VERSION, "kind": "DomainClass",
            "metadata": {"name": name}, "spec": spec
        }))
        .unwrap()
    }

    #[tokio::test]
    async fn a_restarted_watch_drops_deleted_objects() {
        use watcher::Event::{Apply, Delete, Init, InitApply, InitDone};
        let view = SharedView::default();
        let (synced, receiver) = channel::channel(false);
        let follower = Follower::<Classes> {
            view: view.clone(),
            metrics: Arc::default(),
            synced,
            kind: PhantomData,
        };
        let events = [
            Init,
            InitApply(class("a", json!({}))),
            InitApply(class("b", json!({"placement": {"scope": "universe"}}))),
            InitDone,
            Apply(class("c", json!({}))),
            Delete(class("a", json!({}))),
            Init,
            InitApply(class("b", json!({"placement": {"scope": "universe"}}))),
            InitApply(class("d", json!({}))),
            InitDone,
        ];
        watch::reflect(stream::iter(events.map(Ok)), follower).await;
        assert!(*receiver.borrow());
        let view = view.read();
        assert_eq!(view.class_names().collect::<Vec<_>>(), ["b", "d"]);
        let reason = view.class("b").unwrap().unwrap_err();
        assert!(
            reason.contains("cannot be parsed") && reason.contains("universe"),
            "{reason}"
        );
    }
}
