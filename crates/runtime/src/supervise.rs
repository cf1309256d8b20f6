//! Supervises the parts of a program. No failure of a part goes unnoticed.
//!
//! - [`keep`](Supervisor::keep) and [`thread`](Supervisor::thread) run a part
//!   forever: if it panics or ends, they log it and start it again, with growing
//!   pauses.
//! - [`require`](Supervisor::require) runs a part that the process cannot work
//!   without: when it panics or ends, [`failed`](Supervisor::failed) returns the
//!   line that the process should end with.
//! - A part that may hang has a [`Heartbeat`].
//! - [`obstacle`](Supervisor::obstacle) returns which part is dead or stuck;
//!   `/livez` reports it.

mod part;

use std::{
    any::Any,
    convert::Infallible,
    fmt::Display,
    future::Future,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use futures::FutureExt;
use tokio::{sync::watch, task::JoinSet, time::Instant};

use crate::panics;
use part::Part;

/// What a dead part means for the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// The process cannot work without it: [`Supervisor::obstacle`] names it.
    Vital,
    /// The process works without it: only the log and the number of restarts show it.
    Minor,
}

/// How a part ended that should not have ended.
pub trait Ending {
    /// Returns the text that follows the part's name: `failed: no such file`.
    fn words(self) -> String;
}

impl Ending for () {
    fn words(self) -> String {
        "ended".to_owned()
    }
}

impl Ending for Infallible {
    fn words(self) -> String {
        match self {}
    }
}

impl<E: Display> Ending for Result<(), E> {
    fn words(self) -> String {
        match self {
            Ok(()) => ().words(),
            Err(error) => format!("failed: {error:#}"),
        }
    }
}

/// A required part that ended: `admin server failed: address in use`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{part} {how}")]
pub struct Failed {
    pub part: &'static str,
    /// `ended`, or `failed` or `panicked` with the reason.
    pub how: String,
}

/// Runs the parts. All tasks end when the last clone is dropped; threads continue.
#[derive(Clone, Debug)]
pub struct Supervisor(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    parts: Mutex<Vec<Arc<Part>>>,
    heartbeats: Mutex<Vec<Arc<Pulse>>>,
    tasks: Mutex<JoinSet<()>>,
    failed: watch::Sender<Option<Failed>>,
}

impl Default for Supervisor {
    fn default() -> Self {
        Self(Arc::new(Inner {
            parts: Mutex::default(),
            heartbeats: Mutex::default(),
            tasks: Mutex::default(),
            failed: watch::Sender::new(None),
        }))
    }
}

impl Supervisor {
    /// Runs the futures that `make` returns in a task, one after the other,
    /// forever. `name` starts sentences: "registrar ended".
    pub fn keep<F>(
        &self,
        name: &'static str,
        weight: Weight,
        mut make: impl FnMut() -> F + Send + 'static,
    ) where
        F: Future<Output: Ending> + Send,
    {
        let part = self.part(name, weight);
        lock(&self.0.tasks).spawn(async move {
            loop {
                part.starts();
                let run = AssertUnwindSafe(async { make().await.words() });
                let how = run.catch_unwind().await.unwrap_or_else(panicked);
                tokio::time::sleep(part.ended(how)).await;
            }
        });
    }

