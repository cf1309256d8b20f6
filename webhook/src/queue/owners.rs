//! The objects that say how many pods a job has, or how long it may run.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError},
    time::{Duration, Instant},
};

use kube::{
    Api, Client, Error, core::ApiResource, core::DynamicObject, discovery, error::DiscoveryError,
};
use nvlink_runtime::{client, complaints::Complaints};
use serde_json::Value;
use tokio::sync::{Mutex, Semaphore};

use super::{Object, feed::Place};

/// The first pause before an object is requested again that does not exist or cannot be read. Each
/// one is twice as long as that before: labels that anybody may write name such objects.
const AGAIN: Duration = Duration::from_secs(10);
/// The longest of these pauses.
const LONGEST: Duration = Duration::from_secs(600);
/// For how long a kind counts as absent that the cluster does not serve.
const ABSENT: Duration = Duration::from_secs(60);

/// The most objects that are requested at a time.
const AT_ONCE: usize = 16;

/// An API group and a kind.
type Kind = (&'static str, &'static str);

/// What is known of a kind.
enum Known {
    Served(ApiResource),
    /// The cluster did not serve it then.
    Absent(Instant),
}

/// Requests objects of any kind, in the version that the cluster prefers.
#[derive(Clone)]
pub(crate) struct Owners {
    client: Client,
    known: Arc<Mutex<HashMap<Kind, Known>>>,
    complaints: Arc<std::sync::Mutex<HashMap<Kind, Complaints>>>,
    permits: Arc<Semaphore>,
}

impl Owners {
    pub(crate) fn new(client: &Client) -> Self {
        Self {
            client: client.clone(),
            known: Arc::default(),
            complaints: Arc::default(),
            permits: Arc::new(Semaphore::new(AT_ONCE)),
        }
    }

    /// Returns an object; `None` if it does not exist, or cannot be read.
    pub(crate) async fn get(self, place: Place) -> (Place, Option<Value>) {
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
        if complaints.is_due(&kind_of_failure, Instant::now()) {
            let reason = client::reason(error);
            tracing::warn!(namespace, %object, reason, "cannot read the object that says how many pods a job has and how long it may run; the same failure for other objects of the kind is not logged for a minute");
        }
    }

    async fn find(&self, (namespace, object): &Place) -> kube::Result<Option<Value>> {
        let resource = self.resource(object).await?;
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), namespace, &resource);
        let Some(mut found) = api.get_opt(&object.name).await? else {
            return Ok(None);
        };
        found.metadata.managed_fields = None;
        serde_json::to_value(found)
            .map(Some)
            .map_err(kube::Error::SerdeError)
    }

    async fn resource(&self, object: &Object) -> kube::Result<ApiResource> {
        let key = (object.group, object.kind);
        let mut known = self.known.lock().await;
        let missing = || Error::Discovery(DiscoveryError::MissingKind(object.kind.to_owned()));
        match known.get(&key) {
            Some(Known::Served(resource)) => return Ok(resource.clone()),
            Some(Known::Absent(since)) if since.elapsed() < ABSENT => return Err(missing()),
            Some(Known::Absent(_)) | None => {}
        }
        let found = discovery::group(&self.client, object.group).await;
        let found = found.and_then(|group| {
            let kind = group.recommended_kind(object.kind);
            kind.map(|(resource, _)| resource).ok_or_else(missing)
        });
        match &found {
            Ok(resource) => known.insert(key, Known::Served(resource.clone())),
            Err(Error::Discovery(_)) => known.insert(key, Known::Absent(Instant::now())),
            Err(_) => None,
        };
        found
    }
}

/// Returns the pause before an object is requested again after so many failures and one more.
pub(crate) fn pause(failures: u32) -> Duration {
    AGAIN.saturating_mul(1 << failures.min(6)).min(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_that_nobody_creates_are_requested_ever_more_rarely() {
        let pauses = (0..9).map(|failures| pause(failures).as_secs());
        let expected = [10, 20, 40, 80, 160, 320, 600, 600, 600];
        assert_eq!(pauses.collect::<Vec<_>>(), expected);
        assert_eq!(pause(u32::MAX), LONGEST);
    }
}
