//! What a pod names and the scheduler waits for: its PersistentVolumeClaims and ResourceClaims.
//!
//! A pod that is released holds its GPUs. The scheduler leaves a pod alone whose claims do not
//! exist, and says nothing about it. So a pod is released only when they exist.

use std::fmt;

use futures::{StreamExt, stream};
use k8s_openapi::api::{core::v1::PersistentVolumeClaim, resource::v1::ResourceClaim};
use kube::{Api, Client};
use nvlink_api::pod::{at, list};
use nvlink_runtime::client;
use serde_json::Value;
use tokio::time::timeout;

use crate::{
    attempts::PATIENCE,
    channel,
    claim::Named,
    execute::{AT_ONCE, Move, Outcome, Outcomes, Writer},
};

/// An object that a pod names.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Need {
    Volume(String),
    Claim(String),
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Volume(name) => write!(f, "PersistentVolumeClaim {name}"),
            Self::Claim(name) => write!(f, "ResourceClaim {name}"),
        }
    }
}

/// Returns what a pod names, without the claims that the queue itself makes.
fn needs(pod: &Value) -> Vec<Need> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let ours = [
        Named::of(pod).map(|named| named.name),
        channel::named(pod).map(str::to_owned),
    ];
    let claims = list(pod, &["spec", "resourceClaims"]);
    let claims = claims.filter_map(|claim| text(claim.get("resourceClaimName")?));
    let claims = claims.filter(|name| !ours.iter().flatten().any(|own| own == name));
    let volumes = list(pod, &["spec", "volumes"]);
    let volumes =
        volumes.filter_map(|volume| text(volume.get("persistentVolumeClaim")?.get("claimName")?));
    let claims = claims.map(Need::Claim);
    claims.chain(volumes.map(Need::Volume)).collect()
}

impl Need {
    /// Reports whether the object exists, as far as that can be found out.
    async fn exists(&self, client: &Client, namespace: &str) -> bool {
        let found = async {
            match self {
                Self::Volume(name) => {
                    let api = Api::<PersistentVolumeClaim>::namespaced(client.clone(), namespace);
                    api.get_metadata_opt(name).await.map(|one| one.is_some())
                }
                Self::Claim(name) => {
                    let api = Api::<ResourceClaim>::namespaced(client.clone(), namespace);
                    api.get_metadata_opt(name).await.map(|one| one.is_some())
                }
            }
        };
        match timeout(PATIENCE, found).await {
            Ok(Ok(exists)) => exists,
            // Who may not read it, as before an upgrade of the chart, releases the pod.
            Ok(Err(error)) => {
                tracing::debug!(need = %self, reason = client::reason(&error), "cannot read what a pod names");
                true
            }
            Err(_) => true,
        }
    }
}

impl Writer {
    /// Returns pods that start together if all that they name exists; otherwise none of them is
    /// released.
    pub(super) async fn complete(&self, moves: Vec<Move>) -> Result<Vec<Move>, Outcomes> {
        let look = |one: Move| async {
            let namespace = at(&one.document, &["metadata", "namespace"]);
            let namespace = namespace.and_then(Value::as_str).unwrap_or_default();
            let mut missing = None;
            for need in needs(&one.document) {
                if !need.exists(&self.client, namespace).await {
                    missing = Some(need);
                    break;
                }
            }
            (one, missing)
        };
        // In their order.
        let looked = stream::iter(moves).map(look).buffered(AT_ONCE);
        let looked: Vec<_> = looked.collect().await;
        if looked.iter().all(|(_, missing)| missing.is_none()) {
            return Ok(looked.into_iter().map(|(one, _)| one).collect());
        }
        let outcomes = looked.into_iter().map(|(one, missing)| match missing {
            Some(need) => {
                let why = format!("{need} does not exist, which the pod names: create it");
                (one.pod, Outcome::Refused(why))
            }
            None => (one.pod, Outcome::Changed(one.document)),
        });
        Err(outcomes.collect())
    }
}
