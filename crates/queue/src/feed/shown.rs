//! What pods show, for the board.

use nvlink_planner::{Millis, Name, Reason, Seat};

use super::{Feed, entry::Entry};
use crate::{Life, notice::Obstacle};

/// A pod that waits no more, although its condition says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// The pod.
    pub pod: Name,
    /// Its UID.
    pub uid: String,
    /// Why it waits no more.
    pub why: String,
}

/// A waiting pod whose class cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unaccepted<'a> {
    /// The pod.
    pub pod: &'a Name,
    /// Its UID.
    pub uid: &'a str,
    /// The name of its class.
    pub class: &'a str,
    /// The number of GPUs of the usual resource that it requests: that of its class is not known.
    pub gpus: u32,
    /// When it was created, by the API server's present clock.
    pub created: Option<Millis>,
    /// Why its class cannot be used.
    pub why: &'a str,
}

impl Entry {
    /// Reports whether the pod waits no more, although its condition says so.
    pub(super) fn has_left(&self) -> bool {
        self.queued && !matches!(self.life, Life::Waiting { .. } | Life::Deleting { .. })
    }

    fn why_left(&self) -> String {
        if matches!(self.life, Life::Ended { .. }) {
            return "it has ended".to_owned();
        }
        match &self.placement {
            None => "somebody else removed the queue's gate".to_owned(),
            Some(placement) => match &placement.node {
                Some(node) => format!("released to node {node}: {}", placement.why),
                None => format!("released: {}", placement.why),
            },
        }
    }
}

impl Feed {
    /// Reports whether a pod waits, and nothing is being written that changes this.
    #[must_use]
    pub fn waits(&self, pod: &Name) -> bool {
        self.pods.get(pod).is_some_and(Entry::waits)
    }

    /// Reports whether the condition of a pod says that it waits.
    #[must_use]
    pub fn is_queued(&self, pod: &Name) -> bool {
        self.pods.get(pod).is_some_and(|pod| pod.queued)
    }

    /// Returns when a pod was created, by the API server's present clock.
    #[must_use]
    pub fn created(&self, pod: &Name) -> Option<Millis> {
        self.pods.get(pod)?.created()
    }

    /// Returns the same in whole seconds, if it is another time than the API server says, because its
    /// clock was set since.
    #[must_use]
    pub fn moved_to(&self, pod: &Name) -> Option<Millis> {
        self.pods.get(pod)?.moved()
    }

    /// Returns the pods that wait no more, although their condition says so.
    pub fn left(&self) -> impl Iterator<Item = Left> {
        self.left.iter().filter_map(|pod| {
            let entry = self.pods.get(pod)?;
            Some(Left {
                pod: pod.clone(),
                uid: entry.uid.clone(),
                why: entry.why_left(),
            })
        })
    }

    /// Returns the waiting pods whose classes cannot be used: the planner does not know them.
    pub fn unaccepted(&self) -> impl Iterator<Item = Unaccepted<'_>> {
        self.strays.iter().filter_map(|pod| {
            let entry = self.pods.get(pod).filter(|entry| entry.waits())?;
            let class = entry.class.as_deref()?;
            Some(Unaccepted {
                pod,
                uid: &entry.uid,
                class,
                gpus: entry.gpus,
                created: entry.created(),
                why: self.classes.get(class)?.as_ref().err()?,
            })
        })
    }

    /// Returns the names of the classes that queue.
    pub fn queues(&self) -> impl Iterator<Item = &str> {
        let classes = self
            .classes
            .values()
            .filter_map(|class| class.as_ref().ok());
        classes
            .filter(|class| class.queue.is_some())
            .map(|class| class.name.as_str())
    }

    /// Returns the most placeholder pods of a class.
    pub(crate) fn most_placeholders(&self, class: &str) -> u32 {
        let class = self
            .classes
            .get(class)
            .and_then(|class| class.as_ref().ok());
        let queue = class.and_then(|class| class.queue.as_ref());
        queue.map_or(0, |queue| queue.max_placeholder_pods)
    }

    /// Reports whether no class queues, no pod waits or shows that it does, and none that was released
    /// is still to be bound.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let waits = |pod: &Entry| matches!(pod.life, Life::Waiting { .. });
        self.queues().next().is_none()
            && self.left.is_empty()
            && self.awaited.is_empty()
            && !self.pods.values().any(waits)
    }

    /// Returns the seats of the pods of a gang that was released, also of those that are gone.
    #[must_use]
    pub fn seats(&self, job: &Name) -> &[Seat] {
        self.seats.get(job).map_or(&[], Vec::as_slice)
    }

    /// Returns what keeps a job from starting that its pods, or the API server, say.
    #[must_use]
    pub fn obstacle(&self, job: &Name) -> Option<&Obstacle> {
        self.obstacles.get(job)
    }

    /// Returns the same, or what hides behind the `reason` that the planner gives.
    #[must_use]
    pub fn obstacle_to(&self, job: &Name, reason: &Reason) -> Option<Obstacle> {
        let driver = || reason.is_never().then(|| self.no_driver(job)).flatten();
        let own = self.obstacle(job).cloned();
        own.or_else(|| driver().map(Obstacle::NoDriver))
    }

    /// Returns the names of the pods of a job.
    pub fn pods_of(&self, job: &Name) -> impl Iterator<Item = &Name> {
        self.jobs.get(job).into_iter().flatten()
    }

    /// Reports whether a pod of a job has been released and has not ended: those that wait take the place of
    /// lost ones.
    #[must_use]
    pub fn runs(&self, job: &Name) -> bool {
        let mut pods = self.pods_of(job).filter_map(|pod| self.pods.get(pod));
        pods.any(Entry::is_released)
    }
}
