//! The collector: one thread that reads the source and publishes snapshots.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use nvlink_runtime::supervise::{Supervisor, Weight};
use nvlink_source::{Source, SourceError, Unread};

use crate::snapshot::{Health, Latest, Snapshot};
use nvlink_history::{
    faults::Faults,
    load::Meter,
    marks::{Marks, Record},
    remotes::Remotes,
    totals::Totals,
    xids::XidTimes,
};

/// Reads `source` once. The snapshot has nothing that needs an earlier reading: no loads, no
/// totals, and no kinds of device that links led to before.
pub fn collect(name: &str, source: &mut dyn Source, since_start: Duration) -> Snapshot {
    read(name, source, since_start, &mut Memory::default())
}

/// What is known from all readings so far.
#[derive(Default)]
struct Memory {
    remotes: Remotes,
    xids: XidTimes,
    marks: Marks,
}

/// Reads `source` once, and marks broken GPUs.
fn read(
    name: &str,
    source: &mut dyn Source,
    since_start: Duration,
    memory: &mut Memory,
) -> Snapshot {
    let start = Instant::now();
    let result = source.read(since_start);
    let finished = Instant::now();
    let (data, error) = match result {
        Ok(mut reading) => {
            memory.remotes.observe(&reading);
            memory.remotes.complete(&mut reading);
            memory.xids.observe(&reading, finished);
            memory.marks.observe(&mut reading);
            let error = unread(&reading.unread);
            (Some(reading), error)
        }
        Err(error) => (None, Some(error.to_string())),
    };
    let duration = finished.duration_since(start);
    Snapshot {
        data,
        loads: Vec::new(),
        totals: Vec::new(),
        remotes: memory.remotes.clone(),
        xids: memory.xids.clone(),
        record: memory.marks.record(),
        health: Health {
            source: name.to_owned(),
            error,
            duration,
            finished,
        },
    }
}

/// Joins the reasons for all data that could not be read.
fn unread(all: &[Unread]) -> Option<String> {
    let reasons: Vec<_> = all.iter().map(|one| &*one.reason).collect();
    (!reasons.is_empty()).then(|| reasons.join("; "))
}

/// A function that opens the source again.
pub type Open = Box<dyn FnMut() -> Result<Box<dyn Source>, SourceError> + Send>;

/// Starts the thread. It reads `source` at once and then every `interval`.
///
/// A source that panics is opened again. A source that hangs blocks only this
/// thread: the log reports it, and `/readyz` fails when the data are stale, but
/// `/livez` does not. The source waits for the driver, for which a new process
/// would wait, too; and during a restart no exporter would report the hang.
///
/// # Errors
/// When the system cannot start a thread.
pub fn start(
    supervisor: &Supervisor,
    name: String,
    source: Box<dyn Source>,
    mut open: Open,
    interval: Duration,
    latest: &Arc<Latest>,
) -> std::io::Result<()> {
    let hang = Hang::new(name.clone(), latest);
    supervisor.keep("the watch of the source", Weight::Minor, move || {
        hang.clone().watch()
    });
    let latest = Arc::clone(latest);
    let mut first = Some(source);
    let mut totals = Totals::default();
    supervisor.thread("the collector", Weight::Vital, move || {
        let source = first.take().map_or_else(&mut open, Ok)?;
        run(&name, source, interval, &latest, &mut totals)
    })
}

fn run(
    name: &str,
    mut source: Box<dyn Source>,
    interval: Duration,
    latest: &Latest,
    totals: &mut Totals,
) -> Result<(), SourceError> {
    let start = Instant::now();
    let mut log = Log::default();
    let mut meter = Meter::default();
    let mut memory = Memory::default();
    let release = &latest.statistics().release;
    loop {
        if release.is_asked() {
            let_go(name, source.as_mut(), latest);
        }
        if let Some(earlier) = latest.earlier() {
            memory.marks.restore(&earlier);
        }
        let asking = Asking::new(name, latest);
        let mut snapshot = read(name, source.as_mut(), start.elapsed(), &mut memory);
        drop(asking);
        if let Some(data) = &snapshot.data {
            snapshot.loads = meter.observe(data, snapshot.health.finished);
            snapshot.totals = totals.observe(data, snapshot.health.finished);
        }
        log.write(&snapshot);
        latest.publish(snapshot);
        release.pause(interval);
    }
}

