//! The objects that say how many pods a job has, or how long it may run.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError},
    time::Duration,
};

use kube::{
    Api, Client, Error, core::ApiResource, core::DynamicObject, discovery, error::DiscoveryError,
};
use nvlink_runtime::{client, complaints::Complaints};
use serde_json::Value;
use tokio::{
    sync::{Mutex, Semaphore},
    time::Instant,
};

use super::{Object, feed::Place};

/// The first pause before an object is requested again that does not exist or cannot be read. Each
/// one is twice as long as that before: labels that anybody may write name such objects.
const AGAIN: Duration = Duration::from_secs(10);
/// The longest of these pauses.
const LONGEST: Duration = Duration::from_secs(600);
/// For how long it is not asked again how the cluster serves a kind, or that it does not.
const KNOWN: Duration = Duration::from_secs(60);

/// The most objects that are requested at a time.
const AT_ONCE: usize = 16;

/// An API group and a kind.
type Kind = (&'static str, &'static str);

/// What was found out about a kind.
struct Known {
    /// How the cluster serves it; `None` if it does not.
    served: Option<ApiResource>,
    at: Instant,
}

/// Requests objects of any kind, in the version that the cluster prefers.
#[derive(Clone)]
pub struct Owners {
    client: Client,
    known: Arc<Mutex<HashMap<Kind, Known>>>,
    complaints: Arc<std::sync::Mutex<HashMap<Kind, Complaints>>>,
    permits: Arc<Semaphore>,
}

impl Owners {
    pub fn new(client: &Client) -> Self {
        Self {
            client: client.clone(),
            known: Arc::default(),
            complaints: Arc::default(),
            permits: Arc::new(Semaphore::new(AT_ONCE)),
        }
    }

    /// Returns an object; `None` if it does not exist, or cannot be read.
    pub async fn get(self, place: Place) -> (Place, Option<Value>) {
        let permit = self.permits.acquire().await;
        let found = self.find(&place).await;
        drop(permit);
        let found = found.unwrap_or_else(|error| {
            self.complain(&place, &error);
            None
        });
        (place, found)
    }

    /// Logs why an object cannot be read, once a minute for the objects of a kind.
    fn complain(&self, (namespace, object): &Place, error: &Error) {
        // The message of the API server names the object.
        let kind_of_failure = match error {
            Error::Api(status) => format!("{} {}", status.code, status.reason),
            error => client::reason(error),
        };
        let mut complaints = self
            .complaints
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let complaints = complaints.entry((object.group, object.kind)).or_default();
        if complaints.is_due(&kind_of_failure, std::time::Instant::now()) {
            let reason = client::reason(error);
            tracing::warn!(namespace, %object, reason, "cannot read the object that says how many pods a job has and how long it may run; the same failure for other objects of the kind is not logged for a minute");
        }
    }

    async fn find(&self, (namespace, object): &Place) -> kube::Result<Option<Value>> {
        let resource = self.resource(object, None).await?;
        let mut found = self.get_from(&resource, namespace, object).await?;
        if found.is_none() {
            // Perhaps the version is served no more: an answer does not distinguish the two.
            let present = self.resource(object, Some(&resource)).await?;
            if present != resource {
                found = self.get_from(&present, namespace, object).await?;
            }
        }
        let Some(mut found) = found else {
            return Ok(None);
        };
        found.metadata.managed_fields = None;
        serde_json::to_value(found)
            .map(Some)
            .map_err(kube::Error::SerdeError)
    }

    async fn get_from(
        &self,
        resource: &ApiResource,
        namespace: &str,
        object: &Object,
    ) -> kube::Result<Option<DynamicObject>> {
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), namespace, resource);
        match api.get_opt(&object.name).await {
            Err(Error::Api(status)) if status.code == 404 => Ok(None),
            found => found,
        }
    }

    /// Returns how the cluster serves the kind of an object. If that was asked some time ago, it is
    /// asked again where the kind was absent, or an object of it was not found by what was known
    /// (`failed`).
    async fn resource(
        &self,
        object: &Object,
        failed: Option<&ApiResource>,
    ) -> kube::Result<ApiResource> {
        let key = (object.group, object.kind);
        let mut known = self.known.lock().await;
        let missing = || Error::Discovery(DiscoveryError::MissingKind(object.kind.to_owned()));
        if let Some(known) = known.get(&key) {
            let fresh = known.at.elapsed() < KNOWN;
            match &known.served {
                Some(resource) if fresh || failed != Some(resource) => return Ok(resource.clone()),
                None if fresh => return Err(missing()),
                Some(_) | None => {}
            }
        }
        let found = discovery::group(&self.client, object.group).await;
        let found = found.and_then(|group| {
            let kind = group.recommended_kind(object.kind);
            kind.map(|(resource, _)| resource).ok_or_else(missing)
        });
        let served = match &found {
            Ok(resource) => Some(resource.clone()),
            Err(Error::Discovery(_)) => None,
            Err(_) => return found,
        };
        let at = Instant::now();
        known.insert(key, Known { served, at });
        found
    }
}

