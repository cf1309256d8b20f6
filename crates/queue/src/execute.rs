//! Carries out what a round says: writes pods, a limited number at a time, and says how each write
//! ended.

use std::sync::Arc;

use futures::{StreamExt, stream};
use k8s_openapi::api::{core::v1, resource::v1::ResourceClaimSpec};
use kube::{
    Client, Resource,
    api::{GetParams, Patch, PatchParams},
    core::request::Request,
};
use nvlink_api::{MANAGER, pod};
use nvlink_planner::Name;
use nvlink_runtime::{client, lease::Leadership};
use serde_json::Value;
use tokio::sync::Semaphore;

use super::{
    Life, Placement,
    attempts::{Again, Attempts, code, in_patience, in_time},
    channel,
    claim::Asks,
    failpoint,
    post::Poster,
    writes::{self, PodPatch, Write},
};
use crate::metrics::{Ended, Metrics};

/// The most writes at a time.
pub(super) const AT_ONCE: usize = 64;
/// The most times that a pod is written again because somebody else keeps changing it.
const CONFLICTS: usize = 20;

/// How a write ended.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The pod is written, and now this.
    Written(Value),
    /// Somebody else has changed the pod, which now is this. It is not written.
    Changed(Value),
    /// The pod does not exist any more; another one may have its name.
    Gone,
    /// The API server refuses the write, or keeps failing, for this reason.
    Refused(String),
    /// This process leads no more, so it is not known whether the pod is written.
    Stopped,
}

/// A pod, as it was read, and where it goes.
#[derive(Debug)]
pub(super) struct Move {
    pub(super) pod: Id,
    pub(super) document: Value,
    pub(super) placement: Placement,
    /// How its claim requests GPUs, if it has one.
    pub(super) asks: Asks,
    /// What its claim for an IMEX channel requests; `None` if the queue makes it none now.
    pub(super) channel: Option<ResourceClaimSpec>,
}

impl Move {
    /// Returns it with a claim for a channel that requests this, if it names such a claim.
    pub(super) fn with_channel(self, spec: &ResourceClaimSpec) -> Self {
        let named = channel::named(&self.document).is_some();
        Self {
            channel: named.then(|| spec.clone()),
            ..self
        }
    }

    /// Returns how it ends if what all pods of its gang need has ended so. Only a refusal is theirs.
    pub(super) fn ends(self, outcome: &Outcome) -> (Id, Outcome) {
        let outcome = match outcome {
            Outcome::Refused(why) => Outcome::Refused(why.clone()),
            _ => Outcome::Stopped,
        };
        (self.pod, outcome)
    }
}

/// Writes pods in one term of the leader.
#[derive(Clone)]
pub(super) struct Writer {
    pub(super) client: Client,
    leadership: Leadership,
    pub(super) term: i32,
    pub(super) permits: Arc<Semaphore>,
    pub(super) metrics: Arc<Metrics>,
}

/// How the writes of a job ended.
pub(super) type Outcomes = Vec<(Id, Outcome)>;

/// The name of a pod, and its UID: another pod of the same name is not the same pod.
pub(super) type Id = (Name, String);

impl Writer {
    pub(super) fn new(
        client: &Client,
        leadership: &Leadership,
        term: i32,
        metrics: &Arc<Metrics>,
    ) -> Self {
        Self {
            client: client.clone(),
            leadership: leadership.clone(),
            term,
            permits: Arc::new(Semaphore::new(at_once())),
            metrics: Arc::clone(metrics),
        }
    }

    /// Reports whether this process still leads.
    pub(super) fn leads(&self) -> bool {
        let term = self.leadership.term();
        term.is_some_and(|term| term.number == self.term)
    }

    /// Releases pods that start together. Before the first of them is released, all are prepared
    /// and have their claims: from then on, whoever leads releases the others.
    pub(super) async fn start(self, moves: Vec<Move>) -> Outcomes {
        failpoint::passed("decide");
        let prepared = match self.complete(moves).await {
            Ok(moves) if moves.len() > 1 => self.prepare_all(moves).await,
            complete => complete,
        };
        let ready = match prepared {
            Ok(moves) => self.channel_all(moves).await,
            Err(outcomes) => Err(outcomes),
        };
        let claimed = match ready {
            Ok(moves) => self.claim_all(moves).await,
            Err(outcomes) => Err(outcomes),
        };
        match claimed {
            Ok(moves) => self.release_all(moves).await,
            Err(outcomes) => outcomes,
        }
    }

    /// Records where pods go. Returns them as they are now, unless one is not written.
    async fn prepare_all(&self, moves: Vec<Move>) -> Result<Vec<Move>, Outcomes> {
        let prepare = |one: Move| async {
            let write = Write::Prepare(one.placement.clone());
            let outcome = self.insist(&one.document, &write).await;
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
            return Err(outcomes.collect());
        }
        let ready = prepared.into_iter().map(|(outcome, one)| match outcome {
            Outcome::Written(document) => Move { document, ..one },
            _ => one,
        });
        Ok(ready.collect())
    }

    /// Gives a released pod that is not bound other GPUs of its node.
    pub(super) async fn claim_again(self, one: Move) -> Outcomes {
        let outcome = self.reassign(&one).await;
        vec![(one.pod, outcome)]
    }

