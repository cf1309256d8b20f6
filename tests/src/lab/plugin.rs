//! The device plugin of a node: `controlplane/device-plugin`, which serves the GPUs of a recording to
//! a kubelet as `nvidia.com/gpu`. It is a Go program, because NVIDIA's is one, and what its library
//! sends is what a kubelet must understand.

use std::{fs, path::Path};

use anyhow::Result;
use serde_json::Value;

use crate::{
    assets,
    process::{Process, command},
    workdir,
};

mod allocator;

pub use allocator::Allocator;

const RESOURCE: &str = "nvidia.com/gpu";
const SOCKET: &str = "nvidia-gpu.sock";

/// How the device plugin chooses among the free GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// The GPUs with the most NVLinks between them, then on the fewest NUMA nodes, as NVIDIA's
    /// plugin does.
    #[default]
    Aligned,
    /// The first by UUID: any GPUs, but the same in each run.
    Scattered,
}

/// How the device plugin shares GPUs: NVIDIA's time-slicing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// The shares of each GPU.
    pub of_each: u32,
    /// Whether it prefers GPUs of which the most shares are taken, instead of the fewest.
    pub packed: bool,
    /// Whether it refuses containers with more than one share.
    pub single: bool,
}

/// Which device plugin to start.
#[derive(Clone, Debug)]
pub(super) struct Plugin {
    pub(super) choice: Choice,
    pub(super) shares: Option<Shares>,
    pub(super) resource: String,
    pub(super) socket: String,
}

impl Plugin {
    pub(super) fn new(choice: Choice, shares: Option<Shares>) -> Self {
        Self {
            choice,
            shares,
            resource: RESOURCE.to_owned(),
            socket: SOCKET.to_owned(),
        }
    }

    /// Serves the devices as another resource, on a socket of its own.
    pub(super) fn named(mut self, resource: &str, socket: &str) -> Self {
        self.resource = resource.to_owned();
        self.socket = socket.to_owned();
        self
    }

    /// Starts it with the GPUs of `recording`, in a kubelet's directory of device plugins. When the
    /// kubelet is away, it tries again as NVIDIA's does: when the kubelet makes its socket, or after
    /// 30 s.
    pub(super) fn start(&self, directory: &Path, recording: &Value) -> Result<VendorPlugin> {
        let own = workdir::fresh("vendor")?;
        let file = own.join("recording.json");
        fs::write(&file, recording.to_string())?;
        let mut program = command(assets::go_program("device-plugin")?);
        program.arg("-recording").arg(file);
        program.arg("-directory").arg(directory);
        program.args(["-resource", &self.resource, "-socket", &self.socket]);
        if self.choice == Choice::Scattered {
            program.arg("-choice=scattered");
        }
        if let Some(shares) = self.shares {
            program.arg(format!("-shares={}", shares.of_each));
            let policy = if shares.packed {
                "packed"
            } else {
                "distributed"
            };
            program.args(["-shared-devices-allocation-policy", policy]);
            program.arg(format!("-fail-requests-greater-than-one={}", shares.single));
        }
        Process::start_with_input("device-plugin", &own, program).map(VendorPlugin)
    }
}

/// A running device plugin. It ends when dropped.
#[derive(Debug)]
pub struct VendorPlugin(Process);

impl VendorPlugin {
    /// Returns how many times a kubelet has begun to watch the devices: once for each registration.
    pub(super) fn watches(&self) -> usize {
        self.0.log().lines().filter(|line| *line == "watch").count()
    }

    /// Marks a GPU as unhealthy, as an XID does.
    ///
    /// # Errors
    /// When the plugin has ended.
    pub fn break_gpu(&self, uuid: &str) -> Result<()> {
        self.0.write(&format!("unhealthy {uuid}\n"))
    }

    /// Returns what it has printed.
    #[must_use]
    pub fn log(&self) -> String {
        self.0.log()
    }
}
