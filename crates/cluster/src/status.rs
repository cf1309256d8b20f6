//! Writes the conditions of each DomainClass: `Accepted` shows why a class cannot
//! be used, `Isolated` which other pods are on the nodes of a restricted class, `Restrictable`
//! which pods would be refused if an open class were restricted, `Exclusive` on which nodes claims
//! share GPUs, and `Enforced` whether the policies know the class. Beside them are the node labels
//! by which this webhook judges scopes, for those that ask without it.
//!
//! Only the leader writes them: during a rollout, replicas of two versions would
//! overwrite each other's messages forever. Nothing waits for the conditions, so
//! nothing is lost while there is no leader; the next leader writes what differs.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::StreamExt;
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
    core::DeserializeGuard,
    runtime::{WatchStreamExt, watcher},
};
use nvlink_admission::{decide::Settings, view::SharedView};
use nvlink_api::{
    MANAGER,
    class::accepted,
    crd::{
        DomainClass,
        access::AccessMode,
        condition::Condition,
        domain_class::{Mapping, ScopeLabels},
    },
};
use nvlink_runtime::{client, complaints::Complaints, lease::Leadership, watch};
use serde_json::json;
use tokio::{
    sync::watch as channel,
    task::{Id, JoinError, JoinSet},
    time::{Instant, MissedTickBehavior, interval},
};

use super::{
    enforced::{ENFORCED, Enforced},
    exclusive::{EXCLUSIVE, exclusive},
    isolated::{Findings, ISOLATED, Stray, isolated},
    plain::{REQUESTS_KNOWN, requests_known},
    restriction::{RESTRICTABLE, Refused, is_wanted, restrictable},
    seen::Seen,
    steady::{STEADY, steady},
    strays::{FEW, Search},
};
use crate::metrics::Metrics;

/// The pause after a status that could not be written: that of its class, and no other.
const RETRY: Duration = Duration::from_secs(10);
/// The time between two checks of the nodes of restricted classes, which cost no request.
const LOOK: Duration = Duration::from_secs(5);
/// Pods are listed again when the nodes of their class change, or after a time:
/// after `AGAIN` if some do not belong there or could not be listed, otherwise
/// after `REST`. Where the nodes are many, their changes are collected for `AGAIN`.
const AGAIN: Duration = Duration::from_secs(30);
const REST: Duration = Duration::from_secs(600);
/// A search that takes long is repeated only after so many times as long.
const SHARE: u32 = 10;

/// Writes the status of classes.
#[derive(Clone)]
pub struct Writer {
    client: Client,
    view: SharedView,
    metrics: Arc<Metrics>,
    /// The node labels by which this webhook judges scopes.
    scope_labels: ScopeLabels,
    search: Search,
    /// What the queue sees; `None` before it has seen all.
    seen: channel::Receiver<Option<Seen>>,
    /// What the policies know; `None` before that is known.
    enforced: channel::Receiver<Option<Enforced>>,
}

/// A class, and the findings on it if it is restricted.
struct Known {
    class: DomainClass,
    found: Option<Found>,
    /// The pods that would be refused if it were restricted, where that is wanted.
    restrictable: Option<Preview>,
    /// The search for pods that do not belong on its nodes, while it goes on.
    searching: Option<Id>,
    /// When its status could not be written.
    failed: Option<Instant>,
    /// The CRD is of an earlier version: it has no labels of scopes.
    without_labels: bool,
    complaints: Complaints,
}

/// What was found out about the nodes of a class.
struct Found {
    findings: Findings,
    /// The nodes whose pods were listed, when that ended, and how long it took.
    nodes: Vec<String>,
    at: Instant,
    took: Duration,
}

/// What would be refused if an open class were restricted.
struct Preview {
    refused: Result<Vec<Refused>, String>,
    at: Instant,
    took: Duration,
}

/// The result of a search.
enum Searched {
    Strays {
        nodes: Vec<String>,
        strays: Result<Vec<Stray>, String>,
        took: Duration,
    },
    Refused(Preview),
}

impl Known {
    fn new(class: DomainClass) -> Self {
        Self {
            class,
            found: None,
            restrictable: None,
            searching: None,
            failed: None,
            without_labels: false,
            complaints: Complaints::default(),
        }
    }

