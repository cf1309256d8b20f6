//! The source `auto`: the driver's library, else the kernel's PCI tree.
//!
//! While there is no library or no driver, `auto` reads the kernel's tree and
//! tries the library again every minute: on a new node the driver is often
//! loaded after the exporter has started. Once the library has answered, `auto`
//! never goes back to the kernel's tree. A driver that hangs or is reloaded
//! later must be visible as a failure; NVLink must not silently become "unknown".

use std::time::Duration;

use super::{
    Reading, Source, SourceError, host_name,
    nvml::{LibraryError, NvmlSource},
    sysfs::SysfsSource,
};

/// Time between two attempts to open the library.
const RETRY: Duration = Duration::from_secs(60);

/// A function that opens a source.
pub(crate) type Open = Box<dyn FnMut() -> Result<Box<dyn Source>, SourceError> + Send>;

/// Reads the driver's library where it answers, else sysfs.
pub(crate) struct AutoSource {
    open_nvml: Open,
    sysfs: Box<dyn Source>,
    state: State,
}

enum State {
    /// The library answers, or has answered.
    Nvml(Box<dyn Source>),
    /// The library has not answered yet: why, and when to retry it.
    Sysfs {
        reason: String,
        retry: Duration,
    },
    New,
}

impl AutoSource {
    /// Creates the source for this machine, as the node `node` (by default the host's name).
    #[must_use]
    pub(crate) fn of_machine(node: Option<String>) -> Self {
        let sysfs = Box::new(SysfsSource::new(None, node.clone()));
        let open = move || -> Result<Box<dyn Source>, SourceError> {
            let node = node.clone().unwrap_or_else(host_name);
            Ok(Box::new(NvmlSource::open(None, &node)?))
        };
        Self::new(Box::new(open), sysfs)
    }

    /// Creates a source that reads `open_nvml`'s source where it answers, else `sysfs`.
    #[must_use]
    pub(crate) fn new(open_nvml: Open, sysfs: Box<dyn Source>) -> Self {
        Self {
            open_nvml,
            sysfs,
            state: State::New,
        }
    }

    /// Tries the library, and keeps it as the source if it answers. `Err(Ok)`
    /// says why there is no driver; `Err(Err)` is the error of a driver that
    /// exists and fails.
    fn try_nvml(&mut self, now: Duration) -> Result<Reading, Result<String, SourceError>> {
        let result = (self.open_nvml)().and_then(|mut source| {
            let reading = source.read(now)?;
            Ok((source, reading))
        });
        match result {
            Ok((source, reading)) => {
                tracing::info!("source auto: NVML answers; reading it from now on");
                self.state = State::Nvml(source);
                Ok(reading)
            }
            Err(error) if is_failure(&error) => Err(Err(error)),
            Err(error) => {
                let reason = short(&error.to_string());
                self.state = State::Sysfs {
                    reason: reason.clone(),
                    retry: now.saturating_add(RETRY),
                };
                Err(Ok(reason))
            }
        }
    }

    fn read_sysfs(&mut self, now: Duration, nvml: &str) -> Result<Reading, SourceError> {
        let mut reading = self.sysfs.read(now).map_err(|error| SourceError::Nothing {
            nvml: nvml.to_owned(),
            sysfs: error.to_string(),
        })?;
        let from = &mut reading.topology.spec.source.from;
        *from = format!("{from} (auto: {nvml})");
        reading.warnings.push(format!(
            "source auto: NVML does not answer ({nvml}); reading sysfs instead, where NVLink is \
             unknown; retrying NVML every {} s",
            RETRY.as_secs()
        ));
        Ok(reading)
    }
}

impl Source for AutoSource {
    fn read(&mut self, now: Duration) -> Result<Reading, SourceError> {
        let reason = match &mut self.state {
            State::Nvml(source) => return source.read(now),
            State::Sysfs { reason, retry } if now < *retry => reason.clone(),
            State::Sysfs { .. } | State::New => match self.try_nvml(now) {
                Ok(reading) => return Ok(reading),
                Err(Ok(reason)) => reason,
                Err(Err(error)) => return Err(error),
            },
        };
        self.read_sysfs(now, &reason)
    }

    /// Releases the library. If it has answered before, it stays the source.
    fn release(&mut self) {
        if let State::Nvml(source) = &mut self.state {
            source.release();
        }
    }
}

/// Reports whether `error` comes from a driver that exists and fails. Such an
/// error is returned, and `auto` does not fall back to sysfs.
fn is_failure(error: &SourceError) -> bool {
    use LibraryError::{
        Call, NoAnswer, NoDriver, NoGpu, NoPermission, NotFound, Refused, VersionMismatch,
    };
    let SourceError::Nvml(error) = error else {
        return false;
    };
    match error {
        // No driver yet, or a driver that shows no GPU here.
        NotFound { .. } | NoDriver { .. } | NoGpu { .. } => false,
        Call { .. }
        | NoAnswer { .. }
        | VersionMismatch { .. }
        | NoPermission { .. }
        | Refused { .. } => true,
    }
}

