//! Which pods have other GPUs than the queue planned, and which of them say so next. Pure.
//!
//! All pods that the queue placed have gauges; each is told once what became of its plan.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use nvlink_api::crd::domain_class::Mapping;
use nvlink_planner::{Millis, Name};
use serde_json::{Value, json};

use super::{
    feed::{Feed, Seated},
    outcome::{Compared, Outcome},
};

/// The most pods that are written at a time. A leader of a new version may find thousands.
const MOST: usize = 20;
/// The pause after a write that failed, milliseconds, and how often it doubles.
const AGAIN: Millis = 1_000;
const MOST_FAILURES: u32 = 6;

/// The pods that the queue placed.
#[derive(Debug, Default)]
pub struct Review {
    pods: HashMap<Name, Reviewed>,
    /// By node, the pods whose GPUs are not known.
    unreported: BTreeMap<Name, BTreeSet<Name>>,
    /// The pods that are to be told.
    untold: BTreeSet<Name>,
    /// The number of writes whose end is not known.
    open: usize,
    next: Option<Millis>,
}

#[derive(Debug)]
struct Reviewed {
    uid: String,
    version: u64,
    class: String,
    node: Name,
    /// The result that is to be told, or was.
    compared: Option<Compared>,
    told: bool,
    open: bool,
    /// No write before this time, after so many failures.
    pause: Millis,
    failures: u32,
}

/// The gauges of a pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Quality {
    /// Its class.
    pub class: String,
    /// The quality of the plan, in (0, 1].
    pub planned: f64,
    /// The quality of what it has; `None` while that is not known.
    pub actual: Option<f64>,
}

/// A pod that is told what became of its plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Telling {
    /// The pod.
    pub pod: Name,
    /// Its UID.
    pub uid: String,
    /// Its metadata: namespace, name and uid.
    pub document: Value,
    /// The strategic merge patch of its status.
    pub patch: Value,
    /// Reason, type and text of an Event.
    pub event: Option<(&'static str, &'static str, String)>,
}

/// A pod that was told, for the counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// Its class.
    pub class: String,
    /// What chose its GPUs.
    pub mapping: Mapping,
    /// What became of its plan.
    pub outcome: Outcome,
}

impl Review {
    /// Looks at what has changed, and returns the pods whose gauges change; `None` removes them,
    /// with the class that they had.
    pub fn look(&mut self, feed: &mut Feed) -> Vec<(Name, String, Option<Quality>)> {
        let moved = feed.moved();
        // The others of its gang wait for the report of a pod that may be gone.
        let of_moved = moved.pods.iter().filter_map(|pod| self.pods.get(pod));
        let nodes = of_moved.map(|one| one.node.clone()).chain(moved.nodes);
        let nodes: BTreeSet<Name> = nodes.collect();
        let mut pods = moved.pods;
        for node in &nodes {
            pods.extend(self.unreported.get(node).into_iter().flatten().cloned());
        }
        let changes = pods.into_iter().map(|pod| self.see(pod, feed));
        changes.flatten().collect::<Vec<_>>()
    }

    fn see(&mut self, pod: Name, feed: &Feed) -> Vec<(Name, String, Option<Quality>)> {
        let before = self.pods.remove(&pod);
        if let Some(before) = &before {
            self.untold.remove(&pod);
            if let Some(pods) = self.unreported.get_mut(&before.node) {
                pods.remove(&pod);
                if pods.is_empty() {
                    self.unreported.remove(&before.node);
                }
            }
        }
        let gone = |before: &Reviewed| (pod.clone(), before.class.clone(), None);
        let Some(seated) = feed.seated(&pod) else {
            return before.iter().map(gone).collect();
        };
        let changed = before.as_ref().filter(|it| it.class != seated.class);
        let mut changes: Vec<_> = changed.map(gone).into_iter().collect();
        let quality = Quality {
            class: seated.class.clone(),
            planned: seated.quality,
            actual: actual(&seated),
        };
        changes.push((pod.clone(), quality.class.clone(), Some(quality)));
        self.keep(pod, seated, before);
        changes
    }

    fn keep(&mut self, pod: Name, seated: Seated, before: Option<Reviewed>) {
        if actual(&seated).is_none() {
            let pods = self.unreported.entry(seated.node.clone()).or_default();
            pods.insert(pod.clone());
        }
        let before = before.filter(|it| it.uid == seated.uid);
        let told = seated.told.is_some() || before.as_ref().is_some_and(|it| it.told);
        if !told && !seated.ends && seated.compared.is_some() {
            self.untold.insert(pod.clone());
        }
        let (open, pause, failures) = before.map_or((false, Millis::MIN, 0), |it| {
            (it.open, it.pause, it.failures)
        });
        let reviewed = Reviewed {
            uid: seated.uid,
            version: seated.version,
            class: seated.class,
            node: seated.node,
            compared: seated.compared,
            told,
            open,
            pause,
            failures,
        };
        self.pods.insert(pod, reviewed);
    }

    /// Returns the pods that are to be told now.
    pub fn tell(&mut self, now: Millis) -> Vec<Telling> {
        self.next = None;
        let mut tellings = Vec::new();
        for pod in &self.untold {
            let Some(one) = self.pods.get_mut(pod).filter(|one| !one.open) else {
                continue;
            };
            if one.pause > now {
                self.next = Some(self.next.map_or(one.pause, |next| next.min(one.pause)));
                continue;
            }
            // The end of a write wakes the controller.
            if self.open >= MOST {
                break;
            }
            if let Some(telling) = one.telling(pod, now) {
                one.open = true;
                self.open += 1;
                tellings.push(telling);
            }
        }
        tellings
    }

    /// Returns when to look again although nothing changes.
    #[must_use]
    pub fn next(&self) -> Option<Millis> {
        self.next
    }

    /// Records that the clock was set by `by`: pauses last no longer because of it.
    pub fn jumped(&mut self, by: Millis) {
        for one in self.pods.values_mut() {
            one.pause = one.pause.saturating_add(by);
        }
    }

    /// Records how a write about the pod of this UID ended, and returns what to count.
    pub fn ended(&mut self, pod: &Name, uid: &str, written: bool, now: Millis) -> Option<Told> {
        self.open = self.open.saturating_sub(1);
        let one = self.pods.get_mut(pod).filter(|one| one.uid == uid)?;
        one.open = false;
        if !written {
            one.pause = now.saturating_add(AGAIN << one.failures.min(MOST_FAILURES));
            one.failures += 1;
            return None;
        }
        one.told = true;
        self.untold.remove(pod);
        let compared = one.compared.as_ref()?;
        Some(Told {
            class: one.class.clone(),
            mapping: compared.mapping,
            outcome: compared.outcome,
        })
    }
}

/// Returns the quality of what a pod has. Indices of GPUs may have changed since it started, so
/// what was told then is the last word on a plan that was met.
fn actual(seated: &Seated) -> Option<f64> {
    match seated.told {
        Some(Outcome::AsPlanned) => Some(seated.quality),
        _ => seated.compared.as_ref()?.quality,
    }
}

impl Reviewed {
    fn telling(&self, pod: &Name, now: Millis) -> Option<Telling> {
        let (namespace, name) = pod.split_once('/')?;
        let compared = self.compared.as_ref()?;
        let event = compared.event();
        Some(Telling {
            pod: pod.clone(),
            uid: self.uid.clone(),
            document: json!({
                "metadata": {"namespace": namespace, "name": name, "uid": self.uid}
            }),
            patch: compared.patch(&self.uid, self.version, now),
            event: event.map(|(reason, kind)| (reason, kind, compared.message())),
        })
    }
}
