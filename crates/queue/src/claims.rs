//! Creates the ResourceClaims of pods, each before the pod is released.
//!
//! A claim is made for one plan. If another one is there, of an earlier plan that was not carried
//! out or that the scheduler cannot carry out, it is deleted first. What is left over belongs to a
//! pod, so Kubernetes deletes it with the pod.

use futures::{StreamExt, stream};
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, PostParams, Preconditions},
    core::request::Request,
};
use nvlink_api::{MANAGER, pod::at};
use nvlink_runtime::client;
use serde_json::Value;

use super::{
    attempts::{Again, Attempts, code, in_patience, in_time},
    channel,
    claim::{self, Named},
    execute::{AT_ONCE, Move, Outcome, Outcomes, Writer},
    failpoint,
};
use crate::metrics::{Ended, Written};

/// The most times that a claim which is being deleted is looked for again: some seconds.
const MOST_LATER: u32 = 6;

/// What is wanted of a pod's claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    /// It is there, for the GPUs of the placement.
    There,
    /// None is there that is for others.
    NoOther,
    /// None is there that is not allocated.
    Gone,
}

/// What one attempt found.
enum Found {
    /// The claim is as it should be.
    Right,
    /// Another claim is on its way out; it is created next.
    Later,
    /// The claim cannot be made, for this reason.
    Wrong(String),
    /// A later leader made it: this process was suspended, and leads no more.
    Superseded,
}

impl Writer {
    /// Creates the claims of pods that start together. If one cannot be created, none of the pods
    /// is released, and none keeps a claim: two gangs that each hold a part of a quota would wait for
    /// each other.
    pub(super) async fn claim_all(&self, moves: Vec<Move>) -> Result<Vec<Move>, Outcomes> {
        let claim = |one: Move| async {
            let outcome = self.claim(&one).await;
            (one, outcome)
        };
        let claimed = stream::iter(moves).map(claim).buffer_unordered(AT_ONCE);
        let claimed: Vec<_> = claimed.collect().await;
        let (mut made, mut outcomes) = (Vec::new(), Outcomes::new());
        for (one, outcome) in claimed {
            match outcome {
                Ok(()) => made.push(one),
                Err(outcome) => outcomes.push((one.pod, outcome)),
            }
        }
        if outcomes.is_empty() {
            return Ok(made);
        }
        let undo = |one: Move| async {
            // If that fails, too, the next attempt finds the claim.
            let _ = self.insist_on_claims(&one, Wish::Gone).await;
            (one.pod, Outcome::Changed(one.document))
        };
        let undone = stream::iter(made).map(undo).buffer_unordered(AT_ONCE);
        outcomes.extend(undone.collect::<Outcomes>().await);
        Err(outcomes)
    }

    /// Creates the claim of a pod, unless the pod needs none or it is there.
    pub(super) async fn claim(&self, one: &Move) -> Result<(), Outcome> {
        self.insist_on_claims(one, Wish::There).await?;
        failpoint::passed("claim");
        Ok(())
    }

    /// Deletes the claim of a pod if it asks for other GPUs.
    pub(super) async fn unclaim(&self, one: &Move) -> Result<(), Outcome> {
        self.insist_on_claims(one, Wish::NoOther).await
    }

    async fn insist_on_claims(&self, one: &Move, wish: Wish) -> Result<(), Outcome> {
        for object in self.claims_of(one) {
            self.insist_on_claim(&one.document, &object, wish).await?;
        }
        Ok(())
    }

    /// Returns the claims that the pod of a move needs from the queue.
    fn claims_of(&self, one: &Move) -> impl Iterator<Item = ResourceClaim> {
        let pod = &one.document;
        let gpus = Named::of(pod)
            .map(|named| claim::object(pod, &named, &one.placement, &one.asks, self.term));
        let channel = channel::named(pod).zip(one.channel.clone());
        let channel = channel.map(|(name, spec)| claim::made_for(pod, name, spec, self.term));
        gpus.into_iter().chain(channel)
    }

    async fn insist_on_claim(
        &self,
        document: &Value,
        object: &ResourceClaim,
        wish: Wish,
    ) -> Result<(), Outcome> {
        let (name, namespace) = (object.name_any(), object.namespace().unwrap_or_default());
        let about = ["ResourceClaim", &namespace, &name];
        let (mut attempts, mut later) = (Attempts::new(about, Written::Claim.as_str()), 0);
        loop {
            let Ok(permit) = self.permits.acquire().await else {
                return Err(Outcome::Stopped);
            };
            if !self.leads() {
                return Err(Outcome::Stopped);
            }
            let attempt = self.attempt_claim(document, object, wish, attempts.are_many());
            let found = in_patience(attempt).await;
            drop(permit);
            self.count_claim(&found);
            let again = match found {
                Ok(Found::Right) => return Ok(()),
                Ok(Found::Wrong(reason)) => return Err(Outcome::Refused(reason)),
                Ok(Found::Superseded) => return Err(Outcome::Stopped),
                Ok(Found::Later) if later == MOST_LATER => {
                    let reason = format!("ResourceClaim {name} is still being deleted");
                    return Err(Outcome::Refused(reason));
                }
                Ok(Found::Later) => {
                    later += 1;
                    Again::SOON
                }
                Err(again) => again,
            };
            attempts.pause(again).await;
        }
    }