/// Releases the source for as long as requested.
fn let_go(name: &str, source: &mut dyn Source, latest: &Latest) {
    let asking = Asking::new(name, latest);
    source.release();
    drop(asking);
    latest.publish(nothing(name, "the source is released on request"));
    tracing::info!(source = name, "released the source on request");
    latest.statistics().release.rest();
    tracing::info!(source = name, "the source is opened again");
}

/// Marks a reading in progress while it exists. A source that panics has not
/// answered, and its earlier data are no longer valid.
struct Asking<'a> {
    name: &'a str,
    latest: &'a Latest,
}

impl<'a> Asking<'a> {
    fn new(name: &'a str, latest: &'a Latest) -> Self {
        latest.reads_since(Some(Instant::now()));
        Self { name, latest }
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.latest.reads_since(None);
        if thread::panicking() {
            let reason = "the source panicked and is opened again";
            self.latest.publish(nothing(self.name, reason));
        }
    }
}

/// Returns a collection without data.
fn nothing(name: &str, reason: &str) -> Snapshot {
    Snapshot {
        data: None,
        loads: Vec::new(),
        totals: Vec::new(),
        remotes: Remotes::default(),
        xids: XidTimes::default(),
        record: Record::default(),
        health: Health {
            source: name.to_owned(),
            error: Some(reason.to_owned()),
            duration: Duration::ZERO,
            finished: Instant::now(),
        },
    }
}

/// A source that has not answered for this long hangs: a reading takes a second or two.
const HANGS: Duration = Duration::from_secs(10);

/// Logs when the source begins to hang, and when it answers again.
#[derive(Clone)]
struct Hang {
    source: String,
    latest: Arc<Latest>,
    within: Duration,
}

impl Hang {
    fn new(source: String, latest: &Arc<Latest>) -> Self {
        let latest = Arc::clone(latest);
        let within = HANGS.min(latest.stale_after());
        Self {
            source,
            latest,
            within,
        }
    }

    async fn watch(self) {
        let mut hangs: Option<Instant> = None;
        let source = self.source;
        loop {
            tokio::time::sleep(self.within / 10).await;
            let reads = self.latest.reading();
            if let Some(since) = hangs.filter(|_| reads != hangs) {
                let seconds = since.elapsed().as_secs();
                tracing::info!(source, "the source answers again, after {seconds} s");
                hangs = None;
            }
            let late = reads.filter(|since| since.elapsed() >= self.within);
            if let Some(since) = late.filter(|_| hangs.is_none()) {
                let seconds = since.elapsed().as_secs_f64();
                tracing::error!(
                    source,
                    "the source hangs: it has not answered for {seconds:.0} s"
                );
                hangs = Some(since);
            }
        }
    }
}

/// Logs changes only, not the same line at each collection.
#[derive(Default)]
struct Log {
    error: Option<Option<String>>,
    warnings: Vec<String>,
    faults: Faults,
}

