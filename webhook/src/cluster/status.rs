//! Writes the conditions of each DomainClass: `Accepted` shows why a class cannot
//! be used, `Isolated` which other pods are on the nodes of a restricted class, and
//! `Exclusive` on which nodes claims share GPUs.
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
use tokio::{
    sync::watch as channel,
    time::{MissedTickBehavior, interval},
};

use super::{
    MANAGER,
    exclusive::{EXCLUSIVE, SharedGpus, exclusive},
    isolated::{Findings, ISOLATED, isolated},
    strays::Search,
    view::SharedView,
};
use crate::{
    class::accepted,
    crd::{DomainClass, access::AccessMode, condition::Condition, domain_class::Mapping},
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
    /// What the queue sees; `None` before it has seen all.
    shared: channel::Receiver<Option<SharedGpus>>,
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
        shared: channel::Receiver<Option<SharedGpus>>,
    ) -> Self {
        Self {
            client: client.clone(),
            view: view.clone(),
            metrics: Arc::clone(metrics),
            search: Search::new(client.clone(), exempt),
            shared,
        }
    }

    /// Follows the classes whenever this replica leads. Never ends.
    pub async fn follow(self, mut leadership: Leadership) {
        loop {
            let term = leadership.gained().await;
            tokio::select! {
                () = self.write_all() => {}
                () = leadership.lost(&term) => {}
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
        let mut shared = self.shared.clone();
        shared.mark_changed();
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
                Ok(()) = shared.changed() => self.write_known(&known).await,
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

    async fn write_known(
        &self,
        known: &BTreeMap<String, Known>,
    ) -> Result<(), (String, kube::Error)> {
        for (name, one) in known {
            let written = self.write(one).await;
            written.map_err(|error| (name.clone(), error))?;
        }
        Ok(())
    }

    /// Returns the conditions of a class.
    fn conditions(&self, Known { class, found }: &Known) -> Vec<Condition> {
        let now = || Time(Timestamp::now());
        let mut conditions = vec![accepted(class, now())];
        let present = class.status.iter().flat_map(|status| &status.conditions);
        // After a restart or a change, the old condition stays until the first check.
        let before = |type_: &str| present.clone().find(|one| one.type_ == type_).cloned();
        if class.spec.access.mode == AccessMode::Restricted {
            conditions.extend(match found {
                Some((found, _)) => Some(isolated(class, found, now())),
                None => before(ISOLATED),
            });
        }
        if class.spec.devices.mapping == Mapping::Claim {
            let shared = self.shared.borrow();
            let nodes = shared.as_ref().and_then(|all| all.get(&class.name_any()));
            conditions.extend(match nodes {
                Some(nodes) => Some(exclusive(class, nodes, now())),
                None => before(EXCLUSIVE),
            });
        }
        conditions
    }

    async fn write(&self, one: &Known) -> kube::Result<()> {
        let class = &one.class;
        let conditions = self.conditions(one);
        let present = class.status.iter().flat_map(|status| &status.conditions);
        let present: Vec<_> = present.collect();
        let wanted = |one: &&Condition| conditions.iter().any(|wanted| wanted.type_ == one.type_);
        let own = |one: &&&Condition| [ISOLATED, EXCLUSIVE].contains(&&*one.type_);
        let superfluous = present.iter().filter(own).any(|one| !wanted(one));
        if !superfluous && conditions.iter().all(|one| present.contains(&one)) {
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
