//! The status of the NodeTopology object: the allocations. It has its own field
//! manager, so that the spec is written without it and stays when it is removed.
//!
//! Its indices refer to the GPUs of the spec, which is written separately. So the
//! status is written only if the spec has the same GPUs, and is removed before a
//! spec with other GPUs is written (`clear`). Each write names the version of the
//! object that was read. A reader in between finds no status, and never the status
//! of other GPUs.

use std::time::Duration;

use kube::{
    Client, ResourceExt,
    api::{DynamicObject, Patch, PatchParams},
};
use nvlink_topology::{API_VERSION, Allocation, Gpu, KIND, NodeTopologyStatus};
use serde_json::{Value, json};
use tokio::{sync::watch, time::timeout};

use super::{Backoff, PublishError, is_conflict, is_not_found, object};
use crate::{placement::Keys, statistics::Publishing};

/// Field manager of the status.
pub const STATUS_MANAGER: &str = "nvlink-exporter-allocations";

/// Maximum number of allocations that the CRD accepts.
const MOST: usize = 1024;

/// What [`apply`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusOutcome {
    Written,
    /// The object already has this status.
    Same,
    /// The object still has other GPUs, or was changed in the meantime.
    Behind,
    /// There is no object yet, or no such kind.
    NoObject,
}

/// The allocations that the cluster should have for a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Wanted {
    /// Which GPUs the indices mean.
    pub on: Keys,
    /// The allocations; none if they are not known.
    pub status: Option<NodeTopologyStatus>,
}

/// The allocations of a node that an earlier process wrote to the cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Record {
    pub allocations: Vec<Allocation>,
    /// The GPUs that the indices refer to.
    pub gpus: Vec<Gpu>,
}

/// Reads the record of `node`; it is empty if there is no such object, or if its
/// version cannot be parsed.
///
/// # Errors
/// When the API server cannot be reached or refuses.
pub async fn read(client: &Client, node: &str) -> Result<Record, PublishError> {
    let present = object::get(client, node).await?;
    let record = present.and_then(|object| {
        let status = object.data.get("status")?.clone();
        let status: NodeTopologyStatus = serde_json::from_value(status).ok()?;
        Some(Record {
            allocations: status.allocations,
            gpus: gpus(&object)?,
        })
    });
    Ok(record.unwrap_or_default())
}

/// Returns the GPUs of the spec.
pub(super) fn gpus(object: &DynamicObject) -> Option<Vec<Gpu>> {
    let gpus = object.data.get("spec")?.get("gpus")?.clone();
    serde_json::from_value(gpus).ok()
}

/// Updates the status of `node` in the cluster to `wanted`.
///
/// # Errors
/// When the API server cannot be reached or refuses; trying again is safe.
pub async fn apply(
    client: &Client,
    node: &str,
    wanted: &Wanted,
) -> Result<StatusOutcome, PublishError> {
    let Some(present) = object::get(client, node).await? else {
        return Ok(StatusOutcome::NoObject);
    };
    let on = gpus(&present).map(|gpus| Keys::of(&gpus));
    if wanted.status.is_some() && on.as_ref() != Some(&wanted.on) {
        return Ok(StatusOutcome::Behind);
    }
    let status = wanted.status.as_ref().map(|status| {
        let most = &status.allocations[..status.allocations.len().min(MOST)];
        json!({ "allocations": most })
    });
    if said(&present) == status.as_ref() {
        return Ok(StatusOutcome::Same);
    }
    match write(client, node, &present, status).await {
        Ok(_) => Ok(StatusOutcome::Written),
        Err(error) if is_not_found(&error) => Ok(StatusOutcome::NoObject),
        Err(error) if is_conflict(&error) => Ok(StatusOutcome::Behind),
        Err(error) => Err(PublishError::api(WRITING, node, error)),
    }
}

/// Removes the status of `present`, before its spec gets other GPUs. Returns the
/// resulting version of the object.
///
/// # Errors
/// When the API server cannot be reached or refuses; trying again is safe.
pub(super) async fn clear(
    client: &Client,
    node: &str,
    present: &DynamicObject,
) -> Result<Option<String>, PublishError> {
    if said(present).is_none() {
        return Ok(present.resource_version());
    }
    let cleared = write(client, node, present, None).await;
    let cleared = cleared.map_err(|error| PublishError::api(WRITING, node, error))?;
    Ok(cleared.resource_version())
}

