//! A DRA driver that gives the node's GPUs to containers by claims, instead of a device plugin.

use std::{
    collections::BTreeMap,
    fs::{self, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{Lab, LabNode, containerd::CDI, network::Network, node::Devices, sandbox::Sandbox};
use crate::{assets, controlplane::ControlPlane, kubectl::Kubectl, process::Process};

const START: Duration = Duration::from_secs(60);

/// A running driver. It ends when dropped.
#[derive(Debug)]
pub(super) struct Driver {
    process: Process,
    node: String,
    /// The indices of the GPUs, by UUID.
    gpus: BTreeMap<String, u32>,
    /// Where it reads XIDs from.
    events: PathBuf,
}

impl Driver {
    /// Starts the driver of the GPUs of a recording, with more flags: its feature gates. Its files are
    /// in a directory.
    pub(super) fn start(
        sandbox: &Sandbox,
        network: Network,
        (directory, recording): (&Path, &Value),
        flags: &[String],
        control_plane: &ControlPlane,
    ) -> Result<Self> {
        let node = recording["metadata"]["name"].as_str();
        let node = node.context("the recording has no name")?;
        let gpus = recording["spec"]["gpus"].as_array().into_iter().flatten();
        let gpu = |gpu: &Value| {
            let index = u32::try_from(gpu["index"].as_u64()?).ok()?;
            Some((gpu["uuid"].as_str()?.to_owned(), index))
        };
        let (kubeconfig, devices) = (directory.join("dra.kubeconfig"), directory.join(CDI));
        let url = format!("https://{}:{}", network.machine(), control_plane.port());
        control_plane.write_kubeconfig_at(&url, &kubeconfig, "dra", &["system:masters"])?;
        fs::create_dir(&devices)?;
        let (board, events) = (directory.join("dra.json"), directory.join("dra.events"));
        fs::write(&board, recording.to_string())?;
        let mut driver = sandbox.command(assets::go_program("dra-driver")?);
        driver.arg("-kubeconfig").arg(kubeconfig);
        driver.args(["-node", node]).arg("-recording").arg(board);
        driver.arg("-cdi").arg(devices).arg("-events").arg(&events);
        driver.arg("-dev").arg(directory.join("dra")).args(flags);
        Ok(Self {
            process: Process::start("dra-driver", directory, driver)?,
            node: node.to_owned(),
            gpus: gpus.filter_map(gpu).collect(),
            events,
        })
    }

    /// Waits until all GPUs are published.
    pub(super) fn wait_until_published(&self, kubectl: &Kubectl) -> Result<()> {
        self.process
            .wait_until("the GPUs to be published", START, || {
                let published = self.devices(kubectl)?.len();
                ensure!(published == self.gpus.len(), "{published} GPUs");
                Ok(Some(()))
            })
    }

    /// Returns the indices of the GPUs that are published, by the names of their devices.
    pub(super) fn devices(&self, kubectl: &Kubectl) -> Result<BTreeMap<String, u32>> {
        let selector = format!("spec.nodeName={}", self.node);
        let slices = kubectl.get(&["resourceslices", "--field-selector", &selector])?;
        let slices = slices["items"].as_array().into_iter().flatten();
        let devices = slices.flat_map(|slice| slice["spec"]["devices"].as_array());
        let gpu = |device: &Value| {
            let uuid = device["attributes"]["uuid"]["string"].as_str()?;
            Some((device["name"].as_str()?.to_owned(), *self.gpus.get(uuid)?))
        };
        Ok(devices.flatten().filter_map(gpu).collect())
    }

    /// Reports an event of NVML.
    pub(super) fn report(&self, event: DriverEvent) -> Result<()> {
        let uuid = |gpu: u32| {
            let mut of = self.gpus.iter();
            let found = of.find(|(_, index)| **index == gpu);
            found.map(|(uuid, _)| uuid).context("no such GPU")
        };
        let line = match event {
            DriverEvent::Xid { gpu, xid } => format!("xid {} {xid}", uuid(gpu)?),
            DriverEvent::GpuLost => "gpu-lost".to_owned(),
            DriverEvent::Unmonitored { gpu } => format!("unmonitored {}", uuid(gpu)?),
        };
        let mut events = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.events)?;
        Ok(writeln!(events, "{line}")?)
    }
}

/// What the DRA driver hears of its GPUs, which it taints then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverEvent {
    /// An XID of a GPU, by its index.
    Xid { gpu: u32, xid: u32 },
    /// A GPU does not answer. NVML does not say which.
    GpuLost,
    /// The events of a GPU are not reported.
    Unmonitored { gpu: u32 },
}

impl LabNode {
    /// Gives its GPUs to containers by claims, with a DRA driver that behaves as NVIDIA's does
    /// instead of a device plugin. They are in ResourceSlices of pool `name`, as `gpu-MINOR` of
    /// `gpu.nvidia.com`; a container gets their device files, `/dev/nvidiaMINOR`.
    #[must_use]
    pub fn claimed(self) -> Self {
        self.claimed_with(&[])
    }

    /// Does the same with more flags of the driver, such as `-feature-gates=DynamicMIG=true`.
    #[must_use]
    pub fn claimed_with(mut self, flags: &[&str]) -> Self {
        self.devices = Devices::Claimed;
        self.flags = flags.iter().map(|&flag| flag.to_owned()).collect();
        self
    }
}

impl Lab {
    /// Returns the indices of the GPUs that its DRA driver publishes, by the names of their devices.
    ///
    /// # Errors
    /// When it has none, or the API server does not answer.
    pub fn claimable(&self) -> Result<BTreeMap<String, u32>> {
        let driver = self.driver.as_ref().context("the node has no DRA driver")?;
        driver.devices(&self.kubectl)
    }

    /// Lets the DRA driver hear an event.
    ///
    /// # Errors
    /// When the node has no such driver or GPU.
    pub fn report(&self, event: DriverEvent) -> Result<()> {
        let driver = self.driver.as_ref().context("the node has no DRA driver")?;
        driver.report(event)
    }
}
