//! Objects of the cluster that a program follows.

use std::{collections::HashSet, fmt::Debug, future::ready, pin::pin, time::Duration};

use futures::{Stream, StreamExt};
use kube::{
    Api, Resource, ResourceExt,
    runtime::{WatchStreamExt, utils::Backoff, watcher},
};
use serde::de::DeserializeOwned;

use crate::{client, complaints::Complaints};

/// Seconds after which the API server ends a watch and it is taken up where it
/// was. A connection that is frozen is noticed five seconds after that.
pub const ROUND: u32 = 60;

/// Namespace, empty where there is none, and name of an object.
pub type Key = (String, String);

/// Those objects of a kind that matter, as a program keeps them.
pub trait Mirror: Send {
    /// The objects as they are read.
    type Object: Resource + Clone + Debug + DeserializeOwned + Send + 'static;
    /// What messages call it.
    const KIND: &'static str;
    /// Ends "the API server knows no KIND": what is lost, or what to do about it.
    const UNKNOWN: &'static str;
    /// Ends "the service account may not list and watch KIND", likewise.
    const FORBIDDEN: &'static str = "";

    /// It is there, or has changed.
    fn set(&mut self, object: Self::Object);
    fn remove(&mut self, key: &Key);
    /// None but these are there. Comes after all of them were set.
    fn retain(&mut self, keys: &HashSet<Key>);
    /// Whether the cluster is followed; comes with each event and each failure.
    fn follows(&mut self, _follows: bool) {}
}

/// Keeps `mirror` like the objects of `api` that `config` selects. Never ends;
/// a failure is told once, and then once a minute.
pub async fn follow<M: Mirror>(api: Api<M::Object>, config: watcher::Config, mirror: M)
where
    <M::Object as Resource>::DynamicType: Clone + Debug + Send + Sync + 'static,
{
    reflect(events(api, config), mirror).await;
}

/// The events of a watch that is started again when it fails or falls silent.
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
        // It comes before each list, also before one that fails, and the back-off
        // starts anew with each event that is no error.
        .filter(|event| ready(!matches!(event, Ok(watcher::Event::Init))))
        .backoff(Pauses::default())
}

/// Tells `mirror` of all events.
pub async fn reflect<M: Mirror>(
    events: impl Stream<Item = Result<watcher::Event<M::Object>, watcher::Error>>,
    mut mirror: M,
) {
    let mut events = pin!(events);
    // What was seen of the list that is being read.
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
                // A list that failed starts from its beginning.
                seen.clear();
                let reason = reason::<M>(&error);
                if complaints.is_due(&reason, std::time::Instant::now()) {
                    tracing::warn!(kind = M::KIND, reason, "watch failed; trying again");
                }
            }
        }
    }
}

fn key<K: Resource>(object: &K) -> Key {
    (object.namespace().unwrap_or_default(), object.name_any())
}

/// Why a watch failed, and what to do about it.
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
        404 => format!("the API server knows no {kind}{} ({message})", M::UNKNOWN),
        code => format!("the API server answered {code}: {message}"),
    }
}

/// Pauses between the tries of a watch that fails. The longest is short: while
/// the API server starts again, what was seen before is believed.
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
        const FORBIDDEN: &'static str = ", so that nobody is let in";

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
            "the service account may not list and watch Namespace, so that nobody is let in: grant it both verbs (no such luck)",
        );
        check(
            404,
            "the API server knows no Namespace: install it (no such luck)",
        );
        check(500, "the API server answered 500: no such luck");
    }
}
