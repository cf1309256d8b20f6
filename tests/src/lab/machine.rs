//! Whether a real node can run on this machine.

use std::{fs, os::unix::fs::MetadataExt, path::PathBuf, process::Command};

use anyhow::{Context, Result, anyhow, ensure};

use super::cgroup;
use crate::{assets, process::feed};

const PROGRAMS: [&str; 9] = [
    "busybox",
    "containerd",
    "containerd-shim-runc-v2",
    "ctr",
    "ip",
    "iptables",
    "kube-proxy",
    "kubelet",
    "runc",
];

/// The directories of CNI plugins: Debian's, and that of their releases.
const CNI: [&str; 2] = ["/usr/lib/cni", "/opt/cni/bin"];

const KUBELET: &str = "/var/lib/kubelet";

/// Checks that a real node can run on this machine.
///
/// # Errors
/// When it cannot: one sentence that says why, and what to do.
pub(super) fn check() -> Result<()> {
    check_all().context("no real node can run on this machine")
}

fn check_all() -> Result<()> {
    let uid = fs::metadata("/proc/self").context("/proc is not mounted")?;
    ensure!(
        uid.uid() == 0,
        "it needs root, and this is user {}; run this as root",
        uid.uid()
    );
    ensure!(
        fs::read_dir(KUBELET).map_or(true, |mut entries| entries.next().is_none()),
        "{KUBELET} is in use by another kubelet; use a machine without one"
    );
    for program in PROGRAMS {
        assets::path(program)?;
    }
    cni()?;
    check_namespaces()?;
    cgroup::check()
}

/// Returns the directory of the CNI plugins.
pub(super) fn cni() -> Result<PathBuf> {
    let mut directories = CNI.iter().map(PathBuf::from);
    let found = directories.find(|path| path.join("ptp").is_file());
    found.ok_or_else(|| {
        anyhow!(
            "cannot find the CNI plugin ptp in {}: run `make packages`",
            CNI.join(" or ")
        )
    })
}

fn check_namespaces() -> Result<()> {
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--net", "--pid", "--fork", "true"]);
    let output = feed(&mut unshare, "").context("cannot run unshare")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "it needs namespaces of its own, and they are not permitted ({}); \
         in a container, run this with all privileges",
        said.trim_end()
    );
    Ok(())
}