    fn count_claim(&self, found: &Result<Found, Again>) {
        let ended = match found {
            Ok(Found::Right) => Ended::Written,
            Ok(Found::Later) => Ended::Conflict,
            Ok(Found::Wrong(_)) => Ended::Refused,
            Ok(Found::Superseded) | Err(_) => Ended::Unanswered,
        };
        self.metrics.queue().write(Written::Claim, ended);
    }

    /// Creates the claim once, or looks for another one. Fails if that must be tried again; after
    /// `many` attempts, not because the API server failed.
    async fn attempt_claim(
        &self,
        pod: &Value,
        object: &ResourceClaim,
        wish: Wish,
        many: bool,
    ) -> Result<Found, Again> {
        let mut failed = None;
        if wish == Wish::There {
            match self.create_claim(object).await {
                Ok(()) => return Ok(Found::Right),
                Err(error) if code(&error) == 409 => {}
                // It may be there nevertheless.
                Err(error) if many && is_failure(&error) => failed = Some(client::reason(&error)),
                Err(error) => return retry(&error, many),
            }
        }
        let found = match (self.get_claim(object).await, wish) {
            (Ok(Some(found)), _) => found,
            (Ok(None), Wish::NoOther | Wish::Gone) => return Ok(Found::Right),
            (Ok(None), Wish::There) => return Ok(failed.map_or(Found::Later, Found::Wrong)),
            (Err(error), _) => return retry(&error, false),
        };
        let uid = at(pod, &["metadata", "uid"]).and_then(Value::as_str);
        if let Some(found) = judge(&found, object, uid, wish) {
            return Ok(found);
        }
        // The numbers of terms begin anew with another Lease.
        if claim::is_later(&found, self.term) && !self.leads() {
            return Ok(Found::Superseded);
        }
        match self.delete_claim(&found).await {
            Ok(()) => Ok(Found::Later),
            // It is gone, or has changed.
            Err(error) if matches!(code(&error), 404 | 409) => Ok(Found::Later),
            Err(error) => retry(&error, many),
        }
    }

    async fn create_claim(&self, object: &ResourceClaim) -> kube::Result<()> {
        let params = PostParams {
            field_manager: Some(MANAGER.to_owned()),
            ..PostParams::default()
        };
        let body = serde_json::to_vec(object).map_err(kube::Error::SerdeError)?;
        let request = requests(object).create(&params, body);
        let request = request.map_err(kube::Error::BuildRequest)?;
        self.client
            .request::<Value>(in_time(request)?)
            .await
            .map(drop)
    }

    async fn get_claim(&self, object: &ResourceClaim) -> kube::Result<Option<ResourceClaim>> {
        let namespace = object.namespace().unwrap_or_default();
        let claims: Api<ResourceClaim> = Api::namespaced(self.client.clone(), &namespace);
        claims.get_opt(&object.name_any()).await
    }

    /// Deletes this version of a claim: another one may be allocated.
    async fn delete_claim(&self, found: &ResourceClaim) -> kube::Result<()> {
        let params = DeleteParams::default().preconditions(Preconditions {
            uid: found.uid(),
            resource_version: found.resource_version(),
        });
        let request = requests(found).delete(&found.name_any(), &params);
        let request = request.map_err(kube::Error::BuildRequest)?;
        self.client
            .request::<Value>(in_time(request)?)
            .await
            .map(drop)
    }
}

/// Returns what the claim means that was found for a pod with this UID; `None` if it must go.
fn judge(
    found: &ResourceClaim,
    wanted: &ResourceClaim,
    uid: Option<&str>,
    wish: Wish,
) -> Option<Found> {
    let goes = found.metadata.deletion_timestamp.is_some();
    let owned = claim::owner(found) == uid;
    let status = found.status.as_ref();
    let allocated = status.is_some_and(|status| status.allocation.is_some());
    let name = wanted.name_any();
    if wish == Wish::Gone {
        return (goes || !owned || allocated).then_some(Found::Right);
    }
    if goes {
        return Some(Found::Later);
    }
    if !owned {
        // A pod of the same name may have had it, which Kubernetes is about to delete.
        return Some(Found::Wrong(format!(
            "ResourceClaim {name} exists and belongs to another pod: it is created again when that one is deleted"
        )));
    }
    if claim::asks_for(found, wanted) {
        return Some(Found::Right);
    }
    let other = format!("ResourceClaim {name} holds other devices already");
    allocated.then_some(Found::Wrong(other))
}

/// Returns whether and when a request is tried again that failed. After `many` attempts, the
/// failure of the API server is its answer.
fn retry(error: &kube::Error, many: bool) -> Result<Found, Again> {
    match Again::after(error) {
        Some(again) if !(many && again.failed) => Err(again),
        None if code(error) == 409 => Err(Again::SOON),
        Some(_) | None => Ok(Found::Wrong(client::reason(error))),
    }
}

/// Reports whether the API server answers that it failed.
fn is_failure(error: &kube::Error) -> bool {
    Again::after(error).is_some_and(|again| again.failed)
}

/// Returns requests about claims in the namespace of a claim.
fn requests(object: &ResourceClaim) -> Request {
    Request::new(ResourceClaim::url_path(
        &(),
        object.metadata.namespace.as_deref(),
    ))
}
