//! Letting go of the source for a while: no driver can be unloaded, no GPU reset
//! and no MIG mode changed while somebody has the driver open.
//!
//! Whoever asks only says so; the thread that reads lets go between two
//! readings, because nobody else may use the library.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::{sync::Notify, time::timeout};

/// What is asked of the thread that reads, and where it is with it. Clones
/// share it.
#[derive(Clone, Debug, Default)]
pub struct Release(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// For the thread that reads.
    asked: Condvar,
    /// For those who asked.
    done: Notify,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// Until when the source is to be let go of.
    until: Option<Instant>,
    /// Whether it is.
    released: bool,
}

impl State {
    fn left(&self) -> Option<Duration> {
        let left = self.until?.checked_duration_since(Instant::now())?;
        (!left.is_zero()).then_some(left)
    }
}

/// Whether the source is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    Held,
    /// It is to be let go of, as soon as it has answered.
    Asked,
    /// It was let go of, and is taken up again after so long.
    Released(Duration),
}

impl Release {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How it is now.
    #[must_use]
    pub fn hold(&self) -> Hold {
        let state = self.state();
        match (state.released, state.left()) {
            // Its time is over, and the thread is about to take it up.
            (true, left) => Hold::Released(left.unwrap_or_default()),
            (false, Some(_)) => Hold::Asked,
            (false, None) => Hold::Held,
        }
    }

    /// Has the source let go of for so long from now, and waits a while for it:
    /// a source that hangs is let go of when it answers.
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
        // Where it takes longer, the answer says so.
        let _ = timeout(patience, released).await;
        self.hold()
    }

    /// Has it taken up again.
    pub fn cancel(&self) {
        self.want(None);
    }

    fn want(&self, until: Option<Instant>) {
        self.state().until = until;
        self.0.asked.notify_all();
        // Who waits for a release that is cancelled is told at once.
        self.0.done.notify_waiters();
    }

    /// Waits so long, or until the source is to be let go of.
    pub(crate) fn pause(&self, time: Duration) {
        let state = self.state();
        let held = |state: &mut State| state.left().is_none();
        drop(self.0.asked.wait_timeout_while(state, time, held));
    }

    /// Whether the source is to be let go of.
    pub(crate) fn is_asked(&self) -> bool {
        self.state().left().is_some()
    }

    /// The source is let go of: waits until it may be taken up again.
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
