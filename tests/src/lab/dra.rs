//! A DRA driver that gives the node's GPUs to containers by claims, instead of a device plugin.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{containerd::CDI, network::Network, sandbox::Sandbox};
use crate::{assets, controlplane::ControlPlane, kubectl::Kubectl, process::Process};

const START: Duration = Duration::from_secs(60);

/// A running driver. It ends when dropped.
#[derive(Debug)]
pub(super) struct Driver {
    process: Process,
    node: String,
    gpus: usize,
}

impl Driver {
    /// Starts the driver of the GPUs of `recording`.
    pub(super) fn start(
        sandbox: &Sandbox,
        network: Network,
        directory: &Path,
        recording: &Value,
        control_plane: &ControlPlane,
    ) -> Result<Self> {
        let node = recording["metadata"]["name"].as_str();
        let node = node.context("the recording has no name")?;
        let gpus = recording["spec"]["gpus"].as_array().into_iter().flatten();
        let gpus: Vec<&str> = gpus.filter_map(|gpu| gpu["uuid"].as_str()).collect();
        let (kubeconfig, devices) = (directory.join("dra.kubeconfig"), directory.join(CDI));
        let url = format!("https://{}:{}", network.machine(), control_plane.port());
        control_plane.write_kubeconfig_at(&url, &kubeconfig, "dra", &["system:masters"])?;
        fs::create_dir(&devices)?;
        let mut driver = sandbox.command(assets::go_program("dra-driver")?);
        driver.arg("-kubeconfig").arg(kubeconfig);
        driver.arg("-cdi").arg(devices);
        driver.args(["-node", node]).args(&gpus);
        Ok(Self {
            process: Process::start("dra-driver", directory, driver)?,
            node: node.to_owned(),
            gpus: gpus.len(),
        })
    }

    /// Waits until all GPUs are published.
    pub(super) fn wait_until_published(&self, kubectl: &Kubectl) -> Result<()> {
        self.process
            .wait_until("the GPUs to be published", START, || {
                let selector = format!("spec.nodeName={}", self.node);
                let slices = kubectl.get(&["resourceslices", "--field-selector", &selector])?;
                let devices = slices["items"][0]["spec"]["devices"].as_array();
                let published = devices.map_or(0, Vec::len);
                ensure!(published == self.gpus, "{published} of {}", self.gpus);
                Ok(Some(()))
            })
    }
}
