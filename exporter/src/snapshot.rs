//! What the collectors hand to everything else: whole, immutable, shared.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use arc_swap::ArcSwapOption;
use nvlink_topology::NodeTopology;
use tokio::sync::Notify;

use crate::{load::LinkLoad, placement::Placements, release::Hold, source::Reading, tally::Tally};

/// The outcome of one collection. Data and health are separate: a collection
/// that failed has health and no data, never the data of an earlier one. One
/// that could not read everything has failed, and has the data that it got.
#[derive(Debug)]
pub struct Snapshot {
    /// What was read; absent when nothing was.
    pub data: Option<Reading>,
    /// What moved on each link since the last good reading, by GPU and link.
    pub loads: Vec<LinkLoad>,
    pub health: Health,
}

/// How a collection went.
#[derive(Clone, Debug)]
pub struct Health {
    /// What was asked, as in `--source`.
    pub source: String,
    /// Why there are no data, or not all.
    pub error: Option<String>,
    /// How long it took.
    pub duration: Duration,
    pub finished: Instant,
}

impl Health {
    /// When it began: the oldest of what was read is of then, and a source
    /// that hung halfway has given data of before the hang.
    #[must_use]
    pub fn started(&self) -> Instant {
        let started = self.finished.checked_sub(self.duration);
        started.unwrap_or(self.finished)
    }
}

/// Data older than this are not served, where nothing else is said.
pub const STALE_AFTER: Duration = Duration::from_secs(30);

/// The latest of everything, for readers that never wait for a collector.
#[derive(Debug)]
pub struct Latest {
    snapshot: ArcSwapOption<Snapshot>,
    good_at: ArcSwapOption<Instant>,
    placements: ArcSwapOption<Placements>,
    /// Since when the source is being read.
    reading: ArcSwapOption<Instant>,
    changed: Notify,
    stale_after: Duration,
    start: Instant,
    tally: Tally,
}

impl Default for Latest {
    fn default() -> Self {
        Self::new(STALE_AFTER)
    }
}

impl Latest {
    /// Nothing yet. Data older than `stale_after` will not be served.
    #[must_use]
    pub fn new(stale_after: Duration) -> Self {
        Self {
            snapshot: ArcSwapOption::empty(),
            good_at: ArcSwapOption::empty(),
            placements: ArcSwapOption::empty(),
            reading: ArcSwapOption::empty(),
            changed: Notify::new(),
            stale_after,
            start: Instant::now(),
            tally: Tally::default(),
        }
    }

    /// The same, beside what `tally` counts.
    #[must_use]
    pub fn with(self, tally: Tally) -> Self {
        Self { tally, ..self }
    }

    /// What the process knows of its own work.
    #[must_use]
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Data older than this are not served.
    #[must_use]
    pub fn stale_after(&self) -> Duration {
        self.stale_after
    }

    /// The source is being read since then; none while it is not.
    pub fn reads_since(&self, since: Option<Instant>) {
        self.reading.store(since.map(Arc::new));
    }

    /// Since when the source is being read.
    #[must_use]
    pub fn reading(&self) -> Option<Instant> {
        self.reading.load().as_deref().copied()
    }

    pub fn publish(&self, snapshot: Snapshot) {
        if snapshot.data.is_some() {
            self.good_at
                .store(Some(Arc::new(snapshot.health.started())));
        }
        self.snapshot.store(Some(Arc::new(snapshot)));
        self.changed.notify_waiters();
    }

    pub fn place(&self, placements: Placements) {
        self.placements.store(Some(Arc::new(placements)));
        self.changed.notify_waiters();
    }

    /// Waits for the next snapshot, or for other placements.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Everything as it is `now`.
    #[must_use]
    pub fn view(&self, now: Instant) -> View {
        let good_at = self.good_at.load_full();
        let snapshot = self.snapshot.load_full();
        let placements = self.placements.load_full();
        let data = snapshot.as_ref().and_then(|one| one.data.as_ref());
        View {
            placements: match data {
                Some(data) => placements.and_then(|one| one.in_terms_of(data)),
                None => placements,
            },
            snapshot,
            age: good_at.map(|at| now.saturating_duration_since(*at)),
            stale_after: self.stale_after,
            silent: self
                .reading()
                .map(|since| now.saturating_duration_since(since)),
            since_start: now.saturating_duration_since(self.start),
            tally: self.tally.clone(),
        }
    }
}

/// Everything at one moment.
#[derive(Clone, Debug)]
pub struct View {
    /// The last collection; none before the first one ends.
    pub snapshot: Option<Arc<Snapshot>>,
    /// The last placements, in the indices of the snapshot; none before the
    /// first ones are known.
    pub placements: Option<Arc<Placements>>,
    /// Time since the last collection that gave data began: grows while the
    /// source hangs or fails.
    pub age: Option<Duration>,
    /// Data older than this are not served.
    pub stale_after: Duration,
    /// How long the source has been asked and has not answered.
    pub silent: Option<Duration>,
    /// Time since the exporter has been looking.
    pub since_start: Duration,
    /// What the process knows of its own work.
    pub tally: Tally,
}

impl View {
    /// Whether the last good data are recent.
    #[must_use]
    pub fn is_fresh(&self) -> bool {
        self.age.is_some_and(|age| age <= self.stale_after)
    }

    /// What was read; none when the last collection failed, or when the source
    /// has hung for so long that it is no longer true.
    #[must_use]
    pub fn data(&self) -> Option<&Reading> {
        let snapshot = self.snapshot.as_deref().filter(|_| self.is_fresh())?;
        snapshot.data.as_ref()
    }

    /// Why there are no data, or not all.
    #[must_use]
    pub fn error(&self) -> Option<String> {
        if let Hold::Released(left) = self.tally.release.hold() {
            let left = left.as_secs_f64();
            return Some(format!(
                "the source was let go of on request; it is read again in {left:.0} s, or after POST /-/open"
            ));
        }
        let said = self.snapshot.as_ref().map(|one| one.health.error.as_ref());
        let silent = self.silent.filter(|_| !self.is_fresh());
        match (said, silent) {
            (Some(Some(error)), _) => Some(error.clone()),
            (_, Some(silent)) => Some(format!(
                "the source has not answered for {} s",
                silent.as_secs()
            )),
            (None, None) => Some("no collection has ended yet".to_owned()),
            (Some(None), None) if self.is_fresh() => None,
            (Some(None), None) => Some("no collection has ended since".to_owned()),
        }
    }

    /// Whether the source was let go of on request.
    #[must_use]
    pub fn is_released(&self) -> bool {
        matches!(self.tally.release.hold(), Hold::Released(_))
    }

    /// The same, if all of it could be read: a graph that lacks something must
    /// neither be published nor placed on.
    #[must_use]
    pub fn whole(&self) -> Option<&Reading> {
        self.data().filter(|data| data.unread.is_empty())
    }

    /// The document, with the allocations; none where it would not be whole.
    #[must_use]
    pub fn document(&self) -> Option<NodeTopology> {
        let mut document = self.whole()?.topology.clone();
        if let Some(placements) = &self.placements {
            document.status.clone_from(&placements.status);
        }
        Some(document)
    }
}
