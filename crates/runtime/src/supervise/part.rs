//! The state of a part that is restarted whenever it ends.

use std::{sync::Mutex, time::Duration};

use tokio::time::Instant;

use super::{Weight, lock};

/// The first and the longest pause before a part is started again.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// A part that has run for this long works again.
const STEADY: Duration = Duration::from_secs(30);
/// A part that has not worked for this long is dead: restarts do not help.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct Part {
    name: &'static str,
    weight: Weight,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Since when the part has been running; none while it waits to be restarted.
    runs: Option<Instant>,
    /// Since when the part has not been steady, and how it ended last.
    fails: Option<(Instant, String)>,
    pause: Option<Duration>,
    restarts: u64,
}

impl State {
    fn is_steady(&self, now: Instant) -> bool {
        self.runs.is_some_and(|since| now - since >= STEADY)
    }
}

impl Part {
    pub(super) fn new(name: &'static str, weight: Weight) -> Self {
        Self {
            name,
            weight,
            state: Mutex::default(),
        }
    }

    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    pub(super) fn restarts(&self) -> u64 {
        lock(&self.state).restarts
    }

    pub(super) fn starts(&self) {
        lock(&self.state).runs = Some(Instant::now());
    }

    /// Records that the part ended, which it should not have done, and returns
    /// how long to wait before starting it again.
    pub(super) fn ended(&self, how: String) -> Duration {
        let (now, part) = (Instant::now(), self.name);
        let mut state = lock(&self.state);
        if state.is_steady(now) {
            (state.fails, state.pause) = (None, None);
        }
        let pause = state.pause.map_or(PAUSE.0, |last| (last * 2).min(PAUSE.1));
        tracing::error!(retry_in = ?pause, "{part} {how}; starting it again");
        let since = state.fails.as_ref().map_or(now, |(since, _)| *since);
        state.fails = Some((since, how));
        state.pause = Some(pause);
        state.runs = None;
        state.restarts += 1;
        pause
    }

    pub(super) fn obstacle(&self, now: Instant) -> Option<String> {
        let state = lock(&self.state);
        let (since, how) = state.fails.as_ref()?;
        let (name, time) = (self.name, now - *since);
        let dead = self.weight == Weight::Vital && time > PATIENCE && !state.is_steady(now);
        dead.then(|| format!("{name} {how}; it has not worked for {} s", time.as_secs()))
    }
}
