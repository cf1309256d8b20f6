//! What the Kubernetes API says of the pods and devices of this node.

use std::{
    collections::{HashMap, HashSet},
    fmt::Debug,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1;
use kube::{
    Api, Client, Resource, ResourceExt,
    core::{ApiResource, Object},
    runtime::{WatchStreamExt, watcher},
};
use nvlink_topology::{Pattern, labels};
use serde::{Deserialize, de::DeserializeOwned};

use super::{
    holdings::PodName,
    slices::{self, DRIVER, Nothing, SliceObject, Slices},
};

/// What is known; the watches write it, the collector reads it. Empty where
/// there is no API.
#[derive(Clone, Debug, Default)]
pub(super) struct Cluster(Arc<Mutex<Facts>>);

/// What is known at one moment.
#[derive(Debug, Default)]
pub(super) struct Facts {
    pods: HashMap<PodName, Pod>,
    /// Devices of DRA.
    pub(super) slices: Slices,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Pod {
    uid: Option<String>,
    pattern: Option<Pattern>,
    ended: bool,
}

impl Facts {
    /// The pattern that the webhook decided on.
    pub(super) fn pattern(&self, pod: &PodName) -> Option<Pattern> {
        self.pods.get(pod)?.pattern
    }

    /// What tells it from earlier and later pods of its name.
    pub(super) fn uid(&self, pod: &PodName) -> Option<String> {
        self.pods.get(pod)?.uid.clone()
    }

    /// It runs no more and holds nothing, though the kubelet may still list it.
    pub(super) fn has_ended(&self, pod: &PodName) -> bool {
        self.pods.get(pod).is_some_and(|pod| pod.ended)
    }
}

impl Cluster {
    pub(super) fn read(&self) -> MutexGuard<'_, Facts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches the pods of `node`. Ends never.
    pub(super) async fn watch_pods(self, client: Client, node: String) {
        let api = Api::<PodObject>::all_with(client, &ApiResource::erase::<v1::Pod>(&()));
        let fields = format!("spec.nodeName={node}");
        let config = watcher::Config::default().fields(&fields);
        let events = watcher(api, config).default_backoff();
        self.mirror::<Pods>(events).await;
    }

    /// Watches what NVIDIA's DRA driver says of `node`. Ends never.
    pub(super) async fn watch_slices(self, client: Client, node: String) {
        let api = Api::<SliceObject>::all_with(client, &slices::resource());
        let fields = format!("spec.nodeName={node},spec.driver={DRIVER}");
        let config = watcher::Config::default().fields(&fields);
        let events = watcher(api, config).default_backoff();
        self.mirror::<SlicesOfNode>(events).await;
    }

    async fn mirror<M: Mirrored>(
        &self,
        events: impl Stream<Item = Result<watcher::Event<M::Object>, watcher::Error>>,
    ) {
        use watcher::Event::{Apply, Delete, Init, InitApply, InitDone};
        let mut events = pin!(events);
        // Names seen since the last (re)start of the watch.
        let mut seen = HashSet::new();
        let mut said = None;
        while let Some(event) = events.next().await {
            match event {
                Ok(Init) => seen.clear(),
                Ok(InitApply(object)) => {
                    seen.insert(name(&object));
                    M::set(&mut self.read(), object);
                }
                Ok(InitDone) => {
                    M::retain(&mut self.read(), &std::mem::take(&mut seen));
                    said = None;
                }
                Ok(Apply(object)) => M::set(&mut self.read(), object),
                Ok(Delete(object)) => M::remove(&mut self.read(), &name(&object)),
                Err(error) => {
                    let reason = reason::<M>(&error);
                    if said.as_ref() != Some(&reason) {
                        tracing::warn!(kind = M::KIND, reason, "watch failed; trying again");
                    }
                    said = Some(reason);
                }
            }
        }
    }
}

fn name<K: Resource>(object: &K) -> PodName {
    (object.namespace().unwrap_or_default(), object.name_any())
}

/// A kind of object of which something is known.
trait Mirrored {
    type Object: Resource + Clone + Debug + DeserializeOwned + Send + 'static;
    const KIND: &'static str;
    /// What is lost without it.
    const USE: &'static str;

    fn set(facts: &mut Facts, object: Self::Object);
    fn remove(facts: &mut Facts, name: &PodName);
    fn retain(facts: &mut Facts, names: &HashSet<PodName>);
}

struct Pods;
struct SlicesOfNode;

/// A Pod as far as it is read.
type PodObject = Object<Nothing, Status>;

#[derive(Clone, Debug, Default, Deserialize)]
struct Status {
    phase: Option<String>,
}

/// The part of the webhook's decision that is read.
#[derive(Deserialize)]
struct Decision {
    pattern: String,
}

impl Mirrored for Pods {
    type Object = PodObject;
    const KIND: &'static str = "Pod";
    const USE: &'static str = "jobs are taken to do all-reduce";

    fn set(facts: &mut Facts, object: PodObject) {
        let decision = object.annotations().get(labels::DECISION);
        let pattern = decision.and_then(|text| {
            let decision: Decision = serde_json::from_str(text).ok()?;
            decision.pattern.parse().ok()
        });
        let phase = object
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        let ended = matches!(phase, Some("Succeeded" | "Failed"));
        let pod = Pod {
            uid: object.uid(),
            pattern,
            ended,
        };
        facts.pods.insert(name(&object), pod);
    }

    fn remove(facts: &mut Facts, name: &PodName) {
        facts.pods.remove(name);
    }

    fn retain(facts: &mut Facts, names: &HashSet<PodName>) {
        facts.pods.retain(|name, _| names.contains(name));
    }
}

impl Mirrored for SlicesOfNode {
    type Object = SliceObject;
    const KIND: &'static str = "ResourceSlice";
    const USE: &'static str = "devices of DRA are known by their names alone";

    fn set(facts: &mut Facts, object: SliceObject) {
        facts.slices.apply(object);
    }

    fn remove(facts: &mut Facts, (_, name): &PodName) {
        facts.slices.remove(name);
    }

    fn retain(facts: &mut Facts, names: &HashSet<PodName>) {
        let names: HashSet<&str> = names.iter().map(|(_, name)| &**name).collect();
        facts.slices.retain(|name| names.contains(name));
    }
}

/// Why a watch failed, what is lost, and what to do about it.
fn reason<M: Mirrored>(error: &watcher::Error) -> String {
    use watcher::Error::{InitialListFailed, WatchError, WatchFailed, WatchStartFailed};
    let (kind, lost) = (M::KIND, M::USE);
    let status = match error {
        InitialListFailed(kube::Error::Api(status))
        | WatchStartFailed(kube::Error::Api(status))
        | WatchFailed(kube::Error::Api(status))
        | WatchError(status) => status,
        other => return other.to_string(),
    };
    let message = &status.message;
    match status.code {
        403 => format!(
            "the service account may not list and watch {kind}s, so that {lost}: grant it both verbs ({message})"
        ),
        404 => format!("the API server knows no {kind} of this version, so that {lost}"),
        code => format!("the API server answered {code}: {message}"),
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use serde_json::json;

    use super::*;

    fn pod(name: &str, decision: &str, phase: &str) -> PodObject {
        serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "ci", "uid": format!("uid-{name}"), "annotations": {labels::DECISION: decision}},
            "spec": {"containers": []}, "status": {"phase": phase, "podIP": "10.0.0.1"},
        }))
        .unwrap()
    }

    #[tokio::test]
    async fn pods_have_patterns_and_ends() {
        use watcher::Event::{Apply, Delete, Init, InitApply, InitDone};
        let good = r#"{"class":"fast","pattern":"tp=4,pp=2","why":"…"}"#;
        let cluster = Cluster::default();
        let events = [
            Init,
            InitApply(pod("gone", good, "Running")),
            InitApply(pod("a", good, "Running")),
            InitDone,
            Apply(pod("b", good, "Running")),
            Delete(pod("b", good, "Running")),
            Init,
            InitApply(pod("a", good, "Running")),
            InitApply(pod("bad", r#"{"pattern":"quantum"}"#, "Pending")),
            InitApply(pod("worse", "{", "Failed")),
            InitApply(pod("worst", r#"{"pattern":4}"#, "Succeeded")),
            InitDone,
        ];
        cluster.mirror::<Pods>(stream::iter(events.map(Ok))).await;
        let facts = cluster.read();
        let of = |name: &str| ("ci".to_owned(), name.to_owned());
        assert_eq!(facts.pattern(&of("a")), "tp=4,pp=2".parse().ok());
        assert_eq!(facts.uid(&of("a")).as_deref(), Some("uid-a"));
        assert_eq!(facts.uid(&of("gone")), None);
        for none in ["gone", "b", "bad", "worse", "worst"] {
            assert_eq!(facts.pattern(&of(none)), None, "{none}");
        }
        assert!(facts.has_ended(&of("worse")) && facts.has_ended(&of("worst")));
        assert!(!facts.has_ended(&of("a")) && !facts.has_ended(&of("gone")));
        assert_eq!(facts.pods.len(), 4);
    }

    #[test]
    fn a_failed_watch_says_what_is_lost() {
        let said = |code: u16| {
            let status = json!({"code": code, "message": "no such luck", "status": "Failure"});
            let status = serde_json::from_value(status).unwrap();
            let error = watcher::Error::InitialListFailed(kube::Error::Api(Box::new(status)));
            reason::<SlicesOfNode>(&error)
        };
        assert!(said(403).contains("may not list and watch ResourceSlices"));
        assert!(said(404).contains("knows no ResourceSlice"));
        assert!(said(500).contains("answered 500: no such luck"));
    }
}
