//! What the queue is writing, and what it must write besides the planner's actions.

use nvlink_planner::{Millis, Name};
use serde_json::Value;

use super::{
    Feed,
    entry::{Cause, Expected, Pause},
};
use crate::Placement;

/// For how long a pod waits for its class to come back, milliseconds.
const GRACE: Millis = 30_000;
/// The most characters that are kept of what the API server says.
const MOST_SAID: usize = 500;
/// The longest pause after failures, milliseconds.
const LONGEST: Millis = 60_000;

/// A pod that leaves the queue without a place.
#[derive(Clone, Debug, PartialEq)]
pub struct Leaver {
    /// The pod.
    pub pod: Name,
    /// Why, for its author.
    pub why: String,
    /// It cannot start, because nobody makes the claim by which it gets its GPUs.
    pub stuck: bool,
}

impl Feed {
    /// Returns a pod without a node as the API server stores it, without what the queue never reads.
    #[must_use]
    pub fn document(&self, pod: &Name) -> Option<Value> {
        self.pods.get(pod)?.document()
    }

    /// Records that the queue begins to put a pod there.
    pub fn expect(&mut self, pod: &Name, placement: Placement) {
        self.expected(pod, Some(Expected::Placed(placement.into())));
    }

    /// Records that the queue begins to let a pod go without a place.
    pub fn expect_leaving(&mut self, pod: &Name) {
        self.expected(pod, Some(Expected::Leaves));
    }

    /// Records that the queue has stopped writing a pod. After a failure, which has a time and a
    /// reason, it does not begin again before a pause.
    pub fn settle(&mut self, pod: &Name, failed: Option<(Millis, &str)>) {
        let entry = self.pods.get(pod);
        let leaves = entry.is_some_and(|entry| entry.expected == Some(Expected::Leaves));
        self.expected(pod, None);
        if let Some(entry) = self.pods.get_mut(pod) {
            entry.paused = failed.map(|(now, why)| {
                let failures = entry.paused.as_ref().map_or(0, |pause| pause.failures) + 1;
                let pause = (500 << failures.min(7)).min(LONGEST);
                Pause {
                    until: now.saturating_add(pause),
                    failures,
                    why: brief(why),
                    leaves,
                }
            });
            match entry.is_paused() {
                true => self.paused.insert(pod.clone()),
                false => self.paused.remove(pod),
            };
        }
    }

    fn expected(&mut self, pod: &Name, expected: Option<Expected>) {
        if let Some(entry) = self.pods.get_mut(pod) {
            entry.expected = expected;
            self.changed.pods.insert(pod.clone());
            self.changed.jobs.extend(entry.job.clone());
        }
    }

    /// Ends the pauses that are over, and returns when the next one is.
    pub fn resume(&mut self, now: Millis) -> Option<Millis> {
        let (mut next, mut over) = (None, Vec::new());
        for id in &self.paused {
            let pause = self.pods.get(id).and_then(|pod| pod.paused.as_ref());
            match pause.filter(|pause| pause.until > now) {
                Some(pause) => next = earlier(next, pause.until),
                None => over.push(id.clone()),
            }
        }
        for id in over {
            self.paused.remove(&id);
            let Some(pod) = self.pods.get_mut(&id) else {
                continue;
            };
            if let Some(pause) = &mut pod.paused {
                pause.until = Millis::MIN;
            }
            self.changed.jobs.extend(pod.job.clone());
            self.changed.pods.insert(id);
        }
        next
    }

    /// Returns the pods that wait although others of their plan were released.
    #[must_use]
    pub fn committed(&self) -> Vec<(Name, Placement)> {
        let pairs = self.committed.iter();
        pairs
            .map(|(pod, placement)| (pod.clone(), placement.clone()))
            .collect()
    }

    /// Returns the waiting pods whose class does not queue, and when to look again.
    pub fn leavers(&mut self, now: Millis) -> (Vec<Leaver>, Option<Millis>) {
        let (mut leavers, mut next) = (Vec::new(), None);
        for id in &self.strays {
            let Some(pod) = self.pods.get_mut(id) else {
                continue;
            };
            if !pod.waits() || pod.is_paused() {
                continue;
            }
            let class = pod.class.as_deref();
            let class = class.map(|name| (name, self.classes.get(name)));
            let (why, grace) = match class {
                // It may be usable again soon.
                Some((_, Some(Err(_)))) => continue,
                Some((name, Some(Ok(class)))) => match class.queue {
                    None => (format!("class {name:?} does not queue any more"), 0),
                    Some(_) => (format!("it requests no GPU of class {name:?}"), 0),
                },
                Some((name, None)) => (format!("class {name:?} does not exist any more"), GRACE),
                None => ("it has no class".to_owned(), GRACE),
            };
            let due = pod.orphaned(Cause::NoClass, now).saturating_add(grace);
            match due <= now {
                true => leavers.push(Leaver {
                    pod: id.clone(),
                    why,
                    stuck: pod.claim.is_some(),
                }),
                false => next = earlier(next, due),
            }
        }
        (leavers, next)
    }
}

/// Returns what the API server says in a form for a condition: it may go on with the whole pod.
fn brief(why: &str) -> Box<str> {
    let line = why.lines().next().unwrap_or_default().chars();
    let shown = line.map(|c| if c.is_control() { ' ' } else { c });
    shown.take(MOST_SAID).collect::<String>().into()
}

pub(super) fn earlier(one: Option<Millis>, other: Millis) -> Option<Millis> {
    Some(one.map_or(other, |one| one.min(other)))
}
