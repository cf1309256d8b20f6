//! The kubelet's device manager by itself, which gives devices to containers and takes them back at
//! random.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::{LabNode, Vendor, sandbox::Sandbox};
use crate::{assets, device_plugin::DevicePlugin, nvml, workdir};

/// A container that got devices.
#[derive(Clone, Debug, Deserialize)]
pub struct Step {
    /// The numbers of the steps whose containers ended before it came.
    pub ended: Vec<usize>,
    /// The ids of its devices, sorted.
    pub devices: Vec<String>,
    /// Its variables.
    pub variables: BTreeMap<String, String>,
}

/// What the device manager did.
#[derive(Debug)]
pub struct Allocations {
    pub steps: Vec<Step>,
    /// The metrics of what stands between, at the end; empty where nothing does.
    pub metrics: String,
}

/// Gives the GPUs of a node, `gpus` of them, to so many containers.
///
/// # Errors
/// When a part does not come up, or the device manager fails.
pub fn allocate(node: &LabNode, gpus: usize, steps: usize, seed: u64) -> Result<Allocations> {
    let program = assets::go_program("device-manager")?;
    let directory = workdir::fresh("manager")?;
    let sandbox = Sandbox::start(&directory)?;
    let vendor = Vendor::new(node, &directory, None);
    let between = vendor.start_between()?;
    let recording = nvml::recording_of(&node.profile, &node.name)?;
    std::fs::create_dir_all(&vendor.directory)?;
    let _plugin = vendor.plugin.start(&vendor.directory, &recording)?;
    let number = |flag: &str, value: usize| format!("-{flag}={value}");
    let output = sandbox
        .command(program)
        .args([number("devices", gpus), number("steps", steps)])
        .arg(format!("-seed={seed}"))
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{said}");
    let text = String::from_utf8(output.stdout)?;
    let step = |line| serde_json::from_str(line).with_context(|| format!("{line}: {said}"));
    let metrics = between.as_ref().map(DevicePlugin::metrics).transpose()?;
    Ok(Allocations {
        steps: text.lines().map(step).collect::<Result<_>>()?,
        metrics: metrics.unwrap_or_default(),
    })
}
