//! Writes the condition `Accepted` of each DomainClass, so that `kubectl get`
//! says why a class cannot be used.
//!
//! Every replica does so: they all write the same, and only what differs.

use futures::StreamExt;
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
    core::DeserializeGuard,
    runtime::{WatchStreamExt, watcher},
};
use serde_json::json;

use super::MANAGER;
use crate::{class::accepted, crd::DomainClass};

/// Follows the classes for ever.
pub async fn follow(client: Client) {
    let classes: Api<DeserializeGuard<DomainClass>> = Api::all(client.clone());
    let mut events = watcher(classes, watcher::Config::default())
        .default_backoff()
        .applied_objects()
        .boxed();
    while let Some(event) = events.next().await {
        // A watch that fails is told of by the one that decisions are made from. A
        // class that cannot be read has no status that could be written.
        if let Ok(DeserializeGuard(Ok(class))) = event
            && let Err(error) = write(&client, &class).await
        {
            tracing::warn!(class = class.name_any(), %error, "cannot write the class's status");
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