const WRITING: &str = "applying status of NodeTopology";

/// Returns the status of `object`. An empty one, which remains when the last field is removed,
/// counts as none.
fn said(object: &DynamicObject) -> Option<&Value> {
    let status = object.data.get("status");
    status.filter(|status| **status != json!({}))
}

/// Writes the status of `present`, unless the object was changed since it was read.
async fn write(
    client: &Client,
    node: &str,
    present: &DynamicObject,
    status: Option<Value>,
) -> kube::Result<DynamicObject> {
    let mut patch = json!({
        "apiVersion": API_VERSION, "kind": KIND,
        "metadata": { "name": node, "resourceVersion": present.resource_version() },
    });
    if let Some(status) = status {
        patch["status"] = status;
    }
    let params = PatchParams::apply(STATUS_MANAGER).force();
    let api = object::api(client);
    api.patch_status(node, &params, &Patch::Apply(&patch)).await
}

/// The channels between the collector of allocations and the keeper of their record.
#[derive(Clone)]
pub(crate) struct Keeper {
    pub(crate) client: Client,
    pub(crate) node: String,
    /// Filled once, with the record in the cluster at the start.
    pub(crate) record: watch::Sender<Option<Record>>,
    /// What the cluster should have; none before the collector has used the record.
    pub(crate) wanted: watch::Receiver<Option<Wanted>>,
    /// Time between two checks of the status, in case someone changed it.
    pub(crate) recheck: Duration,
    pub(crate) statistics: Publishing,
}

impl Keeper {
    /// Reads the record once, and then writes it on each change. Nothing is written
    /// before it was read: it is all that is known about pods that started while an
    /// earlier process ran. Ends when the sender of `wanted` is gone.
    pub(crate) async fn run(mut self) {
        let mut backoff = Backoff::default();
        loop {
            match read(&self.client, &self.node).await {
                Ok(record) => {
                    self.record.send_replace(Some(record));
                    break;
                }
                Err(error) => {
                    let what = "reading the record of allocations failed";
                    backoff.wait(what, &error, &self.statistics).await;
                }
            }
        }
        loop {
            let wanted = self.wanted.borrow_and_update().clone();
            let outcome = match wanted {
                None => Ok(StatusOutcome::Same),
                Some(wanted) => apply(&self.client, &self.node, &wanted).await,
            };
            let wait = match outcome {
                // The object is written elsewhere, perhaps soon, perhaps never.
                Ok(StatusOutcome::NoObject | StatusOutcome::Behind) => backoff.next(),
                Ok(outcome) => {
                    self.statistics.succeeded();
                    tracing::debug!(node = self.node, ?outcome, "allocations published");
                    backoff = Backoff::default();
                    self.recheck
                }
                Err(error) => {
                    let what = "publishing the allocations failed";
                    backoff.wait(what, &error, &self.statistics).await;
                    continue;
                }
            };
            // An error means that the sender is gone; a timeout, that the next check is due.
            if let Ok(Err(_)) = timeout(wait, self.wanted.changed()).await {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use axum::http::{Request, Response, StatusCode};
    use kube::client::Body;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_object_that_nobody_creates_is_asked_for_ever_more_rarely() {
        let asked = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&asked);
        let service = tower::service_fn(move |_: Request<Body>| {
            count.fetch_add(1, Ordering::Relaxed);
            let status = json!({"status": "Failure", "code": 404, "reason": "NotFound"});
            let body = Body::from(status.to_string().into_bytes());
            let response = Response::builder().status(StatusCode::NOT_FOUND);
            async move { Ok::<_, tower::BoxError>(response.body(body)?) }
        });
        let (sender, wanted) = watch::channel(Some(Wanted::default()));
        let keeper = Keeper {
            client: Client::new(service, "default"),
            node: "gpu-7".to_owned(),
            record: watch::Sender::new(None),
            wanted,
            recheck: Duration::from_secs(600),
            statistics: Publishing::default(),
        };
        tokio::spawn(keeper.run());
        tokio::time::sleep(Duration::from_secs(600)).await;
        let seen = asked.load(Ordering::Relaxed);
        assert!((10..=20).contains(&seen), "{seen} requests in ten minutes");
        // What changes is written at once, if it can be.
        sender.send_replace(Some(Wanted::default()));
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert_eq!(asked.load(Ordering::Relaxed), seen + 1);
    }
}
