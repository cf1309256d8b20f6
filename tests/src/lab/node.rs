//! Which node to start.

use std::ffi::OsString;

use super::plugin::{Choice, Shares};
use crate::nvml::FakeNvml;

/// Which node to start.
#[derive(Clone, Debug)]
pub struct LabNode {
    pub(super) name: String,
    pub(super) profile: String,
    pub(super) choice: Choice,
    pub(super) shares: Option<Shares>,
    pub(super) machine: Option<Machine>,
    pub(super) devices: Devices,
    /// More flags of the DRA driver.
    pub(super) flags: Vec<String>,
}

/// A driver's library to read, and the environment that it needs.
pub(super) type Machine = (String, (&'static str, OsString));

/// What gives the node's GPUs to containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Devices {
    /// A device plugin.
    Plugin,
    /// The same, with `nvlink-exporter device-plugin` before it.
    Preferred,
    /// A DRA driver.
    Claimed,
}

impl LabNode {
    /// Describes a node with the GPUs of a profile of the simulator, such as `dgx-h100`.
    #[must_use]
    pub fn new(name: impl Into<String>, profile: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            profile: profile.into(),
            choice: Choice::default(),
            shares: None,
            machine: None,
            devices: Devices::Plugin,
            flags: Vec::new(),
        }
    }

    /// Puts `nvlink-exporter device-plugin` between the kubelet and the node's device plugin.
    #[must_use]
    pub fn preferring(mut self) -> Self {
        self.devices = Devices::Preferred;
        self
    }

    /// Lets what stands between read a driver's library instead of the simulator. The device plugin
    /// serves the GPUs of the profile all the same.
    #[must_use]
    pub fn reading(mut self, machine: &FakeNvml) -> Self {
        self.machine = Some((machine.source(), machine.environment()));
        self
    }

    /// Lets its device plugin share GPUs.
    #[must_use]
    pub fn sharing(mut self, shares: Shares) -> Self {
        self.shares = Some(shares);
        self
    }

    /// Sets how its device plugin chooses among the free GPUs.
    #[must_use]
    pub fn choosing(mut self, choice: Choice) -> Self {
        self.choice = choice;
        self
    }
}
