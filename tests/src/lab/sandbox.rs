//! The namespaces of a node: mounts, network and processes.

use std::{
    ffi::OsStr,
    fs,
    path::Path,
    process::{self, Command},
    sync::atomic::{AtomicU8, Ordering},
    time::Duration,
};

use anyhow::{Context, Result};

use crate::process::{Process, command};

const SCRIPT: &str = include_str!("sandbox.sh");
const START: Duration = Duration::from_secs(30);

/// Namespaces of their own. All processes in them end when it is dropped.
#[derive(Debug)]
pub(super) struct Sandbox {
    process: Process,
    /// What tells this node from the others of the machine.
    pub(super) number: u8,
}

impl Sandbox {
    /// Makes the namespaces. `/var/lib/kubelet` is `kubelet` in `directory`.
    ///
    /// # Errors
    /// When the machine does not permit it; shows what failed.
    pub(super) fn start(directory: &Path) -> Result<Self> {
        fs::create_dir_all(directory.join("kubelet/device-plugins"))?;
        let mut unshare = command("unshare");
        unshare.args(["--mount", "--net", "sh", "-c", SCRIPT, "sandbox"]);
        unshare.arg(directory).arg(process::id().to_string());
        // What a node leaves may go after its interface: no other one of this process gets its number.
        static NODES: AtomicU8 = AtomicU8::new(0);
        unshare.arg(NODES.fetch_add(1, Ordering::Relaxed).to_string());
        let process = Process::start("sandbox", directory, unshare)?;
        let number = process.wait_until("the namespaces", START, || {
            fs::read_to_string(directory.join("number"))
                .map(Some)
                .or_else(|_| Ok(None))
        })?;
        let number = number.trim().parse().context("the number of the node")?;
        Ok(Self { process, number })
    }

    /// Returns a command for [`Process::start`] that runs `program` in the namespaces.
    pub(super) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut inside = command("nsenter");
        let id = self.process.id();
        for (flag, namespace) in [
            ("mount", "mnt"),
            ("net", "net"),
            ("pid", "pid_for_children"),
        ] {
            inside.arg(format!("--{flag}=/proc/{id}/ns/{namespace}"));
        }
        // The program is a child of nsenter, and ends with it.
        inside.args(["--", "setpriv", "--pdeathsig", "KILL", "--"]);
        inside.arg(program);
        inside
    }
}
