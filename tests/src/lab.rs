//! A real node: kubelet, containerd, kube-proxy and a device plugin run pods with simulated GPUs.
//!
//! It lives in namespaces of its own, so that two can run at once and nothing of it is left on the
//! machine: the kernel ends all of it with this process, however that ends. What the kernel
//! keeps, the cgroups, is removed with the working directory.

use std::{
    net::Ipv4Addr,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::{
    assets, controlplane::ControlPlane, kubectl::Kubectl, nvml, process::Process, wait::wait_until,
    workdir,
};

mod cgroup;
mod containerd;
mod driver;
mod images;
mod kubelet;
mod machine;
mod network;
mod plugin;
mod sandbox;

pub use plugin::Choice;

use cgroup::Cgroup;
use containerd::Containerd;
use kubelet::Programs;
use network::Network;
use plugin::{Plugin, Watches};
use sandbox::Sandbox;

const START: Duration = Duration::from_secs(60);

/// Which node to start.
#[derive(Clone, Debug)]
pub struct LabNode {
    name: String,
    profile: String,
    choice: Choice,
}

impl LabNode {
    /// Describes a node with the GPUs of a profile of the simulator, such as `dgx-h100`.
    #[must_use]
    pub fn new(name: impl Into<String>, profile: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            profile: profile.into(),
            choice: Choice::default(),
        }
    }

    /// Sets how its device plugin chooses among the free GPUs.
    #[must_use]
    pub fn choosing(mut self, choice: Choice) -> Self {
        self.choice = choice;
        self
    }
}

/// A running node. It ends when dropped, and its Node object is deleted.
#[derive(Debug)]
pub struct Lab {
    name: String,
    kubectl: Kubectl,
    network: Network,
    recording: Value,
    programs: Programs,
    watches: Watches,
    // Dropped in this order: the clients before the servers, then the namespaces.
    kubelet: Mutex<Option<Process>>,
    _proxy: Process,
    containerd: Containerd,
    sandbox: Sandbox,
    _gone: Gone,
    _cgroup: Cgroup,
    _runtime: Runtime,
}

/// Waits when it is dropped until the kernel has removed the node's interface.
#[derive(Debug)]
struct Gone(Network);

impl Lab {
    /// Checks that this machine can run a node.
    ///
    /// # Errors
    /// When it cannot: one sentence that says why, and what to do.
    pub fn check() -> Result<()> {
        machine::check()
    }

    /// Starts a node, and waits until it is ready and offers its GPUs. The control plane must be
    /// one of [`ControlPlane::start_for_kubelets`].
    ///
    /// # Errors
    /// When this machine cannot run a node, or a part does not come up; shows the end of its log.
    pub fn start(control_plane: &ControlPlane, node: &LabNode) -> Result<Self> {
        assets::build_node()?;
        machine::check()?;
        ensure!(
            control_plane.is_for_kubelets(),
            "this control plane is not for kubelets: start it with `start_for_kubelets`"
        );
        let recording = nvml::recording_of(&node.profile, &node.name)?;
        let directory = workdir::fresh("lab")?;
        let sandbox = Sandbox::start(&directory)?;
        let network = Network::new(sandbox.number);
        let cgroup = Cgroup::create(&network.name(), &directory)?;
        network.connect()?;
        let runtime = runtime()?;
        network.forward(&runtime, control_plane.port())?;
        let plugins = directory.join("kubelet/device-plugins");
        let plugin = Plugin::new(&plugins, &recording, node.choice);
        let watches = plugin.watches();
        runtime.spawn(plugin.run());

        let nvidia = driver::write(&directory, &recording)?;
        let containerd = Containerd::start(&sandbox, network, &directory, &nvidia)?;
        containerd.import(&sandbox, &images::write(&directory)?, &[])?;
        let programs = Programs::new(&directory, &node.name, network, &containerd, control_plane)?;
        let this = Self {
            kubelet: Mutex::new(Some(programs.start_kubelet(&sandbox)?)),
            _proxy: programs.start_proxy(&sandbox)?,
            name: node.name.clone(),
            kubectl: control_plane.kubectl().clone(),
            network,
            recording,
            programs,
            watches,
            containerd,
            sandbox,
            _gone: Gone(network),
            _cgroup: cgroup,
            _runtime: runtime,
        };
        this.publish_api_server(control_plane.port())?;
        this.wait_until_ready(0)?;
        Ok(this)
    }

