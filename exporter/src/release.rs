//! Releases the source for a while: while a process has the driver open, the
//! driver cannot be unloaded, no GPU reset and no MIG mode changed.
//!
//! A request only records what it wants. The thread that reads the source
//! releases it between two readings, because no other thread may use the library.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::{sync::Notify, time::timeout};

/// What the reading thread is requested to do, and what it has done. Clones
/// share the state.
#[derive(Clone, Debug, Default)]
pub struct Release(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Wakes the reading thread.
    asked: Condvar,
    /// Wakes the requests that wait.
    done: Notify,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// Until when the source is requested to be released.
    until: Option<Instant>,
    /// Whether it is released.
    released: bool,
}

impl State {
    fn left(&self) -> Option<Duration> {
        let left = self.until?.checked_duration_since(Instant::now())?;
        (!left.is_zero()).then_some(left)
    }
}

/// Whether the source is held or released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    Held,
    /// It is released as soon as it has answered.
    Asked,
    /// It is released, and opened again after this time.
    Released(Duration),
}

impl Release {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the current state.
    #[must_use]
    pub fn hold(&self) -> Hold {
        let state = self.state();
        match (state.released, state.left()) {
            // If no time is left, the thread is about to open the source.
            (true, left) => Hold::Released(left.unwrap_or_default()),
            (false, Some(_)) => Hold::Asked,
            (false, None) => Hold::Held,
        }
    }

    /// Requests that the source be released for `time` from now, and waits up to
    /// `patience` for it: a source that hangs is released when it answers.
    pub async fn ask(&self, time: Duration, patience: Duration) -> Hold {
        self.want(Instant::now().checked_add(time));
        let released = async {
            loop {
                let done = self.0.done.notified();
                if self.hold() != Hold::Asked {
                    return;
                }
                done.await;
            }
        };
        // If it takes longer, the returned state shows it.
        let _ = timeout(patience, released).await;
        self.hold()
    }

    /// Requests that the source be opened again.
    pub fn cancel(&self) {
        self.want(None);
    }

    fn want(&self, until: Option<Instant>) {
        self.state().until = until;
        self.0.asked.notify_all();
        // A request that waits for a cancelled release is answered at once.
        self.0.done.notify_waiters();
    }

    /// Waits for `time`, or until a release is requested.
    pub(crate) fn pause(&self, time: Duration) {
        let state = self.state();
        let held = |state: &mut State| state.left().is_none();
        drop(self.0.asked.wait_timeout_while(state, time, held));
    }

    /// Reports whether a release is requested.
    pub(crate) fn is_asked(&self) -> bool {
        self.state().left().is_some()
    }

    /// Marks the source as released, and waits until it may be opened again.
    pub(crate) fn rest(&self) {
        let mut state = self.state();
        state.released = true;
        self.0.done.notify_waiters();
        while let Some(left) = state.left() {
            let woken = self.0.asked.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        *state = State::default();
    }
}
