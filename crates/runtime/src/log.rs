//! The log: written to stderr by its own thread, so that nothing waits for it.
//!
//! The reader of the log may close the pipe, stop reading, or run out of disk
//! space. Lines are then dropped and counted, and the program continues.
//! (`tracing-appender`'s writer does not fit: when its queue is full at shutdown
//! it prints to stdout, which may be the very pipe that nobody reads; it limits
//! lines, not bytes; and it does not count lines that cannot be written.)

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    io::{self, IsTerminal, Write},
    panic,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
        mpsc::{Receiver, Sender, SyncSender, channel, sync_channel},
    },
    thread,
    time::Duration,
};

use tracing_subscriber::{EnvFilter, fmt::MakeWriter};

use crate::panics;

/// The format of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Text,
    /// For machines: one JSON object per line.
    Json,
}

/// Memory for lines that wait to be written, in bytes; beyond it lines are dropped.
const ROOM: usize = 1 << 20;
/// Memory that a waiting line takes in addition to its text, in bytes.
const OVERHEAD: usize = 64;
/// While lines wait, about this many bytes are written at once.
const BATCH: usize = 1 << 14;
/// Time to write the last lines when the program ends.
const LAST: Duration = Duration::from_millis(500);

/// The queue of the process; none before [`start`].
static QUEUE: OnceLock<Queue> = OnceLock::new();

/// The queue to the thread that writes lines.
struct Queue {
    messages: Sender<Message>,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    waiting: AtomicUsize,
    dropped: AtomicU64,
}

enum Message {
    Line(Vec<u8>),
    /// A request to confirm that all earlier messages were handled.
    Flush(SyncSender<()>),
}

/// Starts logging what `filter` selects, and panics with their location. With
/// `targets`, lines name the module that they come from. A second call, as in
/// tests, changes nothing.
pub fn start(filter: EnvFilter, format: Format, targets: bool) {
    QUEUE.get_or_init(|| Queue::to(io::stderr()));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(targets)
        .log_internal_errors(false)
        .with_writer(Lines);
    let started = match format {
        Format::Json => builder.json().flatten_event(true).try_init(),
        Format::Text => builder.with_ansi(io::stderr().is_terminal()).try_init(),
    };
    if started.is_ok() {
        panic::set_hook(Box::new(log_panic));
    }
}

/// Returns the number of lines dropped because nobody read them or they could not be written.
#[must_use]
pub fn dropped() -> u64 {
    QUEUE.get().map_or(0, Queue::dropped)
}

/// Writes a program's last line, unformatted, after everything logged before,
/// and waits at most half a second until all lines are written.
pub fn last_words(line: &str) {
    let line = format!("{line}\n").into_bytes();
    match QUEUE.get() {
        Some(queue) => queue.push(line),
        // If stderr is closed, nobody can read the line anyway.
        None => drop(io::stderr().write_all(&line)),
    }
    finish();
}

/// Waits at most half a second until all lines are written.
pub fn finish() {
    if let Some(queue) = QUEUE.get() {
        queue.flush(LAST);
    }
}

/// Logs a panic. The default hook writes to stderr and blocks until somebody reads it.
fn log_panic(panic: &panic::PanicHookInfo<'_>) {
    let what = panics::message(panic.payload());
    let place = panic.location().map(ToString::to_string);
    let thread = thread::current();
    let backtrace = Backtrace::capture();
    let backtrace = (backtrace.status() == BacktraceStatus::Captured).then_some(backtrace);
    tracing::error!(
        thread = thread.name(),
        place,
        backtrace = backtrace.map(|trace| trace.to_string()),
        "panicked: {what}"
    );
}

impl Queue {
    fn to(out: impl Write + Send + 'static) -> Self {
        let (messages, inbox) = channel();
        let counts = Arc::<Counts>::default();
        let shared = Arc::clone(&counts);
        let thread = thread::Builder::new().name("log".to_owned());
        // If the thread cannot start, the inbox is closed and all lines count as dropped.
        drop(thread.spawn(move || write(&inbox, &shared, out)));
        Self { messages, counts }
    }

    fn push(&self, mut line: Vec<u8>) {
        one_line(&mut line);
        let size = line.len() + OVERHEAD;
        let before = self.counts.waiting.fetch_add(size, Relaxed);
        if before + size > ROOM || self.messages.send(Message::Line(line)).is_err() {
            self.counts.waiting.fetch_sub(size, Relaxed);
            self.counts.dropped.fetch_add(1, Relaxed);
        }
    }

    fn flush(&self, limit: Duration) {
        let (done, written) = sync_channel(1);
        if self.messages.send(Message::Flush(done)).is_ok() {
            // A timeout means that nobody reads the log; there is nothing to do about it.
            let _ = written.recv_timeout(limit);
        }
    }

