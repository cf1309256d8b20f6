//! Reads a trace: a CSV file with one job on each line.

use std::{
    collections::BTreeSet,
    io::{self, BufRead},
};

use csv::ByteRecord;
use nvlink_planner::{Millis, Name};
use nvlink_topology::Pattern;

use crate::{
    error::TraceError,
    row::{Header, Row, split},
};

/// The most bytes of one line.
const LONGEST_LINE: u64 = 1 << 20;

/// A job of a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// When it was created, milliseconds on the trace's own clock.
    pub time: Millis,
    /// The number of GPUs that it asks for, at least 1.
    pub gpus: u32,
    /// How long it runs, milliseconds.
    pub duration: Millis,
    /// Its project; empty if the trace names none.
    pub project: Name,
    /// Its communication pattern.
    pub pattern: Pattern,
    /// Its priority; a higher one comes first.
    pub priority: i32,
}

impl Job {
    /// Reports whether its GPUs communicate: it has several, and its pattern has traffic.
    #[must_use]
    pub fn communicates(&self) -> bool {
        self.gpus > 1 && self.pattern != Pattern::None
    }
}

/// The jobs of a trace, and what was odd about them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// In the order of their times; jobs of one time in the order of the file.
    pub jobs: Vec<Job>,
    /// The number of jobs that asked for a fraction of a GPU.
    pub rounded: usize,
    /// The number of lines that ask for no GPU. They are left out.
    pub without_gpus: usize,
    /// The number of jobs that are earlier than the one before them in the file.
    pub unsorted: usize,
    /// The columns that are not used.
    pub ignored: Vec<String>,
}

impl Trace {
    /// Reads a trace, line by line.
    ///
    /// The first line that is neither empty nor a comment (`#`) is the header. The columns
    /// `time`, `gpus` and `duration` (seconds) must be there, in any order; `project`,
    /// `pattern` and `priority` may be. Times are rounded to milliseconds.
    ///
    /// # Errors
    /// The first line that is wrong, or why the file cannot be read.
    pub fn read(mut from: impl BufRead) -> Result<Self, TraceError> {
        let mut trace = Self::default();
        let mut header: Option<Header> = None;
        let mut values = ByteRecord::new();
        let mut projects = BTreeSet::new();
        let mut bytes = Vec::new();
        let mut line = 0;
        while read_line(&mut from, &mut bytes, line + 1)? {
            line += 1;
            let text = bytes
                .strip_prefix("\u{feff}".as_bytes())
                .filter(|_| line == 1);
            let text = text.unwrap_or(&bytes).trim_ascii();
            if text.is_empty() || text.starts_with(b"#") {
                continue;
            }
            let wrong = |reason| TraceError::Line { line, reason };
            split(text, &mut values).map_err(wrong)?;
            match &header {
                None => {
                    let found = Header::of(&values).map_err(wrong)?;
                    trace.ignored.clone_from(&found.ignored);
                    header = Some(found);
                }
                Some(header) => {
                    header.check(&values).map_err(wrong)?;
                    trace.add(&Row::of(&values, header, line)?, &mut projects)?;
                }
            }
        }
        match (header, trace.jobs.is_empty()) {
            (None, _) => return Err(TraceError::Empty),
            (_, true) => return Err(TraceError::NoJobs),
            _ => {}
        }
        trace.jobs.sort_by_key(|job| job.time);
        Ok(trace)
    }

    fn add(&mut self, row: &Row<'_>, projects: &mut BTreeSet<Name>) -> Result<(), TraceError> {
        let (gpus, rounded) = row.gpus()?;
        let project = projects.get(row.project).cloned().unwrap_or_else(|| {
            let name = Name::from(row.project);
            projects.insert(name.clone());
            name
        });
        let job = Job {
            time: row.time()?,
            gpus,
            duration: row.duration()?,
            project,
            pattern: row.pattern(gpus)?,
            priority: row.priority()?,
        };
        if gpus == 0 {
            self.without_gpus += 1;
            return Ok(());
        }
        self.rounded += usize::from(rounded);
        let earlier = self.jobs.last().is_some_and(|last| last.time > job.time);
        self.unsorted += usize::from(earlier);
        self.jobs.push(job);
        Ok(())
    }
}

/// Reads the next line into `bytes`. Returns false at the end.
fn read_line(from: &mut impl BufRead, bytes: &mut Vec<u8>, line: u64) -> Result<bool, TraceError> {
    bytes.clear();
    let read = io::Read::take(from, LONGEST_LINE).read_until(b'\n', bytes)?;
    if read as u64 == LONGEST_LINE && !bytes.ends_with(b"\n") {
        let reason = "longer than 1 MiB: is this a CSV file?".to_owned();
        return Err(TraceError::Line { line, reason });
    }
    Ok(read > 0)
}
