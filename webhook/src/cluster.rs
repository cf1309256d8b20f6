//! Watches that keep the [`View`] like the cluster.

use std::{
    collections::HashSet,
    fmt::Debug,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{Stream, StreamExt, future::ready};
use k8s_openapi::api::core::v1::{Namespace, Node};
use kube::{
    Api, Client, Resource, ResourceExt,
    core::{ApiResource, DynamicObject, PartialObjectMeta},
    runtime::{WatchStreamExt, utils::Backoff, watcher},
};
use nvlink_topology::labels;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::watch;

use crate::{
    class::Class,
    cluster::view::{SharedView, View},
    crd::{DomainClass, node_topology},
    metrics::Metrics,
};

mod extent;
pub mod status;
pub mod view;

use extent::Extent;
pub use extent::free;

/// Field manager of what the webhook writes into the cluster.
pub(crate) const MANAGER: &str = "nvlink-webhook";

/// A kind of object of which the view holds something.
trait Mirrored {
    type Object: Resource + Clone + Debug + DeserializeOwned + Send + 'static;
    const KIND: &'static str;
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

impl Mirrored for Nodes {
    type Object = PartialObjectMeta<Node>;
    const KIND: &'static str = "Node";

    fn set(view: &mut View, name: &str, mut object: Self::Object) {
        view.set_node(name, object.metadata.labels.take().unwrap_or_default());
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

/// A watch that ended. It never should: the process has to end with it.
#[derive(Debug, thiserror::Error)]
#[error("the watch of {0} ended")]
pub struct Ended(&'static str);

/// The watches, and whether those on which decisions hang have seen everything once.
pub struct Watches {
    synced: Vec<watch::Receiver<bool>>,
    tasks: tokio::task::JoinSet<Ended>,
    metrics: Arc<Metrics>,
}

impl Watches {
    /// Starts to watch.
    #[must_use]
    pub fn start(client: &Client, view: &SharedView, metrics: &Arc<Metrics>) -> Self {
        let mut watches = Self {
            metrics: Arc::clone(metrics),
            synced: Vec::new(),
            tasks: tokio::task::JoinSet::new(),
        };
        let classes = ApiResource::erase::<DomainClass>(&());
        watches.add::<Classes>(Api::all_with(client.clone(), &classes), view);
        watches.add::<Nodes>(Api::all(client.clone()), view);
        watches.add::<Namespaces>(Api::all(client.clone()), view);
        let topologies = Api::all_with(client.clone(), &node_topology::resource());
        watches.add::<Topologies>(topologies, view);
        watches
    }

    fn add<M: Mirrored + 'static>(&mut self, api: Api<M::Object>, view: &SharedView)
    where
        <M::Object as Resource>::DynamicType: Clone + Debug + Send + Sync + 'static,
    {
        let (sender, receiver) = watch::channel(false);
        if M::DECIDES {
            self.synced.push(receiver);
        }
        let (view, metrics) = (view.clone(), Arc::clone(&self.metrics));
        self.tasks.spawn(async move {
            // Not `any_semantic`, with which API servers answer with all objects at once.
            let events = watcher(api, watcher::Config::default().page_size(M::PAGE))
                // It comes before each list, also before one that fails, and the back-off
                // starts anew with each event that is no error.
                .filter(|event| ready(!matches!(event, Ok(watcher::Event::Init))))
                .backoff(Pauses::default())
                .inspect(|event| metrics.watch(M::KIND, event.is_ok()));
            mirror::<M>(events, &view, &sender).await;
            Ended(M::KIND)
        });
    }

    /// Waits until every kind on which decisions hang was seen once.
    pub fn synced(&self) -> impl Future<Output = ()> + use<> {
        let synced = self.synced.clone();
        async move {
            for mut receiver in synced {
                // An error means that the watch ended, which `ended` reports.
                drop(receiver.wait_for(|synced| *synced).await);
            }
        }
    }

    /// Waits until a watch ends.
    pub async fn ended(&mut self) -> anyhow::Error {
        match self.tasks.join_next().await {
            Some(Ok(ended)) => ended.into(),
            Some(Err(error)) => anyhow::Error::new(error).context("a watch failed"),
            None => anyhow::anyhow!("there is no watch"),
        }
    }
}

async fn mirror<M: Mirrored>(
    events: impl Stream<Item = Result<watcher::Event<M::Object>, watcher::Error>>,
    view: &SharedView,
    synced: &watch::Sender<bool>,
) {
    let mut events = pin!(events);
    // Names seen since the last (re)start of the watch.
    let mut seen = HashSet::new();
    let mut complaints = Complaints::default();
    while let Some(event) = events.next().await {
        match event {
            Ok(watcher::Event::Init) => {}
            Ok(watcher::Event::InitApply(object)) => {
                let name = object.name_any();
                M::set(&mut view.write(), &name, object);
                seen.insert(name);
            }
            Ok(watcher::Event::InitDone) => {
                let mut view = view.write();
                let gone = M::names(&view)
                    .into_iter()
                    .filter(|name| !seen.contains(name));
                gone.for_each(|name| M::remove(&mut view, &name));
                seen = HashSet::new();
                if !synced.send_replace(true) {
                    tracing::info!(kind = M::KIND, "cache synced");
                }
            }
            Ok(watcher::Event::Apply(object)) => {
                let name = object.name_any();
                M::set(&mut view.write(), &name, object);
            }
            Ok(watcher::Event::Delete(object)) => M::remove(&mut view.write(), &object.name_any()),
            Err(error) => {
                // A list that failed starts from its beginning.
                seen.clear();
                let reason = reason(M::KIND, &error);
                if complaints.is_due(&reason, Instant::now()) {
                    tracing::warn!(kind = M::KIND, reason, "watch failed; trying again");
                }
            }
        }
    }
}

/// Pauses between the tries of a watch that fails. The longest is short: while
/// the API server starts again, decisions go by what was seen before.
struct Pauses(Duration);

impl Pauses {
    const FIRST: Duration = Duration::from_millis(500);
    const LONGEST: Duration = Duration::from_secs(5);
}

impl Default for Pauses {
    fn default() -> Self {
        Self(Self::FIRST)
    }
}

impl Iterator for Pauses {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let pause = self.0;
        self.0 = (pause * 2).min(Self::LONGEST);
        Some(pause)
    }
}

impl Backoff for Pauses {
    fn reset(&mut self) {
        *self = Self::default();
    }
}

/// What a watch has complained of. A reason that lasts, such as missing CRDs,
/// comes back with each try, many times a minute.
#[derive(Default)]
struct Complaints {
    last: Option<(String, Instant)>,
}

impl Complaints {
    /// How long the same reason is not told again.
    const QUIET: Duration = Duration::from_secs(60);

    /// Whether `reason` is to be told: it is new, or was last told long ago.
    fn is_due(&mut self, reason: &str, now: Instant) -> bool {
        let told = self.last.as_ref().is_some_and(|(last, since)| {
            last == reason && now.saturating_duration_since(*since) < Self::QUIET
        });
        if !told {
            self.last = Some((reason.to_owned(), now));
        }
        !told
    }
}

/// Why a watch failed, and what to do about it.
fn reason(kind: &str, error: &watcher::Error) -> String {
    use watcher::Error::{InitialListFailed, WatchError, WatchFailed, WatchStartFailed};
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
            "the service account may not list and watch {kind}: grant it both verbs ({message})"
        ),
        404 => format!(
            "the API server knows no {kind}: install the CRDs of `nvlink-webhook crds` ({message})"
        ),
        code => format!("the API server answered {code}: {message}"),
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

    #[test]
    fn a_failed_watch_says_what_to_do() {
        let said = |code: u16| {
            let status = json!({"code": code, "message": "no such luck", "status": "Failure"});
            let status = serde_json::from_value(status).unwrap();
            reason(
                "DomainClass",
                &watcher::Error::InitialListFailed(kube::Error::Api(Box::new(status))),
            )
        };
        let check = |code, part: &str| {
            let said = said(code);
            assert!(said.contains(part), "{said}");
            assert_eq!(said.matches("no such luck").count(), 1, "{said}");
            assert_eq!(said.contains("CRDs"), code == 404, "{said}");
        };
        check(403, "may not list and watch DomainClass");
        check(404, "install the CRDs");
        check(500, "answered 500");
    }

    #[test]
    fn a_reason_that_lasts_is_told_once_a_minute() {
        let start = Instant::now();
        let mut complaints = Complaints::default();
        let mut told = |reason: &str, seconds: u64| {
            complaints.is_due(reason, start + Duration::from_secs(seconds))
        };
        assert!(told("no CRDs", 0));
        assert!(!told("no CRDs", 1) && !told("no CRDs", 59));
        assert!(told("no CRDs", 60));
        assert!(told("forbidden", 61));
        assert!(!told("forbidden", 62));
    }

    #[tokio::test]
    async fn a_restarted_watch_forgets_what_is_gone() {
        use watcher::Event::{Apply, Delete, Init, InitApply, InitDone};
        let view = SharedView::default();
        let (sender, receiver) = watch::channel(false);
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
        mirror::<Classes>(stream::iter(events.map(Ok)), &view, &sender).await;
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
