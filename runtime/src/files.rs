//! Files that a program reads again and again: configuration, certificates.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::{task::spawn_blocking, time::timeout};

/// The largest file that is read, bytes: one of a few kB would be large.
const MOST_BYTES: u64 = 1 << 20;
/// A disk that takes longer is told of.
const LONG: Duration = Duration::from_secs(10);

/// Reads a regular file of 1 MiB at most. It takes as long as the disk does,
/// which is for ever where a mount is dead.
///
/// # Errors
/// When it cannot be read, is no regular file, or is larger.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    // A pipe or a device may block, or never end; and it cannot be read twice.
    let kind = fs::metadata(path)?;
    if !kind.is_file() && !kind.is_dir() {
        let reason = "it is no regular file: it could not be read again when it changes";
        return Err(io::Error::other(reason));
    }
    let mut content = Vec::new();
    File::open(path)?
        .take(MOST_BYTES + 1)
        .read_to_end(&mut content)?;
    if content.len() as u64 > MOST_BYTES {
        let reason = format!("it is larger than {MOST_BYTES} bytes");
        return Err(io::Error::other(reason));
    }
    Ok(content)
}

/// The same on a thread of its own, so that a dead mount keeps nothing else
/// waiting. A file that takes long is told of, once, and waited for: another
/// try would cost another thread.
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
            tracing::warn!(file = name, seconds, "still being read: is its mount dead?");
            reading.await
        }
    };
    read.map_err(io::Error::other).flatten()
}
