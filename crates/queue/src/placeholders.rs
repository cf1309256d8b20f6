//! Placeholder pods: they request nodes for jobs that more nodes would start. Pure.
//!
//! Autoscalers do not see pods with scheduling gates, so a pool never grows for pods that wait in the
//! queue. A placeholder requests what a waiting pod requests, without a gate. No scheduler has its
//! `schedulerName`, so it never runs and never takes a GPU; the queue itself writes the condition by
//! which cluster-autoscaler and Karpenter know pods that need a node: `PodScheduled` is `False` with the
//! reason `Unschedulable`. While it exists, they also keep the node that they made for it.
//!
//! - `object`: the pod itself;
//! - `write`: creates and deletes it.

pub(crate) mod object;
mod write;

use std::collections::{BTreeMap, HashMap, HashSet};

use nvlink_api::pod;
use nvlink_planner::{Millis, Name};
use nvlink_topology::labels;
use serde_json::Value;

use crate::{Life, life::created, placement::id};

/// What the names of placeholder pods begin with; the UID of the waiting pod follows.
const PREFIX: &str = "nvlink-placeholder-";
/// For how long a pod waits before a node is requested for it: most start earlier, milliseconds.
pub(crate) const GRACE: Millis = 10_000;
/// How long a placeholder exists: if its job has not started by then, no node of the autoscaler helps it,
/// and others may ask.
const PATIENCE: Millis = 900_000;
/// After that, none is created for the same pod this long.
const REST: Millis = 900_000;
/// For how long one may lack its condition. Then the process that was to write it has ended.
const SILENCE: Millis = 30_000;
/// The pause after a request that failed, and after one of the same pod: others may ask before it.
const AGAIN: Millis = 10_000;
const AGAIN_FOR_POD: Millis = 60_000;

/// A job that more nodes would start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Want {
    pub(crate) job: Name,
    pub(crate) class: String,
    /// The most placeholder pods of its class.
    pub(crate) most: u32,
    /// Its waiting pods, and their UIDs.
    pub(crate) pods: Vec<(Name, String)>,
}

/// What to do about a placeholder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Create it for the waiting `pod`.
    Create {
        pod: Name,
        uid: String,
        class: String,
    },
    /// Delete that of the waiting pod with this UID.
    Delete { uid: String },
}

/// A request about a placeholder.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Request {
    pub(crate) namespace: String,
    /// The UID of the waiting pod.
    pub(crate) uid: String,
    /// What to create; `None`: delete it.
    pub(crate) object: Option<Value>,
}

/// How a request ended.
#[derive(Debug)]
pub(crate) enum Answer {
    /// This is the placeholder now.
    There(Box<Value>),
    /// It is deleted, or about to be.
    Gone,
    /// The API server refuses the request, or does not answer, for this reason.
    Failed(String),
}

/// Where a placeholder is between its creation and its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It has no condition yet.
    Silent,
    /// Autoscalers see it.
    Requests,
    Leaves,
}

#[derive(Debug)]
struct Placeholder {
    class: String,
    created: Millis,
    stage: Stage,
}

/// The placeholder pods, by the UIDs of the waiting pods for which they are.
#[derive(Debug, Default)]
pub(crate) struct Placeholders {
    /// Their namespace, in which nobody else creates pods of their name; `None`: there are none.
    namespace: Option<String>,
    pods: HashMap<String, Placeholder>,
    /// Until when no other placeholder is created for a pod.
    rests: HashMap<String, Millis>,
    /// Those of which a request is not answered, and the classes of those that are being created.
    open: HashMap<String, Option<String>>,
    pause: Millis,
}

impl Placeholders {
    /// Returns none, which are created in `namespace`; `None`: nowhere.
    pub(crate) fn new(namespace: Option<String>) -> Self {
        Self {
            namespace,
            ..Self::default()
        }
    }