    /// Reports whether the pods on these nodes must be listed, again or for the first time.
    fn is_due(&self, nodes: &[String]) -> bool {
        let Some(found) = &self.found else {
            return self.searching.is_none();
        };
        let quiet = found.findings.strays.as_ref().is_ok_and(Vec::is_empty);
        let wait = match found.nodes == nodes {
            true if quiet => REST,
            true => AGAIN,
            false if nodes.len() > FEW => AGAIN,
            false => Duration::ZERO,
        };
        self.searching.is_none() && found.at.elapsed() >= wait.max(found.took * SHARE)
    }

    /// Reports whether it must be found out, again or for the first time, what would be refused.
    fn is_preview_due(&self) -> bool {
        let due = |one: &Preview| one.at.elapsed() >= AGAIN.max(one.took * SHARE);
        self.searching.is_none() && self.restrictable.as_ref().is_none_or(due)
    }
}

impl Writer {
    /// Returns a writer; no rule applies to pods in the namespaces `exempt`.
    #[must_use]
    pub fn new(
        client: &Client,
        view: &SharedView,
        metrics: &Arc<Metrics>,
        exempt: Vec<String>,
        settings: Settings,
        seen: channel::Receiver<Option<Seen>>,
        enforced: channel::Receiver<Option<Enforced>>,
    ) -> Self {
        Self {
            client: client.clone(),
            view: view.clone(),
            metrics: Arc::clone(metrics),
            scope_labels: settings.scope_labels(),
            search: Search::new(client.clone(), exempt, settings),
            seen,
            enforced,
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
            self.metrics.forget();
        }
    }

