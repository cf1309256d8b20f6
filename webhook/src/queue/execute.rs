//! Carries out what a round says: writes pods, a limited number at a time, and says how each write
//! ended.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1;
use kube::{
    Client, Resource,
    api::{GetParams, Patch, PatchParams},
    core::request::Request,
};
use nvlink_planner::Name;
use nvlink_runtime::{client, lease::Leadership};
use serde_json::Value;
use tokio::sync::Semaphore;

use super::{
    Life, Placement,
    writes::{PodPatch, Write},
};
use crate::{cluster::MANAGER, decide::pod};

/// The most writes at a time.
const AT_ONCE: usize = 64;
/// Pauses before a write is tried again that the API server had no time for.
const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(10);

/// How a write ended.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The pod is written, and now this.
    Written(Value),
    /// Somebody else has changed the pod, which now is this. It is not written.
    Changed(Value),
    /// The pod does not exist any more.
    Gone,
    /// The API server refuses the write, for this reason.
    Refused(String),
    /// This process leads no more, so it is not known whether the pod is written.
    Stopped,
}

/// A pod, as it was read, and where it goes.
#[derive(Debug)]
pub(super) struct Move {
    pub(super) pod: Name,
    pub(super) document: Value,
    pub(super) placement: Placement,
}

/// Writes pods in one term of the leader.
#[derive(Clone)]
pub(super) struct Writer {
    client: Client,
    leadership: Leadership,
    term: i32,
    permits: Arc<Semaphore>,
}

/// How the writes of a job ended.
pub(super) type Outcomes = Vec<(Name, Outcome)>;

impl Writer {
    pub(super) fn new(client: &Client, leadership: &Leadership, term: i32) -> Self {
        Self {
            client: client.clone(),
            leadership: leadership.clone(),
            term,
            permits: Arc::new(Semaphore::new(AT_ONCE)),
        }
    }

    /// Releases pods that start together. Before the first of them is released, all are prepared:
    /// from then on, whoever leads releases the others.
    pub(super) async fn start(self, moves: Vec<Move>) -> Outcomes {
        if moves.len() < 2 {
            return self.release_all(moves).await;
        }
        let prepare = |one: Move| async {
            let write = Write::Prepare(one.placement.clone());
            let outcome = self.write(&one.document, &write).await;
            (outcome, one)
        };
        let prepared = stream::iter(moves).map(prepare).buffer_unordered(AT_ONCE);
        let prepared: Vec<_> = prepared.collect().await;
        let all = prepared
            .iter()
            .all(|(outcome, _)| matches!(outcome, Outcome::Written(_)));
        if !all {
            let outcomes = prepared
                .into_iter()
                .map(|(outcome, one)| (one.pod, outcome));
            return outcomes.collect();
        }
        let ready = prepared.into_iter().map(|(outcome, one)| match outcome {
            Outcome::Written(document) => Move { document, ..one },
            _ => one,
        });
        self.release_all(ready.collect()).await
    }

    async fn release_all(&self, moves: Vec<Move>) -> Outcomes {
        let release = |one: Move| async {
            let outcome = self.release(&one).await;
            (one.pod, outcome)
        };
        let released = stream::iter(moves).map(release).buffer_unordered(AT_ONCE);
        released.collect().await
    }

    /// Releases a pod, also if somebody else has changed it since it was prepared.
    async fn release(&self, one: &Move) -> Outcome {
        let write = Write::Release(one.placement.clone());
        let mut outcome = self.write(&one.document, &write).await;
        while let Outcome::Changed(current) = &outcome {
            let plan = Placement::of(current).map(|placement| placement.plan);
            let same = pod::at(current, &["metadata", "uid"])
                == pod::at(&one.document, &["metadata", "uid"]);
            let waits = matches!(Life::of(current), Life::Waiting { .. });
            if !same || !waits || plan.as_ref() != Some(&one.placement.plan) {
                break;
            }
            outcome = self.write(&current.clone(), &write).await;
        }
        outcome
    }

    /// Fails pods that waited too long.
    pub(super) async fn reject(self, pods: Vec<(Name, Value)>, message: String) -> Outcomes {
        let write = Write::Reject { message };
        let reject = |(name, document): (Name, Value)| {
            let write = &write;
            async { (name, self.write(&{ document }, write).await) }
        };
        let rejected = stream::iter(pods).map(reject).buffer_unordered(AT_ONCE);
        rejected.collect().await
    }

