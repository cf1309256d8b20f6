//! Errors of the driver's library, with advice on what to do.

use std::env::consts::ARCH;

use nvml_wrapper::error::NvmlError;

/// Why NVML cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    /// No library could be loaded.
    #[error(
        "the driver's library was not found: {}. In a container, let the NVIDIA runtime mount it \
         (NVIDIA_VISIBLE_DEVICES=all and NVIDIA_DRIVER_CAPABILITIES=utility), or name it with \
         --source nvml:PATH; on a machine without an NVIDIA driver, use --source sysfs",
        tried.join("; ")
    )]
    NotFound {
        /// Each attempt, and why it failed.
        tried: Vec<String>,
    },
    /// There is a library, but the loader refuses it.
    #[error(
        "the driver's library cannot be loaded: {}. It must be complete and built for this \
         machine ({ARCH}): reinstall the driver, restart this container so that the library is \
         mounted again, or name another library with --source nvml:PATH",
        refused.join("; ")
    )]
    Refused {
        /// Each library, and why it was refused.
        refused: Vec<String>,
    },
    /// The kernel module is not loaded.
    #[error(
        "{library}: the NVIDIA driver is not loaded; load it (`modprobe nvidia`), or wait for the \
         driver pod of this node"
    )]
    NoDriver {
        /// Name or path of the library.
        library: String,
    },
    /// The library and the kernel module have different versions.
    #[error(
        "{library}: the library and the loaded driver have different versions, as after an \
         upgrade of the driver; restart this container so that it gets the new library, or reload \
         the driver"
    )]
    VersionMismatch {
        /// Name or path of the library.
        library: String,
    },
    /// The device files are not accessible.
    #[error(
        "{library}: no permission to access the driver; /dev/nvidiactl and /dev/nvidia* must be \
         in the container (NVIDIA_VISIBLE_DEVICES=all) and readable"
    )]
    NoPermission {
        /// Name or path of the library.
        library: String,
    },
    /// The library fails in another way.
    #[error("{library}: {call} failed: {error}")]
    Call {
        /// Name or path of the library.
        library: String,
        call: &'static str,
        error: NvmlError,
    },
    /// The driver shows no GPU.
    #[error(
        "{library}: the driver shows no GPU; in a container, request all GPUs with \
         NVIDIA_VISIBLE_DEVICES=all"
    )]
    NoGpu {
        /// Name or path of the library.
        library: String,
    },
    #[error("{library}: no GPU answers: {}", reasons.join("; "))]
    NoAnswer {
        /// Name or path of the library.
        library: String,
        /// Each GPU with its error.
        reasons: Vec<String>,
    },
}

impl LibraryError {
    /// Returns the error that the failure of `call` means.
    pub(super) fn of(library: &str, call: &'static str, error: NvmlError) -> Self {
        let library = library.to_owned();
        match error {
            NvmlError::DriverNotLoaded | NvmlError::LibraryNotFound => Self::NoDriver { library },
            NvmlError::LibRmVersionMismatch => Self::VersionMismatch { library },
            NvmlError::NoPermission => Self::NoPermission { library },
            error => Self::Call {
                library,
                call,
                error,
            },
        }
    }
}

/// A failure that affects more than one call.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The library must be opened again: the driver was unloaded or replaced.
    Library(NvmlError),
    /// The GPU no longer answers.
    Gpu(NvmlError),
    /// The GPU exists but does not report its UUID.
    Nameless {
        /// Its PCI address, if it reports that.
        address: Option<String>,
        /// The error instead of the UUID.
        error: String,
    },
}

/// Reports whether no call works after `error` until the library is opened again.
pub(super) fn is_library(error: &NvmlError) -> bool {
    matches!(
        error,
        NvmlError::Uninitialized | NvmlError::DriverNotLoaded | NvmlError::LibRmVersionMismatch
    )
}

/// Reports whether the GPU does not answer any call after `error`.
pub(super) fn is_gpu(error: &NvmlError) -> bool {
    matches!(error, NvmlError::GpuLost | NvmlError::ResetRequired)
}

/// Reports whether the GPU or the driver does not support the call, so that a retry
/// is useless. All other errors may be temporary. (25 is an unknown version of the
/// argument.)
pub(super) fn is_unknown(error: &NvmlError) -> bool {
    matches!(
        error,
        NvmlError::NotSupported
            | NvmlError::FailedToLoadSymbol(_)
            | NvmlError::FunctionNotFound
            | NvmlError::InvalidArg
            | NvmlError::NoData
            | NvmlError::UnexpectedVariant(25)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_has_advice() {
        let of = |error| LibraryError::of("libnvidia-ml.so.1", "nvmlInit", error).to_string();
        assert!(of(NvmlError::DriverNotLoaded).contains("modprobe"));
        assert!(of(NvmlError::LibRmVersionMismatch).contains("restart this container"));
        assert!(of(NvmlError::NoPermission).contains("/dev/nvidiactl"));
        assert_eq!(
            of(NvmlError::Unknown),
            "libnvidia-ml.so.1: nvmlInit failed: an internal driver error occurred"
        );
    }
}
