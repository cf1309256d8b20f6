//! Keeps the results that `serve` exports up to date: from the state file that `ingest`
//! writes, and from the termination messages of benchmarks on this node.

use std::{
    collections::BTreeMap,
    fmt, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use nvlink_runtime::files;
use nvlink_topology::{Comparison, NodeTopologySpec, calibration::Measured, comparison};

use super::{
    Given, State, place,
    state::{Class, Kept},
    store, summary,
};

/// The maximum number of messages that wait for the node's topology.
const MOST_WAITING: usize = 256;

/// The results at one point in time. They are replaced as a whole.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Results {
    pub state: State,
    /// Why the state file cannot be read. The results before that stay.
    pub error: Option<String>,
    /// How they compare with those of the node's siblings; `None` before the node was read.
    pub comparisons: Option<Vec<Comparison>>,
}

/// How often to look for the first reading of the node, at least.
const EAGER: Duration = Duration::from_secs(1);

/// A termination message of a benchmark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Unix time at which the container ended.
    pub at: u64,
    pub text: String,
}

/// Messages that were received and not yet read; clones share them.
#[derive(Clone, Debug, Default)]
pub struct Inbox(Arc<Mutex<BTreeMap<String, Message>>>);

impl Inbox {
    fn messages(&self) -> MutexGuard<'_, BTreeMap<String, Message>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the message of the container `id`. The same message may come again.
    pub fn put(&self, id: String, message: Message) {
        let mut messages = self.messages();
        if messages.len() < MOST_WAITING || messages.contains_key(&id) {
            messages.insert(id, message);
        }
    }

    /// Reports whether all messages have been read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.messages().is_empty()
    }

    /// Returns all messages, by container, and forgets them.
    #[must_use]
    pub fn take(&self) -> BTreeMap<String, Message> {
        std::mem::take(&mut self.messages())
    }
}

/// The node that the results are about.
pub trait Node: fmt::Debug + Send + Sync {
    /// Shows the node as it was read last, unless that is too old or incomplete.
    fn show(&self, look: &mut dyn FnMut(Shown<'_>));

    /// Replaces the results.
    fn measure(&self, results: Arc<Results>);
}

/// A node as it was read last.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a> {
    /// It with constants as its bandwidths.
    pub by_constants: &'a NodeTopologySpec,
    /// What its bandwidths were multiplied by.
    pub calibration: &'a [Measured],
}

/// Follows the state file and the messages.
#[derive(Clone, Debug)]
pub struct Follower {
    /// The directory that `ingest --state` writes.
    pub directory: Option<PathBuf>,
    pub inbox: Inbox,
    pub node: Arc<dyn Node>,
    pub interval: Duration,
}

impl Follower {
    /// Never ends.
    pub async fn run(self) {
        let mut reader = Reader::default();
        let mut last = None;
        loop {
            if let Some(directory) = &self.directory {
                reader.file(directory, read(directory).await);
            }
            self.node.show(&mut |node| {
                reader.messages(self.inbox.take(), node.by_constants);
                reader.compare(node.calibration);
            });
            let results = reader.results();
            let wait = match results.comparisons {
                None => self.interval.min(EAGER),
                Some(_) => self.interval,
            };
            let nothing = self.directory.is_none() && results.is_empty();
            if !nothing && last.as_deref() != Some(&results) {
                let results = Arc::new(results);
                self.node.measure(Arc::clone(&results));
                last = Some(results);
            }
            tokio::time::sleep(wait).await;
        }
    }
}

impl Results {
    /// Reports whether nothing was ever read.
    fn is_empty(&self) -> bool {
        self.state == State::default() && self.error.is_none()
    }
}

/// Reads the state file. As long as there is none in the directory, nothing was ingested.
async fn read(directory: &Path) -> io::Result<Vec<u8>> {
    match files::read_aside(directory.join(store::FILE)).await {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            drop(tokio::fs::read_dir(directory).await?);
            Ok(b"{}".to_vec())
        }
        read => read,
    }
}

/// What was read so far.
#[derive(Default)]
struct Reader {
    /// The content of the file that was parsed last.
    bytes: Option<Vec<u8>>,
    file: State,
    pods: State,
    error: Option<String>,
    comparisons: Option<Vec<Comparison>>,
}

impl Reader {
    /// Parses the file if it has changed.
    fn file(&mut self, directory: &Path, read: io::Result<Vec<u8>>) {
        let path = directory.join(store::FILE);
        let path = path.display();
        let parsed = match read {
            Ok(bytes) if self.bytes.as_ref() == Some(&bytes) => return,
            Ok(bytes) => {
                let parsed = store::parse(&bytes);
                self.bytes = Some(bytes);
                parsed
            }
            Err(error) => {
                self.bytes = None;
                Err(error.to_string())
            }
        };
        let error = match parsed {
            Ok(state) => {
                self.file = state;
                None
            }
            Err(reason) => Some(format!("{path}: {reason}")),
        };
        if let Some(error) = error.as_ref().filter(|_| self.error != error) {
            tracing::warn!(error, "results of benchmarks cannot be read; trying again");
        }
        self.error = error;
    }

    /// Adds the runs of termination messages. One that is no summary is skipped with a warning.
    fn messages(&mut self, messages: BTreeMap<String, Message>, node: &NodeTopologySpec) {
        for (id, message) in messages {
            let Some(runs) = summary::read(&message.text) else {
                tracing::warn!(
                    container = id,
                    "the termination message of a benchmark is not a summary of nvlink-exporter ingest"
                );
                continue;
            };
            for (index, run) in (0..).zip(runs) {
                let mut kept = Kept::new(&run, &id, index, message.at);
                kept.id = format!("{id}/{index}");
                let placed = place(run, &Given::default(), Some(node));
                if let Some(class) = Class::of(&placed) {
                    self.pods.add(&class, kept, placed.expected);
                }
            }
        }
    }

    /// Compares the runs of the node with its siblings, which its calibration sums up.
    fn compare(&mut self, calibration: &[Measured]) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |now| now.as_secs());
        let runs: Vec<_> = self.state().measured().collect();
        self.comparisons = Some(comparison::compare(calibration, &runs, now));
    }

    fn state(&self) -> State {
        self.file.clone().with(&self.pods)
    }

    fn results(&self) -> Results {
        Results {
            state: self.state(),
            error: self.error.clone(),
            comparisons: self.comparisons.clone(),
        }
    }
}
