//! Whether there is anything to do: while no class queues and no pod waits, the leader follows only
//! the classes, and those pods of classes that have no node yet. On a cluster that does not use the
//! queue these are few, and the API server picks them out by an index.
//!
//! A pod that waits has the label of a class, because the webhook wrote both into it. Nobody else
//! may add the queue's gate, and nobody may remove the label.

use std::collections::HashSet;

use k8s_openapi::api::core::v1;
use kube::{
    Api, Client,
    core::{ApiResource, Object},
    runtime::watcher,
};
use nvlink_cluster::{
    informer::{Extent, Follower},
    kinds::{Informers, ReadClass},
};
use nvlink_runtime::watch::{self, Key, Mirror};
use nvlink_topology::labels;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::Life;

/// Returns when a class queues or a pod waits.
pub(super) async fn needed(client: &Client, informers: &Informers) {
    let (sender, mut found) = mpsc::channel(1);
    let classes = Classes(sender.clone());
    let _classes = informers.classes.subscribe(Extent::Whole, classes);
    let config = watcher::Config::default().page_size(100);
    let config = config.labels(labels::CLASS);
    let unbound = config.fields("spec.nodeName=,status.phase=Pending");
    let pods = Api::all_with(client.clone(), &ApiResource::erase::<v1::Pod>(&()));
    // Not the informer of pods: these are a few of all.
    tokio::select! {
        _ = found.recv() => {}
        () = watch::follow(pods, unbound, Pods(sender)) => {}
    }
}

/// Tells when a class queues.
struct Classes(mpsc::Sender<()>);

impl Follower<ReadClass> for Classes {
    fn set(&mut self, _: &Key, class: &ReadClass) {
        if class.as_ref().is_ok_and(|class| class.queue.is_some()) {
            // Full, it tells already.
            let _ = self.0.try_send(());
        }
    }

    fn remove(&mut self, _: &Key) {}
    fn retain(&mut self, _: &HashSet<Key>, _: Extent) {}
}

/// Tells when a pod waits.
struct Pods(mpsc::Sender<()>);

impl Mirror for Pods {
    type Object = Object<Value, Value>;
    const KIND: &'static str = "Pod";
    const UNKNOWN: &'static str = "";
    const FORBIDDEN: &'static str = ", so no pod leaves the queue";

    fn set(&mut self, object: Self::Object) {
        if waits(&object) {
            let _ = self.0.try_send(());
        }
    }

    fn remove(&mut self, _: &Key) {}
    fn retain(&mut self, _: &HashSet<Key>) {}
}

/// Reports whether a pod waits as the queue sees it: nobody waits for a pod that is being deleted,
/// however long a finalizer keeps it.
fn waits(object: &Object<Value, Value>) -> bool {
    let pod = json!({
        "metadata": object.metadata, "spec": object.spec, "status": object.status,
    });
    matches!(Life::of(&pod), Life::Waiting { .. })
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
        assert!(waits(&pod(&[ours], None)));
        assert!(waits(&pod(&["example.com/y", ours], None)));
        assert!(!waits(&pod(&["example.com/y"], None)));
        assert!(!waits(&pod(&[ours], Some("2026-08-01T10:00:00Z"))));
    }
}
