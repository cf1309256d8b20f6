//! What goes wrong with the driver's library, in words that say what to do.

use std::env::consts::ARCH;

use nvml_wrapper::error::NvmlError;

/// Why NVML gives nothing.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    /// No library could be loaded.
    #[error(
        "the driver's library was not found: {}. In a container, let the NVIDIA runtime bring it \
         (NVIDIA_VISIBLE_DEVICES=all and NVIDIA_DRIVER_CAPABILITIES=utility), or name it with \
         --source nvml:PATH; on a machine without an NVIDIA driver, use --source sysfs",
        tried.join("; ")
    )]
    NotFound {
        /// What was tried, and why it failed.
        tried: Vec<String>,
    },
    /// There is a library that the loader refuses.
    #[error(
        "the driver's library cannot be loaded: {}. It must be whole and made for this machine \
         ({ARCH}): install the driver anew, restart this container so that it gets the library \
         anew, or name another one with --source nvml:PATH",
        refused.join("; ")
    )]
    Refused {
        /// Each library, and why.
        refused: Vec<String>,
    },
    /// The kernel module is not there.
    #[error(
        "{library}: the NVIDIA driver is not loaded; load it (`modprobe nvidia`), or wait for the \
         driver's pod of this node"
    )]
    NoDriver {
        /// Name or path of the library.
        library: String,
    },
    /// The library is of another version than the kernel module.
    #[error(
        "{library}: the library and the loaded driver are of different versions, as after an \
         upgrade of the driver; restart this container so that it gets the new library, or reload \
         the driver"
    )]
    VersionMismatch {
        /// Name or path of the library.
        library: String,
    },
    /// The device files are not accessible.
    #[error(
        "{library}: no permission to talk to the driver; /dev/nvidiactl and /dev/nvidia* must be \
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
    /// There is no GPU to be seen.
    #[error(
        "{library}: the driver shows no GPU; in a container, ask for all of them with \
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
    /// What the failure of `call` means.
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

/// A failure that ends more than the call that met it.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The library must be opened anew: the driver is gone or is another one.
    Library(NvmlError),
    /// The GPU does not answer any more.
    Gpu(NvmlError),
    /// The GPU is there, and does not say which one it is.
    Nameless {
        /// Its PCI address, if it tells that.
        address: Option<String>,
        /// What it said instead of its UUID.
        error: String,
    },
}

/// After these nothing works until the library is opened anew.
pub(super) fn is_library(error: &NvmlError) -> bool {
    matches!(
        error,
        NvmlError::Uninitialized | NvmlError::DriverNotLoaded | NvmlError::LibRmVersionMismatch
    )
}

/// After these the GPU answers nothing.
pub(super) fn is_gpu(error: &NvmlError) -> bool {
    matches!(error, NvmlError::GpuLost | NvmlError::ResetRequired)
}

/// The GPU or the driver does not know what was asked, and asking again is of
/// no use. All other errors may pass. (25: the version of the argument.)
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
    fn each_error_says_what_to_do() {
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
