//! The planner: its state, and the changes that it is fed with.

use std::collections::BTreeMap;

use crate::{Class, Explanation, Job, Millis, Name, NodeState, PodState, Release, Round, Settings};

/// The planner of the queue. See the crate's documentation.
#[derive(Debug, Default)]
pub struct Planner {
    settings: Settings,
    classes: BTreeMap<Name, Class>,
    nodes: BTreeMap<Name, NodeState>,
    pods: BTreeMap<Name, PodState>,
    jobs: BTreeMap<Name, Job>,
}

impl Planner {
    /// Returns a planner without nodes, pods and jobs.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            ..Self::default()
        }
    }

    /// Replaces the settings.
    pub fn settings(&mut self, settings: Settings) {
        self.settings = settings;
    }

    /// Sets a class, or removes its settings.
    pub fn class(&mut self, name: &Name, class: Option<Class>) {
        set(&mut self.classes, name, class);
    }

    /// Sets a node, or removes it. Pods on a node that is not there hold nothing.
    pub fn node(&mut self, name: &Name, node: Option<NodeState>) {
        set(&mut self.nodes, name, node);
    }

    /// Sets a pod that was released or runs, or removes it.
    pub fn pod(&mut self, id: &Name, pod: Option<PodState>) {
        set(&mut self.pods, id, pod);
    }

    /// Sets a job that waits, or removes it.
    pub fn job(&mut self, id: &Name, job: Option<Job>) {
        set(&mut self.jobs, id, job);
    }

    /// Records that a release of the last round was carried out at `now`, so that the
    /// next round expects it before the API shows it: its pods hold their seats, and the
    /// job no longer waits. A gang keeps its seats.
    pub fn released(&mut self, release: &Release, now: Millis) {
        let _ = (release, now);
    }

    /// Says what to do at `now`. A round changes nothing: until the caller feeds what it
    /// did, the next round says the same.
    pub fn round(&mut self, now: Millis) -> Round {
        let _ = now;
        Round::default()
    }

    /// Says why a job waits at `now`, in full; `None` if it does not wait.
    pub fn explain(&mut self, job: &Name, now: Millis) -> Option<Explanation> {
        let _ = (job, now);
        None
    }
}

fn set<T>(map: &mut BTreeMap<Name, T>, name: &Name, value: Option<T>) {
    match value {
        Some(value) => {
            map.insert(name.clone(), value);
        }
        None => {
            map.remove(name);
        }
    }
}