/// Returns the pause before an object is requested again after so many failures and one more.
pub(crate) fn pause(failures: u32) -> Duration {
    AGAIN.saturating_mul(1 << failures.min(6)).min(LONGEST)
}

#[cfg(test)]
mod tests {
    use http::{Request, Response, StatusCode};
    use kube::client::Body;
    use serde_json::json;

    use super::*;

    /// Answers as an API server that serves the kind `Train` in one version.
    fn answer(path: &str, version: &str) -> Option<Value> {
        let served = format!("x.example/{version}");
        let named = json!({"groupVersion": served, "version": version});
        let group = json!({"name": "x.example", "versions": [named], "preferredVersion": named});
        let kind = json!({
            "name": "trains", "singularName": "train", "kind": "Train", "namespaced": true,
            "verbs": ["get"],
        });
        match path.strip_prefix(&format!("/apis/{served}")) {
            _ if path == "/apis" => Some(json!({"kind": "APIGroupList", "groups": [group]})),
            Some("") => Some(json!({
                "kind": "APIResourceList", "groupVersion": served, "resources": [kind],
            })),
            Some("/namespaces/team/trains/t") => Some(json!({
                "apiVersion": served, "kind": "Train", "metadata": {"name": "t"},
            })),
            _ => None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_is_read_in_another_version_when_the_first_is_served_no_more() {
        let version = Arc::new(std::sync::Mutex::new("v1"));
        let asked = Arc::<std::sync::Mutex<Vec<String>>>::default();
        let (served, log) = (Arc::clone(&version), Arc::clone(&asked));
        let service = tower::service_fn(move |request: Request<Body>| {
            let path = request.uri().path().to_owned();
            let answer = answer(&path, *served.lock().unwrap());
            log.lock().unwrap().push(path);
            // Of a path that it does not serve, the API server says no more.
            let (status, text) = match answer {
                Some(answer) => (StatusCode::OK, answer.to_string()),
                None => (StatusCode::NOT_FOUND, "404 page not found".to_owned()),
            };
            let body = Body::from(text.into_bytes());
            async move { Ok::<_, tower::BoxError>(Response::builder().status(status).body(body)?) }
        });
        let owners = Owners::new(&Client::new(service, "default"));
        let place = |name: &str| {
            let (group, kind, name) = ("x.example", "Train", name.to_owned());
            ("team".to_owned(), Object { group, kind, name })
        };
        let read = async |name: &str| {
            let (_, found) = owners.clone().get(place(name)).await;
            found.map(|found| found["apiVersion"].clone())
        };
        let asks = || {
            asked
                .lock()
                .unwrap()
                .iter()
                .filter(|path| *path == "/apis")
                .count()
        };
        assert_eq!(read("t").await, Some(json!("x.example/v1")));
        *version.lock().unwrap() = "v2";
        tokio::time::sleep(KNOWN).await;
        assert_eq!(read("t").await, Some(json!("x.example/v2")));
        assert_eq!(asks(), 2);
        // Anybody may name objects that do not exist.
        for _ in 0..10 {
            assert_eq!(read("none").await, None);
        }
        assert_eq!(asks(), 2);
    }

    #[test]
    fn objects_that_nobody_creates_are_requested_ever_more_rarely() {
        let pauses = (0..9).map(|failures| pause(failures).as_secs());
        let expected = [10, 20, 40, 80, 160, 320, 600, 600, 600];
        assert_eq!(pauses.collect::<Vec<_>>(), expected);
        assert_eq!(pause(u32::MAX), LONGEST);
    }
}
