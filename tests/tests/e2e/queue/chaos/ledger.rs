//! Watches all pods the whole time, and checks what must hold whatever fails.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use futures::StreamExt;
use kube::{
    core::DynamicObject,
    runtime::{WatchStreamExt, watcher},
};
use nvlink_tests::{ControlPlane, wait_until};
use serde_json::Value;

use super::team;
use crate::queue::cluster::{placement, waits};

/// The GPUs of a node.
const GPUS: u64 = 8;

/// A pod, as last seen.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) uid: String,
    pub(super) name: String,
    pub(super) gang: Option<String>,
    gpus: u64,
    /// Where it was put when it lost the gate of the queue.
    pub(super) place: Option<Value>,
    /// The node to which it is bound.
    pub(super) node: Option<String>,
    pub(super) phase: String,
    pub(super) reason: Option<String>,
    message: Option<String>,
    /// What the scheduler says of it.
    scheduled: Value,
    /// It is deleted.
    pub(super) gone: bool,
}

impl Seen {
    fn of(pod: &Value) -> Self {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let limits = &pod["spec"]["containers"][0]["resources"]["limits"];
        let gpus = limits["nvidia.com/gpu"].as_str().unwrap_or_default();
        let annotations = &pod["metadata"]["annotations"];
        Self {
            uid: uid(pod).to_owned(),
            name: text(&pod["metadata"]["name"]).unwrap_or_default(),
            gang: text(&annotations["nvlink-domains.io/gang"]),
            gpus: gpus.parse().unwrap_or(0),
            place: placement(pod).filter(|_| !waits(pod)),
            node: text(&pod["spec"]["nodeName"]),
            phase: text(&pod["status"]["phase"]).unwrap_or_default(),
            reason: text(&pod["status"]["reason"]),
            message: text(&pod["status"]["message"]),
            scheduled: scheduled(pod),
            gone: pod["metadata"]["deletionTimestamp"].is_string(),
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.gone || ["Succeeded", "Failed"].contains(&self.phase.as_str())
    }

    pub(super) fn waits(&self) -> bool {
        !self.has_ended() && self.place.is_none()
    }

    /// Returns in one line where it is, and what the scheduler says of it.
    pub(super) fn state(&self) -> String {
        let placed = self
            .place
            .as_ref()
            .map(|place| [&place["node"], &place["at"]]);
        let (name, node, phase, scheduled) = (&self.name, &self.node, &self.phase, &self.scheduled);
        format!("{name}: {phase}, placed {placed:?}, on {node:?}: {scheduled}")
    }

    /// Returns the node whose GPUs it holds.
    fn holds(&self) -> Option<&str> {
        let place = self.place.as_ref().filter(|_| !self.has_ended())?;
        self.node.as_deref().or(place["node"].as_str())
    }
}

/// All that was seen.
#[derive(Debug, Default)]
struct State {
    /// By UID.
    pods: BTreeMap<String, Seen>,
    /// When pods were released.
    releases: Vec<Instant>,
    /// What must not have happened.
    wrong: BTreeSet<String>,
    synced: bool,
}

/// The watch of all pods.
pub(super) struct Ledger(Arc<Mutex<State>>);

impl Ledger {
    /// Starts to watch.
    pub(super) fn open(plane: &ControlPlane) -> Self {
        let state = Arc::<Mutex<State>>::default();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let client = runtime.block_on(plane.client()).unwrap();
        let weak = Arc::downgrade(&state);
        thread::spawn(move || {
            runtime.block_on(async move {
                let config = watcher::Config::default().timeout(60);
                let events = watcher(team::pods(client), config).default_backoff();
                let mut events = std::pin::pin!(events);
                let mut listed = Vec::new();
                while let Some(event) = events.next().await {
                    let Some(state) = weak.upgrade() else { return };
                    // After an error, the watch starts again.
                    if let Ok(event) = event {
                        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                        state.apply(event, &mut listed);
                    }
                }
            });
        });
        let this = Self(state);
        wait_until("the list of the pods", Duration::from_secs(30), || {
            Ok(this.lock().synced.then_some(()))
        })
        .unwrap();
        this
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the pods that are not deleted, by their names.
    pub(super) fn pods(&self) -> Vec<Seen> {
        let state = self.lock();
        let mut pods: Vec<Seen> = state
            .pods
            .values()
            .filter(|pod| !pod.gone)
            .cloned()
            .collect();
        pods.sort_by(|a, b| a.name.cmp(&b.name));
        pods
    }

    /// Returns the pod of a name, if it exists.
    pub(super) fn pod(&self, name: &str) -> Option<Seen> {
        self.pods().into_iter().find(|pod| pod.name == name)
    }

    /// Returns when pods were released since a time.
    pub(super) fn releases(&self, since: Instant) -> Vec<Instant> {
        let state = self.lock();
        let later = state.releases.iter().filter(|at| **at > since);
        later.copied().collect()
    }

    /// Panics if something happened that must not.
    #[track_caller]
    pub(super) fn check(&self) {
        let wrong = self.lock().wrong.clone();
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
}

impl State {
    fn apply(&mut self, event: watcher::Event<DynamicObject>, listed: &mut Vec<Value>) {
        let json = |pod: &DynamicObject| serde_json::to_value(pod).unwrap();
        match event {
            watcher::Event::Init => listed.clear(),
            watcher::Event::InitApply(pod) => listed.push(json(&pod)),
            // The pods of a list are of one moment.
            watcher::Event::InitDone => {
                let here = listed.iter().map(|pod| uid(pod).to_owned());
                let here: BTreeSet<String> = here.collect();
                for (uid, pod) in &mut self.pods {
                    pod.gone |= !here.contains(uid);
                }
                listed.iter().for_each(|pod| self.see(pod));
                self.check_nodes();
                self.synced = true;
            }
            watcher::Event::Apply(pod) => {
                self.see(&json(&pod));
                self.check_nodes();
            }
            watcher::Event::Delete(pod) => {
                if let Some(pod) = self.pods.get_mut(uid(&json(&pod))) {
                    pod.gone = true;
                }
            }
        }
    }

    fn see(&mut self, pod: &Value) {
        let new = Seen::of(pod);
        let name = &new.name;
        let before = self
            .pods
            .get(uid(pod))
            .and_then(|before| before.place.as_ref());
        match (before, &new.place) {
            (None, Some(_)) => self.releases.push(Instant::now()),
            (Some(before), now) if Some(before) != now.as_ref() => {
                self.wrong
                    .insert(format!("{name} was released twice: {before}, {now:?}"));
            }
            _ => {}
        }
        if !waits(pod) && new.place.is_none() && !new.has_ended() {
            self.wrong
                .insert(format!("{name} has no gate and no place"));
        }
        let off = new.node.as_deref().zip(new.place.as_ref());
        if let Some((node, place)) = off.filter(|(node, place)| place["node"] != **node) {
            self.wrong
                .insert(format!("{name} is on {node}, not at {place}"));
        }
        if new.phase == "Failed" && (new.reason.is_none() || new.message.is_none()) {
            self.wrong.insert(format!("{name} failed without a reason"));
        }
        self.pods.insert(uid(pod).to_owned(), new);
    }

    /// Checks that no GPU is given to two pods, and no node gives more than it has.
    fn check_nodes(&mut self) {
        let mut held: BTreeMap<&str, u64> = BTreeMap::new();
        let mut owners: BTreeMap<(&str, u64), &str> = BTreeMap::new();
        let mut wrong = Vec::new();
        for pod in self.pods.values() {
            let Some(node) = pod.holds() else { continue };
            *held.entry(node).or_default() += pod.gpus;
            let place = pod.place.as_ref().map(|place| &place["gpus"]);
            let gpus = place.and_then(Value::as_array).into_iter().flatten();
            for gpu in gpus.filter_map(Value::as_u64) {
                if let Some(other) = owners.insert((node, gpu), &pod.name) {
                    let name = pod.name.as_str();
                    let states = self
                        .pods
                        .values()
                        .filter(|one| [name, other].contains(&one.name.as_str()));
                    let states: Vec<_> = states.collect();
                    wrong.push(format!(
                        "{name} and {other} have GPU {gpu} of {node}: {states:?}"
                    ));
                }
            }
        }
        let full = held.into_iter().filter(|(_, gpus)| *gpus > GPUS);
        wrong.extend(full.map(|(node, gpus)| format!("pods hold {gpus} GPUs of {node}")));
        self.wrong.extend(wrong);
    }
}

/// Returns the condition `PodScheduled`; null if there is none.
fn scheduled(pod: &Value) -> Value {
    let conditions = pod["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    let scheduled = conditions.find(|one| one["type"] == "PodScheduled");
    scheduled.cloned().unwrap_or_default()
}

fn uid(pod: &Value) -> &str {
    pod["metadata"]["uid"].as_str().unwrap_or_default()
}
