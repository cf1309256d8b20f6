//! Finds and opens the driver's library.

use std::{env::consts::ARCH, sync::Arc};

use nvml_wrapper::error::NvmlError;

use super::{error::LibraryError, loader, raw::Loaded};

/// The name by which the loader finds the library.
const NAME: &str = "libnvidia-ml.so.1";
/// The end of the loader's message for a missing file.
const MISSING: &str = "No such file or directory";

#[derive(Debug)]
pub(super) struct Library {
    pub(super) name: String,
    /// The origin, for people: the driver's version, and the path if it is not the
    /// default.
    pub(super) from: String,
    pub(super) loaded: Arc<Loaded>,
}

impl Library {
    /// Opens the library at `path`, else the first one in the default places.
    ///
    /// # Errors
    /// When there is none, or an existing one cannot be initialized.
    pub(super) fn open(path: Option<&str>) -> Result<Self, LibraryError> {
        let (mut tried, mut refused) = (Vec::new(), Vec::new());
        for name in places(path) {
            if let Some(file) = loader::file(&name)
                && let Err(error) = loader::check(&file)
            {
                refused.push(format!("{}: {error}", file.display()));
                continue;
            }
            match Loaded::open(Some(&name)) {
                Ok(loaded) => return Self::opened(name, path.is_some(), loaded),
                Err(NvmlError::LibloadingError(error)) => {
                    // The loader's message begins with the path of the file concerned.
                    let error = error.to_string();
                    match error.strip_prefix(&name) {
                        Some(rest) if rest.ends_with(MISSING) => tried.push(error),
                        Some(_) => refused.push(error),
                        None => refused.push(format!("{name}: {error}")),
                    }
                }
                Err(error) => return Err(LibraryError::of(&name, "nvmlInit", error)),
            }
        }
        Err(match refused.is_empty() {
            true => LibraryError::NotFound { tried },
            false => LibraryError::Refused { refused },
        })
    }

    fn opened(name: String, named: bool, loaded: Loaded) -> Result<Self, LibraryError> {
        let version = match loaded.sys_driver_version() {
            Ok(version) => format!("driver {version}"),
            Err(error) if super::error::is_library(&error) => {
                return Err(LibraryError::of(&name, "the driver's version", error));
            }
            Err(_) => "driver of unknown version".to_owned(),
        };
        let from = match named || name != NAME {
            true => format!("{version}, {name}"),
            false => version,
        };
        Ok(Self {
            name,
            from,
            loaded: Arc::new(loaded),
        })
    }
}

/// Returns the places of the library: where the loader finds it, then where the GPU
/// operator's driver container puts it on the host.
fn places(path: Option<&str>) -> Vec<String> {
    match path {
        Some(path) => vec![path.to_owned()],
        None => vec![
            NAME.to_owned(),
            format!("/run/nvidia/driver/usr/lib/{ARCH}-linux-gnu/{NAME}"),
            format!("/run/nvidia/driver/usr/lib64/{NAME}"),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_named_with_advice() {
        let error = Library::open(Some("/nowhere/libnvidia-ml.so.1")).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("/nowhere/libnvidia-ml.so.1"), "{text}");
        assert!(
            text.contains("NVIDIA_DRIVER_CAPABILITIES=utility"),
            "{text}"
        );
        assert!(text.contains("--source nvml:PATH"), "{text}");
    }

    #[test]
    fn an_existing_file_that_is_not_a_library_is_not_reported_as_missing() {
        let directory = tempfile::TempDir::new().unwrap();
        let path = directory.path().join("libnvidia-ml.so.1");
        for (content, why) in [
            ("", "file too short"),
            (&*"#!/bin/sh\n".repeat(100), "invalid ELF"),
        ] {
            std::fs::write(&path, content).unwrap();
            let error = Library::open(path.to_str()).unwrap_err().to_string();
            assert!(
                error.contains(why) && !error.contains("not found"),
                "{error}"
            );
            assert!(error.contains(&*path.to_string_lossy()), "{error}");
        }
        let error = Library::open(directory.path().to_str()).unwrap_err();
        assert!(error.to_string().contains("not a regular file"), "{error}");
    }

    #[test]
    fn a_truncated_library_is_not_loaded() {
        let directory = tempfile::TempDir::new().unwrap();
        let path = directory.path().join("libnvidia-ml.so.1");
        let places = [
            format!("/lib/{ARCH}-linux-gnu"),
            format!("/usr/lib/{ARCH}-linux-gnu"),
            "/lib64".to_owned(),
        ];
        let libc = places.iter().map(|one| format!("{one}/libc.so.6"));
        let whole = libc.filter_map(|path| std::fs::read(path).ok());
        let whole = whole.max_by_key(Vec::len).unwrap();
        std::fs::write(&path, &whole).unwrap();
        loader::check(&path).unwrap();
        for length in [100, 5000, whole.len() / 2, whole.len() - 100] {
            std::fs::write(&path, &whole[..length]).unwrap();
            let error = Library::open(path.to_str()).unwrap_err().to_string();
            let why = format!("the file is truncated: it has {length} bytes");
            assert!(error.contains(&why), "{error}");
        }
    }

    #[test]
    fn a_library_that_is_not_nvml_is_an_error() {
        let error = Library::open(Some("libc.so.6")).unwrap_err();
        assert!(
            matches!(
                error,
                LibraryError::Call {
                    call: "nvmlInit",
                    ..
                }
            ),
            "{error}"
        );
    }

    #[test]
    fn a_named_library_is_the_only_one_tried() {
        assert_eq!(places(Some("x.so")), ["x.so"]);
        let usual = places(None);
        assert_eq!(usual[0], NAME);
        assert!(
            usual[1..]
                .iter()
                .all(|one| one.starts_with("/run/nvidia/driver/"))
        );
    }
}
