//! Calls that the driver fails to answer: they are reported and retried.

use std::collections::BTreeMap;

use nvml_wrapper::error::NvmlError;

use super::error::{Trouble, is_gpu, is_library, is_unknown};
use crate::Unread;

/// The result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer<T> {
    Given(T),
    /// This GPU or this driver does not support the call.
    Unknown,
    /// The call failed now; it may succeed the next time.
    Failed,
}

impl<T> Answer<T> {
    /// Returns the value, if there is one.
    pub(super) fn given(self) -> Option<T> {
        match self {
            Self::Given(value) => Some(value),
            Self::Unknown | Self::Failed => None,
        }
    }
}

/// The description of a call in messages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    name: &'static str,
    field: Option<u32>,
    link: Option<u32>,
    graph: bool,
}

/// Describes a call on which the graph depends: while it fails, the graph must not be
/// acted on.
pub(super) fn graph(name: &'static str) -> Call {
    Call {
        name,
        field: None,
        link: None,
        graph: true,
    }
}

/// Describes a call on which the graph does not depend: while it fails, only its value
/// is absent.
pub(super) fn detail(name: &'static str) -> Call {
    Call {
        graph: false,
        ..graph(name)
    }
}

impl Call {
    /// Returns the call for one link.
    pub(super) fn of_link(self, link: u32) -> Self {
        Self {
            link: Some(link),
            ..self
        }
    }

    /// Returns the call for one of its fields.
    pub(super) fn of_field(self, field: u32) -> Self {
        Self {
            field: Some(field),
            ..self
        }
    }
}

/// The calls that failed while a GPU was read, although the driver supports them.
#[derive(Debug, Default)]
pub(super) struct Failures(BTreeMap<Failure, Vec<u32>>);

/// Failures that differ only in their links share an entry.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Failure {
    graph: bool,
    name: &'static str,
    field: Option<u32>,
    error: String,
}

impl Failures {
    /// Interprets the `result` of `call`, and remembers a failure.
    ///
    /// # Errors
    /// When the GPU is lost or the library must be opened again.
    pub(super) fn ask<T>(
        &mut self,
        call: Call,
        result: Result<T, NvmlError>,
    ) -> Result<Answer<T>, Trouble> {
        match result {
            Ok(value) => Ok(Answer::Given(value)),
            Err(error) if is_library(&error) => Err(Trouble::Library(error)),
            Err(error) if is_gpu(&error) => Err(Trouble::Gpu(error)),
            Err(error) if is_unknown(&error) => Ok(Answer::Unknown),
            Err(error) => {
                self.add(call, error.to_string());
                Ok(Answer::Failed)
            }
        }
    }

    /// Remembers that `call` failed with `error`.
    pub(super) fn add(&mut self, call: Call, error: String) {
        let failure = Failure {
            graph: call.graph,
            name: call.name,
            field: call.field,
            error,
        };
        self.0.entry(failure).or_default().extend(call.link);
    }

    /// Returns the number of different failures.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// The problems of a reading.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) warnings: Vec<String>,
    /// What is missing in the graph.
    pub(super) unread: Vec<Unread>,
}

impl Told {
    /// Adds the failures of the GPU with the index `gpu`.
    pub(super) fn add(&mut self, gpu: u32, failures: &Failures) {
        for (failure, links) in &failures.0 {
            let Failure { name, error, .. } = failure;
            let field = failure.field.map(|id| format!(" of field {id}"));
            let links: Vec<_> = links.iter().map(u32::to_string).collect();
            let links = (!links.is_empty()).then(|| format!(" of link {}", links.join(", ")));
            let (field, links) = (field.unwrap_or_default(), links.unwrap_or_default());
            let reason = format!("GPU {gpu}: {name}{field}{links} failed: {error}");
            match failure.graph {
                true => self.unread.push(Unread {
                    gpu: Some(gpu),
                    reason,
                }),
                false => self.warnings.push(reason),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_end_the_call_the_gpu_or_the_library() {
        let mut failures = Failures::default();
        let mut ask = |error| failures.ask::<()>(graph("nvmlX"), Err(error));
        for error in [
            NvmlError::NotSupported,
            NvmlError::FailedToLoadSymbol("nvmlX".to_owned()),
            NvmlError::FunctionNotFound,
            NvmlError::InvalidArg,
            NvmlError::NoData,
            NvmlError::UnexpectedVariant(25),
        ] {
            assert!(matches!(ask(error), Ok(Answer::Unknown)));
        }
        for error in [
            NvmlError::Unknown,
            NvmlError::NoPermission,
            NvmlError::Timeout,
        ] {
            assert!(matches!(ask(error), Ok(Answer::Failed)));
        }
        for error in [NvmlError::GpuLost, NvmlError::ResetRequired] {
            assert!(matches!(ask(error), Err(Trouble::Gpu(_))));
        }
        for error in [
            NvmlError::Uninitialized,
            NvmlError::DriverNotLoaded,
            NvmlError::LibRmVersionMismatch,
        ] {
            assert!(matches!(ask(error), Err(Trouble::Library(_))));
        }
        assert_eq!(failures.len(), 3, "only temporary failures");
    }

    #[test]
    fn links_with_the_same_error_share_a_message() {
        let mut failures = Failures::default();
        for link in [3, 4] {
            let call = graph("nvmlDeviceGetFieldValues").of_field(165);
            failures.add(call.of_link(link), "odd".to_owned());
        }
        failures.add(detail("nvmlDeviceGetMemoryAffinity"), "odd".to_owned());
        let mut told = Told::default();
        told.add(2, &failures);
        let reason = "GPU 2: nvmlDeviceGetFieldValues of field 165 of link 3, 4 failed: odd";
        let unread = Unread {
            gpu: Some(2),
            reason: reason.to_owned(),
        };
        assert_eq!(told.unread, [unread]);
        assert_eq!(
            told.warnings,
            ["GPU 2: nvmlDeviceGetMemoryAffinity failed: odd"]
        );
    }
}
