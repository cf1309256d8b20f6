//! A real node: kubelet, containerd, kube-proxy and a device plugin, or a DRA driver, run pods with
//! simulated GPUs.
//!
//! It lives in namespaces of its own, so that two can run at once and nothing of it is left on the
//! machine: the kernel ends all of it with this process, however that ends. What the kernel
//! keeps, the cgroups, is removed with the working directory.

use std::{
    ffi::OsString,
    fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::{
    assets, controlplane::ControlPlane, device_plugin::DevicePlugin, kubectl::Kubectl, nvml,
    process::Process, wait::wait_until, workdir,
};

mod cgroup;
mod containerd;
mod device_manager;
mod dra;
mod driver;
mod images;
mod kubelet;
mod machine;
mod network;
mod node;
mod plugin;
mod sandbox;

pub use device_manager::{Allocations, Step, allocate};
pub use dra::DriverEvent;
pub use node::LabNode;
pub use plugin::{Allocator, Choice, Shares, VendorPlugin};

use cgroup::Cgroup;
use containerd::Containerd;
use kubelet::Programs;
use network::Network;
use node::Devices;
use plugin::Plugin;
use sandbox::Sandbox;

const START: Duration = Duration::from_secs(60);

/// A running node. It ends when dropped, and its Node object is deleted.
#[derive(Debug)]
pub struct Lab {
    name: String,
    kubectl: Kubectl,
    network: Network,
    recording: Value,
    programs: Programs,
    vendor: Vendor,
    /// What stands between the kubelet and the device plugin.
    between: Mutex<Option<DevicePlugin>>,
    plugin: Mutex<Running>,
    driver: Option<dra::Driver>,
    // Dropped in this order: the clients before the servers, then the namespaces.
    kubelet: Mutex<Option<Process>>,
    _proxy: Process,
    containerd: Containerd,
    sandbox: Sandbox,
    _gone: Gone,
    _cgroup: Cgroup,
    _runtime: Runtime,
}

/// The directories of sockets of a node's device plugin.
#[derive(Debug)]
struct Vendor {
    /// The kubelet's.
    kubelet: PathBuf,
    /// Where the plugin registers: with the kubelet, or with what stands between.
    directory: PathBuf,
    source: String,
    environment: Option<(&'static str, OsString)>,
    node: String,
    /// Where to label the node.
    kubeconfig: Option<PathBuf>,
    plugin: Plugin,
}

/// The device plugin of a node, and how many watches the earlier ones had.
#[derive(Debug, Default)]
struct Running {
    plugin: Option<VendorPlugin>,
    earlier: usize,
}

impl Running {
    fn watches(&self) -> usize {
        self.earlier + self.plugin.as_ref().map_or(0, VendorPlugin::watches)
    }
}

impl Vendor {
    fn new(node: &LabNode, directory: &Path, kubeconfig: Option<&Path>) -> Self {
        let kubelet = directory.join("kubelet/device-plugins");
        let simulated = || (format!("sim:{}", node.profile), None);
        let machine = node.machine.clone();
        let (source, environment) = machine.map_or_else(simulated, |(source, environment)| {
            (source, Some(environment))
        });
        Self {
            directory: match node.devices {
                Devices::Preferred => directory.join("vendor"),
                Devices::Plugin | Devices::Claimed => kubelet.clone(),
            },
            kubelet,
            source,
            environment,
            node: node.name.clone(),
            kubeconfig: kubeconfig.map(Path::to_owned),
            plugin: Plugin::new(node.choice, node.shares),
        }
    }

    fn start_between(&self) -> Result<Option<DevicePlugin>> {
        if self.directory == self.kubelet {
            return Ok(None);
        }
        let source = ["--source", &self.source, "--node-name", &self.node];
        let publish: &[&str] = match self.kubeconfig {
            Some(_) => &["--publish"],
            None => &[],
        };
        let nowhere = Path::new("/dev/null");
        let kubeconfig = self.kubeconfig.as_deref().unwrap_or(nowhere);
        let arguments = [&source[..], publish].concat();
        let directories = (&*self.kubelet, &*self.directory);
        let environment = self.environment.as_slice();
        DevicePlugin::start(directories, kubeconfig, environment, &arguments).map(Some)
    }
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
        let vendor = Vendor::new(node, &directory, Some(control_plane.kubeconfig()));
        let between = vendor.start_between()?;
        let claimed = node.devices == Devices::Claimed;
        let plugin = || {
            fs::create_dir_all(&vendor.directory)?;
            vendor.plugin.start(&vendor.directory, &recording)
        };
        let plugin = (!claimed).then(plugin).transpose()?;
        let board = (&*directory, &recording);
        let drive = || dra::Driver::start(&sandbox, network, board, &node.flags, control_plane);
        let driver = claimed.then(drive).transpose()?;
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
            vendor,
            between: Mutex::new(between),
            plugin: Mutex::new(Running { plugin, earlier: 0 }),
            driver,
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

    /// Returns the name of its interface on this machine, with which that of its cgroup begins.
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

    /// Returns what stands between the kubelet and the device plugin, if the node has it and it was
    /// not killed.
    pub fn between(&self) -> MutexGuard<'_, Option<DevicePlugin>> {
        self.between.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Kills what stands between the kubelet and the device plugin.
    pub fn stop_between(&self) {
        drop(self.between().take());
    }

    /// Starts what stands between the kubelet and the device plugin again.
    ///
    /// # Errors
    /// When it does not come up; shows the end of its log.
    pub fn start_between(&self) -> Result<()> {
        *self.between() = self.vendor.start_between()?;
        Ok(())
    }

    /// Kills the kubelet. Its containers go on.
    ///
    /// # Errors
    /// When it does not end.
    pub fn stop_kubelet(&self) -> Result<()> {
        match self.lock_kubelet().take() {
            Some(kubelet) => kubelet.kill_with_children(),
            None => Ok(()),
        }
    }

    /// Starts the kubelet again.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn restart_kubelet(&self) -> Result<()> {
        *self.lock_kubelet() = Some(self.programs.start_kubelet(&self.sandbox)?);
        Ok(())
    }

    /// Waits for what the kubelet does.
    ///
    /// # Errors
    /// When the kubelet ends or the deadline passes; shows the end of its log.
    pub fn wait_for_kubelet<T>(
        &self,
        what: &str,
        limit: Duration,
        probe: impl FnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        let kubelet = self.lock_kubelet();
        let kubelet = kubelet.as_ref().context("the kubelet does not run")?;
        kubelet.wait_until(what, limit, probe)
    }

    /// Kills the device plugin.
    pub fn stop_vendor(&self) {
        let mut running = self.plugin();
        running.earlier = running.watches();
        drop(running.plugin.take());
    }

    /// Starts the device plugin again.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_vendor(&self) -> Result<()> {
        self.start_vendor_in(&self.vendor.directory)
    }

    /// Starts the device plugin again, with another directory of sockets. The node's
    /// `/var/lib/kubelet` is the parent of the kubelet's, [`Lab::plugin_directories`].
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_vendor_in(&self, directory: &Path) -> Result<()> {
        let plugin = self.vendor.plugin.start(directory, &self.recording)?;
        self.plugin().plugin = Some(plugin);
        Ok(())
    }

    /// Starts another device plugin with the same devices.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_other_vendor(&self, resource: &str, socket: &str) -> Result<VendorPlugin> {
        let plugin = self.vendor.plugin.clone().named(resource, socket);
        plugin.start(&self.vendor.directory, &self.recording)
    }

    /// Returns the directories of sockets: the kubelet's, and the one in which the device plugin
    /// registers.
    #[must_use]
    pub fn plugin_directories(&self) -> (&Path, &Path) {
        (&self.vendor.kubelet, &self.vendor.directory)
    }

    fn plugin(&self) -> MutexGuard<'_, Running> {
        self.plugin.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the node offers so many devices of a resource.
    ///
    /// # Errors
    /// When it does not.
    pub fn wait_for_devices(&self, resource: &str, devices: usize) -> Result<()> {
        wait_until(&format!("{devices} of {resource}"), START, || {
            let node = self.kubectl.get(&["node", &self.name])?;
            let offered = node["status"]["allocatable"][resource].as_str();
            ensure!(offered == Some(&devices.to_string()), "{offered:?}");
            Ok(Some(()))
        })
    }

    /// Starts the kubelet again, and waits until it knows the GPUs.
    ///
    /// # Errors
    /// When it does not come back; shows the end of its log.
    pub fn start_kubelet(&self) -> Result<()> {
        let before = self.registrations();
        self.restart_kubelet()?;
        self.wait_until_ready(before)
    }

    /// Returns how often a kubelet has got to know the GPUs, from what stands between since it started,
    /// or else from the device plugin.
    pub fn registrations(&self) -> usize {
        match &*self.between() {
            Some(between) => {
                let series =
                    "nvlink_device_plugin_registrations_total{resource=\"nvidia.com/gpu\"}";
                between.metric(series).unwrap_or_default() as usize
            }
            None => self.plugin().watches(),
        }
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
        self.wait_for_kubelet("the node to be ready", START, || {
            let node = self.kubectl.get(&["node", &self.name])?;
            let conditions = node["status"]["conditions"]
                .as_array()
                .into_iter()
                .flatten();
            let ready = { conditions }.any(|one| one["type"] == "Ready" && one["status"] == "True");
            ensure!(ready, "{:#}", node["status"]["conditions"]);
            Ok(Some(()))
        })?;
        if let Some(driver) = &self.driver {
            return driver.wait_until_published(&self.kubectl);
        }
        self.wait_for_kubelet("the kubelet to know the device plugin", START, || {
            Ok((self.registrations() > before).then_some(()))
        })?;
        let gpus = self.recording["spec"]["gpus"].as_array();
        self.wait_for_devices("nvidia.com/gpu", gpus.map_or(0, Vec::len))
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        // Its namespaces end it in any case.
        let _ = self.stop_kubelet();
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
