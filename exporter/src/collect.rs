//! The collector: one thread that reads the source and publishes snapshots.

use std::{
    sync::{Arc, Weak},
    thread,
    time::{Duration, Instant},
};

use crate::{
    faults::Faults,
    load::Meter,
    snapshot::{Health, Latest, Snapshot},
    source::{Source, Unread},
};

/// Reads `source` once. What moved since an earlier reading is not known here.
pub fn collect(name: &str, source: &mut dyn Source, since_start: Duration) -> Snapshot {
    let start = Instant::now();
    let result = source.read(since_start);
    let finished = Instant::now();
    let (data, error) = match result {
        Ok(reading) => {
            let error = unread(&reading.unread);
            (Some(reading), error)
        }
        Err(error) => (None, Some(error.to_string())),
    };
    let duration = finished.duration_since(start);
    Snapshot {
        data,
        loads: Vec::new(),
        health: Health {
            source: name.to_owned(),
            error,
            duration,
            finished,
        },
    }
}

/// Everything that could not be read, in one sentence.
fn unread(all: &[Unread]) -> Option<String> {
    let reasons: Vec<_> = all.iter().map(|one| &*one.reason).collect();
    (!reasons.is_empty()).then(|| reasons.join("; "))
}

/// Starts the thread. It reads at once and then every `interval`, and ends when
/// nobody holds `latest` any more. A source that hangs hangs this thread alone.
///
/// # Errors
/// When the system gives no thread.
pub fn spawn(
    name: String,
    source: Box<dyn Source>,
    interval: Duration,
    latest: &Arc<Latest>,
) -> std::io::Result<()> {
    let latest = Arc::downgrade(latest);
    let thread = thread::Builder::new().name("collector".to_owned());
    thread
        .spawn(move || run(&name, source, interval, &latest))
        .map(drop)
}

fn run(name: &str, mut source: Box<dyn Source>, interval: Duration, latest: &Weak<Latest>) {
    let start = Instant::now();
    let mut log = Log::default();
    let mut meter = Meter::default();
    loop {
        let mut snapshot = collect(name, source.as_mut(), start.elapsed());
        if let Some(data) = &snapshot.data {
            snapshot.loads = meter.observe(data, snapshot.health.finished);
        }
        log.write(&snapshot);
        let Some(latest) = latest.upgrade() else {
            return;
        };
        latest.publish(snapshot);
        drop(latest);
        thread::sleep(interval);
    }
}

/// Says what changed, not the same thing at each collection.
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
                (Some(error), _) => tracing::error!(source, error, "collection failed"),
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
    use super::*;
    use crate::source::{Reading, SourceError};

    /// Fails at every second reading.
    struct Flaky(u32);

    impl Source for Flaky {
        fn read(&mut self, now: Duration) -> Result<Reading, SourceError> {
            self.0 += 1;
            match self.0 % 2 {
                0 => Err(SourceError::Unsupported("out of order".to_owned())),
                _ => {
                    let spec: crate::source::SourceSpec = "sim:l40s".parse().unwrap();
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

    /// Answers all but one question.
    struct Partial;

    impl Source for Partial {
        fn read(&mut self, now: Duration) -> Result<Reading, SourceError> {
            let spec: crate::source::SourceSpec = "sim:dgx-h100".parse().unwrap();
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
    fn a_collection_that_lacks_something_has_failed_and_has_the_rest() {
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
            "only between the others"
        );
        assert_eq!(count("nvlink_missing_links{"), 7);
        assert_eq!(count("nvlink_domain_gpus{"), 0);
    }

    #[test]
    fn the_thread_publishes_and_ends_with_its_readers() {
        let latest = Arc::new(Latest::default());
        spawn(
            "flaky".into(),
            Box::new(Flaky(0)),
            Duration::from_millis(1),
            &latest,
        )
        .unwrap();
        let until = Instant::now() + Duration::from_secs(10);
        let (mut good, mut bad) = (false, false);
        while !(good && bad) && Instant::now() < until {
            let view = latest.view(Instant::now());
            match view.snapshot.map(|snapshot| snapshot.data.is_some()) {
                Some(true) => good = true,
                Some(false) => bad = true,
                None => thread::sleep(Duration::from_millis(1)),
            }
        }
        assert!(good && bad);
        let weak = Arc::downgrade(&latest);
        drop(latest);
        while weak.upgrade().is_some() && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        assert!(weak.upgrade().is_none());
    }
}
