//! Writes the condition `Accepted` of each DomainClass, so that `kubectl get`
//! says why a class cannot be used.
//!
//! The leader alone does so: during a rollout two versions would write their
//! words over each other's for ever. Nobody waits for it, so nothing is lost
//! while nobody leads; who leads next writes what differs.

use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
    core::DeserializeGuard,
    runtime::{WatchStreamExt, watcher},
};
use nvlink_runtime::{client, lease::Leadership, watch};
use serde_json::json;

use super::MANAGER;
use crate::{class::accepted, crd::DomainClass};

/// After a status that could not be written.
const RETRY: Duration = Duration::from_secs(10);

/// Follows the classes while this replica leads, for ever.
pub async fn follow(client: Client, mut leadership: Leadership) {
    loop {
        leadership.gained().await;
        tokio::select! {
            () = write_all(&client) => {}
            () = leadership.lost() => {}
        }
    }
}

/// Writes the status of all classes, and of those that change. Ends when one
/// cannot be written.
async fn write_all(client: &Client) {
    let classes: Api<DeserializeGuard<DomainClass>> = Api::all(client.clone());
    let mut events = watch::events(classes, watcher::Config::default())
        .applied_objects()
        .boxed();
    while let Some(event) = events.next().await {
        // A watch that fails is told of by the one that decisions are made from. A
        // class that cannot be read has no status that could be written.
        if let Ok(DeserializeGuard(Ok(class))) = event
            && let Err(error) = write(client, &class).await
        {
            let (class, reason) = (class.name_any(), client::reason(&error));
            tracing::warn!(
                class,
                reason,
                "cannot write the class's status; trying again"
            );
            // A watch does not tell of a class again that nobody changes: list them anew.
            tokio::time::sleep(RETRY).await;
            return;
        }
    }
}

async fn write(client: &Client, class: &DomainClass) -> kube::Result<()> {
    let condition = accepted(class, Time(Timestamp::now()));
    let present = class.status.iter().flat_map(|status| &status.conditions);
    if present.into_iter().any(|one| *one == condition) {
        return Ok(());
    }
    let status = json!({
        "apiVersion": nvlink_topology::API_VERSION, "kind": "DomainClass",
        "status": {"conditions": [condition]},
    });
    let api: Api<DomainClass> = Api::all(client.clone());
    let params = PatchParams::apply(MANAGER).force();
    let name = class.name_any();
    match api
        .patch_status(&name, &params, &Patch::Apply(&status))
        .await
    {
        // Deleted meanwhile.
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        written => written.map(drop),
    }
}