    /// The old claim goes first: it may still be allocated. The pod starts as soon as it has the new
    /// one, and reads the order of its GPUs then.
    async fn reassign(&self, one: &Move) -> Outcome {
        if let Err(outcome) = self.unclaim(one).await {
            return outcome;
        }
        let write = Write::Reassign(one.placement.clone());
        let written = self.write(&one.document, &write).await;
        if !matches!(written, Outcome::Written(_)) {
            return written;
        }
        match self.claim(one).await {
            Ok(()) => written,
            Err(outcome) => outcome,
        }
    }

    async fn release_all(&self, moves: Vec<Move>) -> Outcomes {
        let release = |one: Move| async {
            let outcome = self.release(&one).await;
            (one.pod, outcome)
        };
        let released = stream::iter(moves).map(release).buffer_unordered(AT_ONCE);
        released.collect().await
    }

    async fn release(&self, one: &Move) -> Outcome {
        let write = Write::Release(one.placement.clone());
        match self.insist(&one.document, &write).await {
            // An attempt that the API server did not answer in time.
            Outcome::Changed(pod) if write.is_done(&pod) => Outcome::Written(pod),
            outcome => outcome,
        }
    }

    /// Writes a pod, also if somebody else changes it meanwhile in what does not matter here.
    async fn insist(&self, document: &Value, write: &Write) -> Outcome {
        let mut outcome = self.write(document, write).await;
        for _ in 0..CONFLICTS {
            let Outcome::Changed(current) = &outcome else {
                break;
            };
            if !matches!(Life::of(current), Life::Waiting { .. })
                || !writes::is_same(document, current) && !write.is_prepared(current)
            {
                break;
            }
            outcome = self.write(&current.clone(), write).await;
        }
        outcome
    }

    /// Fails pods for one reason.
    pub(super) async fn reject(self, pods: Vec<(Id, Value)>, write: Write) -> Outcomes {
        failpoint::passed("decide");
        let reject = |(id, document): (Id, Value)| {
            let (this, write) = (&self, &write);
            async move {
                if let Write::Reject { reason, message } = write
                    && this.leads()
                {
                    let poster = Poster::new(&this.client, &this.metrics);
                    poster.warn(&document, reason, message).await;
                }
                let outcome = this.insist(&document, write).await;
                (id, outcome)
            }
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
        let text = |field| pod::text(document, &["metadata", field]);
        let object = ["Pod", text("namespace"), text("name")];
        let mut attempts = Attempts::new(object, write.kind().as_str());
        loop {
            let Ok(permit) = self.permits.acquire().await else {
                return Outcome::Stopped;
            };
            if !self.leads() {
                return Outcome::Stopped;
            }
            let attempt = self.attempt(document, &patch, attempts.are_many());
            let answer = in_patience(attempt).await;
            if matches!(answer, Ok(Outcome::Written(_))) {
                failpoint::passed(write.kind().as_str());
            }
            drop(permit);
            self.count(write, &answer);
            match answer {
                Ok(outcome) => return outcome,
                Err(again) => attempts.pause(again).await,
            }
        }
    }

    fn count(&self, write: &Write, answer: &Result<Outcome, Again>) {
        let ended = match answer {
            Ok(Outcome::Written(_)) => Ended::Written,
            Ok(Outcome::Changed(_)) => Ended::Conflict,
            Ok(Outcome::Gone) => Ended::Gone,
            Ok(Outcome::Refused(_)) => Ended::Refused,
            Ok(Outcome::Stopped) | Err(_) => Ended::Unanswered,
        };
        self.metrics.queue().write(write.kind(), ended);
    }

    /// Writes a pod once. Fails if it must be tried again; after `many` attempts, not because the
    /// API server failed. It may be written nevertheless; then the next attempt finds that it has
    /// changed.
    async fn attempt(
        &self,
        document: &Value,
        patch: &PodPatch,
        many: bool,
    ) -> Result<Outcome, Again> {
        let error = match self.patch(document, patch).await {
            Ok(written) => return Ok(Outcome::Written(written)),
            Err(error) => error,
        };
        match Again::after(&error) {
            Some(again) if !(many && again.failed) => return Err(again),
            // A test of the patch failed, or something else is wrong with it.
            None if !matches!(code(&error), 404 | 409 | 422) => {
                return Ok(Outcome::Refused(client::reason(&error)));
            }
            Some(_) | None => {}
        }
        if code(&error) == 404 {
            return Ok(Outcome::Gone);
        }
        let found = self.get(document).await;
        let Some(current) = found.map_err(|error| Again::unanswered(&error))? else {
            return Ok(Outcome::Gone);
        };
        let same = |field| {
            let of = |pod| pod::at(pod, &["metadata", field]);
            of(&current) == of(document)
        };
        if !same("uid") {
            return Ok(Outcome::Gone);
        }
        if same("resourceVersion") {
            return Ok(Outcome::Refused(client::reason(&error)));
        }
        Ok(Outcome::Changed(current))
    }

    async fn patch(&self, document: &Value, patch: &PodPatch) -> kube::Result<Value> {
        let operations = Patch::Json::<()>(patch.operations.clone());
        let params = PatchParams {
            field_manager: Some(MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let (requests, name) = requests(document);
        let request = match patch.status {
            true => requests.patch_subresource("status", name, &params, &operations),
            false => requests.patch(name, &params, &operations),
        };
        let request = request.map_err(kube::Error::BuildRequest)?;
        self.client.request(in_time(request)?).await
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

/// Returns the most writes at a time. One that ends the process in a test is the last one.
fn at_once() -> usize {
    if failpoint::is_set() {
        return 1;
    }
    AT_ONCE
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

#[cfg(test)]
mod tests;