    pub(crate) fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// Takes a pod over if it is a placeholder. Returns whether it is.
    pub(crate) fn set(&mut self, pod: &Value) -> bool {
        let text = |field| pod::text(pod, &["metadata", field]);
        let class = pod::metadata(pod, "labels", labels::PLACEHOLDER).and_then(Value::as_str);
        let here = self.namespace() == Some(text("namespace"));
        let uid = text("name").strip_prefix(PREFIX);
        let (Some(class), true, Some(uid)) = (class, here, uid) else {
            return false;
        };
        let stage = match Life::of(pod) {
            Life::Deleting { .. } => Stage::Leaves,
            _ if object::is_seen(pod) => Stage::Requests,
            _ => Stage::Silent,
        };
        let placeholder = Placeholder {
            class: class.to_owned(),
            created: created(pod).map_or(Millis::MAX, |at| at.as_millisecond()),
            stage,
        };
        self.pods.insert(uid.to_owned(), placeholder);
        true
    }

    /// Removes the placeholder of this id, if there is one.
    pub(crate) fn gone(&mut self, pod: &Name) {
        let name = self.namespace().and_then(|space| pod.strip_prefix(space));
        let uid = name.and_then(|name| name.strip_prefix('/')?.strip_prefix(PREFIX));
        if let Some(uid) = uid.map(str::to_owned) {
            self.pods.remove(&uid);
        }
    }

    /// Removes all but those of these ids.
    pub(crate) fn retain(&mut self, all: &HashSet<Name>) {
        let Some(namespace) = &self.namespace else {
            return;
        };
        self.pods
            .retain(|uid, _| all.contains(&id(namespace, &name(uid))));
    }

    /// Returns what to do at `now` for these jobs that more nodes would start, in the order of the queue.
    /// They are all of which something is known, and the first others.
    pub(crate) fn plan(&mut self, wants: &[Want], now: Millis) -> Vec<Change> {
        if self.namespace.is_none() || now < self.pause {
            return Vec::new();
        }
        let wanted: HashSet<&str> = wants.iter().flat_map(Want::uids).collect();
        self.rests
            .retain(|uid, until| *until > now && wanted.contains(&**uid));
        let mut changes = self.deletions(&wanted, now);
        let mut used = self.used(&wanted);
        let mut full: HashSet<&str> = HashSet::new();
        for want in wants {
            let most = usize::try_from(want.most).unwrap_or(usize::MAX);
            if want.pods.len() > most || full.contains(&*want.class) {
                continue;
            }
            let missing: Vec<_> = want
                .pods
                .iter()
                .filter(|(_, uid)| self.lacks(uid))
                .collect();
            let used = used.entry(want.class.clone()).or_default();
            // All pods of a gang or none, and no job passes another one.
            if *used + missing.len() > most {
                full.insert(&want.class);
                continue;
            }
            *used += missing.len();
            changes.extend(missing.into_iter().map(|(pod, uid)| Change::Create {
                pod: pod.clone(),
                uid: uid.clone(),
                class: want.class.clone(),
            }));
        }
        for change in &changes {
            let class = match change {
                Change::Create { class, .. } => Some(class.clone()),
                Change::Delete { .. } => None,
            };
            self.open.insert(change.uid().to_owned(), class);
        }
        changes
    }

    /// Returns the number of those that count against the most of their class.
    fn used(&self, wanted: &HashSet<&str>) -> HashMap<String, usize> {
        let mut used: HashMap<String, usize> = HashMap::new();
        let pods = self.pods.iter().filter(|(_, one)| one.requests());
        let pods = pods.map(|(uid, one)| (uid, &one.class));
        let created = self.open.iter();
        let created = created.filter_map(|(uid, class)| Some((uid, class.as_ref()?)));
        let created = created.filter(|(uid, _)| !self.pods.contains_key(*uid));
        for (_, class) in pods
            .chain(created)
            .filter(|(uid, _)| wanted.contains(&***uid))
        {
            *used.entry(class.clone()).or_default() += 1;
        }
        used
    }

