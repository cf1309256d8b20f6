//! Writes the conditions of each DomainClass: `Accepted` shows why a class cannot
//! be used, and `Isolated` shows which other pods are on the nodes of a restricted
//! class.
//!
//! Only the leader writes them: during a rollout, replicas of two versions would
//! overwrite each other's messages forever. Nothing waits for the conditions, so
//! nothing is lost while there is no leader; the next leader writes what differs.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

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
use tokio::time::{MissedTickBehavior, interval};

use super::{
    MANAGER,
    isolated::{Findings, ISOLATED, isolated},
    strays::Search,
    view::SharedView,
};
use crate::{
    class::accepted,
    crd::{DomainClass, access::AccessMode},
    metrics::Metrics,
};

/// The pause after a status that could not be written.
const RETRY: Duration = Duration::from_secs(10);
/// The time between two checks of the nodes of restricted classes, which cost no request.
const LOOK: Duration = Duration::from_secs(5);
/// Pods are listed again when the nodes of their class change, or after a time:
/// after `AGAIN` if some do not belong there or could not be listed, otherwise
/// after `REST`.
const AGAIN: Duration = Duration::from_secs(30);
const REST: Duration = Duration::from_secs(600);

/// Writes the status of classes.
#[derive(Clone)]
pub struct Writer {
    client: Client,
    view: SharedView,
    metrics: Arc<Metrics>,
    search: Search,
}

/// A class, and the findings on it if it is restricted.
struct Known {
    class: DomainClass,
    found: Option<(Findings, Instant)>,
}

impl Writer {
    /// Returns a writer; no rule applies to pods in the namespaces `exempt`.
    #[must_use]
    pub fn new(
        client: &Client,
        view: &SharedView,
        metrics: &Arc<Metrics>,
        exempt: Vec<String>,
    ) -> Self {
        Self {
            client: client.clone(),
            view: view.clone(),
            metrics: Arc::clone(metrics),
            search: Search::new(client.clone(), exempt),
        }
    }

    /// Follows the classes whenever this replica leads. Never ends.
    pub async fn follow(self, mut leadership: Leadership) {
        loop {
            leadership.gained().await;
            tokio::select! {
                () = self.write_all() => {}
                () = leadership.lost() => {}
            }
            self.metrics.isolation([]);
        }
    }

    /// Writes the status of all classes, and again when a class or its nodes
    /// change. Ends when a status cannot be written.
    async fn write_all(&self) {
        let classes: Api<DeserializeGuard<DomainClass>> = Api::all(self.client.clone());
        let mut events = watch::events(classes, watcher::Config::default())
            .applied_objects()
            .boxed();
        let mut known = BTreeMap::<String, Known>::new();
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let written = tokio::select! {
                event = events.next() => match event {
                    // The watch that decisions use logs failures. The status of a class that
                    // cannot be parsed cannot be written.
                    Some(Ok(DeserializeGuard(Ok(class)))) => self.changed(class, &mut known).await,
                    Some(_) => Ok(()),
                    None => return,
                },
                _ = look.tick() => self.look(&mut known).await,
            };
            if let Err((class, error)) = written {
                let reason = client::reason(&error);
                tracing::warn!(
                    class,
                    reason,
                    "cannot write the status of the class; retrying"
                );
                // A watch does not repeat an unchanged class, so list the classes again.
                tokio::time::sleep(RETRY).await;
                return;
            }
        }
    }

    async fn changed(
        &self,
        class: DomainClass,
        known: &mut BTreeMap<String, Known>,
    ) -> Result<(), (String, kube::Error)> {
        let name = class.name_any();
        let before = known.remove(&name);
        let same = before
            .filter(|before| before.class.uid() == class.uid() && before.class.spec == class.spec);
        let found = same.and_then(|same| same.found);
        let one = Known { class, found };
        let written = self.write(&one).await;
        let written = written.map_err(|error| (name.clone(), error));
        known.insert(name, one);
        written
    }

    /// Checks the nodes of restricted classes, and the pods there if it is time.
    async fn look(&self, known: &mut BTreeMap<String, Known>) -> Result<(), (String, kube::Error)> {
        known.retain(|name, _| self.view.read().class(name).is_some());
        for (name, one) in &mut *known {
            if one.class.spec.access.mode != AccessMode::Restricted {
                continue;
            }
            let class = match self.view.read().class(name) {
                Some(Ok(class)) => Arc::clone(class),
                _ => continue,
            };
            let guarded = self.view.read().guarded(&class);
            let before = one.found.take();
            let kept = before.filter(|(found, at)| {
                let quiet = found.strays.as_ref().is_ok_and(Vec::is_empty);
                let wait = if quiet { REST } else { AGAIN };
                found.guarded.tainted == guarded.tainted && at.elapsed() < wait
            });
            let (strays, at) = match kept {
                Some((found, at)) => (found.strays, at),
                None => {
                    let strays = self.search.strays(&class, &guarded.tainted).await;
                    let strays = strays.map_err(|error| client::reason(&error));
                    (strays, Instant::now())
                }
            };
            one.found = Some((Findings { guarded, strays }, at));
            let written = self.write(one).await;
            written.map_err(|error| (name.clone(), error))?;
        }
        let findings = known.iter().filter_map(|(name, one)| {
            let (Findings { guarded, strays }, _) = one.found.as_ref()?;
            let strays = strays.as_ref().ok().map(Vec::len);
            Some((name.as_str(), guarded.open.len(), strays))
        });
        self.metrics.isolation(findings);
        Ok(())
    }

    async fn write(&self, one: &Known) -> kube::Result<()> {
        let Known { class, found } = one;
        let now = || Time(Timestamp::now());
        let mut conditions = vec![accepted(class, now())];
        let restricted = class.spec.access.mode == AccessMode::Restricted;
        match found {
            Some((found, _)) if restricted => conditions.push(isolated(class, found, now())),
            _ => {}
        }
        let present = class.status.iter().flat_map(|status| &status.conditions);
        let present: Vec<_> = present.collect();
        // After a restart or a change, the old condition stays until the first check.
        let outlived = restricted && found.is_none();
        let others = present.iter().any(|one| one.type_ == ISOLATED) && !restricted;
        if outlived {
            let before = present.iter().find(|one| one.type_ == ISOLATED);
            conditions.extend(before.map(|&one| one.clone()));
        }
        if !others && conditions.iter().all(|one| present.contains(&one)) {
            return Ok(());
        }
        let status = json!({
            "apiVersion": nvlink_topology::API_VERSION, "kind": "DomainClass",
            "status": {"conditions": conditions},
        });
        let api: Api<DomainClass> = Api::all(self.client.clone());
        let params = PatchParams::apply(MANAGER).force();
        let name = class.name_any();
        match api
            .patch_status(&name, &params, &Patch::Apply(&status))
            .await
        {
            // The class was deleted in the meantime.
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            written => written.map(drop),
        }
    }
}
