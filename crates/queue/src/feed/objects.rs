//! The objects that say how many pods a job has, and when they are read again.

use std::collections::{BTreeSet, HashMap};

use nvlink_api::pod;
use nvlink_planner::{Millis, Name};
use serde_json::{Value, json};

use super::{Feed, Place};
use crate::Life;

/// The objects of an incomplete gang are read again so long after they were, milliseconds: whoever
/// scales an object down may change no pod.
const REREAD: Millis = 30_000;
/// The same if the gang has got other pods since.
const CHANGED: Millis = 5_000;
/// The pause between reads if more are due than [`MOST`], milliseconds.
const PAUSE: Millis = 1_000;
/// The most objects that are read again at once, and of one gang.
const MOST: usize = 16;

/// The gangs with waiting pods that are incomplete.
#[derive(Debug, Default)]
pub(super) struct Incomplete {
    gangs: HashMap<Name, Known>,
    /// When their objects are read again.
    due: BTreeSet<(Millis, Name)>,
}

#[derive(Debug)]
struct Known {
    pods: BTreeSet<Name>,
    /// When its objects were read last.
    read: Millis,
    due: Millis,
}

impl Incomplete {
    /// Records that the gang of these pods is incomplete at `now`.
    pub(super) fn add(&mut self, id: &Name, pods: &BTreeSet<Name>, now: Millis) {
        let due = match self.gangs.get_mut(id) {
            Some(known) if known.pods == *pods => return,
            Some(known) => {
                known.pods.clone_from(pods);
                known.due.min(known.read.saturating_add(CHANGED))
            }
            None => {
                let (pods, read, due) = (pods.clone(), now, now.saturating_add(REREAD));
                let known = Known { pods, read, due };
                self.gangs.insert(id.clone(), known);
                due
            }
        };
        self.set(id, due);
    }

    /// Records that the gang is complete, or does not wait.
    pub(super) fn remove(&mut self, id: &Name) {
        if let Some(known) = self.gangs.remove(id) {
            self.due.remove(&(known.due, id.clone()));
        }
    }

    fn set(&mut self, id: &Name, due: Millis) {
        if let Some(known) = self.gangs.get_mut(id) {
            self.due.remove(&(known.due, id.clone()));
            known.due = due;
            self.due.insert((due, id.clone()));
        }
    }

    /// Returns a gang that is due, once.
    fn take(&mut self, now: Millis) -> Option<Name> {
        let (_, id) = self.due.first().filter(|(due, _)| *due <= now)?.clone();
        self.set(&id, now.saturating_add(REREAD));
        self.gangs.get_mut(&id)?.read = now;
        Some(id)
    }

    /// Records that the clock was set by `by`.
    pub(super) fn jumped(&mut self, by: Millis) {
        let moved = |at: Millis| at.saturating_add(by);
        for known in self.gangs.values_mut() {
            (known.read, known.due) = (moved(known.read), moved(known.due));
        }
        let gangs = self.gangs.iter();
        self.due = gangs.map(|(id, known)| (known.due, id.clone())).collect();
    }
}

impl Feed {
    /// Returns the objects that are needed and not known, once.
    pub fn wanted(&mut self) -> BTreeSet<Place> {
        std::mem::take(&mut self.wanted)
    }

    /// Returns the known objects of incomplete gangs that are to be read again, once, and when to
    /// look again.
    pub fn outdated(&mut self, now: Millis) -> (BTreeSet<Place>, Option<Millis>) {
        let mut places = BTreeSet::new();
        while places.len() < MOST
            && let Some(job) = self.incomplete.take(now)
        {
            let pods = self.pods_of(&job).filter_map(|pod| self.pods.get(pod));
            let waiting = pods.filter(|pod| matches!(pod.life, Life::Waiting { .. }));
            let of_gang: BTreeSet<Place> = waiting.filter_map(|pod| pod.place()).collect();
            let known = of_gang.into_iter().filter(|place| self.knows(place));
            places.extend(known.take(MOST));
        }
        let next = self.incomplete.due.first();
        let next = next.map(|(due, _)| (*due).max(now.saturating_add(PAUSE)));
        (places, next)
    }

    /// Reports whether the object is of a pod.
    #[must_use]
    pub fn has(&self, place: &Place) -> bool {
        self.owned.contains_key(place)
    }

    /// Reports whether the pods of a gang wait for the object, which says how many they are.
    #[must_use]
    pub fn needs(&self, place: &Place) -> bool {
        let mut pods = self.owned.get(place).into_iter().flatten();
        let of_gang = |pod| self.member(pod).is_some_and(|member| member.gang.is_some());
        !self.knows(place) && pods.any(of_gang)
    }

    /// Reports whether the object is known to exist.
    fn knows(&self, place: &Place) -> bool {
        matches!(self.objects.get(place), Some(Some(_)))
    }

    /// Sets an object that was wanted; `None` if it does not exist or cannot be read. It is
    /// forgotten with its last pod, and not before: they end with it.
    pub fn object(&mut self, place: Place, object: Option<Value>) {
        let pods = self.owned.get(&place).cloned().unwrap_or_default();
        let object = object.map(|object| parts(&object));
        let same = self.objects.get(&place) == Some(&object);
        if same || object.is_none() && self.knows(&place) {
            return;
        }
        self.objects.insert(place, object);
        pods.iter().for_each(|name| self.reread(name));
    }
}

/// Returns the parts of an object that the queue reads. Many Jobs wait.
fn parts(object: &Value) -> Value {
    let part = |path: &[&str]| pod::at(object, path);
    if part(&["kind"]).and_then(Value::as_str) != Some("Job") {
        return json!({
            "kind": part(&["kind"]),
            "metadata": {"annotations": part(&["metadata", "annotations"])},
            "spec": part(&["spec"]),
        });
    }
    json!({
        "kind": "Job",
        "spec": {
            "parallelism": part(&["spec", "parallelism"]),
            "completions": part(&["spec", "completions"]),
            "activeDeadlineSeconds": part(&["spec", "activeDeadlineSeconds"]),
        },
        "status": {"startTime": part(&["status", "startTime"])},
    })
}
