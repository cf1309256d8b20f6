//! What the collector hands to everything else: whole, immutable, shared.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use arc_swap::ArcSwapOption;
use tokio::sync::Notify;

use crate::source::Reading;

/// The outcome of one collection. Data and health are separate: a collection
/// that failed has health and no data, never the data of an earlier one.
#[derive(Debug)]
pub struct Snapshot {
    /// What was read; absent when the collection failed.
    pub data: Option<Reading>,
    /// How it went.
    pub health: Health,
}

/// How a collection went.
#[derive(Clone, Debug)]
pub struct Health {
    /// What was asked, as in `--source`.
    pub source: String,
    /// Why there is no data.
    pub error: Option<String>,
    /// How long it took.
    pub duration: Duration,
    /// When it ended.
    pub finished: Instant,
}

impl Snapshot {
    /// Time since the collection ended: grows while a source hangs.
    #[must_use]
    pub fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.health.finished)
    }
}

/// The latest snapshot, for readers that never wait for the collector.
#[derive(Debug, Default)]
pub struct Latest {
    snapshot: ArcSwapOption<Snapshot>,
    changed: Notify,
    was_good: AtomicBool,
}

impl Latest {
    /// Replaces the snapshot.
    pub fn publish(&self, snapshot: Snapshot) {
        if snapshot.data.is_some() {
            self.was_good.store(true, Ordering::Relaxed);
        }
        self.snapshot.store(Some(Arc::new(snapshot)));
        self.changed.notify_waiters();
    }

    /// The latest snapshot; none before the first collection ends.
    #[must_use]
    pub fn get(&self) -> Option<Arc<Snapshot>> {
        self.snapshot.load_full()
    }

    /// Whether any collection has succeeded so far.
    #[must_use]
    pub fn was_good(&self) -> bool {
        self.was_good.load(Ordering::Relaxed)
    }

    /// Waits for the next snapshot.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// The latest snapshot, if its collection succeeded.
    #[must_use]
    pub fn good(&self) -> Option<Arc<Snapshot>> {
        self.get().filter(|snapshot| snapshot.data.is_some())
    }
}
