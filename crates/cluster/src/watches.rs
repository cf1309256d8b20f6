//! Keeps the [`View`] that admission decides by in sync with the cluster.

use std::{collections::HashSet, sync::Arc};

use k8s_openapi::{api::core::v1::Taint, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use nvlink_admission::view::{SharedView, View};
use nvlink_runtime::watch::Key;
use nvlink_topology::labels;
use serde::Deserialize;
use tokio::sync::watch as channel;

use crate::{
    informer::{Extent, Follower, Informer},
    kinds::{Informers, NodeObject, ReadClass},
    metrics::Metrics,
};

/// What the view keeps of a kind.
trait Viewed: Send + 'static {
    type Item;

    fn set(view: &mut View, name: &str, item: &Self::Item);
    fn remove(view: &mut View, name: &str);
    /// Returns the names of all objects that may be in the view.
    fn names(view: &View) -> Vec<String>;
}

struct Classes;
struct Nodes;
struct Namespaces;

impl Viewed for Classes {
    type Item = ReadClass;

    fn set(view: &mut View, name: &str, class: &ReadClass) {
        if let Err(broken) = class {
            let reason = &broken.reason;
            if view.class(name).and_then(Result::err) != Some(reason) {
                tracing::warn!(class = name, reason, "class cannot be used");
            }
        }
        view.set_read_class(name, class.clone());
    }

    fn remove(view: &mut View, name: &str) {
        view.remove_class(name);
    }

    fn names(view: &View) -> Vec<String> {
        view.class_names().map(str::to_owned).collect()
    }
}

/// Returns the classes whose taint keeps pods off a node.
fn tainted(node: &NodeObject) -> Vec<String> {
    let taints = node.spec.get("taints").map(Vec::<Taint>::deserialize);
    let taints = taints.into_iter().flatten().flatten();
    let ours = taints.filter(|one| one.key == labels::CLASS && one.effect == "NoSchedule");
    ours.filter_map(|taint| taint.value).collect()
}

impl Viewed for Nodes {
    type Item = NodeObject;

    fn set(view: &mut View, name: &str, node: &NodeObject) {
        view.set_node(name, node.metadata.labels.clone().unwrap_or_default());
        view.set_tainted(name, tainted(node));
    }

    fn remove(view: &mut View, name: &str) {
        view.remove_node(name);
    }

    fn names(view: &View) -> Vec<String> {
        view.nodes()
    }
}

impl Viewed for Namespaces {
    type Item = ObjectMeta;

    fn set(view: &mut View, name: &str, metadata: &ObjectMeta) {
        let annotations = metadata.annotations.as_ref();
        let class = annotations.and_then(|all| all.get(labels::DEFAULT_CLASS));
        view.set_default_class(name, class.map(String::as_str));
    }

    fn remove(view: &mut View, name: &str) {
        view.set_default_class(name, None);
    }

    fn names(view: &View) -> Vec<String> {
        view.namespaces()
    }
}

/// Applies the changes of a kind to the view.
struct Viewer<V>(SharedView, std::marker::PhantomData<fn() -> V>);

impl<V: Viewed> Follower<V::Item> for Viewer<V> {
    fn set(&mut self, (_, name): &Key, item: &V::Item) {
        V::set(&mut self.0.write(), name, item);
    }

    fn remove(&mut self, (_, name): &Key) {
        V::remove(&mut self.0.write(), name);
    }

    fn retain(&mut self, keys: &HashSet<Key>, _: Extent) {
        let mut view = self.0.write();
        for name in V::names(&view) {
            let key = (String::new(), name);
            if !keys.contains(&key) {
                V::remove(&mut view, &key.1);
            }
        }
    }
}

/// Says whether a kind is in sync.
struct InSync {
    kind: &'static str,
    metrics: Arc<Metrics>,
    synced: channel::Sender<bool>,
}

impl<T> Follower<T> for InSync {
    fn set(&mut self, _: &Key, _: &T) {}
    fn remove(&mut self, _: &Key) {}

    fn retain(&mut self, _: &HashSet<Key>, _: Extent) {
        if !self.synced.send_replace(true) {
            tracing::info!(kind = self.kind, "cache synced");
        }
    }

    fn follows(&mut self, follows: bool) {
        self.metrics.watch(self.kind, follows);
    }
}

/// Whether the kinds that decisions need have been in sync once.
pub struct Watches {
    synced: Vec<channel::Receiver<bool>>,
}

impl Watches {
    /// Keeps `view` in sync. What it says of free GPUs, the mirror keeps.
    #[must_use]
    pub fn start(informers: &Informers, view: &SharedView, metrics: &Arc<Metrics>) -> Self {
        fn viewer<V: Viewed>(view: &SharedView) -> Viewer<V> {
            Viewer(view.clone(), std::marker::PhantomData)
        }
        let Informers {
            classes,
            nodes,
            namespaces,
            topologies,
            ..
        } = informers;
        classes.keep(Extent::Whole, viewer::<Classes>(view));
        nodes.keep(Extent::Whole, viewer::<Nodes>(view));
        namespaces.keep(Extent::Whole, viewer::<Namespaces>(view));
        let synced = vec![
            in_sync(classes, "DomainClass", metrics),
            in_sync(nodes, "Node", metrics),
            in_sync(namespaces, "Namespace", metrics),
        ];
        // Decisions do not wait for it: only the warning that all nodes are in use needs it, and the
        // order of devices, which makes no difference on most nodes. Unknown nodes count as free,
        // and their GPUs as whole.
        in_sync(topologies, "NodeTopology", metrics);
        Self { synced }
    }

    /// Waits until every kind that decisions need has been in sync once.
    pub async fn synced(self) {
        for mut receiver in self.synced {
            // An error means that the informer is gone: the process ends.
            drop(receiver.wait_for(|synced| *synced).await);
        }
    }
}

fn in_sync<T>(
    informer: &Informer<T>,
    kind: &'static str,
    metrics: &Arc<Metrics>,
) -> channel::Receiver<bool> {
    let (synced, receiver) = channel::channel(false);
    let metrics = Arc::clone(metrics);
    let follower = InSync {
        kind,
        metrics,
        synced,
    };
    informer.keep(Extent::Whole, follower);
    receiver
}
