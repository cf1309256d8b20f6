//! The objects that say how many pods a job has, or how long it may run.

use std::{collections::HashMap, sync::Arc, time::Duration};

use kube::{Api, Client, core::ApiResource, core::DynamicObject, discovery};
use nvlink_runtime::client;
use serde_json::Value;
use tokio::sync::{Mutex, Semaphore};

use super::{Object, feed::Place};

/// The pause before an object is requested again that does not exist or cannot be read.
const AGAIN: Duration = Duration::from_secs(10);

/// The most objects that are requested at a time.
const AT_ONCE: usize = 16;

/// Requests objects of any kind, in the version that the cluster prefers.
#[derive(Clone)]
pub(crate) struct Owners {
    client: Client,
    known: Arc<Mutex<HashMap<(&'static str, &'static str), ApiResource>>>,
    permits: Arc<Semaphore>,
}

impl Owners {
    pub(crate) fn new(client: &Client) -> Self {
        Self {
            client: client.clone(),
            known: Arc::default(),
            permits: Arc::new(Semaphore::new(AT_ONCE)),
        }
    }

    /// Returns an object; `None` if it does not exist, or cannot be read.
    pub(crate) async fn get(self, place: Place, again: bool) -> (Place, Option<Value>) {
        if again {
            tokio::time::sleep(AGAIN).await;
        }
        let permit = self.permits.acquire().await;
        let found = self.find(&place).await;
        drop(permit);
        let found = found.unwrap_or_else(|error| {
            let (namespace, object) = &place;
            let reason = client::reason(&error);
            tracing::warn!(namespace, %object, reason, "cannot read the object that says how many pods a job has and how long it may run");
            None
        });
        (place, found)
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
        if let Some(resource) = known.get(&key) {
            return Ok(resource.clone());
        }
        let group = discovery::group(&self.client, object.group).await?;
        let missing = || {
            let kind = object.kind;
            kube::Error::Discovery(kube::error::DiscoveryError::MissingKind(kind.to_owned()))
        };
        let (resource, _) = group.recommended_kind(object.kind).ok_or_else(missing)?;
        known.insert(key, resource.clone());
        Ok(resource)
    }
}
