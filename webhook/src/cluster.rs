//! Watches that keep the [`View`] like the cluster.

use std::{collections::HashSet, fmt::Debug, marker::PhantomData, sync::Arc};

use k8s_openapi::api::core::v1::{Namespace, Node, Taint};
use kube::{
    Api, Client, Resource, ResourceExt,
    core::{ApiResource, DynamicObject, NotUsed, Object, PartialObjectMeta},
    runtime::watcher,
};
use nvlink_runtime::{
    supervise::{Supervisor, Weight},
    topology,
    watch::{self, Key, Mirror},
};
use nvlink_topology::labels;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::sync::watch as channel;

use crate::{
    class::Class,
    cluster::view::{SharedView, View},
    crd::DomainClass,
    metrics::Metrics,
};

mod extent;
mod isolated;
pub mod status;
mod strays;
pub mod view;

use extent::Extent;
pub use extent::free;

/// Field manager of what the webhook writes into the cluster.
pub(crate) const MANAGER: &str = "nvlink-webhook";

/// A kind of object of which the view holds something.
trait Mirrored {
    type Object: Resource + Clone + Debug + DeserializeOwned + Send + 'static;
    const KIND: &'static str;
    /// What its watch is called.
    const WATCH: &'static str;
    /// Objects that are asked for at a time.
    const PAGE: u32 = 500;
    /// Decisions hang on it: nothing is decided before all of it was seen.
    const DECIDES: bool = true;

    fn set(view: &mut View, name: &str, object: Self::Object);
    fn remove(view: &mut View, name: &str);
    /// Names of all objects that may be in the view.
    fn names(view: &View) -> Vec<String>;
}

struct Classes;
struct Nodes;
struct Namespaces;
struct Topologies;

impl Mirrored for Classes {
    /// As raw JSON: one that cannot be read is guarded by what can be told of it.
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

/// What of a node's spec counts: its taints, of which its metadata says nothing.
#[derive(Clone, Debug, Deserialize)]
struct NodeSpec {
    #[serde(default)]
    taints: Vec<Taint>,
}

impl NodeSpec {
    /// The classes whose taint keeps pods off the node.
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
    /// They have 20 KiB each, most of it images.
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
    /// They have 20 KiB each.
    const PAGE: u32 = 100;
    /// Only the warning that all nodes are in use; those not seen count as free.
    const DECIDES: bool = false;

    fn set(view: &mut View, name: &str, object: Self::Object) {
        let free = object.free().unwrap_or_else(|error| {
            tracing::warn!(node = name, %error, "NodeTopology cannot be read; going by the node's labels");
            None
        });
        view.set_free(name, free);
    }

    fn remove(view: &mut View, name: &str) {
        view.set_free(name, None);
    }

    fn names(view: &View) -> Vec<String> {
        view.nodes()
    }
}

/// Tells the view, and the metrics, what the watch of a kind says.
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

/// The watches, and whether those on which decisions hang have seen everything once.
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
        let topologies = Api::all_with(client.clone(), &topology::resource());
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
            // Not `any_semantic`, with which API servers answer with all objects at once.
            let config = watcher::Config::default().page_size(M::PAGE);
            watch::follow(api.clone(), config, follower)
        });
    }

    /// Waits until every kind on which decisions hang was seen once.
    pub async fn synced(self) {
        for mut receiver in self.synced {
            // An error means that the supervisor is gone, and with it the process.
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
    async fn a_restarted_watch_forgets_what_is_gone() {
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
            reason.contains("cannot be read") && reason.contains("universe"),
            "{reason}"
        );
    }
}