    fn dropped(&self) -> u64 {
        self.counts.dropped.load(Relaxed)
    }
}

/// Replaces line breaks within a line. Lines quote messages of drivers and
/// servers verbatim; such a message must not be able to forge a log line.
fn one_line(line: &mut [u8]) {
    let last = line.len().saturating_sub(1);
    for byte in line.iter_mut().take(last) {
        if matches!(byte, b'\n' | b'\r') {
            *byte = b' ';
        }
    }
}

/// Writes waiting lines in batches, to save a system call per line.
fn write(inbox: &Receiver<Message>, counts: &Counts, mut out: impl Write) {
    let mut batch = Vec::new();
    while let Ok(first) = inbox.recv() {
        let (mut next, mut lines, mut flushed) = (Some(first), 0, None);
        batch.clear();
        while let Some(message) = next.take() {
            match message {
                Message::Line(line) => {
                    lines += 1;
                    batch.extend_from_slice(&line);
                    counts.waiting.fetch_sub(line.len() + OVERHEAD, Relaxed);
                    next = (batch.len() < BATCH)
                        .then(|| inbox.try_recv().ok())
                        .flatten();
                }
                Message::Flush(done) => flushed = Some(done),
            }
        }
        if out.write_all(&batch).and_then(|()| out.flush()).is_err() {
            counts.dropped.fetch_add(lines, Relaxed);
        }
        if let Some(done) = flushed {
            let _ = done.send(());
        }
    }
}

/// Adds each line to the queue.
struct Lines;

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if let Some(queue) = QUEUE.get() {
            queue.push(line.to_vec());
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Lines {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        Self
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Accepts what is written, unless it holds an `Err`.
    #[derive(Clone)]
    struct Reader(Arc<Mutex<Result<Vec<u8>, io::ErrorKind>>>);

    impl Write for Reader {
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            let mut written = self.0.lock().unwrap();
            let written = written.as_mut().map_err(|kind| io::Error::from(*kind))?;
            written.extend_from_slice(text);
            Ok(text.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn lines_are_written_in_order() {
        let reader = Reader(Arc::new(Mutex::new(Ok(Vec::new()))));
        let queue = Queue::to(reader.clone());
        let lines: Vec<_> = (0..5000).map(|n| format!("line {n}\n")).collect();
        for line in &lines {
            queue.push(line.clone().into_bytes());
        }
        queue.flush(LONG);
        let written = reader.0.lock().unwrap().clone().unwrap();
        assert_eq!(String::from_utf8(written).unwrap(), lines.concat());
        assert_eq!(queue.dropped(), 0);
    }

    #[test]
    fn a_quoted_message_cannot_start_a_line() {
        let reader = Reader(Arc::new(Mutex::new(Ok(Vec::new()))));
        let queue = Queue::to(reader.clone());
        queue.push(b"GPU 0: \r\n2026-01-01 INFO all is well\n".to_vec());
        queue.flush(LONG);
        let written = reader.0.lock().unwrap().clone().unwrap();
        let expected = "GPU 0:   2026-01-01 INFO all is well\n";
        assert_eq!(String::from_utf8(written).unwrap(), expected);
    }

    #[test]
    fn a_closed_pipe_or_a_full_disk_only_drops_lines() {
        for kind in [io::ErrorKind::BrokenPipe, io::ErrorKind::StorageFull] {
            let reader = Reader(Arc::new(Mutex::new(Err(kind))));
            let queue = Queue::to(reader.clone());
            queue.push(b"lost\n".to_vec());
            queue.flush(LONG);
            assert_eq!(queue.dropped(), 1);
            *reader.0.lock().unwrap() = Ok(Vec::new());
            queue.push(b"kept\n".to_vec());
            queue.flush(LONG);
            assert_eq!(*reader.0.lock().unwrap(), Ok(b"kept\n".to_vec()));
        }
    }

    #[test]
    fn a_stuck_reader_blocks_nothing_and_costs_bounded_memory() {
        let reader = Reader(Arc::new(Mutex::new(Ok(Vec::new()))));
        let queue = Queue::to(reader.clone());
        let stuck = reader.0.lock().unwrap();
        for _ in 0..100 {
            queue.push(vec![b'x'; ROOM / 50]);
        }
        let waiting = queue.counts.waiting.load(Relaxed);
        assert!(waiting <= ROOM, "{waiting}");
        // Of the lines that are not dropped, some wait and some are being written.
        assert!((48..=52).contains(&queue.dropped()), "{}", queue.dropped());
        queue.flush(Duration::from_millis(1));
        drop(stuck);
        queue.flush(LONG);
        assert_eq!(queue.counts.waiting.load(Relaxed), 0);
    }
}
