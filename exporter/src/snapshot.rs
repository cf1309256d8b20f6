//! What the collectors pass to the rest of the program: complete, immutable, shared.

use std::{
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use arc_swap::{ArcSwap, ArcSwapOption};
use nvlink_collectives::{
    Results,
    follow::{self, Shown},
};
use nvlink_source::{Reading, host_name, sim::Control};
use nvlink_topology::{Comparison, NodeTopology};
use tokio::sync::Notify;

use crate::{placement::Placements, release::Hold, statistics::Statistics};
use nvlink_history::{
    load::LinkLoad, marks::Record, remotes::Remotes, totals::GpuTotals, xids::XidTimes,
};

/// The outcome of one collection. Data and health are separate: a failed
/// collection has health and no data, and never the data of an earlier one. A
/// collection that could not read everything has failed and has the data that it
/// did read.
#[derive(Debug)]
pub struct Snapshot {
    /// The data; absent if nothing was read.
    pub data: Option<Reading>,
    /// Rates and new errors of each link since the last good reading, by GPU and link.
    pub loads: Vec<LinkLoad>,
    /// Totals of each GPU over its links.
    pub totals: Vec<GpuTotals>,
    /// The kind of device at the other end of each link, as far as it is known from
    /// this and earlier readings.
    pub remotes: Remotes,
    /// When each GPU last had each XID.
    pub xids: XidTimes,
    /// What must survive a restart of the exporter.
    pub record: Record,
    pub health: Health,
}

/// Outcome of a collection.
#[derive(Clone, Debug)]
pub struct Health {
    /// The source, as in `--source`.
    pub source: String,
    /// Why data are missing, all or some of them.
    pub error: Option<String>,
    /// How long it took.
    pub duration: Duration,
    pub finished: Instant,
}

impl Health {
    /// Returns the start of the collection, which is the time of its oldest data:
    /// a source that hung halfway returned data from before the hang.
    #[must_use]
    pub fn started(&self) -> Instant {
        let started = self.finished.checked_sub(self.duration);
        started.unwrap_or(self.finished)
    }
}

/// Default age above which data are not served.
pub const STALE_AFTER: Duration = Duration::from_secs(30);

/// The latest state, for readers that never wait for a collector.
#[derive(Debug)]
pub struct Latest {
    /// Name of the node.
    node: ArcSwap<String>,
    snapshot: ArcSwapOption<Snapshot>,
    good_at: ArcSwapOption<Instant>,
    /// The last collection that returned data.
    good: ArcSwapOption<Snapshot>,
    placements: ArcSwapOption<Placements>,
    /// What an earlier process recorded in the cluster; none before it was read.
    earlier: ArcSwapOption<Record>,
    results: ArcSwapOption<Results>,
    /// Start of the reading in progress.
    reading: ArcSwapOption<Instant>,
    changed: Notify,
    stale_after: Duration,
    start: Instant,
    statistics: Statistics,
    /// The simulated node, if it is one.
    simulated: Option<Arc<Control>>,
}

impl Default for Latest {
    fn default() -> Self {
        Self::new(host_name(), STALE_AFTER)
    }
}

impl Latest {
    /// Returns an empty state of `node`. Data older than `stale_after` are not served.
    #[must_use]
    pub fn new(node: String, stale_after: Duration) -> Self {
        Self {
            node: ArcSwap::from_pointee(node),
            snapshot: ArcSwapOption::empty(),
            good_at: ArcSwapOption::empty(),
            good: ArcSwapOption::empty(),
            placements: ArcSwapOption::empty(),
            earlier: ArcSwapOption::empty(),
            results: ArcSwapOption::empty(),
            reading: ArcSwapOption::empty(),
            changed: Notify::new(),
            stale_after,
            start: Instant::now(),
            statistics: Statistics::default(),
            simulated: None,
        }
    }

    /// Returns the same state with these statistics.
    #[must_use]
    pub fn with(self, statistics: Statistics) -> Self {
        Self { statistics, ..self }
    }

    /// Returns the same state of a simulated node: only the containers that hold its GPUs use its links.
    #[must_use]
    pub fn simulating(self, simulated: Option<Arc<Control>>) -> Self {
        Self { simulated, ..self }
    }

    /// Returns the statistics of the process about itself.
    #[must_use]
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// Returns the age above which data are not served.
    #[must_use]
    pub fn stale_after(&self) -> Duration {
        self.stale_after
    }

    /// Records the start of a reading; `None` when no reading is in progress.
    pub fn reads_since(&self, since: Option<Instant>) {
        self.reading.store(since.map(Arc::new));
    }

    /// Returns the start of the reading in progress.
    #[must_use]
    pub fn reading(&self) -> Option<Instant> {
        self.reading.load().as_deref().copied()
    }

    /// Keeps what an earlier process recorded in the cluster, for the collector.
    pub fn restore(&self, record: Record) {
        self.earlier.store(Some(Arc::new(record)));
    }

    /// Returns what an earlier process recorded; none before it was read.
    #[must_use]
    pub fn earlier(&self) -> Option<Arc<Record>> {
        self.earlier.load_full()
    }

    pub fn publish(&self, snapshot: Snapshot) {
        let snapshot = Arc::new(snapshot);
        if let Some(data) = &snapshot.data {
            // A recording has a name of its own.
            let node = data.topology.metadata.name.clone();
            self.node.store(Arc::new(node));
            self.good_at
                .store(Some(Arc::new(snapshot.health.started())));
            self.good.store(Some(Arc::clone(&snapshot)));
        }
        self.snapshot.store(Some(snapshot));
        self.changed.notify_waiters();
    }

    pub fn place(&self, placements: Placements) {
        let health = placements.health.as_ref();
        let failed = health.is_some_and(|health| health.error.is_some());
        // Jobs go on while the kubelet does not answer.
        if let Some(simulated) = self.simulated.as_ref().filter(|_| !failed) {
            simulated.use_links(placements.communicating());
        }
        self.placements.store(Some(Arc::new(placements)));
        self.changed.notify_waiters();
    }

    /// Waits for the next snapshot or the next placements.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Returns the state as of `now`.
    #[must_use]
    pub fn view(&self, now: Instant) -> View {
        let good_at = self.good_at.load_full();
        let snapshot = self.snapshot.load_full();
        let placements = self.placements.load_full();
        let data = snapshot.as_ref().and_then(|one| one.data.as_ref());
        View {
            node: self.node.load_full(),
            placements: match data {
                Some(data) => placements.and_then(|one| one.in_terms_of(data)),
                None => placements,
            },
            results: self.results.load_full(),
            snapshot,
            last: self.good.load_full(),
            age: good_at.map(|at| now.saturating_duration_since(*at)),
            stale_after: self.stale_after,
            silent: self
                .reading()
                .map(|since| now.saturating_duration_since(since)),
            since_start: now.saturating_duration_since(self.start),
            clock: Clock {
                now,
                wall: SystemTime::now(),
            },
            statistics: self.statistics.clone(),
        }
    }
}

impl nvlink_device_plugin::Node for Latest {
    fn name(&self) -> String {
        self.node.load().as_str().to_owned()
    }

    fn show(&self, look: &mut dyn FnMut(&Reading)) {
        if let Some(data) = self.view(Instant::now()).data() {
            look(data);
        }
    }

    fn changed(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(self.changed())
    }
}

impl follow::Node for Latest {
    fn show(&self, look: &mut dyn FnMut(Shown<'_>)) {
        let view = self.view(Instant::now());
        if let Some(data) = view.whole() {
            look(Shown {
                by_constants: data.by_constants(),
                calibration: &data.topology.spec.calibration,
            });
        }
    }

    fn measure(&self, results: Arc<Results>) {
        self.results.store(Some(results));
    }
}

/// The state at one point in time.
#[derive(Clone, Debug)]
pub struct View {
    /// Name of the node; known without data, too.
    pub node: Arc<String>,
    /// The last collection; none before the end of the first one.
    pub snapshot: Option<Arc<Snapshot>>,
    /// The last collection that returned data, which may be old.
    pub last: Option<Arc<Snapshot>>,
    /// The last placements, in the indices of the snapshot; none before the
    /// first ones are known.
    pub placements: Option<Arc<Placements>>,
    /// Results of benchmarks; none if nothing reads them.
    pub results: Option<Arc<Results>>,
    /// Time since the start of the last collection that returned data: grows while
    /// the source hangs or fails.
    pub age: Option<Duration>,
    /// Age above which data are not served.
    pub stale_after: Duration,
    /// How long the reading in progress has been waiting for the source.
    pub silent: Option<Duration>,
    /// Time since the exporter started to collect.
    pub since_start: Duration,
    /// The time of this state.
    pub clock: Clock,
    /// Statistics of the process about itself.
    pub statistics: Statistics,
}

/// One point in time, by two clocks. Times are kept by the one that nobody sets, and are shown by
/// the other: one that was wrong at boot and was set later leaves no wrong times behind.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    pub now: Instant,
    pub wall: SystemTime,
}

impl Clock {
    /// Returns the Unix time of `at` in whole seconds; `None` before 1970.
    #[must_use]
    pub fn unix(self, at: Instant) -> Option<u64> {
        let wall = self.wall.duration_since(UNIX_EPOCH).ok()?;
        let ago = self.now.saturating_duration_since(at);
        Some(wall.checked_sub(ago)?.as_secs_f64().round() as u64)
    }
}

impl View {
    /// Reports whether the last good data are recent.
    #[must_use]
    pub fn is_fresh(&self) -> bool {
        self.age.is_some_and(|age| age <= self.stale_after)
    }

    /// Returns the data; none if the last collection failed, or if the source has
    /// hung so long that the data are stale.
    #[must_use]
    pub fn data(&self) -> Option<&Reading> {
        let snapshot = self.snapshot.as_deref().filter(|_| self.is_fresh())?;
        snapshot.data.as_ref()
    }

    /// Returns the state of the last collection that returned data, without jobs: for people, who still
    /// see the node while it cannot be read.
    #[must_use]
    pub fn past(&self) -> Self {
        Self {
            snapshot: self.last.clone(),
            placements: None,
            ..self.clone()
        }
    }

    /// Returns why data are missing, all or some of them.
    #[must_use]
    pub fn error(&self) -> Option<String> {
        if let Hold::Released(left) = self.statistics.release.hold() {
            let left = left.as_secs_f64();
            return Some(format!(
                "the source is released on request; it is opened again in {left:.0} s, or after POST /-/open"
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
            (None, None) => Some("no collection has finished yet".to_owned()),
            (Some(None), None) if self.is_fresh() => None,
            (Some(None), None) => Some("no collection has finished since".to_owned()),
        }
    }

    /// Reports whether the source is released on request.
    #[must_use]
    pub fn is_released(&self) -> bool {
        matches!(self.statistics.release.hold(), Hold::Released(_))
    }

    /// Returns the data if they are complete: an incomplete graph must not be
    /// published or used for placements.
    #[must_use]
    pub fn whole(&self) -> Option<&Reading> {
        self.data().filter(|data| data.unread.is_empty())
    }

    /// Returns how the node's benchmarks compare with those of its siblings; what the data
    /// themselves say, such as a recording, if none were read.
    #[must_use]
    pub fn comparisons(&self) -> &[Comparison] {
        let read = self
            .results
            .as_ref()
            .and_then(|one| one.comparisons.as_ref());
        let recorded = || self.data().map(|data| &data.topology.spec.comparisons);
        let all = read.filter(|all| !all.is_empty()).or_else(recorded);
        all.map_or(&[], Vec::as_slice)
    }

    /// Returns the document without the allocations; none if the data are incomplete.
    #[must_use]
    pub fn hardware(&self) -> Option<NodeTopology> {
        let mut document = self.whole()?.topology.clone();
        document.spec.comparisons = self.comparisons().to_vec();
        Some(document)
    }

    /// Returns the document with the allocations; none if the data are incomplete.
    #[must_use]
    pub fn document(&self) -> Option<NodeTopology> {
        let mut document = self.hardware()?;
        if let Some(placements) = &self.placements {
            document.status.clone_from(&placements.status);
        }
        Some(document)
    }
}
