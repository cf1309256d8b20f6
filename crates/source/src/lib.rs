//! The sources of a node's topology: the driver's library, the kernel, files, a simulation.
//!
//! All of them make the same [`Reading`], and [`Opener`] opens the one that [`SourceSpec`] names.
//! The modules; each uses only those above it:
//!
//! - [`text`] reads files of unknown encoding.
//! - [`topo_matrix`] reads what `nvidia-smi topo -m` prints.
//! - `reading` is what all sources make.
//! - [`broken`] says which GPUs of a reading are broken.
//! - `pci` is the tree of PCI devices; `nccl_xml` and [`sysfs`] read it from NCCL's files and from
//!   the kernel.
//! - [`recording`] is a document with samples, and `replay` plays them.
//! - [`mod@file`] reads a recording, a matrix or an NCCL topology.
//! - [`sim`] simulates well-known machines and their faults.
//! - `nvml` reads the driver's library; `unsafe` is allowed only there.
//! - `auto` takes the driver's library where it answers, else sysfs.
//! - [`calibrated`] replaces bandwidths by measured ones.

mod auto;
pub mod broken;
pub mod calibrated;
pub mod file;
mod nccl_xml;
mod nvml;
mod pci;
mod reading;
pub mod recording;
mod replay;
pub mod sim;
pub mod sysfs;
pub mod text;
pub mod topo_matrix;

use std::{fmt, path::PathBuf, str::FromStr, sync::Arc, time::Duration};

use nvlink_topology::Invalid;

use self::{
    recording::RecordingError,
    sysfs::SysfsError,
    text::{LineError, TextError},
};

pub use self::reading::{
    BitErrorKind, CounterSource, ErrorKind, FabricCondition, FabricHealth, FabricState, GpuHealth,
    LinkCounters, LostGpu, Reading, RowRemap, Unread,
};

/// A node that can be read repeatedly.
pub trait Source: Send {
    /// Reads the node. `now` is the time since the exporter started.
    ///
    /// # Errors
    /// When it cannot be read; the next call may succeed.
    fn read(&mut self, now: Duration) -> Result<Reading, SourceError>;

    /// Releases the driver's library until the next reading. The source keeps its state.
    fn release(&mut self) {}
}

/// Why a source has no reading.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The input is not text.
    #[error("{name}: {error}")]
    Text { name: String, error: TextError },
    /// The matrix or the NCCL topology is invalid.
    #[error("{name}: {error}")]
    Line { name: String, error: LineError },
    #[error("{name}: {}", one_line(error))]
    Recording { name: String, error: RecordingError },
    /// The kernel's PCI tree cannot be used.
    #[error("sysfs: {0}")]
    Sysfs(#[from] SysfsError),
    /// `auto` found neither a driver nor a usable sysfs.
    #[error(
        "--source auto found nothing to read. NVML: {nvml}. {sysfs}. On a GPU node: load the \
         driver, name its library (--source nvml:PATH) or mount the host's /sys (--source \
         sysfs:ROOT); elsewhere name a source: --source file:PATH or --source sim:PROFILE"
    )]
    Nothing { nvml: String, sysfs: String },
    /// The driver's library cannot be used.
    #[error("NVML: {0}")]
    Nvml(#[from] nvml::LibraryError),
    #[error("{name}: {}", one_line(error))]
    Invalid { name: String, error: Invalid },
    /// This version does not support the input.
    #[error("{0}")]
    Unsupported(String),
}

/// Formats a message that quotes the input: on one line, at most 400
/// characters, and without control characters.
fn one_line(error: &impl fmt::Display) -> String {
    const MOST: usize = 400;
    let text = error.to_string();
    let mut line: String = text.chars().take(MOST).collect();
    line = line.replace(char::is_control, " ");
    if text.chars().nth(MOST).is_some() {
        line.push('…');
    }
    line
}

/// The value of `--source`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SourceSpec {
    /// NVML where the driver's library answers, else sysfs.
    #[default]
    Auto,
    /// The driver's library, optionally from a path.
    Nvml(Option<String>),
    /// The kernel's PCI tree, optionally under another root.
    Sysfs(Option<String>),
    /// A recording or a capture; `-` is the standard input.
    File(String),
    Sim(&'static sim::Profile),
}

/// An invalid value of `--source`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSource {
    #[error(
        "unknown source {0:?}: use auto, nvml[:PATH], sysfs[:ROOT], file:PATH (- is the standard \
         input) or sim:PROFILE"
    )]
    Kind(String),
    /// The path after `file:` is missing.
    #[error("file: needs a path (file:- is the standard input)")]
    NoPath,
    #[error("unknown profile {0:?}: use one of {known}", known = sim::names().join(", "))]
    Profile(String),
}

impl FromStr for SourceSpec {
    type Err = BadSource;

