//! Watches: keep a local copy of objects of the cluster.

use std::{collections::HashSet, fmt::Debug, future::ready, pin::pin, time::Duration};

use futures::{Stream, StreamExt};
use kube::{
    Api, Resource, ResourceExt,
    runtime::{WatchStreamExt, utils::Backoff, watcher},
};
use serde::de::DeserializeOwned;

use crate::{client, complaints::Complaints};

/// Seconds after which the API server ends a watch, which then resumes where it
/// stopped. A frozen connection is noticed five seconds later.
pub const ROUND: u32 = 60;

/// Namespace (empty for cluster-scoped objects) and name of an object.
pub type Key = (String, String);

/// A program's local copy of the objects of one kind that it needs.
pub trait Mirror: Send {
    /// The type that the objects are parsed into.
    type Object: Resource + Clone + Debug + DeserializeOwned + Send + 'static;
    /// The name of the kind in messages.
    const KIND: &'static str;
    /// Follows "the API server does not know KIND": the consequence, or what to do.
    const UNKNOWN: &'static str;
    /// Follows "the service account may not list and watch KIND", likewise.
    const FORBIDDEN: &'static str = "";

    /// Adds or changes an object.
    fn set(&mut self, object: Self::Object);
    fn remove(&mut self, key: &Key);
    /// Removes all objects but these, which have all been set before.
    fn retain(&mut self, keys: &HashSet<Key>);
    /// Records whether the watch is in sync; called with each event and each failure.
    fn follows(&mut self, _follows: bool) {}
}

/// Keeps `mirror` in sync with the objects of `api` that `config` selects.
/// Never ends. A lasting failure is logged once a minute.
pub async fn follow<M: Mirror>(api: Api<M::Object>, config: watcher::Config, mirror: M)
where
    <M::Object as Resource>::DynamicType: Clone + Debug + Send + Sync + 'static,
{
    reflect(events(api, config), mirror).await;
}

/// Returns the events of a watch that is restarted when it fails or falls silent.
pub fn events<K>(
    api: Api<K>,
    config: watcher::Config,
) -> impl Stream<Item = Result<watcher::Event<K>, watcher::Error>> + Send
where
    K: Resource<DynamicType: Clone + Debug + Send + Sync>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + 'static,
{
    let config = watcher::Config {
        timeout: config.timeout.or(Some(ROUND)),
        ..config
    };
    watcher(api, config)
        // `Init` comes before each list, even one that then fails, and each event
        // that is not an error resets the back-off.
        .filter(|event| ready(!matches!(event, Ok(watcher::Event::Init))))
        .backoff(Pauses::default())
}

/// Applies all events to `mirror`.
pub async fn reflect<M: Mirror>(
    events: impl Stream<Item = Result<watcher::Event<M::Object>, watcher::Error>>,
    mut mirror: M,
) {
    let mut events = pin!(events);
    // The objects seen so far in the current list.
    let mut seen = HashSet::new();
    let mut complaints = Complaints::default();
    while let Some(event) = events.next().await {
        mirror.follows(event.is_ok());
        match event {
            Ok(watcher::Event::Init) => seen.clear(),
            Ok(watcher::Event::InitApply(object)) => {
                seen.insert(key(&object));
                mirror.set(object);
            }
            Ok(watcher::Event::InitDone) => mirror.retain(&std::mem::take(&mut seen)),
            Ok(watcher::Event::Apply(object)) => mirror.set(object),
            Ok(watcher::Event::Delete(object)) => mirror.remove(&key(&object)),
            Err(error) => {
                // A failed list starts from its beginning.
                seen.clear();
                let reason = reason::<M>(&error);
                if complaints.is_due(&reason, std::time::Instant::now()) {
                    tracing::warn!(kind = M::KIND, reason, "watch failed; retrying");
                }
            }
        }
    }
}

/// Returns the key of an object.
pub fn key<K: Resource>(object: &K) -> Key {
    (object.namespace().unwrap_or_default(), object.name_any())
}

/// Returns why a watch failed, and what to do about it.
fn reason<M: Mirror>(error: &watcher::Error) -> String {
    use watcher::Error::{InitialListFailed, WatchError, WatchFailed, WatchStartFailed};
    let kind = M::KIND;
    let status = match error {
        InitialListFailed(kube::Error::Api(status))
        | WatchStartFailed(kube::Error::Api(status))
        | WatchFailed(kube::Error::Api(status))
        | WatchError(status) => status,
        InitialListFailed(error) | WatchStartFailed(error) | WatchFailed(error) => {
            return client::reason(error);
        }
        other => return other.to_string(),
    };
    let message = &status.message;
    match status.code {
        403 => format!(
            "the service account may not list and watch {kind}{}: grant it both verbs ({message})",
            M::FORBIDDEN
        ),
        404 => format!(
            "the API server does not know {kind}{} ({message})",
            M::UNKNOWN
        ),
        code => format!("the API server answered {code}: {message}"),
    }
}

/// Pauses between retries of a failed watch. The longest is short: while the API
/// server restarts, decisions use the last known state.
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

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Namespace;
    use serde_json::json;

    use super::*;

    struct Namespaces;

    impl Mirror for Namespaces {
        type Object = Namespace;
        const KIND: &'static str = "Namespace";
        const UNKNOWN: &'static str = ": install it";
        const FORBIDDEN: &'static str = ", so nobody is admitted";

        fn set(&mut self, _: Namespace) {}
        fn remove(&mut self, _: &Key) {}
        fn retain(&mut self, _: &HashSet<Key>) {}
    }

    #[test]
    fn a_failed_watch_says_what_to_do() {
        let said = |code: u16| {
            let status = json!({"code": code, "message": "no such luck", "status": "Failure"});
            let status = serde_json::from_value(status).unwrap();
            let error = kube::Error::Api(Box::new(status));
            reason::<Namespaces>(&watcher::Error::InitialListFailed(error))
        };
        let check = |code, words: &str| assert_eq!(said(code), words);
        check(
            403,
            "the service account may not list and watch Namespace, so nobody is admitted: grant it both verbs (no such luck)",
        );
        check(
            404,
            "the API server does not know Namespace: install it (no such luck)",
        );
        check(500, "the API server answered 500: no such luck");
    }
}
