//! The directories of sockets.

use std::{
    fs::{self, File, Metadata, OpenOptions, TryLockError},
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::{net::UnixStream, time::timeout};

/// The kubelet's socket in its directory, and this program's in the vendor's.
pub(crate) const KUBELET: &str = "kubelet.sock";
/// How the names of this program's sockets begin.
pub(crate) const PREFIX: &str = "nvlink-dp-";
/// A file that one process at a time locks.
const LOCK: &str = "nvlink-domains.lock";
/// How long whoever listens on a socket may take to accept a connection.
const ANSWER: Duration = Duration::from_secs(1);
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

impl Directories {
    /// Makes sure that the two are not one directory, in which this program would take the kubelet's own
    /// socket for that of another process. Creates the vendor's.
    pub(crate) fn are_two(&self) -> io::Result<()> {
        let Self { kubelet, vendor } = self;
        fs::create_dir_all(vendor).map_err(|error| named(vendor, &error))?;
        let of_vendor = fs::metadata(vendor).map_err(|error| named(vendor, &error))?;
        // The kubelet's may not be there before the kubelet.
        let one = fs::metadata(kubelet).is_ok_and(|kubelet| is_same(&kubelet, &of_vendor));
        match one {
            false => Ok(()),
            true => Err(io::Error::other(format!(
                "{} and {} are one directory: give --vendor-plugins a directory of its own, which the vendor's device plugin gets as its /var/lib/kubelet/device-plugins",
                kubelet.display(),
                vendor.display()
            ))),
        }
    }
}

fn is_same(one: &Metadata, other: &Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// A directory that this process alone serves, until this is dropped.
#[derive(Debug)]
pub(crate) struct Locked {
    _file: File,
    /// A process of this program served it before.
    was_ours: bool,
}

/// Waits until no other process serves the directory.
pub(crate) async fn lock(directory: &Path) -> io::Result<Locked> {
    let path = directory.join(LOCK);
    let was_ours = fs::symlink_metadata(&path).is_ok();
    let file = open(&path).map_err(|error| named(&path, &error))?;
    let mut said = false;
    loop {
        match file.try_lock() {
            Ok(()) => break,
            Err(TryLockError::Error(error)) => return Err(named(&path, &error)),
            Err(TryLockError::WouldBlock) if !said => {
                said = true;
                tracing::warn!(file = %path.display(), "another process serves this directory: waiting for its end");
            }
            Err(TryLockError::WouldBlock) => {}
        }
        tokio::time::sleep(AGAIN).await;
    }
    Ok(Locked {
        _file: file,
        was_ours,
    })
}

/// Opens a file, or creates it. Whoever may write the directory may put anything else there, of which
/// nothing is followed, emptied, or waited for: Linux opens a FIFO for both directions at once.
fn open(path: &Path) -> io::Result<File> {
    let foreign = || io::Error::other("it is no regular file, and not this program's: remove it");
    if fs::symlink_metadata(path).is_ok_and(|found| !found.is_file()) {
        return Err(foreign());
    }
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true).truncate(false);
    let file = options.open(path)?;
    let (opened, named) = (file.metadata()?, fs::symlink_metadata(path)?);
    match opened.is_file() && is_same(&opened, &named) {
        true => Ok(file),
        false => Err(foreign()),
    }
}

impl Locked {
    /// Removes what an earlier process of this program left in the directory, and the sockets of device
    /// plugins.
    ///
    /// # Errors
    /// When the directory is somebody else's: another program answers where this one is to listen, or was
    /// there before.
    pub(crate) async fn take_over(&self, directory: &Path) -> io::Result<()> {
        let socket = directory.join(KUBELET);
        if fs::symlink_metadata(&socket).is_err() {
            return remove_sockets(directory, |_| self.was_ours);
        }
        let answered = timeout(ANSWER, UnixStream::connect(&socket)).await;
        let whose = match answered {
            Ok(Err(_)) if self.was_ours => return remove_sockets(directory, |_| true),
            Ok(Err(_)) => "exists, and this program did not make it",
            Ok(Ok(_)) | Err(_) => "is the socket of another program, which listens",
        };
        Err(io::Error::other(format!(
            "{} {whose}: --vendor-plugins must not be the directory of a kubelet",
            socket.display()
        )))
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

#[cfg(test)]
mod tests {
    use std::os::unix::{fs::symlink, net::UnixListener};

    use tempfile::TempDir;

    use super::*;

    fn directories() -> (TempDir, Directories) {
        let root = tempfile::tempdir().unwrap();
        let directories = Directories {
            kubelet: root.path().join("kubelet"),
            vendor: root.path().join("vendor"),
        };
        (root, directories)
    }

    /// Returns what a process that starts says about the vendor's directory.
    async fn start(directories: &Directories) -> Result<(), String> {
        let take_over = async {
            directories.are_two()?;
            let locked = lock(&directories.vendor).await?;
            locked.take_over(&directories.vendor).await
        };
        take_over.await.map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn one_directory_is_not_served_under_two_names() {
        let (_root, mut directories) = directories();
        assert_eq!(start(&directories).await, Ok(()), "the kubelet is away");
        symlink(&directories.vendor, &directories.kubelet).unwrap();
        let _kubelet = UnixListener::bind(directories.vendor.join(KUBELET)).unwrap();
        for kubelet in [directories.kubelet.clone(), directories.vendor.clone()] {
            directories.kubelet = kubelet;
            let refused = start(&directories).await.unwrap_err();
            assert!(refused.contains("are one directory"), "{refused}");
        }
        assert!(directories.vendor.join(KUBELET).exists());
    }

    #[tokio::test]
    async fn sockets_of_other_programs_stay() {
        let (_root, directories) = directories();
        fs::create_dir_all(&directories.vendor).unwrap();
        let sockets = [KUBELET, "nvidia.sock"].map(|name| directories.vendor.join(name));
        let [kubelet, other] = sockets
            .each_ref()
            .map(|path| UnixListener::bind(path).unwrap());
        let refused = start(&directories).await.unwrap_err();
        assert!(
            refused.contains("another program, which listens"),
            "{refused}"
        );
        // By now this program has locked the directory once.
        let refused = start(&directories).await.unwrap_err();
        assert!(
            refused.contains("another program, which listens"),
            "{refused}"
        );
        fs::remove_file(directories.vendor.join(LOCK)).unwrap();
        drop((kubelet, other));
        let refused = start(&directories).await.unwrap_err();
        assert!(refused.contains("did not make it"), "{refused}");
        assert!(sockets.iter().all(|path| path.exists()));
    }

    #[tokio::test]
    async fn what_an_earlier_process_left_is_removed() {
        let (_root, directories) = directories();
        assert_eq!(start(&directories).await, Ok(()));
        let sockets = [KUBELET, "nvidia.sock"].map(|name| directories.vendor.join(name));
        for path in &sockets {
            drop(UnixListener::bind(path).unwrap());
        }
        assert_eq!(start(&directories).await, Ok(()));
        assert!(!sockets.iter().any(|path| path.exists()));
    }

    #[tokio::test]
    async fn a_lock_that_is_no_file_is_not_followed_emptied_or_waited_for() {
        let (root, directories) = directories();
        fs::create_dir_all(&directories.vendor).unwrap();
        let checkpoint = root.path().join("kubelet_internal_checkpoint");
        fs::write(&checkpoint, "kept").unwrap();
        let path = directories.vendor.join(LOCK);
        symlink(&checkpoint, &path).unwrap();
        let refused = start(&directories).await.unwrap_err();
        assert!(refused.contains("no regular file"), "{refused}");
        assert_eq!(fs::read_to_string(&checkpoint).unwrap(), "kept");
        fs::remove_file(&path).unwrap();
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.unwrap().success());
        let refused = start(&directories).await.unwrap_err();
        assert!(refused.contains("no regular file"), "{refused}");
    }
}