    fn from_str(text: &str) -> Result<Self, BadSource> {
        let (kind, rest) = match text.split_once(':') {
            Some((kind, rest)) => (kind, Some(rest).filter(|rest| !rest.is_empty())),
            None => (text, None),
        };
        match (kind, rest) {
            ("auto", None) => Ok(Self::Auto),
            ("nvml", path) => Ok(Self::Nvml(path.map(str::to_owned))),
            ("sysfs", root) => Ok(Self::Sysfs(root.map(str::to_owned))),
            ("file", Some(path)) => Ok(Self::File(path.to_owned())),
            ("file", None) => Err(BadSource::NoPath),
            ("sim", name) => {
                let name = name.unwrap_or_default();
                let unknown = || BadSource::Profile(name.chars().take(64).collect());
                sim::profile(name).map(Self::Sim).ok_or_else(unknown)
            }
            _ => Err(BadSource::Kind(text.chars().take(64).collect())),
        }
    }
}

impl fmt::Display for SourceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Nvml(None) => f.write_str("nvml"),
            Self::Nvml(Some(path)) => write!(f, "nvml:{path}"),
            Self::Sysfs(None) => f.write_str("sysfs"),
            Self::Sysfs(Some(root)) => write!(f, "sysfs:{root}"),
            Self::File(path) => write!(f, "file:{path}"),
            Self::Sim(profile) => write!(f, "sim:{}", profile.name),
        }
    }
}

impl SourceSpec {
    /// Returns the source for the node `node`. A recording has its own node
    /// name, which `node` overrides; without either, the host's name is used.
    /// Opens no file yet: the reading thread does that, because opening may hang.
    ///
    /// # Errors
    /// When this version does not support the source.
    pub fn open(&self, node: Option<&str>) -> Result<Box<dyn Source>, SourceError> {
        Opener::new(self.clone(), node.map(str::to_owned)).open()
    }
}

/// Opens a source repeatedly: a source that has panicked is opened again.
#[derive(Clone, Debug)]
pub struct Opener {
    spec: SourceSpec,
    node: Option<String>,
    control: Option<Arc<sim::Control>>,
    calibration: Option<PathBuf>,
}

impl Opener {
    /// Creates an opener of `spec` for the node `node`.
    #[must_use]
    pub fn new(spec: SourceSpec, node: Option<String>) -> Self {
        let control = match &spec {
            SourceSpec::Sim(profile) => Some(Arc::new(sim::Control::new(profile))),
            _ => None,
        };
        Self {
            spec,
            node,
            control,
            calibration: None,
        }
    }

    /// Replaces bandwidths by those of a calibration, if a file is given.
    #[must_use]
    pub fn calibrated(mut self, file: Option<PathBuf>) -> Self {
        self.calibration = file;
        self
    }

    /// Returns the control that sets the faults of a simulated node, or `None`
    /// for any other source. All openings of the node share it.
    #[must_use]
    pub fn control(&self) -> Option<&Arc<sim::Control>> {
        self.control.as_ref()
    }

    /// Opens the source, as [`SourceSpec::open`] does.
    ///
    /// # Errors
    /// When this version does not support the source.
    pub fn open(&self) -> Result<Box<dyn Source>, SourceError> {
        let source = self.open_plain()?;
        Ok(match self.calibration.clone() {
            Some(file) => Box::new(calibrated::Calibrated::new(source, file)),
            None => source,
        })
    }

    fn open_plain(&self) -> Result<Box<dyn Source>, SourceError> {
        let node = self.node.clone();
        let name = || self.node.clone().unwrap_or_else(host_name);
        Ok(match &self.spec {
            SourceSpec::File(path) => Box::new(file::FileSource::new(path.clone(), node)),
            SourceSpec::Sim(profile) => {
                let source = sim::SimSource::new(profile, &name());
                match self.control.clone() {
                    Some(control) => Box::new(source.driven_by(control)),
                    None => Box::new(source),
                }
            }
            SourceSpec::Sysfs(root) => Box::new(sysfs::SysfsSource::new(root.as_deref(), node)),
            SourceSpec::Nvml(path) => Box::new(nvml::NvmlSource::new(path.as_deref(), &name())),
            SourceSpec::Auto => Box::new(auto::AutoSource::of_machine(node)),
        })
    }
}

/// Returns the host's name in lower case: the kubelet's default name of the Node.
#[must_use]
pub fn host_name() -> String {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match kernel.trim() {
        "" => "localhost".to_owned(),
        name => name.to_lowercase(),
    }
}

/// Returns `text` if the API server accepts it as the name of a Node.
///
/// # Errors
/// When it does not, with what a name consists of.
pub fn node_name(text: &str) -> Result<String, String> {
    let good = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.';
    let ends = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    match text.len() <= 253
        && bytes.iter().all(|&b| good(b))
        && ends(bytes.first())
        && ends(bytes.last())
    {
        true => Ok(text.to_owned()),
        false => Err("a node name consists of lower case letters, digits, - and .".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::node_name;

    #[test]
    fn names_of_nodes() {
        assert!(node_name("gpu-7.rack").is_ok() && node_name("../x").is_err());
        assert!(node_name("").is_err() && node_name("A").is_err());
    }
}
