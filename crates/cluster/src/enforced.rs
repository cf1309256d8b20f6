//! The index of the classes, which the policies read, and the condition `Enforced` of a class: whether
//! the index has its present generation.
//!
//! Only the leader writes the index, with the number of its term. While there is none, the policies
//! enforce the classes as they were, and the next leader writes what differs.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams},
    runtime::watcher,
};
use nvlink_admission::policies::index::{INDEX, index};
use nvlink_api::{
    MANAGER,
    class::condition,
    crd::{ClassIndex, DomainClass, condition::Condition},
};
use nvlink_runtime::{
    client,
    complaints::Complaints,
    lease::Leadership,
    watch::{self, Key, Mirror},
};
use tokio::{
    sync::{Notify, watch as channel},
    time::{sleep, timeout},
};

use crate::metrics::Metrics;

/// The type of the condition.
pub(super) const ENFORCED: &str = "Enforced";

/// The shortest time between two writes: what changes at once is written at once.
const PACE: Duration = Duration::from_millis(200);
/// The time until the next attempt after a failure.
const RETRY: Duration = Duration::from_secs(5);
/// How long a new leader waits until the index has its term. Where it never has, such as without its CRD,
/// the leader works without.
const FENCE: Duration = Duration::from_secs(5);

/// A version of the spec of a class: its UID and generation.
type Version = (Option<String>, Option<i64>);

/// What the index has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Enforced {
    /// The version of each class in it.
    versions: BTreeMap<String, Version>,
    /// Why it does not have the present ones.
    problem: Option<String>,
    /// The number of the term that it has.
    term: Option<i32>,
}

impl Enforced {
    /// Reports whether the policies admit what the leader of this term writes, as far as the index tells:
    /// where it cannot be written, there may be no policies.
    fn admits(&self, term: i32) -> bool {
        self.term == Some(term) || self.problem.is_some()
    }

    /// Returns the condition of `class` at `now`; `None` while that is still to come.
    pub(super) fn condition(&self, class: &DomainClass, now: Time) -> Option<Condition> {
        let version = (class.uid(), class.metadata.generation);
        let (status, reason, message) = match &self.problem {
            _ if self.versions.get(&class.name_any()) == Some(&version) => (
                "True",
                ENFORCED,
                "the index of the classes, which the policies read, has this generation",
            ),
            Some(problem) => ("False", "IndexNotWritten", problem.as_str()),
            None => return None,
        };
        let shown = (ENFORCED, status, reason);
        Some(condition(class, shown, message.to_owned(), now))
    }
}

/// Waits until the policies admit what the leader of this term writes, or until it is clear that the index
/// cannot say so: at most 5 seconds.
pub async fn admitted(mut told: channel::Receiver<Option<Enforced>>, term: i32) {
    let admits = |one: &Option<Enforced>| one.as_ref().is_some_and(|one| one.admits(term));
    drop(timeout(FENCE, told.wait_for(admits)).await);
}

/// The classes and the index, and whether the watch of each has shown all.
#[derive(Debug, Default)]
struct State {
    listing: BTreeMap<String, DynamicObject>,
    listed: bool,
    index: Option<ClassIndex>,
    looked: bool,
}

#[derive(Clone, Debug, Default)]
struct Shared(Arc<(Mutex<State>, Notify)>);

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.0.1.notify_one();
    }
}

/// The watch of the classes, as the API server has them.
struct Classes(Shared);

impl Mirror for Classes {
    type Object = DynamicObject;
    const KIND: &'static str = "DomainClasses";
    const UNKNOWN: &'static str = ": install the CRDs";

    fn set(&mut self, class: DynamicObject) {
        let name = class.name_any();
        self.0
            .change(|state| drop(state.listing.insert(name, class)));
    }

    fn remove(&mut self, (_, name): &Key) {
        self.0.change(|state| drop(state.listing.remove(name)));
    }

    fn retain(&mut self, keys: &HashSet<Key>) {
        self.0.change(|state| {
            let listed = |name: &String| keys.contains(&(String::new(), name.clone()));
            state.listing.retain(|name, _| listed(name));
            state.listed = true;
        });
    }
}

/// The watch of the index.
struct Index(Shared);

impl Mirror for Index {
    type Object = ClassIndex;
    const KIND: &'static str = "ClassIndexes";
    const UNKNOWN: &'static str =
        ", so the policies enforce no change of a class: install the CRDs";
    const FORBIDDEN: &'static str = ", so the policies enforce no change of a class";

    fn set(&mut self, index: ClassIndex) {
        self.0.change(|state| state.index = Some(index));
    }

    fn remove(&mut self, _: &Key) {
        self.0.change(|state| state.index = None);
    }

    fn retain(&mut self, keys: &HashSet<Key>) {
        self.0.change(|state| {
            if keys.is_empty() {
                state.index = None;
            }
            state.looked = true;
        });
    }
}

/// Keeps the index up to date.
#[derive(Clone)]
pub struct Keeper {
    client: Client,
    told: channel::Sender<Option<Enforced>>,
    metrics: Arc<Metrics>,
}

impl Keeper {
    /// Returns a keeper of the index, which tells `told` what it has, and `metrics` whether that is
    /// current.
    #[must_use]
    pub fn new(
        client: &Client,
        told: channel::Sender<Option<Enforced>>,
        metrics: &Arc<Metrics>,
    ) -> Self {
        Self {
            client: client.clone(),
            told,
            metrics: Arc::clone(metrics),
        }
    }