    /// Runs `run` in a thread as [`keep`](Self::keep) does in a task, for code that blocks.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn thread<E: Ending>(
        &self,
        name: &'static str,
        weight: Weight,
        mut run: impl FnMut() -> E + Send + 'static,
    ) -> io::Result<()> {
        let part = self.part(name, weight);
        let endless = move || loop {
            part.starts();
            let run = AssertUnwindSafe(|| run().words());
            let how = catch_unwind(run).unwrap_or_else(panicked);
            thread::sleep(part.ended(how));
        };
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(endless)
            .map(drop)
    }

    /// Runs `part` in a task, once; when it ends, the process should end.
    pub fn require<F>(&self, name: &'static str, part: F)
    where
        F: Future<Output: Ending> + Send + 'static,
    {
        let failed = self.0.failed.clone();
        lock(&self.0.tasks).spawn(async move {
            let run = AssertUnwindSafe(async { part.await.words() });
            let how = run.catch_unwind().await.unwrap_or_else(panicked);
            // Keep the first failure: it may have caused the others.
            failed.send_if_modified(|first| {
                let new = first.is_none();
                first.get_or_insert(Failed { part: name, how });
                new
            });
        });
    }

    /// Waits until a required part has ended. The process should then log why, and end.
    pub async fn failed(&self) -> Failed {
        let mut failed = self.0.failed.subscribe();
        loop {
            if let Some(failed) = failed.borrow_and_update().clone() {
                return failed;
            }
            // Never an error: `self` holds the sender.
            drop(failed.changed().await);
        }
    }

    /// Returns a heartbeat for a part that may hang: a part without a beat for
    /// longer than `within` is stuck. The time starts now.
    #[must_use]
    pub fn heartbeat(&self, name: &'static str, within: Duration) -> Heartbeat {
        let pulse = Arc::new(Pulse {
            name,
            due: Mutex::new(Some(Instant::now() + within)),
        });
        lock(&self.0.heartbeats).push(Arc::clone(&pulse));
        Heartbeat { pulse, within }
    }

    /// Returns which part is dead or stuck, and why; none if all parts work.
    #[must_use]
    pub fn obstacle(&self) -> Option<String> {
        let now = Instant::now();
        let failed = self.0.failed.borrow().as_ref().map(ToString::to_string);
        let dead = || {
            lock(&self.0.parts)
                .iter()
                .find_map(|part| part.obstacle(now))
        };
        let stuck = || {
            lock(&self.0.heartbeats)
                .iter()
                .find_map(|pulse| pulse.obstacle(now))
        };
        failed.or_else(dead).or_else(stuck)
    }

    /// Returns the number of restarts of each part.
    #[must_use]
    pub fn restarts(&self) -> Vec<(&'static str, u64)> {
        let parts = lock(&self.0.parts);
        parts
            .iter()
            .map(|part| (part.name(), part.restarts()))
            .collect()
    }

    fn part(&self, name: &'static str, weight: Weight) -> Arc<Part> {
        let part = Arc::new(Part::new(name, weight));
        lock(&self.0.parts).push(Arc::clone(&part));
        part
    }
}

/// Signs of life of a part; see [`Supervisor::heartbeat`]. After it is dropped,
/// none are expected.
#[derive(Debug)]
pub struct Heartbeat {
    pulse: Arc<Pulse>,
    within: Duration,
}

#[derive(Debug)]
struct Pulse {
    name: &'static str,
    /// When the next beat is due; none while none is expected.
    due: Mutex<Option<Instant>>,
}

impl Heartbeat {
    /// Signals that the part lives, and that the next beat comes in time.
    pub fn beat(&self) {
        *lock(&self.pulse.due) = Some(Instant::now() + self.within);
    }

    /// Signals that the part lives, and waits for something that may take forever.
    pub fn rest(&self) {
        *lock(&self.pulse.due) = None;
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.rest();
    }
}

impl Pulse {
    fn obstacle(&self, now: Instant) -> Option<String> {
        let late = now.checked_duration_since((*lock(&self.due))?)?;
        let (name, late) = (self.name, late.as_secs());
        Some(format!("{name} is stuck: its heartbeat is {late} s late"))
    }
}

