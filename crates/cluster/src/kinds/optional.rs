//! Kinds that the API server may not have, or not show.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use kube::{Api, Client, Resource, api::ListParams};
use nvlink_runtime::{
    client,
    complaints::Complaints,
    supervise::{Supervisor, Weight},
    watch,
};

use super::{Claims, DeviceClasses, Slices, StorageClasses, VolumeClaims, Volumes, keep, pages};
use crate::informer::{Informer, Kind, Reader};

/// The pause after a question to the API server that failed.
const AGAIN: Duration = Duration::from_secs(1);
/// Time until the API server is asked again for kinds that it does not have.
const LATER: Duration = Duration::from_secs(60);

/// A kind that may not be there.
pub(super) trait Optional: Kind<Object: Resource<DynamicType = ()>> {
    /// What does not work without the right to see it; `None`: nothing works then. A ClusterRole of an
    /// earlier version may lack the right.
    const HIDDEN: Option<&'static str> = None;
}

const VOLUMES_HIDDEN: &str = "the webhook may not list PersistentVolumes, their claims and StorageClasses, so the queue does not know to which nodes volumes bind a pod: run helm upgrade, which brings the rights";

impl Optional for Slices {}
impl Optional for Claims {}
impl Optional for DeviceClasses {
    const HIDDEN: Option<&'static str> = Some(
        "the webhook may not list DeviceClasses, so only classes with the mapping Claim get nodes of DRA drivers: run helm upgrade, which brings the right",
    );
}
impl Optional for VolumeClaims {
    const HIDDEN: Option<&'static str> = Some(VOLUMES_HIDDEN);
}
impl Optional for Volumes {
    const HIDDEN: Option<&'static str> = Some(VOLUMES_HIDDEN);
}
impl Optional for StorageClasses {
    const HIDDEN: Option<&'static str> = Some(VOLUMES_HIDDEN);
}

/// Keeps the informer of a kind running that may not be there.
pub(super) fn keep_optional<K: Optional + Send + 'static>(
    (client, supervisor): (&Client, &Supervisor),
    name: &'static str,
    informer: &Informer<K::Item>,
    kind: fn() -> K,
) where
    K::Item: Send + Sync + 'static,
{
    let client = client.clone();
    let watch = move |_, fan| follow_optional(client.clone(), Reader(kind(), fan));
    keep(name, Weight::Minor, informer, supervisor, watch);
}

/// Whether a kind can be followed.
enum Presence {
    There,
    /// The API server does not have it; one that is upgraded, or another one, may have it later.
    Absent,
    /// It may not be seen, and all works but for what [`Optional::HIDDEN`] says. With the API server's
    /// words.
    Hidden(String),
}

/// Asks for a kind. Discovery says whether the API server has it, also without any right to it.
async fn presence<K: Optional>(client: &Client, api: &Api<K::Object>) -> kube::Result<Presence> {
    let version = K::Object::api_version(&());
    let found = match K::Object::group(&()).is_empty() {
        true => client.list_core_api_resources(&version).await,
        false => client.list_api_group_resources(&version).await,
    };
    match found {
        Ok(found) if found.resources.iter().any(|one| one.kind == K::KIND) => {}
        Ok(_) => return Ok(Presence::Absent),
        Err(error) if is(&error, 404) => return Ok(Presence::Absent),
        Err(error) => return Err(error),
    }
    if K::HIDDEN.is_none() {
        return Ok(Presence::There);
    }
    match api.list(&ListParams::default().limit(1)).await {
        Ok(_) => Ok(Presence::There),
        Err(error) if is(&error, 403) => Ok(Presence::Hidden(client::reason(&error))),
        Err(error) => Err(error),
    }
}

fn is(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

/// Follows a kind as soon as the API server has the version that is read here. Until then, and while it
/// may not be seen, there are no objects of it.
async fn follow_optional<K: Optional>(client: Client, reader: Reader<K>) {
    let api: Api<K::Object> = Api::all(client.clone());
    let (mut complaints, mut warned) = (Complaints::default(), false);
    loop {
        let wait = match presence::<K>(&client, &api).await {
            Ok(Presence::There) => break,
            Ok(Presence::Absent) => {
                reader.1.retain(&HashSet::new());
                LATER
            }
            Ok(Presence::Hidden(reason)) => {
                if !std::mem::replace(&mut warned, true) {
                    tracing::warn!(reason, "{}", K::HIDDEN.unwrap_or_default());
                }
                reader.1.retain(&HashSet::new());
                LATER
            }
            Err(error) => {
                let reason = client::reason(&error);
                if complaints.is_due(&reason, Instant::now()) {
                    let what = "cannot ask whether the API server has the kind; trying again";
                    tracing::warn!(kind = K::KIND, reason, "{what}");
                }
                AGAIN
            }
        };
        tokio::time::sleep(wait).await;
    }
    watch::follow(api, pages(100), reader).await;
}
