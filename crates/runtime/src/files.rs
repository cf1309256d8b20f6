//! Files that a program reads again when they change: configuration, certificates.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::{task::spawn_blocking, time::timeout};

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
