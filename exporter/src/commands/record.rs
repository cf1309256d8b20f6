//! `record`.

use std::{
    fs,
    io::{self, IsTerminal, Write},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use nvlink_runtime::{
    files,
    signals::{self, Signals},
};
use nvlink_source::{Reading, Source, SourceError, recording::Recorder};
use nvlink_topology::NodeTopologySpec;
use tokio::{sync::mpsc, task::spawn_blocking};

use super::{print, runtime, warn};
use crate::args::RecordArgs;
use nvlink_history::marks::Marks;

/// A recording that takes longer prints its progress.
const QUIET: Duration = Duration::from_secs(2);
/// Time between two lines of progress if standard error is not a terminal.
const PROGRESS: Duration = Duration::from_secs(30);

pub(super) fn record(args: &RecordArgs) -> anyhow::Result<()> {
    // Fail before time is spent on recording.
    if let Some(path) = &args.to {
        check_directory(path).with_context(|| path.display().to_string())?;
    }
    let source = super::opener(&args.source).open()?;
    let runtime = runtime()?;
    let recorded = runtime.block_on(async {
        let mut signals = signals::install()?;
        let text = run(source, args.samples, args.interval, &mut signals).await?;
        save(text, args.to.clone(), &mut signals).await
    });
    // A source that hangs, or a pipe that nobody reads, must not keep the process running.
    runtime.shutdown_background();
    recorded
}

/// Writes the recording. A pipe may have no reader: the next signal ends that.
async fn save(text: String, to: Option<PathBuf>, signals: &mut Signals) -> anyhow::Result<()> {
    let writing = spawn_blocking(move || match &to {
        None => print(&text),
        Some(path) => write(path, &text).with_context(|| path.display().to_string()),
    });
    tokio::select! {
        written = writing => written?,
        signal = signals.received() => {
            anyhow::bail!("received {signal} before the recording was written")
        }
    }
}

/// One reading, and its time since the start.
type Taken = (Duration, Result<Reading, SourceError>);

/// Records `samples` readings, or those made before the first signal, and returns the text.
async fn run(
    source: Box<dyn Source>,
    samples: u32,
    interval: Duration,
    signals: &mut Signals,
) -> anyhow::Result<String> {
    let (sender, mut readings) = mpsc::channel(1);
    let thread = thread::Builder::new().name("recorder".to_owned());
    thread.spawn(move || take(source, samples, interval, &sender))?;
    let mut session = Session::new(samples, interval);
    loop {
        let taken = tokio::select! {
            taken = readings.recv() => taken,
            _ = signals.received() => None,
        };
        let Some(taken) = taken else { break };
        if !session.add(taken)? {
            break;
        }
    }
    session.end()
}

/// Reads `samples` times, `interval` apart, until the receiver is gone.
fn take(mut source: Box<dyn Source>, samples: u32, interval: Duration, to: &mpsc::Sender<Taken>) {
    let start = Instant::now();
    for n in 0..samples {
        let due = interval.saturating_mul(n);
        thread::sleep(due.saturating_sub(start.elapsed()));
        // Time counts from the first reading.
        let now = if n == 0 {
            Duration::ZERO
        } else {
            start.elapsed()
        };
        if to.blocking_send((now, source.read(now))).is_err() {
            return;
        }
    }
}

struct Session {
    recorder: Option<(Recorder, NodeTopologySpec)>,
    samples: u32,
    taken: u32,
    total: Duration,
    warnings: Vec<String>,
    marks: Marks,
    said: Option<Instant>,
    start: Instant,
}

impl Session {
    fn new(samples: u32, interval: Duration) -> Self {
        Self {
            recorder: None,
            samples,
            taken: 0,
            total: interval.saturating_mul(samples.saturating_sub(1)),
            warnings: Vec::new(),
            marks: Marks::default(),
            said: None,
            start: Instant::now(),
        }
    }

    /// Adds a reading; returns `false` if it does not fit. If the first reading
    /// fails, the recording fails; if a later one fails, it is skipped.
    fn add(&mut self, (at, reading): Taken) -> anyhow::Result<bool> {
        let reading = match reading {
            Err(error) if self.recorder.is_none() => return Err(error.into()),
            Err(error) => {
                self.warn(format!("no sample at {} s: {error}", at.as_secs()));
                return Ok(true);
            }
            Ok(mut reading) => {
                self.marks.observe(&mut reading);
                reading
            }
        };
        for warning in &reading.warnings {
            self.warn(warning.clone());
        }
        for unread in &reading.unread {
            self.warn(unread.reason.clone());
        }
        if self
            .recorder
            .as_ref()
            .is_some_and(|(_, spec)| *spec != reading.topology.spec)
        {
            self.warn(
                "the topology changed during the recording: the first one is kept".to_owned(),
            );
        }
        let (recorder, _) = match &mut self.recorder {
            Some(recorder) => recorder,
            none => none.insert((
                Recorder::new(&reading.topology)?,
                reading.topology.spec.clone(),
            )),
        };
        let fits = recorder.add(at, &reading)?;
        if fits {
            self.taken += 1;
            self.progress();
        }
        Ok(fits)
    }

    /// Ends the recording: prints what is missing from it, and returns its text.
    fn end(mut self) -> anyhow::Result<String> {
        if self.said.is_some() && io::stderr().is_terminal() {
            drop(writeln!(io::stderr()));
        }
        let Some((recorder, _)) = self.recorder.take() else {
            anyhow::bail!("interrupted before the source was read: nothing is written");
        };
        if self.taken < self.samples {
            self.warn(format!(
                "only {} of {} samples are recorded",
                self.taken, self.samples
            ));
        }
        if self.samples > 1 && !recorder.is_moving() {
            self.warn("this source has no counters, so the recording has no samples".to_owned());
        }
        Ok(recorder.text())
    }

    fn warn(&mut self, warning: String) {
        if !self.warnings.contains(&warning) {
            warn(&warning);
            self.warnings.push(warning);
        }
    }

    fn progress(&mut self) {
        let terminal = io::stderr().is_terminal();
        let pause = if terminal { Duration::ZERO } else { PROGRESS };
        let due = match self.said {
            Some(said) => said.elapsed() >= pause,
            None => self.start.elapsed() >= QUIET,
        };
        if self.total < QUIET || !due {
            return;
        }
        self.said = Some(Instant::now());
        let (taken, samples, total) = (self.taken, self.samples, self.total.as_secs());
        let text = format!(
            "nvlink-exporter: sample {taken} of {samples}, {} of {total} s",
            self.start.elapsed().as_secs()
        );
        drop(match terminal {
            true => write!(io::stderr(), "\r{text}"),
            false => writeln!(io::stderr(), "{text}"),
        });
    }
}

fn check_directory(path: &Path) -> io::Result<()> {
    let directory = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    match directory.filter(|parent| !parent.is_dir()) {
        Some(missing) => {
            let reason = format!("the directory {} does not exist", missing.display());
            Err(io::Error::new(io::ErrorKind::NotFound, reason))
        }
        None => Ok(()),
    }
}

/// Writes the whole file or nothing: a reader never sees half of it. Devices,
/// pipes and links are kept: a rename would replace them with a file.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let path = match fs::metadata(path) {
        Ok(found) if found.is_file() => &fs::canonicalize(path)?,
        Ok(found) if !found.is_dir() => {
            return fs::OpenOptions::new()
                .write(true)
                .open(path)?
                .write_all(text.as_bytes());
        }
        _ => path,
    };
    check_directory(path)?;
    files::replace(path, text.as_bytes())
}
