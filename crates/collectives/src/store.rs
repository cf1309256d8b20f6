//! The directory that holds the state: one file, replaced as a whole.

use std::{
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use nvlink_runtime::files;

use super::state::State;

/// Name of the state file in its directory.
pub const FILE: &str = "collectives.json";
/// Held while the state file is read and replaced.
const LOCK: &str = ".collectives.lock";
/// How long to wait for another process that holds the lock; an update takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why the state cannot be kept.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {reason}")]
pub struct StoreError {
    path: String,
    reason: String,
}

impl StoreError {
    fn new(path: &Path, reason: impl ToString) -> Self {
        Self {
            path: path.display().to_string(),
            reason: reason.to_string(),
        }
    }
}

/// The state after an update, and what its reader should know.
#[derive(Debug)]
pub struct Updated<T> {
    pub state: State,
    pub result: T,
    pub warning: Option<String>,
}

/// Changes the state in `directory`, which is created if it does not exist. Several
/// processes may do so at once.
///
/// A file that is not valid is renamed, and a new one begins.
///
/// # Errors
/// When the directory or the file cannot be read or written.
pub fn update<T>(
    directory: &Path,
    change: impl FnOnce(&mut State) -> T,
) -> Result<Updated<T>, StoreError> {
    let failed = |error: io::Error| StoreError::new(directory, error);
    fs::create_dir_all(directory).map_err(failed)?;
    let _held = lock(directory)?;
    let path = directory.join(FILE);
    let (mut state, warning) = load(&path)?;
    let result = change(&mut state);
    let text = serde_json::to_vec(&state).map_err(|error| StoreError::new(&path, error))?;
    files::replace(&path, &text).map_err(|error| StoreError::new(&path, error))?;
    Ok(Updated {
        state,
        result,
        warning,
    })
}

/// Reads the state in `directory`.
///
/// # Errors
/// When it has no state file, or one that is not valid.
pub fn read(directory: &Path) -> Result<State, StoreError> {
    let path = directory.join(FILE);
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => StoreError::new(
            &path,
            "no such file: nvlink-exporter ingest --state creates it in its directory",
        ),
        _ => StoreError::new(&path, error),
    };
    let bytes = fs::read(&path).map_err(failed)?;
    parse(&bytes).map_err(|reason| StoreError::new(&path, reason))
}

/// Parses the content of the state file.
///
/// # Errors
/// When it is not valid: what is wrong, and where.
pub fn parse(bytes: &[u8]) -> Result<State, String> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let state: Result<State, _> = serde_path_to_error::deserialize(&mut json);
    let mut state = state.map_err(|error| error.to_string())?;
    json.end().map_err(|error| error.to_string())?;
    state.sort();
    Ok(state)
}

fn load(path: &Path) -> Result<(State, Option<String>), StoreError> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok((State::default(), None));
        }
        Err(error) => return Err(StoreError::new(path, error)),
    };
    match parse(&bytes) {
        Ok(state) => Ok((state, None)),
        Err(reason) => {
            let aside = set_aside(path).map_err(|error| StoreError::new(path, error))?;
            let (path, aside) = (path.display(), aside.display());
            let warning = format!(
                "{path}: {reason}: the file is now {aside}, and a new one begins without earlier runs"
            );
            Ok((State::default(), Some(warning)))
        }
    }
}

/// Renames a file to a name that is free.
fn set_aside(path: &Path) -> io::Result<PathBuf> {
    for number in 1..=1000 {
        let aside = path.with_extension(format!("json.broken-{number}"));
        if fs::symlink_metadata(&aside).is_err() {
            fs::rename(path, &aside)?;
            return Ok(aside);
        }
    }
    Err(io::Error::other("there are 1000 broken files; remove them"))
}

fn lock(directory: &Path) -> Result<File, StoreError> {
    let path = directory.join(LOCK);
    let file = File::create(&path).map_err(|error| StoreError::new(&path, error))?;
    let start = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if start.elapsed() < PATIENCE => {
                thread::sleep(Duration::from_millis(20));
            }
            Err(TryLockError::WouldBlock) => {
                let seconds = PATIENCE.as_secs();
                let reason = format!("another process has held the lock for {seconds} s");
                return Err(StoreError::new(&path, reason));
            }
            Err(TryLockError::Error(error)) => return Err(StoreError::new(&path, error)),
        }
    }
}
