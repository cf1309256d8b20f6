//! Fake GPUs, behind a `libnvidia-ml.so` of our own.
//!
//! The exporter loads the library (crate `nvlink-fake-nvml`) by path, as it would load the
//! driver's own; nothing in the exporter knows about it. A file holds the library's answers, and
//! tests replace it while the exporter runs.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::{exporter::Exporter, process::feed, programs, workdir};

/// A machine with fake NVIDIA GPUs, and its driver library.
#[derive(Debug)]
pub struct FakeNvml {
    directory: PathBuf,
    library: PathBuf,
    config: Value,
}

impl FakeNvml {
    /// Creates the machine that a recording (a NodeTopology) describes, without faults.
    ///
    /// # Errors
    /// When the library cannot be built or the file cannot be written.
    pub fn new(recording: &Value) -> Result<Self> {
        let mut this = Self {
            directory: workdir::fresh("nvml")?,
            library: programs::path(programs::FAKE_NVML)?,
            config: Value::Null,
        };
        this.reset(recording)?;
        Ok(this)
    }

    /// Creates the machine of a profile of the simulator.
    ///
    /// # Errors
    /// When the exporter cannot record it, or as [`FakeNvml::new`].
    pub fn of_profile(profile: &str) -> Result<Self> {
        Self::new(&recording(profile)?)
    }

    /// Changes the file, which has the form of `Config` in the crate `nvlink-fake-nvml`; the
    /// recording is under `board`. The next call sees the change.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn set(&mut self, change: impl FnOnce(&mut Value)) -> Result<()> {
        change(&mut self.config);
        self.write()
    }

    /// Changes one key of the file. This is [`FakeNvml::set`] for the common case.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn put(&mut self, key: &str, value: Value) -> Result<()> {
        self.set(|config| config[key] = value)
    }

    /// Changes the GPUs of the recording. Its edges and domains follow from their links.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn rewire(&mut self, change: impl FnOnce(&mut Value)) -> Result<()> {
        self.set(|config| {
            let spec = &mut config["board"]["spec"];
            change(&mut spec["gpus"]);
            spec["edges"] = json!([]);
            if let Some(domains) = spec["domains"].as_array_mut() {
                domains.retain(|domain| domain.get("fabric").is_some());
            }
        })
    }

    /// Resets the whole file to the one that [`FakeNvml::new`] writes for `recording`.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn reset(&mut self, recording: &Value) -> Result<()> {
        self.config = json!({ "board": recording, "trace": self.trace_file() });
        self.write()
    }

    /// Replaces the library with that of an older driver, which lacks `symbols`.
    ///
    /// The names are changed in a copy of the file. The loader finds a symbol by the hash of its
    /// name and then compares the name, so nothing else needs to change.
    ///
    /// # Errors
    /// When the library has no such symbol, or the copy cannot be written.
    pub fn without(&mut self, symbols: &[&str]) -> Result<()> {
        let mut bytes = fs::read(&self.library)?;
        let mut spoilt = BTreeSet::new();
        let mut start = 0;
        while let Some(length) = bytes[start..].iter().position(|&byte| byte == 0) {
            let name = &mut bytes[start..start + length];
            if let Some(symbol) = symbols.iter().find(|symbol| symbol.as_bytes() == name) {
                name[0] = b'_';
                spoilt.insert(*symbol);
            }
            start += length + 1;
        }
        let left = symbols.iter().find(|symbol| !spoilt.contains(*symbol));
        ensure!(left.is_none(), "the library has no symbol {left:?}");
        self.library = self.directory.join("older-libnvidia-ml.so");
        let _ = fs::remove_file(&self.library); // a process that has loaded it keeps it
        fs::write(&self.library, bytes)?;
        Ok(())
    }

    /// Replaces the library with that of another architecture.
    pub fn use_library(&mut self, path: PathBuf) {
        self.library = path;
    }

    /// Returns the value of `--source` that reads this machine.
    #[must_use]
    pub fn source(&self) -> String {
        format!("nvml:{}", self.library.display())
    }

    /// Returns the environment variable that the library needs.
    #[must_use]
    pub fn environment(&self) -> (&'static str, OsString) {
        ("FAKE_NVML_CONFIG", self.file().into())
    }

    /// Starts `nvlink-exporter serve` on this machine, and waits until it answers requests.
    /// Whether it is ready by then depends on the machine.
    ///
    /// # Errors
    /// When it does not start.
    pub fn exporter(&self, arguments: &[&str]) -> Result<Exporter> {
        let source = self.source();
        let arguments = [&["--source", &source][..], arguments].concat();
        Exporter::with_environment(&[self.environment()], &arguments)
    }

    /// Runs `nvlink-exporter ARGUMENTS --source …` on this machine and waits until it ends.
    ///
    /// # Errors
    /// When it cannot be run.
    pub fn run(&self, arguments: &[&str]) -> Result<Output> {
        let (name, value) = self.environment();
        let mut command = Command::new(programs::path(programs::EXPORTER)?);
        command.args(arguments).args(["--source", &self.source()]);
        feed(command.env(name, value), "").context("cannot run the exporter")
    }

    /// Returns the document that `nvlink-exporter topology` prints on this machine.
    ///
    /// # Errors
    /// When it fails, with its standard error.
    pub fn topology(&self) -> Result<Value> {
        let output = self.run(&["topology", "--output", "json", "--node-name", NODE])?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "nvlink-exporter topology: {said}");
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// Returns the trace of the library: `call NAME` for each function that was ever called,
    /// `hang NAME` for each call that began to hang.
    #[must_use]
    pub fn trace(&self) -> Vec<String> {
        let text = fs::read_to_string(self.trace_file()).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Deletes the trace of the library.
    pub fn clear_trace(&self) {
        // There may be none yet.
        let _ = fs::remove_file(self.trace_file());
    }

    fn trace_file(&self) -> PathBuf {
        self.directory.join("trace")
    }

    fn file(&self) -> PathBuf {
        self.directory.join("config.json")
    }

    /// Writes the file and renames it into place: a reader sees the old file or the new one.
    fn write(&self) -> Result<()> {
        let new = self.directory.join("config.json.new");
        fs::write(&new, self.config.to_string())?;
        fs::rename(&new, self.file())
            .with_context(|| format!("cannot write {}", show(&self.file())))
    }
}

/// The name of the machine.
const NODE: &str = "gpu-1";

/// Returns what `nvlink-exporter record` writes about a simulated machine.
///
/// # Errors
/// When it fails, with its standard error.
pub fn recording(profile: &str) -> Result<Value> {
    recording_of(profile, NODE)
}

/// Returns what `nvlink-exporter record` writes about a simulated machine called `name`, on which
/// the UUIDs of its GPUs depend.
///
/// # Errors
/// When it fails, with its standard error.
pub fn recording_of(profile: &str, name: &str) -> Result<Value> {
    let source = format!("sim:{profile}");
    let arguments = ["record", "--source", &source, "--node-name", name];
    let text = programs::run(programs::EXPORTER, &arguments, "")?;
    Ok(serde_json::from_str(&text)?)
}

fn show(path: &Path) -> String {
    path.display().to_string()
}