    /// Writes the status of all classes, and again when a class or its nodes
    /// change. A status that cannot be written keeps no other from being written.
    async fn write_all(&self) {
        let classes: Api<DeserializeGuard<DomainClass>> = Api::all(self.client.clone());
        let mut events = watch::events(classes, watcher::Config::default())
            .applied_objects()
            .boxed();
        let mut known = BTreeMap::<String, Known>::new();
        let mut searches = JoinSet::new();
        let mut shared = self.seen.clone();
        shared.mark_changed();
        let mut enforced = self.enforced.clone();
        enforced.mark_changed();
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                event = events.next() => match event {
                    // The watch that decisions use logs failures. The status of a class that
                    // cannot be parsed cannot be written.
                    Some(Ok(DeserializeGuard(Ok(class)))) => self.changed(class, &mut known).await,
                    Some(_) => {}
                    None => return,
                },
                Some(ended) = searches.join_next_with_id() => {
                    self.searched(ended, &mut known).await;
                }
                _ = look.tick() => self.look(&mut known, &mut searches).await,
                Ok(()) = shared.changed() => self.attempt_all(&mut known).await,
                Ok(()) = enforced.changed() => self.attempt_all(&mut known).await,
            }
        }
    }

    async fn attempt_all(&self, known: &mut BTreeMap<String, Known>) {
        for (name, one) in known {
            self.attempt(name, one).await;
        }
    }

    async fn changed(&self, class: DomainClass, known: &mut BTreeMap<String, Known>) {
        let name = class.name_any();
        let before = known.remove(&name);
        let same = before.filter(|before| {
            before.class.uid() == class.uid()
                && before.class.spec == class.spec
                && is_wanted(&before.class) == is_wanted(&class)
        });
        let mut one = match same {
            Some(before) => Known { class, ..before },
            None => Known::new(class),
        };
        self.attempt(&name, &mut one).await;
        known.insert(name, one);
    }

    /// Checks the nodes of restricted classes, and begins to list the pods there if it is time.
    /// Writes what could not be written before.
    async fn look(&self, known: &mut BTreeMap<String, Known>, searches: &mut JoinSet<Searched>) {
        known.retain(|name, _| self.view.read().class(name).is_some());
        for (name, one) in &mut *known {
            if one.class.spec.access.mode == AccessMode::Restricted {
                self.check(name, one, searches);
            } else if is_wanted(&one.class) && one.is_preview_due() {
                self.preview(name, one, searches);
            }
        }
        self.count(known);
        for (name, one) in known {
            if one.found.is_some() || one.failed.is_some() {
                self.attempt(name, one).await;
            }
        }
    }

    /// Brings the findings on the nodes of a restricted class up to date, and begins a search for
    /// pods there if it is time.
    fn check(&self, name: &str, one: &mut Known, searches: &mut JoinSet<Searched>) {
        let class = match self.view.read().class(name) {
            Some(Ok(class)) => Arc::clone(class),
            _ => return,
        };
        let guarded = self.view.read().guarded(&class);
        if one.is_due(&guarded.tainted) {
            let (search, nodes) = (self.search.clone(), guarded.tainted.clone());
            let task = searches.spawn(async move {
                let began = Instant::now();
                let strays = search.strays(&class, &nodes).await;
                Searched::Strays {
                    nodes,
                    strays: strays.map_err(|error| client::reason(&error)),
                    took: began.elapsed(),
                }
            });
            one.searching = Some(task.id());
        }
        if let Some(found) = &mut one.found {
            found.findings.guarded = guarded;
        }
    }

    /// Begins to find out what would be refused if the class were restricted.
    fn preview(&self, name: &str, one: &mut Known, searches: &mut JoinSet<Searched>) {
        let Some(judge) = self.search.judge(&self.view.read(), name) else {
            return;
        };
        let search = self.search.clone();
        let task = searches.spawn(async move {
            let began = Instant::now();
            let refused = search.refused(&judge).await;
            Searched::Refused(Preview {
                refused: refused.map_err(|error| client::reason(&error)),
                at: Instant::now(),
                took: began.elapsed(),
            })
        });
        one.searching = Some(task.id());
    }

    /// Records what a search found, and writes it. The result for a class that has changed
    /// meanwhile, or was created anew, is dropped; a search that panicked is begun anew.
    async fn searched(
        &self,
        ended: Result<(Id, Searched), JoinError>,
        known: &mut BTreeMap<String, Known>,
    ) {
        let (id, searched) = match ended {
            Ok((id, searched)) => (id, Some(searched)),
            Err(error) => (error.id(), None),
        };
        let begun = |(_, one): &(&String, &mut Known)| one.searching == Some(id);
        let Some((name, one)) = known.iter_mut().find(begun) else {
            return;
        };
        one.searching = None;
        let (nodes, strays, took) = match searched {
            None => return,
            Some(Searched::Refused(preview)) => {
                one.restrictable = Some(preview);
                return self.attempt(name, one).await;
            }
            Some(Searched::Strays {
                nodes,
                strays,
                took,
            }) => (nodes, strays, took),
        };
        let name = name.clone();
        let class = match self.view.read().class(&name) {
            Some(Ok(class)) => Arc::clone(class),
            _ => return,
        };
        let guarded = self.view.read().guarded(&class);
        one.found = Some(Found {
            findings: Findings { guarded, strays },
            nodes,
            at: Instant::now(),
            took,
        });
        self.count(known);
        if let Some(one) = known.get_mut(&name) {
            self.attempt(&name, one).await;
        }
    }

    fn count(&self, known: &BTreeMap<String, Known>) {
        let findings = known.iter().filter_map(|(name, one)| {
            let Findings { guarded, strays } = &one.found.as_ref()?.findings;
            let strays = strays.as_ref().ok().map(Vec::len);
            Some((name.as_str(), guarded.open.len(), strays))
        });
        self.metrics.nodes(findings, &self.view.read());
    }

    /// Writes the status of a class, unless that failed a moment ago.
    async fn attempt(&self, class: &str, one: &mut Known) {
        if one.failed.is_some_and(|at| at.elapsed() < RETRY) {
            return;
        }
        one.failed = None;
        if let Err(error) = self.write(one).await {
            one.failed = Some(Instant::now());
            let reason = client::reason(&error);
            if one.complaints.is_due(&reason, std::time::Instant::now()) {
                tracing::warn!(
                    class,
                    reason,
                    "cannot write the status of the class; retrying"
                );
            }
        }
    }

    /// Returns the conditions of a class.
    fn conditions(&self, known: &Known) -> Vec<Condition> {
        let Known {
            class,
            found,
            restrictable: preview,
            ..
        } = known;
        let now = || Time(Timestamp::now());
        let mut conditions = vec![accepted(class, now())];
        let present = class.status.iter().flat_map(|status| &status.conditions);
        // After a restart or a change, the old condition stays until the first check.
        let before = |type_: &str| present.clone().find(|one| one.type_ == type_).cloned();
        if class.spec.access.mode == AccessMode::Restricted {
            conditions.extend(match found {
                Some(found) => Some(isolated(class, &found.findings, now())),
                None => before(ISOLATED),
            });
        }
        if is_wanted(class) {
            conditions.extend(match preview {
                Some(preview) => Some(restrictable(class, &preview.refused, now())),
                None => before(RESTRICTABLE),
            });
        }
        let (seen, name) = (self.seen.borrow(), class.name_any());
        if class.spec.devices.mapping == Mapping::Claim {
            let nodes = seen.as_ref().and_then(|seen| seen.shared.get(&name));
            conditions.extend(match nodes {
                Some(nodes) => Some(exclusive(class, nodes, now())),
                None => before(EXCLUSIVE),
            });
        }
        conditions.extend(match &*seen {
            Some(seen) => {
                let nodes = seen.unsteady.get(&name);
                steady(class, nodes.map_or(&[], |nodes| nodes), now())
            }
            None => before(STEADY),
        });
        conditions.extend(match &*seen {
            Some(seen) => {
                let others = seen.others.get(&name);
                requests_known(class, others.map_or(&[], |others| others), now())
            }
            None => before(REQUESTS_KNOWN),
        });
        let known = self.enforced.borrow();
        let known = known.as_ref().and_then(|one| one.condition(class, now()));
        conditions.extend(known.or_else(|| before(ENFORCED)));
        conditions
    }

    /// Writes the status of a class if it differs. It takes over what it wrote: the watch may show that
    /// after the next attempt, which would write it again.
    async fn write(&self, one: &mut Known) -> kube::Result<()> {
        let class = &one.class;
        let conditions = self.conditions(one);
        let present = class.status.iter().flat_map(|status| &status.conditions);
        let present: Vec<_> = present.collect();
        let wanted = |one: &&Condition| conditions.iter().any(|wanted| wanted.type_ == one.type_);
        let own = |one: &&&Condition| {
            [
                ISOLATED,
                EXCLUSIVE,
                STEADY,
                REQUESTS_KNOWN,
                RESTRICTABLE,
                ENFORCED,
            ]
            .contains(&&*one.type_)
        };
        let superfluous = present.iter().filter(own).any(|one| !wanted(one));
        let labels = class.status.as_ref();
        let labels = labels.and_then(|status| status.scope_labels.as_ref());
        let same = one.without_labels || labels == Some(&self.scope_labels);
        if same && !superfluous && conditions.iter().all(|one| present.contains(&one)) {
            return Ok(());
        }
        let name = class.name_any();
        let mut written = self.apply(&name, &conditions, one.without_labels).await;
        if !one.without_labels && written.as_ref().is_err_and(is_about_labels) {
            one.without_labels = true;
            written = self.apply(&name, &conditions, true).await;
        }
        match written {
            // The class was deleted in the meantime.
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            written => {
                one.class.status = written?.status;
                Ok(())
            }
        }
    }

    async fn apply(
        &self,
        name: &str,
        conditions: &[Condition],
        without_labels: bool,
    ) -> kube::Result<DomainClass> {
        let mut status = json!({"conditions": conditions});
        if !without_labels {
            status["scopeLabels"] = json!(self.scope_labels);
        }
        let class = json!({
            "apiVersion": nvlink_topology::API_VERSION, "kind": "DomainClass", "status": status,
        });
        let api: Api<DomainClass> = Api::all(self.client.clone());
        let params = PatchParams::apply(MANAGER).force();
        api.patch_status(name, &params, &Patch::Apply(&class)).await
    }
}

/// Reports whether the API server refuses the labels of scopes, which its CRD does not have.
fn is_about_labels(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.message.contains("scopeLabels"))
}