#[allow(clippy::needless_pass_by_value)] // as `unwrap_or_else` wants it
fn panicked(payload: Box<dyn Any + Send>) -> String {
    format!("panicked: {}", panics::message(&*payload))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use super::*;

    fn counter() -> (Arc<AtomicU32>, Arc<AtomicU32>) {
        let counter = Arc::<AtomicU32>::default();
        (Arc::clone(&counter), counter)
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_that_panics_or_ends_is_started_again() {
        let supervisor = Supervisor::default();
        let (count, runs) = counter();
        supervisor.keep("writer", Weight::Vital, move || {
            let run = count.fetch_add(1, Relaxed);
            async move {
                match run {
                    0 => panic!("no {}", "ink"),
                    1 => Err("no paper"),
                    2 => Ok(()),
                    _ => std::future::pending().await,
                }
            }
        });
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert_eq!(runs.load(Relaxed), 4);
        assert_eq!(supervisor.restarts(), [("writer", 3)]);
        assert_eq!(supervisor.obstacle(), None, "it works again");
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_that_keeps_ending_is_dead() {
        let supervisor = Supervisor::default();
        for (name, weight) in [("clerk", Weight::Minor), ("writer", Weight::Vital)] {
            supervisor.keep(name, weight, || async { Err::<(), _>("no ink") });
        }
        tokio::time::sleep(Duration::from_secs(50)).await;
        assert_eq!(supervisor.obstacle(), None, "it may come back");
        tokio::time::sleep(Duration::from_secs(3600)).await;
        let obstacle = supervisor.obstacle().unwrap();
        assert!(
            obstacle.starts_with("writer failed: no ink; it has not worked for"),
            "{obstacle}"
        );
        let pauses = supervisor
            .restarts()
            .iter()
            .map(|(_, count)| *count)
            .collect::<Vec<_>>();
        assert!(
            pauses.iter().all(|count| (100..150).contains(count)),
            "{pauses:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_required_part_ends_the_process_with_its_name() {
        for panics in [false, true] {
            let supervisor = Supervisor::default();
            supervisor.require("server", async move {
                tokio::time::sleep(Duration::from_secs(1)).await;
                assert!(!panics, "out of sockets");
            });
            assert_eq!(supervisor.obstacle(), None);
            let failed = supervisor.failed().await.to_string();
            let words = if panics {
                "server panicked: out of sockets"
            } else {
                "server ended"
            };
            assert_eq!(failed, words);
            assert_eq!(supervisor.obstacle().as_deref(), Some(words));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_without_a_heartbeat_is_stuck() {
        let supervisor = Supervisor::default();
        let heart = supervisor.heartbeat("collector", Duration::from_secs(30));
        tokio::time::sleep(Duration::from_secs(20)).await;
        heart.beat();
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert_eq!(supervisor.obstacle(), None);
        tokio::time::sleep(Duration::from_secs(20)).await;
        let words = "collector is stuck: its heartbeat is 10 s late";
        assert_eq!(supervisor.obstacle().as_deref(), Some(words));
        heart.rest();
        assert_eq!(supervisor.obstacle(), None);
        heart.beat();
        drop(heart);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(supervisor.obstacle(), None, "it is gone on purpose");
    }

    #[tokio::test]
    async fn a_thread_that_panics_is_started_again() {
        let supervisor = Supervisor::default();
        let (sender, runs) = std::sync::mpsc::channel();
        let mut lucky = false;
        let run = move || {
            sender.send(()).unwrap();
            assert!(std::mem::replace(&mut lucky, true), "no luck");
            // The second run lasts, so that there is one restart to count.
            loop {
                thread::park();
            }
        };
        supervisor
            .thread::<()>("collector", Weight::Vital, run)
            .unwrap();
        for _ in 0..2 {
            runs.recv_timeout(Duration::from_secs(60)).unwrap();
        }
        assert_eq!(supervisor.restarts(), [("collector", 1)]);
    }

    #[tokio::test(start_paused = true)]
    async fn tasks_end_with_the_supervisor() {
        let supervisor = Supervisor::default();
        let (count, runs) = counter();
        supervisor.keep("writer", Weight::Vital, move || {
            let count = Arc::clone(&count);
            async move {
                count.fetch_add(1, Relaxed);
            }
        });
        drop(supervisor);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(Arc::strong_count(&runs), 1);
    }
}
