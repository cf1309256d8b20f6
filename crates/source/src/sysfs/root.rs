//! Reads files below a root directory and nowhere else: a tree may be a copy, a
//! mount or malicious. Links are followed only if they stay below the root.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

use super::SysfsError;

/// The maximum size of a kernel attribute.
const MAX_ATTRIBUTE: u64 = 4096;
/// The maximum number of entries in a directory. A large server with all its
/// virtual functions has a few thousand devices.
const MAX_ENTRIES: usize = 20_000;

/// The directory that is used as `/`.
pub(super) struct Root {
    base: PathBuf,
}

impl Root {
    /// # Errors
    /// When `root` is not a directory, or not readable.
    pub(super) fn open(root: &Path) -> Result<Self, SysfsError> {
        let failed = |error| SysfsError::io(root, error);
        let base = fs::canonicalize(root).map_err(failed)?;
        match fs::metadata(&base).map_err(failed)?.is_dir() {
            true => Ok(Self { base }),
            false => Err(failed(io::ErrorKind::NotADirectory.into())),
        }
    }

    /// Returns the path `inside` below the root, for reading and for messages.
    pub(super) fn path(&self, inside: &str) -> PathBuf {
        self.base.join(inside)
    }

    /// Resolves all links of `path`. Returns `None` if the target does not exist.
    ///
    /// # Errors
    /// A link that points out of the root, or a loop of links.
    pub(super) fn resolve(&self, path: &Path) -> Result<Option<PathBuf>, SysfsError> {
        let real = match fs::canonicalize(path) {
            Ok(real) => real,
            Err(error) if is_absent(&error) => return Ok(None),
            Err(error) => return Err(SysfsError::io(path, error)),
        };
        match real.starts_with(&self.base) {
            true => Ok(Some(real)),
            false => Err(SysfsError::Escapes {
                path: path.to_owned(),
                target: real,
                root: self.base.clone(),
            }),
        }
    }

    /// Returns the names in a directory, sorted; `None` if it does not exist.
    ///
    /// # Errors
    /// When it cannot be read, is outside of the root, or has too many entries.
    pub(super) fn names(&self, directory: &Path) -> Result<Option<Vec<String>>, SysfsError> {
        let Some(directory) = self.resolve(directory)? else {
            return Ok(None);
        };
        let failed = |error| SysfsError::io(&directory, error);
        let mut names = Vec::new();
        for entry in fs::read_dir(&directory).map_err(failed)? {
            if names.len() == MAX_ENTRIES {
                return Err(SysfsError::Endless(directory));
            }
            // The kernel writes ASCII: other names are not from the kernel.
            names.extend(entry.map_err(failed)?.file_name().into_string());
        }
        names.sort_unstable();
        Ok(Some(names))
    }
}

/// Reads the attribute `name` of the resolved directory `device`, and trims
/// white space. Returns `None` if it does not exist or the device does not answer.
/// Attributes are regular files: a link or a pipe of that name is not opened.
pub(super) fn attribute(device: &Path, name: &str) -> Option<String> {
    let path = device.join(name);
    let is_file = fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_file());
    let file = is_file.then(|| File::open(&path).ok()).flatten()?;
    let mut text = String::new();
    file.take(MAX_ATTRIBUTE).read_to_string(&mut text).ok()?;
    Some(text.trim().to_owned())
}

fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}
