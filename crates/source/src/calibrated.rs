//! A source whose bandwidths are replaced by measured ones.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use nvlink_runtime::files;
use nvlink_topology::{Calibration, Invalid};

use super::{Reading, Source, SourceError};

/// Why a calibration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CalibrationError {
    #[error("cannot be read: {0}")]
    Io(#[from] std::io::Error),
    /// It is not JSON of the right shape.
    #[error("{path}: {error}")]
    Shape {
        /// Path in the file.
        path: String,
        /// What is wrong, with line and column.
        error: serde_json::Error,
    },
    /// It is something else.
    #[error("not a calibration, which `nvlink-exporter calibration make` writes: {0}")]
    Other(serde_json::Error),
    #[error(transparent)]
    Invalid(#[from] Invalid),
}

/// Reads the file of a calibration, as `nvlink-exporter calibration` prints it.
///
/// # Errors
/// When it cannot be read, or is no calibration.
pub fn load(path: &Path) -> Result<Calibration, CalibrationError> {
    parse(&files::read(path)?)
}

fn parse(bytes: &[u8]) -> Result<Calibration, CalibrationError> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let calibration: Calibration =
        serde_path_to_error::deserialize(&mut json).map_err(|error| {
            let path = error.path().to_string();
            let error = error.into_inner();
            match path.as_str() {
                "." => CalibrationError::Other(error),
                _ => CalibrationError::Shape { path, error },
            }
        })?;
    calibration.check()?;
    Ok(calibration)
}

/// Another source, and the file of the calibration. The file is read at each reading, so that
/// a changed one is noticed. While it cannot be used, the last good one holds, and a warning
/// says so: a broken file must not cost the data of the node.
pub(super) struct Calibrated {
    inner: Box<dyn Source>,
    path: PathBuf,
    bytes: Vec<u8>,
    last: Option<Calibration>,
}

impl Calibrated {
    pub(super) fn new(inner: Box<dyn Source>, path: PathBuf) -> Self {
        Self {
            inner,
            path,
            bytes: Vec::new(),
            last: None,
        }
    }

    /// Reads the file, and parses it if it has changed.
    fn follow(&mut self) -> Result<(), CalibrationError> {
        let bytes = files::read(&self.path)?;
        if self.last.is_none() || bytes != self.bytes {
            self.last = Some(parse(&bytes)?);
            self.bytes = bytes;
        }
        Ok(())
    }
}

impl Source for Calibrated {
    fn read(&mut self, now: Duration) -> Result<Reading, SourceError> {
        let mut reading = self.inner.read(now)?;
        if let Err(error) = self.follow() {
            let path = self.path.display();
            let instead = match self.last {
                Some(_) => "the calibration that it had before stays in use",
                None => "constants stand for the bandwidths",
            };
            let warning = format!("calibration {path}: {error}; {instead}");
            reading.warnings.push(warning);
        }
        if let Some(calibration) = &self.last {
            let before = reading.topology.spec.clone();
            calibration.apply(&mut reading.topology.spec);
            let applied = reading.topology.spec.calibration != before.calibration;
            reading.uncalibrated = applied.then_some(before);
        }
        Ok(reading)
    }

    fn release(&mut self) {
        self.inner.release();
    }
}