    /// Keeps it whenever this replica leads. Never ends.
    pub async fn follow(self, mut leadership: Leadership) {
        loop {
            let term = leadership.gained().await;
            let leads = leadership.clone();
            tokio::select! {
                () = self.keep(term.number, &leads) => {}
                () = leadership.lost(&term) => {}
            }
            self.told.send_replace(None);
            self.metrics.index(None);
        }
    }

    async fn keep(&self, term: i32, leads: &Leadership) {
        let shared = Shared::default();
        let classes = ApiResource::erase::<DomainClass>(&());
        let classes: Api<DynamicObject> = Api::all_with(self.client.clone(), &classes);
        let one = watcher::Config::default().fields(&format!("metadata.name={INDEX}"));
        tokio::join!(
            watch::follow(classes, watcher::Config::default(), Classes(shared.clone())),
            watch::follow(self.api(), one, Index(shared.clone())),
            self.write_all(&shared, term, leads),
        );
    }

    fn api(&self) -> Api<ClassIndex> {
        Api::all(self.client.clone())
    }

    async fn write_all(&self, shared: &Shared, term: i32, leads: &Leadership) {
        let mut complaints = Complaints::default();
        loop {
            // A leader that was paused sees only here that its term is over.
            let enforced = match leads.term() {
                Some(present) if present.number == term => self.update(shared, term).await,
                _ => None,
            };
            let problem = enforced.as_ref().and_then(|one| one.problem.as_ref());
            let wait = match problem {
                Some(problem) => {
                    if complaints.is_due(problem, std::time::Instant::now()) {
                        tracing::warn!(problem, "the policies do not know all classes; retrying");
                    }
                    RETRY
                }
                None => Duration::MAX,
            };
            let current = enforced.as_ref().map(|one| one.problem.is_none());
            self.metrics.index(current);
            let told = enforced.is_some();
            self.told.send_if_modified(|told| {
                let changes = enforced.is_some() && *told != enforced;
                if changes {
                    *told = enforced;
                }
                changes
            });
            // The first write, with which a new leader begins, does not wait.
            if told {
                sleep(PACE).await;
            }
            drop(timeout(wait, shared.0.1.notified()).await);
        }
    }

    /// Writes the index if it differs. Returns what it has; `None` while that is not known.
    async fn update(&self, shared: &Shared, term: i32) -> Option<Enforced> {
        let before = self.told.borrow().clone().unwrap_or_default();
        let (versions, wanted, problem) = {
            let state = shared.state();
            if !state.listed || !state.looked {
                return None;
            }
            let (wanted, problem) = wanted(&state, term);
            let present = state.index.as_ref();
            let same = present.is_some_and(|present| present.spec == wanted.spec);
            (versions(&state.listing), (!same).then_some(wanted), problem)
        };
        // The watch shows what somebody makes of it.
        let written = match wanted {
            Some(wanted) => self.write(&wanted).await.map(Some),
            None => Ok(None),
        };
        let failed = |error: kube::Error| {
            let reason = client::reason(&error);
            format!("cannot write ClassIndex {INDEX}: {reason}")
        };
        let (problem, known) = match written {
            Ok(index) => {
                if index.is_some() {
                    shared.state().index = index;
                }
                (problem, Some(term))
            }
            Err(error) => (problem.or_else(|| Some(failed(error))), before.term),
        };
        Some(Enforced {
            versions: match &problem {
                Some(_) => before.versions,
                None => versions,
            },
            problem,
            term: known,
        })
    }

    /// Writes the index over the version that was seen, and over no other.
    async fn write(&self, wanted: &ClassIndex) -> kube::Result<ClassIndex> {
        let written = match wanted.metadata.resource_version {
            Some(_) => {
                let params = PatchParams::apply(MANAGER).force();
                let wanted = Patch::Apply(wanted);
                self.api().patch(INDEX, &params, &wanted).await?
            }
            None => {
                let params = PostParams {
                    field_manager: Some(MANAGER.to_owned()),
                    ..PostParams::default()
                };
                self.api().create(&params, wanted).await?
            }
        };
        tracing::info!("the index of the classes is written, for the policies");
        Ok(written)
    }
}

/// Returns the index of the present classes in a term, and why it has the classes of before if it does.
fn wanted(state: &State, term: i32) -> (ClassIndex, Option<String>) {
    let classes = state.listing.iter();
    let made = index(classes.map(|(name, class)| (name.as_str(), &class.data)));
    let present = state.index.as_ref();
    let (mut wanted, problem) = match made {
        Ok(made) => (made, None),
        Err(error) => {
            let spec = present.map(|index| index.spec.clone()).unwrap_or_default();
            (ClassIndex::new(INDEX, spec), Some(error.to_string()))
        }
    };
    wanted.spec.term = Some(term);
    // A leader that was paused cannot replace the index of the next one, which it has not seen.
    wanted.metadata.resource_version = present.and_then(ResourceExt::resource_version);
    (wanted, problem)
}

fn versions(classes: &BTreeMap<String, DynamicObject>) -> BTreeMap<String, Version> {
    let version = |class: &DynamicObject| (class.uid(), class.metadata.generation);
    let classes = classes.iter();
    classes
        .map(|(name, class)| (name.clone(), version(class)))
        .collect()
}

#[cfg(test)]
mod tests;