    /// Writes a pod, until it is known how that ended.
    async fn write(&self, document: &Value, write: &Write) -> Outcome {
        let patch = match write.patch(document, self.term) {
            Ok(patch) => patch,
            Err(error) => return Outcome::Refused(error.to_string()),
        };
        let mut pause = FIRST;
        loop {
            let Ok(permit) = self.permits.acquire().await else {
                return Outcome::Stopped;
            };
            if self
                .leadership
                .term()
                .is_none_or(|term| term.number != self.term)
            {
                return Outcome::Stopped;
            }
            let answer = self.attempt(document, &patch).await;
            drop(permit);
            let wait = match answer {
                Ok(outcome) => {
                    #[cfg(debug_assertions)]
                    if matches!(outcome, Outcome::Written(_)) {
                        failpoint::passed(write);
                    }
                    return outcome;
                }
                Err(wait) => wait,
            };
            tokio::time::sleep(wait.unwrap_or(pause)).await;
            pause = (pause * 2).min(LONGEST);
        }
    }

    /// Writes a pod once. Fails if it must be tried again, perhaps after a time that the API server
    /// names. It may be written nevertheless; then the next attempt finds that it has changed.
    async fn attempt(
        &self,
        document: &Value,
        patch: &PodPatch,
    ) -> Result<Outcome, Option<Duration>> {
        let error = match self.patch(document, patch).await {
            Ok(written) => return Ok(Outcome::Written(written)),
            Err(error) => error,
        };
        let kube::Error::Api(status) = &error else {
            tracing::debug!(
                reason = client::reason(&error),
                "cannot write a pod; retrying"
            );
            return Err(None);
        };
        match status.code {
            404 => Ok(Outcome::Gone),
            // A test of the patch failed, or something else is wrong with it.
            409 | 422 => {
                let found = self.get(document).await.map_err(|_| None)?;
                let Some(current) = found else {
                    return Ok(Outcome::Gone);
                };
                let version = |pod| pod::at(pod, &["metadata", "resourceVersion"]);
                if version(&current) == version(document) {
                    return Ok(Outcome::Refused(client::reason(&error)));
                }
                Ok(Outcome::Changed(current))
            }
            429 | 500.. => {
                let seconds = status
                    .details
                    .as_ref()
                    .map(|details| details.retry_after_seconds);
                let seconds = seconds.filter(|&seconds| seconds > 0);
                Err(seconds.map(|seconds| Duration::from_secs(seconds.into()).min(LONGEST)))
            }
            _ => Ok(Outcome::Refused(client::reason(&error))),
        }
    }

    async fn patch(&self, document: &Value, patch: &PodPatch) -> kube::Result<Value> {
        let operations = serde_json::from_value(patch.operations.clone());
        let operations = operations.map_err(kube::Error::SerdeError)?;
        let operations = Patch::Json::<()>(operations);
        let params = PatchParams {
            field_manager: Some(MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let (requests, name) = requests(document);
        let request = match patch.status {
            true => requests.patch_subresource("status", name, &params, &operations),
            false => requests.patch(name, &params, &operations),
        };
        self.client
            .request(request.map_err(kube::Error::BuildRequest)?)
            .await
    }

    async fn get(&self, document: &Value) -> kube::Result<Option<Value>> {
        let (requests, name) = requests(document);
        let request = requests.get(name, &GetParams::default());
        let request = request.map_err(kube::Error::BuildRequest)?;
        match self.client.request(request).await {
            Ok(found) => Ok(Some(found)),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Returns requests in the namespace of a pod, and the pod's name.
fn requests(document: &Value) -> (Request, &str) {
    let text = |field| {
        let text = pod::at(document, &["metadata", field]).and_then(Value::as_str);
        text.unwrap_or_default()
    };
    let path = v1::Pod::url_path(&(), Some(text("namespace")));
    (Request::new(path), text("name"))
}

/// Ends the process between two writes, in tests of what a later leader then does.
#[cfg(debug_assertions)]
mod failpoint {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::Write;

    /// `prepare=2`: after the second pod that was prepared; or `release=N`, `reject=N`.
    const VARIABLE: &str = "NVLINK_WEBHOOK_TEST_DIES_AFTER";
    static WRITES: AtomicUsize = AtomicUsize::new(0);

    pub(super) fn passed(write: &Write) {
        let Ok(wanted) = std::env::var(VARIABLE) else {
            return;
        };
        let Some((kind, count)) = wanted.split_once('=') else {
            return;
        };
        let this = match write {
            Write::Prepare(_) => "prepare",
            Write::Release(_) => "release",
            Write::Reject { .. } => "reject",
        };
        let passed =
            this == kind && WRITES.fetch_add(1, Ordering::SeqCst) + 1 >= count.parse().unwrap_or(1);
        if passed {
            std::process::abort();
        }
    }
}
