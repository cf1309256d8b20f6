//! Whether there is anything to do: while no class queues and no pod waits, the leader follows only
//! the classes, and those pods of classes that have no node yet. On a cluster that does not use the
//! queue these are few, and the API server picks them out by an index.
//!
//! A pod that waits has the label of a class, because the webhook wrote both into it. Nobody else
//! may add the queue's gate, and nobody may remove the label.

use std::{collections::HashSet, marker::PhantomData};

use k8s_openapi::api::core::v1;
use kube::{
    Api, Client, ResourceExt,
    core::{ApiResource, DynamicObject, Object},
    runtime::watcher,
};
use nvlink_api::{class::Class, crd::DomainClass};
use nvlink_runtime::watch::{self, Key, Mirror};
use nvlink_topology::labels;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::Life;

/// Returns when a class queues or a pod waits.
pub(super) async fn needed(client: &Client) {
    let (sender, mut found) = mpsc::channel(1);
    let config = watcher::Config::default().page_size(100);
    let unbound = config.clone().labels(labels::CLASS);
    let unbound = unbound.fields("spec.nodeName=,status.phase=Pending");
    let classes = Api::all_with(client.clone(), &ApiResource::erase::<DomainClass>(&()));
    let pods = Api::all_with(client.clone(), &ApiResource::erase::<v1::Pod>(&()));
    let seek = Seek::<Classes>(sender.clone(), PhantomData);
    let classes = watch::follow(classes, config, seek);
    let pods = watch::follow(pods, unbound, Seek::<Pods>(sender, PhantomData));
    tokio::select! {
        _ = found.recv() => {}
        () = classes => {}
        () = pods => {}
    }
}

/// Objects that may need the queue.
trait Kind: 'static {
    type Object: kube::Resource
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned
        + Send
        + 'static;
    const KIND: &'static str;

    fn needs(object: &Self::Object) -> bool;
}

/// Tells when an object needs the queue.
struct Seek<K>(mpsc::Sender<()>, PhantomData<fn() -> K>);

impl<K: Kind> Mirror for Seek<K> {
    type Object = K::Object;
    const KIND: &'static str = K::KIND;
    const UNKNOWN: &'static str = ": install the CRDs of `nvlink-webhook crds`";
    const FORBIDDEN: &'static str = ", so no pod leaves the queue";

    fn set(&mut self, object: K::Object) {
        if K::needs(&object) {
            // Full, it tells already.
            let _ = self.0.try_send(());
        }
    }

    fn remove(&mut self, _: &Key) {}
    fn retain(&mut self, _: &HashSet<Key>) {}
}

struct Classes;
struct Pods;

impl Kind for Classes {
    type Object = DynamicObject;
    const KIND: &'static str = "DomainClass";

    fn needs(object: &Self::Object) -> bool {
        let spec = object.data.get("spec").unwrap_or(&Value::Null);
        Class::read(&object.name_any(), spec).is_ok_and(|class| class.queue.is_some())
    }
}

impl Kind for Pods {
    type Object = Object<Value, Value>;
    const KIND: &'static str = "Pod";

    fn needs(object: &Self::Object) -> bool {
        // As the queue sees it: nobody waits for a pod that is being deleted, however long a
        // finalizer keeps it.
        let pod = json!({
            "metadata": object.metadata, "spec": object.spec, "status": object.status,
        });
        matches!(Life::of(&pod), Life::Waiting { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_that_waits_needs_the_queue_unless_it_is_being_deleted() {
        let pod = |gates: &[&str], deleted: Option<&str>| -> Object<Value, Value> {
            let gates: Vec<Value> = gates.iter().map(|name| json!({ "name": name })).collect();
            let pod = json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {
                    "name": "a", "namespace": "team", "deletionTimestamp": deleted,
                    "finalizers": ["example.com/x"],
                },
                "spec": {"schedulingGates": gates}, "status": {"phase": "Pending"},
            });
            serde_json::from_value(pod).unwrap()
        };
        let ours = labels::QUEUE_GATE;
        assert!(Pods::needs(&pod(&[ours], None)));
        assert!(Pods::needs(&pod(&["example.com/y", ours], None)));
        assert!(!Pods::needs(&pod(&["example.com/y"], None)));
        assert!(!Pods::needs(&pod(&[ours], Some("2026-08-01T10:00:00Z"))));
    }
}
