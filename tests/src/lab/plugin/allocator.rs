//! The kubelet's side of device plugins, as far as it asks for devices: it runs nothing.

use std::{
    collections::HashMap,
    fs,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Stdio},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    super::{LabNode, Vendor},
    VendorPlugin,
};
use crate::{
    assets, device_plugin::DevicePlugin, nvml, process::command, wait::wait_until, workdir,
};

const START: Duration = Duration::from_secs(60);

/// A node's device plugin, what stands between if the node has it, and a kubelet that asks for
/// devices as the real one does, and runs no containers. All of them end when dropped.
#[derive(Debug)]
pub struct Allocator {
    vendor: Vendor,
    recording: Value,
    // Dropped in this order: who calls before who serves.
    kubelet: Kubelet,
    between: Option<DevicePlugin>,
    plugin: Option<VendorPlugin>,
}

/// The program `controlplane/kubelet-devices`.
#[derive(Debug)]
struct Kubelet {
    child: Child,
    pipes: Mutex<(ChildStdin, BufReader<ChildStdout>)>,
}

/// What a device plugin answered.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Answer {
    ids: Option<Vec<String>>,
    variables: HashMap<String, String>,
    nanoseconds: u64,
    error: String,
}

impl Kubelet {
    fn start(directory: &Path) -> Result<Self> {
        let mut program = command(assets::go_program("kubelet-devices")?);
        program.arg("-directory").arg(directory);
        program.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = program.spawn().context("cannot start kubelet-devices")?;
        let input = child.stdin.take().context("no input")?;
        let output = BufReader::new(child.stdout.take().context("no output")?);
        let this = Self {
            child,
            pipes: Mutex::new((input, output)),
        };
        this.read()?;
        Ok(this)
    }

    fn ask(&self, question: &Value) -> Result<Answer> {
        let mut pipes = self.pipes.lock().unwrap_or_else(PoisonError::into_inner);
        writeln!(pipes.0, "{question}")?;
        drop(pipes);
        let answer = self.read()?;
        match answer.error.is_empty() {
            true => Ok(answer),
            false => bail!(answer.error),
        }
    }

    fn read(&self) -> Result<Answer> {
        let mut pipes = self.pipes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut line = String::new();
        pipes.1.read_line(&mut line)?;
        serde_json::from_str(&line).with_context(|| format!("kubelet-devices said {line:?}"))
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Allocator {
    /// Starts the device plugin of a node, and waits until the kubelet has its devices.
    ///
    /// # Errors
    /// When a part does not come up.
    pub fn start(node: &LabNode) -> Result<Self> {
        let directory = workdir::fresh("allocator")?;
        let vendor = Vendor::new(node, &directory, None);
        fs::create_dir_all(&vendor.kubelet)?;
        let kubelet = Kubelet::start(&vendor.kubelet)?;
        let between = vendor.start_between()?;
        let mut this = Self {
            recording: nvml::recording_of(&node.profile, &node.name)?,
            vendor,
            kubelet,
            between,
            plugin: None,
        };
        this.start_plugin()?;
        Ok(this)
    }

    /// Kills the vendor's device plugin, and waits until the kubelet has no devices.
    ///
    /// # Errors
    /// When they stay.
    pub fn stop_plugin(&mut self) -> Result<()> {
        drop(self.plugin.take());
        wait_until("the devices to be gone", START, || {
            Ok(self.offered()?.is_none().then_some(()))
        })
    }

    /// Starts the vendor's device plugin again, and waits until the kubelet has its devices.
    ///
    /// # Errors
    /// When they do not come back.
    pub fn start_plugin(&mut self) -> Result<()> {
        let vendor = &self.vendor;
        self.plugin = Some(vendor.plugin.start(&vendor.directory, &self.recording)?);
        wait_until("the kubelet to have devices", START, || self.offered()).map(drop)
    }

    /// Kills what stands between, and starts it again.
    ///
    /// # Errors
    /// When the kubelet does not get the devices back.
    pub fn restart_between(&mut self) -> Result<()> {
        drop(self.between.take());
        wait_until("the devices to be gone", START, || {
            Ok(self.offered()?.is_none().then_some(()))
        })?;
        self.between = self.vendor.start_between()?;
        wait_until("the kubelet to have devices", START, || self.offered()).map(drop)
    }

    /// Returns what stands between, if the node has it.
    #[must_use]
    pub fn between(&self) -> Option<&DevicePlugin> {
        self.between.as_ref()
    }

    /// Returns the vendor's device plugin.
    #[must_use]
    pub fn plugin(&self) -> Option<&VendorPlugin> {
        self.plugin.as_ref()
    }

    /// Returns what `nvlink-exporter record` writes about the node.
    #[must_use]
    pub fn recording(&self) -> &Value {
        &self.recording
    }

    /// Returns the directories of sockets: the kubelet's, and the one in which the device plugin
    /// registers.
    #[must_use]
    pub fn directories(&self) -> (&Path, &Path) {
        (&self.vendor.kubelet, &self.vendor.directory)
    }

    /// Returns the ids of all healthy devices, sorted.
    ///
    /// # Errors
    /// When the kubelet has none.
    pub fn devices(&self) -> Result<Vec<String>> {
        self.offered()?.context("the kubelet has no devices")
    }

    fn offered(&self) -> Result<Option<Vec<String>>> {
        Ok(self.kubelet.ask(&json!({}))?.ids)
    }

    /// Asks which `size` of these devices are preferred.
    ///
    /// # Errors
    /// When the plugin does not answer.
    pub fn prefer(&self, available: &[String], size: usize) -> Result<Vec<String>> {
        self.timed_prefer(available, size).map(|(ids, _)| ids)
    }

    /// Asks like [`Allocator::prefer`], and says how long the answer took.
    ///
    /// # Errors
    /// As [`Allocator::prefer`].
    pub fn timed_prefer(
        &self,
        available: &[String],
        size: usize,
    ) -> Result<(Vec<String>, Duration)> {
        let question = json!({"prefer": {"available": available, "size": size}});
        let answer = self.kubelet.ask(&question)?;
        let took = Duration::from_nanos(answer.nanoseconds);
        Ok((answer.ids.unwrap_or_default(), took))
    }

    /// Allocates these devices to a container, and returns its variables.
    ///
    /// # Errors
    /// When the plugin refuses, or does not answer for one container.
    pub fn allocate(&self, ids: &[String]) -> Result<HashMap<String, String>> {
        self.timed_allocate(ids).map(|(variables, _)| variables)
    }

    /// Allocates like [`Allocator::allocate`], and says how long the answer took.
    ///
    /// # Errors
    /// As [`Allocator::allocate`].
    pub fn timed_allocate(&self, ids: &[String]) -> Result<(HashMap<String, String>, Duration)> {
        let answer = self.kubelet.ask(&json!({"allocate": ids}))?;
        Ok((answer.variables, Duration::from_nanos(answer.nanoseconds)))
    }
}