    /// Returns the deletions of those that are not wanted any more, or cannot help.
    fn deletions(&mut self, wanted: &HashSet<&str>, now: Millis) -> Vec<Change> {
        let mut changes = Vec::new();
        for (uid, one) in &self.pods {
            let age = now.saturating_sub(one.created);
            let (late, lost) = (
                age >= PATIENCE,
                one.stage == Stage::Silent && age >= SILENCE,
            );
            let goes = late || lost || !wanted.contains(&**uid);
            if !goes || one.stage == Stage::Leaves || self.open.contains_key(uid) {
                continue;
            }
            if late {
                self.rests.insert(uid.clone(), now.saturating_add(REST));
            }
            changes.push(Change::Delete { uid: uid.clone() });
        }
        changes.sort_by(|a, b| a.uid().cmp(b.uid()));
        changes
    }

    /// Reports whether one is to be created for the waiting pod with this UID.
    fn lacks(&self, uid: &str) -> bool {
        !self.pods.contains_key(uid)
            && !self.rests.contains_key(uid)
            && !self.open.contains_key(uid)
    }

    /// Records how the request about the placeholder of the waiting pod with this UID ended. Returns why
    /// it failed.
    pub(crate) fn answered(&mut self, uid: &str, answer: Answer, now: Millis) -> Option<String> {
        self.open.remove(uid);
        match answer {
            Answer::There(pod) => {
                self.set(&pod);
                None
            }
            Answer::Gone => {
                if let Some(one) = self.pods.get_mut(uid) {
                    one.stage = Stage::Leaves;
                }
                None
            }
            Answer::Failed(reason) => {
                self.pause = now.saturating_add(AGAIN);
                if !self.pods.contains_key(uid) {
                    let until = now.saturating_add(AGAIN_FOR_POD);
                    self.rests.insert(uid.to_owned(), until);
                }
                Some(reason)
            }
        }
    }

    /// Moves all times with the API server's clock, which was set forward by so much.
    pub(crate) fn jumped(&mut self, by: Millis) {
        let times = self.rests.values_mut().chain([&mut self.pause]);
        times.for_each(|time| *time = time.saturating_add(by));
        let created = self.pods.values_mut().map(|one| &mut one.created);
        created.for_each(|time| *time = time.saturating_add(by));
    }

    /// Reports whether anything is known of the placeholder of the waiting pod with this UID.
    pub(crate) fn knows(&self, uid: &str) -> bool {
        !self.lacks(uid)
    }

    /// Returns when to plan again although nothing changes.
    pub(crate) fn next(&self, now: Millis) -> Option<Millis> {
        let pods = self.pods.values().filter(|one| one.requests());
        let ends = pods.map(|one| match one.stage {
            Stage::Silent => one.created.saturating_add(SILENCE),
            _ => one.created.saturating_add(PATIENCE),
        });
        let ends = ends.chain(self.rests.values().copied());
        let pause = (self.pause > now).then_some(self.pause);
        ends.map(|end| end.max(self.pause)).chain(pause).min()
    }

    /// Returns the jobs for which nodes are being requested.
    pub(crate) fn asking(&self, wants: &[Want]) -> HashSet<Name> {
        let requests = |uid: &str| self.pods.get(uid).is_some_and(Placeholder::requests);
        let asking = wants.iter().filter(|want| want.uids().any(requests));
        asking.map(|want| want.job.clone()).collect()
    }

    /// Returns the number of those that request nodes, by class.
    pub(crate) fn by_class(&self) -> BTreeMap<&str, u32> {
        let mut count = BTreeMap::new();
        for one in self.pods.values().filter(|one| one.requests()) {
            *count.entry(&*one.class).or_default() += 1;
        }
        count
    }
}

impl Placeholder {
    /// Reports whether it still counts against the most of its class.
    fn requests(&self) -> bool {
        self.stage != Stage::Leaves
    }
}

impl Want {
    fn uids(&self) -> impl Iterator<Item = &str> {
        self.pods.iter().map(|(_, uid)| &**uid)
    }
}

impl Change {
    pub(crate) fn uid(&self) -> &str {
        match self {
            Self::Create { uid, .. } | Self::Delete { uid } => uid,
        }
    }
}

/// Returns the name of the placeholder of the waiting pod with this UID.
pub(crate) fn name(uid: &str) -> String {
    format!("{PREFIX}{uid}")
}

#[cfg(test)]
mod tests;
