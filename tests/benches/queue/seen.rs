//! When a watch of pods shows that a pod was released or rejected, as whoever waits for it sees it.

use std::{
    collections::HashSet,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use futures::StreamExt;
use k8s_openapi::{api::core::v1::Pod, jiff::Timestamp};
use kube::{
    Api, ResourceExt,
    runtime::watcher::{self, Event},
};
use tokio::{runtime::Runtime, task::AbortHandle};

/// How often the records are looked at; their times do not depend on it.
const LOOK: Duration = Duration::from_millis(2);

/// What the watch has shown so far.
#[derive(Debug, Default)]
pub(crate) struct Times {
    /// The pods with a gate.
    pub(crate) waiting: HashSet<String>,
    /// The pods that have lost their gate, in order.
    pub(crate) released: Vec<(String, Instant)>,
    /// The pods that failed, in order, and for how long each had existed by its timestamp, which is
    /// cut to seconds.
    pub(crate) failed: Vec<(String, Duration)>,
    /// The number of pods.
    pub(crate) pods: HashSet<String>,
}

/// A watch of the pods of a namespace.
pub(crate) struct Seen {
    times: Arc<Mutex<Times>>,
    task: AbortHandle,
}

impl Drop for Seen {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Seen {
    pub(crate) fn start(runtime: &Runtime, api: Api<Pod>) -> Self {
        let times = Arc::<Mutex<Times>>::default();
        let shared = Arc::clone(&times);
        let task = runtime.spawn(async move {
            let config = watcher::Config::default();
            let mut events = pin!(watcher::watcher(api, config));
            while let Some(event) = events.next().await {
                // After an error it begins again.
                let Ok(event) = event else { continue };
                lock(&shared).note(event);
            }
        });
        let task = task.abort_handle();
        Self { times, task }
    }

    pub(crate) fn times(&self) -> MutexGuard<'_, Times> {
        lock(&self.times)
    }

    /// Waits until the watch has shown what is wanted.
    pub(crate) fn until<T>(
        &self,
        what: &str,
        limit: Duration,
        wanted: impl Fn(&Times) -> Option<T>,
    ) -> Result<T> {
        let start = Instant::now();
        loop {
            let times = self.times();
            if let Some(found) = wanted(&times) {
                return Ok(found);
            }
            ensure!(
                start.elapsed() < limit,
                "waited {limit:?} for {what}: {} pods, {} wait, {} released, {} failed",
                times.pods.len(),
                times.waiting.len(),
                times.released.len(),
                times.failed.len(),
            );
            drop(times);
            std::thread::sleep(LOOK);
        }
    }
}

fn lock(times: &Mutex<Times>) -> MutexGuard<'_, Times> {
    times.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Times {
    fn note(&mut self, event: Event<Pod>) {
        let pod = match event {
            Event::Apply(pod) | Event::InitApply(pod) => pod,
            Event::Delete(pod) => {
                let name = pod.name_any();
                self.waiting.remove(&name);
                self.pods.remove(&name);
                return;
            }
            Event::Init | Event::InitDone => return,
        };
        let name = pod.name_any();
        self.pods.insert(name.clone());
        let gates = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.scheduling_gates.as_ref());
        let gated = gates.is_some_and(|gates| !gates.is_empty());
        let phase = pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        if phase == Some("Failed") {
            let created = pod.metadata.creation_timestamp.map(|time| time.0);
            if self.waiting.remove(&name)
                && let Some(created) = created
            {
                let age = Timestamp::now().duration_since(created);
                self.failed.push((name, age.unsigned_abs()));
            }
        } else if gated {
            self.waiting.insert(name);
        } else if self.waiting.remove(&name) {
            self.released.push((name, Instant::now()));
        }
    }
}