/// Returns what is wrong, without the advice on what to do: with `auto`, other
/// steps help.
fn short(reason: &str) -> String {
    let reason = reason.strip_prefix("NVML: ").unwrap_or(reason);
    let end = [". ", "; "].iter().filter_map(|end| reason.find(end)).min();
    let reason = &reason[..end.unwrap_or(reason.len())];
    reason.chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    };

    use super::*;
    use crate::SourceSpec;

    /// A simulated node. Fails if `answers` is false.
    struct Fake {
        profile: &'static str,
        answers: bool,
    }

    impl Source for Fake {
        fn read(&mut self, now: Duration) -> Result<Reading, SourceError> {
            let spec: SourceSpec = self.profile.parse().unwrap();
            match self.answers {
                true => spec.open(Some("n"))?.read(now),
                false => Err(SourceError::Unsupported(format!(
                    "{} is silent",
                    self.profile
                ))),
            }
        }
    }

    fn fake(profile: &'static str, answers: bool) -> Box<dyn Source> {
        Box::new(Fake { profile, answers })
    }

    /// A source whose library answers from the attempt `from` on, and its count of attempts.
    fn auto(from: u32, sysfs: bool) -> (AutoSource, Arc<AtomicU32>) {
        let attempts = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&attempts);
        let open = move || match counted.fetch_add(1, Ordering::Relaxed) + 1 {
            n if n < from => {
                let reason = "no library; install one. Or use another source";
                Err(SourceError::Unsupported(reason.to_owned()))
            }
            _ => Ok(fake("sim:dgx-h100", true)),
        };
        (
            AutoSource::new(Box::new(open), fake("sim:l40s", sysfs)),
            attempts,
        )
    }

    fn read(source: &mut AutoSource, seconds: u64) -> Result<Reading, String> {
        let reading = source.read(Duration::from_secs(seconds));
        reading.map_err(|error| error.to_string())
    }

    #[test]
    fn the_library_is_read_first() {
        let (mut source, attempts) = auto(1, true);
        let reading = read(&mut source, 0).unwrap();
        assert_eq!(reading.topology.spec.source.from, "dgx-h100");
        assert!(reading.warnings.is_empty(), "{:?}", reading.warnings);
        read(&mut source, 1000).unwrap();
        assert_eq!(attempts.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn without_a_library_sysfs_is_read_with_the_reason() {
        let (mut source, _) = auto(9, true);
        let reading = read(&mut source, 0).unwrap();
        assert_eq!(reading.topology.spec.source.from, "l40s (auto: no library)");
        assert!(
            reading.warnings[0].contains("NVLink is unknown"),
            "{:?}",
            reading.warnings
        );
        let again = read(&mut source, 5).unwrap();
        assert_eq!(
            again.warnings, reading.warnings,
            "the same text, so it is logged once"
        );
    }

    #[test]
    fn a_driver_that_is_loaded_later_is_found() {
        let (mut source, attempts) = auto(2, true);
        for seconds in [0, 5, 59] {
            let reading = read(&mut source, seconds).unwrap();
            assert!(reading.topology.spec.edges.is_empty());
        }
        assert_eq!(attempts.load(Ordering::Relaxed), 1);
        assert_eq!(read(&mut source, 60).unwrap().topology.spec.edges.len(), 28);
        assert_eq!(read(&mut source, 61).unwrap().topology.spec.edges.len(), 28);
        assert_eq!(attempts.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_library_that_has_answered_stays_the_source() {
        let mut answers = true;
        let open = move || Ok(fake("sim:dgx-h100", std::mem::take(&mut answers)));
        let mut source = AutoSource::new(Box::new(open), fake("sim:l40s", true));
        read(&mut source, 0).unwrap();
        source.state = State::Nvml(fake("sim:dgx-h100", false));
        assert_eq!(
            read(&mut source, 100).unwrap_err(),
            "sim:dgx-h100 is silent"
        );
    }

    /// A source whose library fails once with `error`, then answers.
    fn fails_once(error: LibraryError) -> AutoSource {
        let mut error = Some(error);
        let open = move || match error.take() {
            Some(error) => Err(error.into()),
            None => Ok(fake("sim:dgx-h100", true)),
        };
        AutoSource::new(Box::new(open), fake("sim:l40s", true))
    }

    #[test]
    fn a_driver_that_fails_is_reported() {
        let library = || "lib".to_owned();
        let reasons = vec!["GPU 0: lost".to_owned()];
        let call = "nvmlInit";
        let error = nvml_wrapper::error::NvmlError::Unknown;
        for (error, said) in [
            (
                LibraryError::NoAnswer {
                    library: library(),
                    reasons,
                },
                "GPU 0: lost",
            ),
            (
                LibraryError::Call {
                    library: library(),
                    call,
                    error,
                },
                "nvmlInit failed",
            ),
            (
                LibraryError::VersionMismatch { library: library() },
                "different versions",
            ),
            (
                LibraryError::NoPermission { library: library() },
                "no permission",
            ),
            (
                LibraryError::Refused {
                    refused: vec!["lib: file too short".to_owned()],
                },
                "file too short",
            ),
        ] {
            let mut source = fails_once(error);
            let told = read(&mut source, 0).unwrap_err();
            assert!(told.contains(said), "{told}");
            assert_eq!(read(&mut source, 5).unwrap().topology.spec.edges.len(), 28);
        }
    }

    #[test]
    fn a_machine_without_a_driver_is_read_from_the_kernel() {
        let library = || "lib".to_owned();
        for error in [
            LibraryError::NotFound { tried: Vec::new() },
            LibraryError::NoDriver { library: library() },
            LibraryError::NoGpu { library: library() },
        ] {
            let reading = read(&mut fails_once(error), 0).unwrap();
            assert!(reading.topology.spec.edges.is_empty());
        }
    }

    #[test]
    fn the_error_has_both_reasons_where_neither_works() {
        let (mut source, _) = auto(9, false);
        let error = read(&mut source, 0).unwrap_err();
        for part in ["no library", "sim:l40s is silent", "--source file:PATH"] {
            assert!(error.contains(part), "{error}");
        }
    }
}
