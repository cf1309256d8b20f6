//! Makes the ComputeDomain of a gang before its pods are released, and waits for its template: NVIDIA's
//! driver gives IMEX channels by it.

use std::time::Duration;

use k8s_openapi::api::resource::v1::{ResourceClaimSpec, ResourceClaimTemplate};
use kube::{
    Api,
    api::{GetParams, Patch, PatchParams, PostParams},
    core::request::Request,
};
use nvlink_api::{MANAGER, pod};
use nvlink_runtime::client;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{
    attempts::{Again, Attempts, code, in_patience, in_time},
    channel,
    execute::{Move, Outcome, Outcomes, Writer},
    failpoint,
};
use crate::metrics::{Ended, Written};

/// How long the driver may take to make the template: its controller needs a few requests, and pauses
/// after one that fails.
const TEMPLATE: Duration = Duration::from_secs(30);
/// The time between two looks for the template.
const LOOK: Duration = Duration::from_millis(250);

/// A ComputeDomain that exists: its UID; or why it cannot be made.
type Made = Result<String, Outcome>;

impl Writer {
    /// Makes the ComputeDomain of pods that start together, if they get one, and says what their claims
    /// for channels request. If it cannot be made, none of the pods is released.
    pub(super) async fn channel_all(&self, moves: Vec<Move>) -> Result<Vec<Move>, Outcomes> {
        let mut domains = moves
            .iter()
            .filter_map(|one| one.placement.compute_domain.as_deref());
        let spec = match domains.next() {
            Some(domain) => self.channel(domain, &moves).await,
            None => Ok(ResourceClaimSpec::default()),
        };
        match spec {
            Ok(spec) => Ok(moves
                .into_iter()
                .map(|one| one.with_channel(&spec))
                .collect()),
            Err(outcome) => Err(moves.into_iter().map(|one| one.ends(&outcome)).collect()),
        }
    }

    /// Returns what the claims of a ComputeDomain request.
    async fn channel(&self, name: &str, moves: &[Move]) -> Result<ResourceClaimSpec, Outcome> {
        let pods = moves.iter().map(|one| &one.document);
        let wanted = channel::domain(name, pods, self.term);
        let uids = moves.iter().map(|one| &*one.pod.1);
        let new = channel::is_made_for(name, uids);
        let uid = self.insist_on_domain(&wanted, new).await?;
        failpoint::passed("compute-domain");
        self.template(&wanted, &uid).await
    }

    async fn insist_on_domain(&self, wanted: &Value, new: bool) -> Made {
        let text = |key: &str| pod::text(wanted, &["metadata", key]);
        let about = ["ComputeDomain", text("namespace"), text("name")];
        let mut attempts = Attempts::new(about, Written::ComputeDomain.as_str());
        loop {
            let Ok(permit) = self.permits.acquire().await else {
                return Err(Outcome::Stopped);
            };
            if !self.leads() {
                return Err(Outcome::Stopped);
            }
            let made = in_patience(self.attempt_domain(wanted, new, attempts.are_many())).await;
            drop(permit);
            let ended = match &made {
                Ok(Ok(_)) => Ended::Written,
                Ok(Err(_)) => Ended::Refused,
                Err(_) => Ended::Unanswered,
            };
            self.metrics.queue().write(Written::ComputeDomain, ended);
            match made {
                Ok(made) => return made,
                Err(again) => attempts.pause(again).await,
            }
        }
    }

    /// Makes a `new` ComputeDomain once, or adds the pods to the owners of the one that is there. Fails if
    /// that must be tried again; after `many` attempts, not because the API server failed.
    async fn attempt_domain(&self, wanted: &Value, new: bool, many: bool) -> Result<Made, Again> {
        if new {
            match self.create_domain(wanted).await {
                Ok(made) => return Ok(Ok(uid(&made))),
                Err(error) if code(&error) == 409 => {}
                Err(error) => return retry(wanted, &error, many),
            }
        }
        let name = pod::text(wanted, &["metadata", "name"]);
        let refuse = |why: &str| Ok(Err(Outcome::Refused(format!("ComputeDomain {name} {why}"))));
        let found = match self.get_domain(wanted).await {
            Ok(found) => found,
            Err(error) if code(&error) == 404 && new => return Err(Again::SOON),
            // The channels of the others are of the one that is gone.
            Err(error) if code(&error) == 404 => {
                return refuse("of its gang is gone: start the gang anew");
            }
            Err(error) => return retry(wanted, &error, many),
        };
        if pod::at(&found, &["metadata", "deletionTimestamp"]).is_some() {
            return refuse("is being deleted: the queue tries again when it is gone");
        }
        if !channel::is_same(&found, wanted) {
            return refuse("is not the queue's: delete it");
        }
        let Some(owners) = channel::owners(&found, wanted) else {
            return Ok(Ok(uid(&found)));
        };
        match self.own_domain(&found, owners).await {
            Ok(made) => Ok(Ok(uid(&made))),
            Err(error) if matches!(code(&error), 404 | 409) => Err(Again::SOON),
            Err(error) => retry(wanted, &error, many),
        }
    }