impl Log {
    fn write(&mut self, snapshot: &Snapshot) {
        let error = &snapshot.health.error;
        let source = &snapshot.health.source;
        if self.error.as_ref() != Some(error) {
            match (error, &snapshot.data) {
                (Some(error), _) => tracing::error!(
                    source,
                    error,
                    "collection failed: the exporter keeps trying, and logs when it succeeds"
                ),
                (None, Some(data)) => {
                    let spec = &data.topology.spec;
                    let (gpus, domains) = (spec.gpus.len(), spec.domains.len());
                    tracing::info!(source, gpus, domains, "collection succeeded");
                }
                (None, None) => {}
            }
            self.error = Some(error.clone());
        }
        let warnings = snapshot
            .data
            .as_ref()
            .map(|data| &data.warnings[..])
            .unwrap_or_default();
        for warning in warnings
            .iter()
            .filter(|warning| !self.warnings.contains(warning))
        {
            tracing::warn!(source, "{warning}");
        }
        self.warnings = warnings.to_vec();
        if let Some(data) = &snapshot.data {
            for change in self.faults.observe(data) {
                change.log(source);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use nvlink_source::Reading;

    use super::*;

    /// Fails at every second reading.
    struct Flaky(u32);

    impl Source for Flaky {
        fn read(&mut self, now: Duration) -> Result<Reading, SourceError> {
            self.0 += 1;
            match self.0 % 2 {
                0 => Err(SourceError::Unsupported("out of order".to_owned())),
                _ => {
                    let spec: nvlink_source::SourceSpec = "sim:l40s".parse().unwrap();
                    spec.open(Some("n"))?.read(now)
                }
            }
        }
    }

    #[test]
    fn a_failed_collection_has_no_data() {
        let mut source = Flaky(0);
        let good = collect("flaky", &mut source, Duration::ZERO);
        assert!(good.data.is_some() && good.health.error.is_none());
        let bad = collect("flaky", &mut source, Duration::ZERO);
        assert!(bad.data.is_none());
        assert_eq!(bad.health.error.as_deref(), Some("out of order"));
    }

    /// Pairs of cards; the bridge of the first pair fails after the first reading, and the last two
    /// cards never had one.
    struct Bridges(u32);

    impl Source for Bridges {
        fn read(&mut self, now: Duration) -> Result<Reading, SourceError> {
            self.0 += 1;
            let spec: nvlink_source::SourceSpec = "sim:a100-pcie-pairs".parse().unwrap();
            let mut reading = spec.open(Some("n"))?.read(now)?;
            let fails = self.0 > 1;
            let gpus = &mut reading.topology.spec.gpus;
            let last = gpus.len() - 2;
            for (at, gpu) in gpus.iter_mut().enumerate() {
                let down = at >= last || at < 2 && fails;
                for link in gpu.links.iter_mut().flatten().filter(|_| down) {
                    (link.up, link.remote) = (false, None);
                }
            }
            Ok(reading)
        }
    }

    #[test]
    fn a_bridge_that_fails_is_told_apart_from_one_that_was_never_there() {
        let mut source = Bridges(0);
        let mut memory = Memory::default();
        let mut broken = |source: &mut Bridges| {
            let data = read("bridges", source, Duration::ZERO, &mut memory)
                .data
                .unwrap();
            let gpus = data.topology.spec.gpus.iter();
            let broken = gpus.filter(|gpu| !gpu.faults.is_empty());
            broken.map(|gpu| gpu.index).collect::<Vec<_>>()
        };
        assert!(broken(&mut source).is_empty());
        assert_eq!(broken(&mut source), [0, 1]);
    }

    /// Cannot read the links of one GPU.
    struct Partial;

    impl Source for Partial {
        fn read(&mut self, now: Duration) -> Result<Reading, SourceError> {
            let spec: nvlink_source::SourceSpec = "sim:dgx-h100".parse().unwrap();
            let mut reading = spec.open(Some("n"))?.read(now)?;
            let reason = "GPU 3: its links cannot be read".to_owned();
            reading.unread.push(Unread {
                gpu: Some(3),
                reason,
            });
            Ok(reading)
        }
    }

    #[test]
    fn an_incomplete_collection_has_failed_and_has_the_other_data() {
        let latest = Latest::default();
        latest.publish(collect("partial", &mut Partial, Duration::ZERO));
        let view = latest.view(Instant::now());
        assert!(view.data().is_some() && view.is_fresh());
        assert!(view.whole().is_none() && view.document().is_none());
        assert_eq!(view.error().unwrap(), "GPU 3: its links cannot be read");
        let all = crate::metrics::Groups::ALL;
        let text = crate::metrics::render(&view, all).unwrap();
        let count = |start: &str| text.lines().filter(|line| line.starts_with(start)).count();
        assert_eq!(
            count("nvlink_exporter_collector_success{collector=\"topology\"} 0"),
            1
        );
        assert_eq!(count("nvlink_link_up{"), 8 * 18);
        assert_eq!(
            count("nvlink_peer_links{"),
            7 * 6,
            "only between the other GPUs"
        );
        assert_eq!(count("nvlink_missing_links{"), 7);
        assert_eq!(count("nvlink_domain_gpus{"), 0);
    }

    /// Panics at its first reading.
    struct Broken;

    impl Source for Broken {
        fn read(&mut self, _: Duration) -> Result<Reading, SourceError> {
            panic!("out of order")
        }
    }

    #[tokio::test]
    async fn a_source_that_panics_is_opened_again() {
        let latest = Arc::new(Latest::default());
        let supervisor = Supervisor::default();
        let open: Open = Box::new(|| Ok(Box::new(Flaky(0))));
        let interval = Duration::from_millis(1);
        let name = "flaky".to_owned();
        start(&supervisor, name, Box::new(Broken), open, interval, &latest).unwrap();
        let until = Instant::now() + Duration::from_secs(30);
        let (mut good, mut bad) = (false, false);
        while !(good && bad) && Instant::now() < until {
            let view = latest.view(Instant::now());
            match view.snapshot.map(|snapshot| snapshot.data.is_some()) {
                Some(true) => good = true,
                Some(false) => bad = true,
                None => {}
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(good && bad);
        assert!(supervisor.restarts().contains(&("the collector", 1)));
    }
}
