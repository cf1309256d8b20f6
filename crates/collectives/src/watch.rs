//! Follows a directory: which files are new or have grown, and what they say now.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime},
};

use super::{
    input,
    run::{Reason, Run},
};

/// The maximum number of runs of one file: what is read of it must fit into memory.
const MOST_RUNS: usize = 4096;

/// A directory that is looked at repeatedly.
#[derive(Debug)]
pub struct Watched {
    directory: PathBuf,
    /// Age from which a file without an end is read as it is.
    settle: Duration,
    seen: BTreeMap<PathBuf, Seen>,
}

/// A file as it was when it was read last.
#[derive(Debug)]
struct Seen {
    version: Version,
    /// Since when it is as it is, by the clock that nobody sets.
    since: Instant,
    /// Whether all of it was read; else its last run had no end yet.
    whole: bool,
}

/// What changes when a file does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    length: u64,
    pub modified: SystemTime,
}

/// What a new or grown file says.
#[derive(Debug)]
pub struct Found {
    pub path: PathBuf,
    pub modified: SystemTime,
    pub runs: Vec<Run>,
    /// Why it cannot be read, or only in part.
    pub problem: Option<String>,
}

impl Watched {
    #[must_use]
    pub fn new(directory: PathBuf, settle: Duration) -> Self {
        Self {
            directory,
            settle,
            seen: BTreeMap::new(),
        }
    }

    /// Returns what has changed since the last look. A run that ends the file and has no
    /// end itself is left out until the file has not changed for a while, and so is what NCCL
    /// Inspector writes, which never has an end. Runs that were returned before are returned
    /// again when their file grows or is written again.
    ///
    /// It is `now`, and `wall` by the clock that files are dated by. That one may be set, or be
    /// another machine's, so it counts only for the age of a file that is new here.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn look(&mut self, now: Instant, wall: SystemTime) -> io::Result<Vec<Found>> {
        let there = files(&self.directory)?;
        let paths: BTreeSet<&PathBuf> = there.iter().map(|(path, _)| path).collect();
        self.seen.retain(|path, _| paths.contains(path));
        let mut found = Vec::new();
        for (path, version) in there {
            let before = self.seen.get(&path);
            let seen = before.filter(|seen| seen.version == version);
            let age = || wall.duration_since(version.modified).unwrap_or_default();
            let settled = match seen {
                Some(seen) => now.saturating_duration_since(seen.since) >= self.settle,
                None => before.is_none() && age() >= self.settle,
            };
            if seen.is_some_and(|seen| seen.whole || !settled) {
                continue;
            }
            let since = seen.map_or(now, |seen| seen.since);
            let (whole, one) = read(path.clone(), version, settled);
            let seen = Seen {
                version,
                since,
                whole,
            };
            self.seen.insert(path, seen);
            if !one.runs.is_empty() || one.problem.is_some() {
                found.push(one);
            }
        }
        Ok(found)
    }
}

/// Reads a file. Returns whether all of it was read, and what it says.
fn read(path: PathBuf, version: Version, settled: bool) -> (bool, Found) {
    let (mut runs, mut left_out) = (Vec::new(), 0_u64);
    let file = File::open(&path).map_err(input::InputError::Io);
    let result = file.and_then(|file| {
        input::read(file, &mut |run| match runs.len() < MOST_RUNS {
            true => runs.push(run),
            false => left_out += 1,
        })
    });
    let has_end = |run: &Run| {
        let failure = run.failure.as_ref();
        failure.is_none_or(|failure| failure.reason != Reason::Truncated)
    };
    // Runs that are left out follow the last one, so that is over.
    let last_is_open = left_out == 0 && runs.last().is_some_and(|run| !has_end(run));
    let open =
        (left_out == 0 && result.is_err()) || last_is_open || runs.iter().any(|run| run.endless);
    if !settled {
        if last_is_open {
            runs.pop();
        }
        runs.retain(|run| !run.endless);
    }
    let problem = result.err().filter(|_| settled);
    let problem = match left_out {
        0 => problem.map(|error| error.to_string()),
        _ => Some(format!(
            "the last {left_out} runs are left out: a file may have {MOST_RUNS}, so begin a new one"
        )),
    };
    let found = Found {
        path,
        modified: version.modified,
        runs,
        problem,
    };
    (!open || settled, found)
}

/// Returns the regular files in a directory by name, without hidden ones and those that a
/// program is about to rename.
///
/// # Errors
/// When the directory cannot be read.
pub fn files(directory: &Path) -> io::Result<Vec<(PathBuf, Version)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with('.') || name.ends_with(".tmp") {
            continue;
        }
        // A file may be gone by now.
        let Ok(metadata) = fs::metadata(&path) else {
            continue;
        };
        if metadata.is_file() {
            let version = Version {
                length: metadata.len(),
                modified: metadata.modified()?,
            };
            files.push((path, version));
        }
    }
    files.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(files)
}