    /// Waits for the template that the driver makes for a ComputeDomain, and returns what its claims
    /// request.
    async fn template(&self, domain: &Value, uid: &str) -> Result<ResourceClaimSpec, Outcome> {
        let text = |key: &str| pod::text(domain, &["metadata", key]);
        let (namespace, name) = (text("namespace"), text("name"));
        let templates: Api<ResourceClaimTemplate> = Api::namespaced(self.client.clone(), namespace);
        let began = Instant::now();
        loop {
            if !self.leads() {
                return Err(Outcome::Stopped);
            }
            let found = in_patience(async { Ok(templates.get_opt(name).await) }).await;
            let why = match found {
                Ok(Ok(Some(template))) => {
                    let other = format!(
                        "ResourceClaimTemplate {name} is not that of ComputeDomain {name}: delete it"
                    );
                    let spec = channel::spec(template, uid);
                    return spec.ok_or(Outcome::Refused(other));
                }
                Ok(Ok(None)) => format!(
                    "NVIDIA's DRA driver made no ResourceClaimTemplate for ComputeDomain {name} in {} s: see the log of its compute-domain-controller",
                    TEMPLATE.as_secs()
                ),
                Ok(Err(error)) => match Again::after(&error) {
                    None => return Err(refused(domain, &error)),
                    Some(_) => client::reason(&error),
                },
                Err(_) => "the API server does not answer".to_owned(),
            };
            if began.elapsed() >= TEMPLATE {
                return Err(Outcome::Refused(why));
            }
            sleep(LOOK).await;
        }
    }

    async fn create_domain(&self, wanted: &Value) -> kube::Result<Value> {
        let params = PostParams {
            field_manager: Some(MANAGER.to_owned()),
            ..PostParams::default()
        };
        let request = requests(wanted).create(&params, wanted.to_string().into_bytes());
        let request = request.map_err(kube::Error::BuildRequest)?;
        self.client.request(in_time(request)?).await
    }

    async fn get_domain(&self, wanted: &Value) -> kube::Result<Value> {
        let name = pod::text(wanted, &["metadata", "name"]);
        let request = requests(wanted).get(name, &GetParams::default());
        let request = request.map_err(kube::Error::BuildRequest)?;
        self.client.request(request).await
    }

    /// Gives this version of a ComputeDomain other owners.
    async fn own_domain(&self, found: &Value, owners: Vec<Value>) -> kube::Result<Value> {
        let text = |key: &str| pod::text(found, &["metadata", key]);
        let patch = Patch::Merge(json!({"metadata": {
            "resourceVersion": text("resourceVersion"), "ownerReferences": owners,
        }}));
        let params = PatchParams {
            field_manager: Some(MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let request = requests(found).patch(text("name"), &params, &patch);
        let request = request.map_err(kube::Error::BuildRequest)?;
        self.client.request(in_time(request)?).await
    }
}

fn uid(domain: &Value) -> String {
    pod::text(domain, &["metadata", "uid"]).to_owned()
}

/// Returns whether and when a request is tried again that failed. After `many` attempts, the failure of
/// the API server is its answer.
fn retry(domain: &Value, error: &kube::Error, many: bool) -> Result<Made, Again> {
    match Again::after(error) {
        Some(again) if !(many && again.failed) => Err(again),
        Some(_) | None => Ok(Err(refused(domain, error))),
    }
}

/// Returns what is to be said of a ComputeDomain that cannot be made.
fn refused(domain: &Value, error: &kube::Error) -> Outcome {
    let name = pod::text(domain, &["metadata", "name"]);
    let next = match code(error) {
        404 => {
            "install NVIDIA's DRA driver with ComputeDomains, or set environment.mnnvl of the class otherwise"
        }
        403 => "set webhook.computeDomains of the chart, unless a quota or a policy refuses it",
        _ => "the queue tries again",
    };
    let why = client::reason(error);
    Outcome::Refused(format!(
        "ComputeDomain {name} cannot be made ({why}): {next}"
    ))
}

/// Returns requests about ComputeDomains in the namespace of one.
fn requests(domain: &Value) -> Request {
    let namespace = pod::text(domain, &["metadata", "namespace"]);
    let group = channel::GROUP_VERSION;
    Request::new(format!(
        "/apis/{group}/namespaces/{namespace}/computedomains"
    ))
}
