//! Files that a program reads again when they change (configuration, certificates), and those that it
//! replaces as a whole.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::{
    task::{JoinHandle, spawn_blocking},
    time::{Interval, MissedTickBehavior, interval, timeout},
};

/// The size of the largest file that is read, in bytes; real ones have a few kB.
const MOST_BYTES: u64 = 1 << 20;
/// A read that takes longer is logged.
const LONG: Duration = Duration::from_secs(10);

/// Reads a regular file of at most 1 MiB. Blocks as long as the disk does:
/// forever if the mount is dead.
///
/// # Errors
/// When the file cannot be read, is not a regular file, or is larger.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    // A pipe or a device may block or never end, and cannot be read twice.
    let kind = fs::metadata(path)?;
    if !kind.is_file() && !kind.is_dir() {
        let reason = "not a regular file: it cannot be read again when it changes";
        return Err(io::Error::other(reason));
    }
    let mut content = Vec::new();
    File::open(path)?
        .take(MOST_BYTES + 1)
        .read_to_end(&mut content)?;
    if content.len() as u64 > MOST_BYTES {
        let reason = format!("larger than {MOST_BYTES} bytes");
        return Err(io::Error::other(reason));
    }
    Ok(content)
}

/// Replaces a file so that a reader sees the old content or the new one.
///
/// # Errors
/// When it cannot be written; the old one stays.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::IsADirectory)?;
    let name = name.to_string_lossy();
    let temporary = path.with_file_name(format!(".{name}.{}.tmp", std::process::id()));
    let written = File::create(&temporary)
        .and_then(|mut file| file.write_all(content).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        drop(fs::remove_file(&temporary));
    }
    written
}

/// Reads a file as [`read`] does, on a separate thread, so that a dead mount
/// blocks nothing else. If the read takes long, it logs a warning once and keeps
/// waiting: a retry would cost another thread.
///
/// # Errors
/// As [`read`].
pub async fn read_aside(path: PathBuf) -> io::Result<Vec<u8>> {
    let name = path.display().to_string();
    let mut reading = spawn_blocking(move || read(&path));
    let read = match timeout(LONG, &mut reading).await {
        Ok(read) => read,
        Err(_) => {
            let seconds = LONG.as_secs();
            tracing::warn!(
                file = name,
                seconds,
                "the file is still being read; check whether its mount is dead"
            );
            reading.await
        }
    };
    read.map_err(io::Error::other).flatten()
}

/// Reads files again and again, and says what has changed. They are compared by content,
/// because a Secret volume swaps symlinks, which a file watch notices once at most.
///
/// The files are read on a thread of their own, one thread at a time: on a mount that hangs,
/// the thread does not return.
pub struct Follow<T> {
    read: Arc<dyn Fn() -> Result<T, String> + Send + Sync>,
    tick: Interval,
    reading: Option<JoinHandle<Result<T, String>>>,
    last: Option<Result<T, String>>,
}

impl<T: Clone + PartialEq + Send + 'static> Follow<T> {
    /// Returns what calls `read` at once, and then at these intervals. It must be called inside
    /// a Tokio runtime.
    pub fn new(
        every: Duration,
        read: impl Fn() -> Result<T, String> + Send + Sync + 'static,
    ) -> Self {
        let mut tick = interval(every);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            read: Arc::new(read),
            tick,
            reading: None,
            last: None,
        }
    }

    /// Waits until the files have other content than the last time, or cannot be read for
    /// another reason.
    ///
    /// # Errors
    /// Those of `read`, and a read that takes long.
    pub async fn changed(&mut self) -> Result<T, String> {
        loop {
            let found = self.next().await;
            if self.last.as_ref() != Some(&found) {
                self.last = Some(found.clone());
                return found;
            }
        }
    }

    async fn next(&mut self) -> Result<T, String> {
        let is_new = self.reading.is_none();
        if is_new {
            self.tick.tick().await;
        }
        let read = Arc::clone(&self.read);
        let reading = self
            .reading
            .get_or_insert_with(|| spawn_blocking(move || read()));
        let read = match is_new {
            true => timeout(LONG, reading).await,
            false => Ok(reading.await),
        };
        let Ok(read) = read else {
            // It stays the one that is waited for.
            return Err(format!("reading it takes more than {} s", LONG.as_secs()));
        };
        self.reading = None;
        read.unwrap_or_else(|error| Err(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[tokio::test]
    async fn what_changes_is_said_once() {
        let content = Arc::new(Mutex::new(Ok(1)));
        let read = Arc::clone(&content);
        let mut follow = Follow::new(Duration::from_millis(1), move || {
            read.lock().unwrap().clone()
        });
        assert_eq!(follow.changed().await, Ok(1));
        let unchanged = timeout(Duration::from_millis(20), follow.changed());
        assert!(unchanged.await.is_err());
        for next in [Ok(2), Err("gone".to_owned()), Ok(2)] {
            *content.lock().unwrap() = next.clone();
            assert_eq!(follow.changed().await, next);
        }
    }
}
