//! The status of the NodeTopology object: the allocations. It has a field
//! manager of its own, so that the spec is written without it and stays when it goes.

use std::time::Duration;

use kube::{
    Client,
    api::{DynamicObject, Patch, PatchParams},
};
use nvlink_topology::{API_VERSION, Allocation, Gpu, KIND, NodeTopologyStatus};
use serde_json::{Value, json};
use tokio::{sync::watch, time::timeout};

use super::{BACKOFF, PublishError, is_not_found, object};
use crate::tally::{Failure, Publishing};

/// Field manager of the status.
pub const STATUS_MANAGER: &str = "nvlink-exporter-allocations";

/// The most allocations that the CRD takes.
const MOST: usize = 1024;

/// What [`apply`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusOutcome {
    Written,
    /// It says so already.
    Same,
    /// There is no object yet, or no such kind.
    NoObject,
}

/// What the cluster has of a node since an earlier process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Record {
    pub allocations: Vec<Allocation>,
    /// The GPUs that their indices mean.
    pub gpus: Vec<Gpu>,
}

/// What the cluster has of `node`; nothing where there is no such object, or
/// where it is of a version that cannot be read.
///
/// # Errors
/// When the API server cannot be reached or refuses.
pub async fn read(client: &Client, node: &str) -> Result<Record, PublishError> {
    let present = present(client, node).await?;
    let record = present.and_then(|object| {
        let status = object.data.get("status")?.clone();
        let status: NodeTopologyStatus = serde_json::from_value(status).ok()?;
        let gpus = object.data.get("spec")?.get("gpus")?.clone();
        Some(Record {
            allocations: status.allocations,
            gpus: serde_json::from_value(gpus).ok()?,
        })
    });
    Ok(record.unwrap_or_default())
}

/// Brings the cluster to say `status` of `node`; with none, that nobody knows.
///
/// # Errors
/// When the API server cannot be reached or refuses; trying again is safe.
pub async fn apply(
    client: &Client,
    node: &str,
    status: Option<&NodeTopologyStatus>,
) -> Result<StatusOutcome, PublishError> {
    let Some(present) = present(client, node).await? else {
        return Ok(StatusOutcome::NoObject);
    };
    let wanted = status.map(|status| {
        let most = &status.allocations[..status.allocations.len().min(MOST)];
        json!({ "allocations": most })
    });
    let has = present.data.get("status").filter(|has| **has != json!({}));
    if has == wanted.as_ref() {
        return Ok(StatusOutcome::Same);
    }
    let mut patch = json!({
        "apiVersion": API_VERSION, "kind": KIND, "metadata": { "name": node },
    });
    if let Some(wanted) = wanted {
        patch["status"] = wanted;
    }
    write(client, node, &patch).await
}

async fn write(client: &Client, node: &str, patch: &Value) -> Result<StatusOutcome, PublishError> {
    let params = PatchParams::apply(STATUS_MANAGER).force();
    let api = object::api(client);
    match api.patch_status(node, &params, &Patch::Apply(patch)).await {
        Ok(_) => Ok(StatusOutcome::Written),
        Err(error) if is_not_found(&error) => Ok(StatusOutcome::NoObject),
        Err(error) => Err(PublishError::api(
            "applying status of NodeTopology",
            node,
            error,
        )),
    }
}

async fn present(client: &Client, node: &str) -> Result<Option<DynamicObject>, PublishError> {
    match object::api(client).get(node).await {
        Ok(object) => Ok(Some(object)),
        Err(error) if is_not_found(&error) => Ok(None),
        Err(error) => Err(PublishError::api("reading NodeTopology", node, error)),
    }
}

/// What the collector of allocations and the keeper of their record tell each other.
#[derive(Clone)]
pub(crate) struct Keeper {
    pub(crate) client: Client,
    pub(crate) node: String,
    /// Filled once, with what the cluster has at the start.
    pub(crate) record: watch::Sender<Option<Record>>,
    /// What the cluster shall have; none before the record was taken in.
    pub(crate) wanted: watch::Receiver<Option<Option<NodeTopologyStatus>>>,
    /// Time between two looks at it, in case someone changed it.
    pub(crate) recheck: Duration,
    pub(crate) tally: Publishing,
}

impl Keeper {
    /// Reads the record once, and then writes it on each change. Nothing is
    /// written before it was read: it is all that is known of the pods that
    /// came in the time of an earlier process. Ends when nobody can want anything.
    pub(crate) async fn run(mut self) {
        let mut backoff = Backoff::default();
        loop {
            match read(&self.client, &self.node).await {
                Ok(record) => {
                    self.record.send_replace(Some(record));
                    break;
                }
                Err(error) => {
                    self.tally.failed(Failure::from(&error));
                    backoff.wait("no record of allocations", &error).await;
                }
            }
        }
        loop {
            let wanted = self.wanted.borrow_and_update().clone();
            let outcome = match wanted {
                None => Ok(StatusOutcome::Same),
                Some(status) => apply(&self.client, &self.node, status.as_ref()).await,
            };
            let wait = match outcome {
                Ok(StatusOutcome::NoObject) => BACKOFF.0,
                Ok(outcome) => {
                    self.tally.succeeded();
                    tracing::debug!(node = self.node, ?outcome, "allocations published");
                    backoff = Backoff::default();
                    self.recheck
                }
                Err(error) => {
                    self.tally.failed(Failure::from(&error));
                    backoff.wait("allocations not published", &error).await;
                    continue;
                }
            };
            // An error here means that nobody can want anything; a timeout, that it is time to look.
            if let Ok(Err(_)) = timeout(wait, self.wanted.changed()).await {
                return;
            }
        }
    }
}

/// Waits longer after each failure.
struct Backoff(Duration);

impl Default for Backoff {
    fn default() -> Self {
        Self(BACKOFF.0)
    }
}

impl Backoff {
    async fn wait(&mut self, what: &str, error: &PublishError) {
        tracing::warn!(retry_in = ?self.0, "{what}: {error}");
        tokio::time::sleep(self.0).await;
        self.0 = (self.0 * 2).min(BACKOFF.1);
    }
}
