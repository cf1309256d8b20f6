//! Finding and opening the driver's library.

use std::{env::consts::ARCH, sync::Arc};

use nvml_wrapper::error::NvmlError;

use super::{error::LibraryError, raw::Loaded};

/// The name under which the loader knows the library.
const NAME: &str = "libnvidia-ml.so.1";

/// An open library.
#[derive(Debug)]
pub(super) struct Library {
    /// Name or path.
    pub(super) name: String,
    /// What it was read from, for people: the driver's version, and the path
    /// where it is not the usual one.
    pub(super) from: String,
    /// The calls.
    pub(super) loaded: Arc<Loaded>,
}

impl Library {
    /// Opens the library at `path`, else at the first of the usual places.
    ///
    /// # Errors
    /// When there is none, or the one that is there cannot be initialized.
    pub(super) fn open(path: Option<&str>) -> Result<Self, LibraryError> {
        let mut tried = Vec::new();
        for name in places(path) {
            match Loaded::open(Some(&name)) {
                Ok(loaded) => return Self::opened(name, path.is_some(), loaded),
                // The loader's message begins with the path.
                Err(NvmlError::LibloadingError(error)) => tried.push(error.to_string()),
                Err(error) => return Err(LibraryError::of(&name, "nvmlInit", error)),
            }
        }
        Err(LibraryError::NotFound { tried })
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

/// Where the library may be: where the loader finds it, then where the GPU
/// operator's driver container leaves it on the host.
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
    fn a_missing_library_is_named_with_the_ways_out() {
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
