//! containerd, which runs the node's containers.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Result, ensure};
use serde_json::json;

use super::{driver::HANDLER, images, machine, network::Network, sandbox::Sandbox};
use crate::{
    assets,
    process::{Process, feed},
};

const START: Duration = Duration::from_secs(30);

/// The directory in the node's that tells containerd how to give devices to containers.
pub(super) const CDI: &str = "cdi";

/// A running containerd. It and its containers end with the sandbox.
#[derive(Debug)]
pub(super) struct Containerd {
    pub(super) socket: PathBuf,
    _process: Process,
}

impl Containerd {
    /// Starts it with its files in `directory`, and waits until it answers.
    /// `runtime` is the one of the RuntimeClass `nvidia`.
    pub(super) fn start(
        sandbox: &Sandbox,
        network: Network,
        directory: &Path,
        runtime: &Path,
    ) -> Result<Self> {
        let socket = directory.join("containerd.sock");
        let plugins = directory.join("cni");
        fs::create_dir(&plugins)?;
        fs::write(
            plugins.join("lab.conflist"),
            pod_network(network, directory),
        )?;
        let file = directory.join("containerd.toml");
        fs::write(&file, configuration(directory, &socket, &plugins, runtime)?)?;
        let mut containerd = sandbox.command(assets::path("containerd")?);
        containerd.arg("--config").arg(file);
        let this = Self {
            socket,
            _process: Process::start("containerd", directory, containerd)?,
        };
        this._process
            .wait_until("containerd to answer", START, || {
                this.ctr(sandbox, &["version"]).map(Some)
            })?;
        Ok(this)
    }

    /// Imports the images of an OCI or Docker archive. Pods refer to them by their names, with an
    /// `imagePullPolicy` other than `Always`.
    pub(super) fn import(&self, sandbox: &Sandbox, archive: &Path, flags: &[&str]) -> Result<()> {
        let archive = archive.to_string_lossy();
        // Unpacked as the kubelet's containers expect it.
        let import = ["images", "import", "--local", "--snapshotter", "native"];
        self.ctr(sandbox, &[&import[..], flags, &[&archive]].concat())
    }

    fn ctr(&self, sandbox: &Sandbox, arguments: &[&str]) -> Result<()> {
        let mut ctr = sandbox.command(assets::path("ctr")?);
        ctr.arg("--address").arg(&self.socket);
        let output = feed(ctr.args(["--namespace", "k8s.io"]).args(arguments), "")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "ctr {}: {said}",
            arguments.join(" ")
        );
        Ok(())
    }
}

fn configuration(
    directory: &Path,
    socket: &Path,
    plugins: &Path,
    runtime: &Path,
) -> Result<String> {
    let directory = directory.display();
    Ok(format!(
        r#"version = 4
root = "{directory}/containerd"
state = "{directory}/containerd-state"

[plugins."io.containerd.server.v1.grpc"]
address = "{socket}"

[plugins."io.containerd.server.v1.ttrpc"]
address = "{socket}.ttrpc"

[plugins."io.containerd.internal.v1.opt"]
path = "{directory}/opt"

[plugins."io.containerd.nri.v1.nri"]
disable = true

[plugins."io.containerd.cri.v1.images"]
# Copies instead of overlays, which some file systems cannot hold.
snapshotter = "native"

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{pause}"

[plugins."io.containerd.cri.v1.runtime"]
cdi_spec_dirs = ["{directory}/{CDI}"]
# Where it may not lower the scores, a container starts nevertheless.
restrict_oom_score_adj = true
# A loaded profile stays in the kernel.
disable_apparmor = true

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
runtime_path = "{shim}"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.{HANDLER}]
runtime_type = "io.containerd.runc.v2"
runtime_path = "{shim}"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.{HANDLER}.options]
BinaryName = "{runtime}"

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{binaries}"]
conf_dir = "{plugins}"
"#,
        socket = socket.display(),
        pause = images::PAUSE,
        shim = assets::path("containerd-shim-runc-v2")?.display(),
        binaries = machine::cni()?.display(),
        plugins = plugins.display(),
        runtime = runtime.display(),
    ))
}

/// Each pod has a wire to the node, which routes: between the ports of a bridge, packets would go
/// past the rules of kube-proxy, unless a kernel module is loaded.
fn pod_network(network: Network, directory: &Path) -> String {
    let addresses = json!({
        "type": "host-local",
        "dataDir": directory.join("cni-addresses"),
        "ranges": [[{"subnet": network.pods()}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    });
    let list = json!({
        "cniVersion": "0.4.0",
        "name": "lab",
        "plugins": [
            {"type": "ptp", "ipam": addresses},
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    });
    list.to_string()
}
