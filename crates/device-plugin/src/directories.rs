//! The directories of sockets.

use std::{
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
    time::Duration,
};

/// The kubelet's socket in its directory, and this program's in the vendor's.
pub(crate) const KUBELET: &str = "kubelet.sock";
/// How the names of this program's sockets begin.
pub(crate) const PREFIX: &str = "nvlink-dp-";
/// A file that one process at a time locks.
const LOCK: &str = "nvlink-domains.lock";
/// Time between two attempts.
pub(crate) const AGAIN: Duration = Duration::from_millis(200);

/// The directories of sockets.
#[derive(Clone, Debug)]
pub struct Directories {
    /// The kubelet's.
    pub kubelet: PathBuf,
    /// The one that the vendor's plugin takes for the kubelet's.
    pub vendor: PathBuf,
}

pub(crate) fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Waits until no other process serves the directory.
pub(crate) async fn lock(directory: &Path) -> io::Result<File> {
    let path = directory.join(LOCK);
    let file = File::create(&path).map_err(|error| named(&path, &error))?;
    let mut said = false;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::Error(error)) => return Err(named(&path, &error)),
            Err(TryLockError::WouldBlock) if !said => {
                said = true;
                tracing::warn!(file = %path.display(), "another process serves this directory: waiting for its end");
            }
            Err(TryLockError::WouldBlock) => {}
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Removes sockets of device plugins, by name, as a kubelet that starts does: it shows plugins that
/// they must register again.
pub(crate) fn remove_sockets(directory: &Path, wanted: impl Fn(&str) -> bool) -> io::Result<()> {
    use std::os::unix::fs::FileTypeExt;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if entry.file_type()?.is_socket() && wanted(&name.to_string_lossy()) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}