    /// Returns the name of its Node object.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns its address, which this process can reach, as it can the addresses of its pods.
    #[must_use]
    pub fn address(&self) -> Ipv4Addr {
        self.network.node()
    }

    /// Returns the name of its interface on this machine, and of its cgroup.
    #[must_use]
    pub fn interface(&self) -> String {
        self.network.name()
    }

    /// Returns what `nvlink-exporter record` writes about it: the GPUs that the device plugin
    /// serves. An exporter with `--source sim:PROFILE --node-name NAME` sees the same.
    #[must_use]
    pub fn recording(&self) -> &Value {
        &self.recording
    }

    /// Returns the kubelet's socket of the pod resources API.
    #[must_use]
    pub fn pod_resources(&self) -> PathBuf {
        self.programs.pod_resources()
    }

    /// Imports the image of an OCI archive, which has its tag, as `repository`. Pods name it with an
    /// `imagePullPolicy` other than `Always`.
    ///
    /// # Errors
    /// When containerd refuses the archive.
    pub fn import(&self, archive: &Path, repository: &str) -> Result<()> {
        let flags = ["--base-name", repository];
        self.containerd.import(&self.sandbox, archive, &flags)
    }

    /// Kills the kubelet. Its containers go on.
    pub fn stop_kubelet(&self) {
        drop(self.lock_kubelet().take());
    }

    /// Starts the kubelet again, and waits until it knows the GPUs.
    ///
    /// # Errors
    /// When it does not come back; shows the end of its log.
    pub fn start_kubelet(&self) -> Result<()> {
        let before = self.watches.count();
        *self.lock_kubelet() = Some(self.programs.start_kubelet(&self.sandbox)?);
        self.wait_until_ready(before)
    }

    fn lock_kubelet(&self) -> MutexGuard<'_, Option<Process>> {
        self.kubelet.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes where programs in pods reach the API server.
    fn publish_api_server(&self, port: u16) -> Result<()> {
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": self.network.name(),
                "namespace": "default",
                "labels": {"kubernetes.io/service-name": "kubernetes"},
            },
            "addressType": "IPv4",
            "ports": [{"name": "https", "port": port}],
            "endpoints": [{"addresses": [self.network.machine()]}],
        });
        self.kubectl.apply(&slice.to_string()).map(drop)
    }

    /// Waits for the kubelet after the one that was the `before`th to watch the devices. Its Node
    /// object may still say what that one knew.
    fn wait_until_ready(&self, before: usize) -> Result<()> {
        let kubelet = self.lock_kubelet();
        let kubelet = kubelet.as_ref().context("the kubelet does not run")?;
        let gpus = self.recording["spec"]["gpus"].as_array();
        let gpus = gpus.map_or(0, Vec::len).to_string();
        kubelet.wait_until("the node to be ready with its GPUs", START, || {
            let node = self.kubectl.get(&["node", &self.name])?;
            let conditions = node["status"]["conditions"]
                .as_array()
                .into_iter()
                .flatten();
            let ready = { conditions }.any(|one| one["type"] == "Ready" && one["status"] == "True");
            let offered = node["status"]["allocatable"]["nvidia.com/gpu"].as_str();
            ensure!(
                self.watches.count() > before,
                "the kubelet does not know the device plugin yet"
            );
            ensure!(
                ready && offered == Some(&gpus),
                "ready: {ready}, GPUs: {offered:?}"
            );
            Ok(Some(()))
        })
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.stop_kubelet();
        // Other nodes would lead pods to the way to the API server that ends with this node.
        let slice = format!("endpointslice/{}", self.network.name());
        let node = format!("node/{}", self.name);
        // The control plane may have ended before.
        let _ = self.kubectl.run(&["delete", "--wait=false", &slice, &node]);
    }
}

impl Drop for Gone {
    fn drop(&mut self) {
        let interface = Path::new("/sys/class/net").join(self.0.name());
        let gone = || Ok((!interface.exists()).then_some(()));
        // Nobody can do more than the kernel does.
        let _ = wait_until("the interface to be removed", START, gone);
    }
}

fn runtime() -> Result<Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    Ok(builder.worker_threads(1).enable_all().build()?)
}
