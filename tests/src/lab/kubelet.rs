//! The kubelet and kube-proxy of the node.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Result;
use serde_json::{Value, json};

use super::{cgroup, containerd::Containerd, network::Network, sandbox::Sandbox};
use crate::{assets, controlplane::ControlPlane, process::Process};

/// What both programs need to know.
#[derive(Debug)]
pub(super) struct Programs {
    directory: PathBuf,
    /// The name of the Node.
    node: String,
    network: Network,
}

impl Programs {
    /// Writes the files of both programs into `directory`.
    pub(super) fn new(
        directory: &Path,
        node: &str,
        network: Network,
        containerd: &Containerd,
        control_plane: &ControlPlane,
    ) -> Result<Self> {
        let this = Self {
            directory: directory.to_owned(),
            node: node.to_owned(),
            network,
        };
        let url = format!("https://{}:{}", network.machine(), control_plane.port());
        let users: [(&str, String, &[&str]); 2] = [
            ("kubelet", format!("system:node:{node}"), &["system:nodes"]),
            ("kube-proxy", "system:kube-proxy".to_owned(), &[]),
        ];
        for (program, user, groups) in users {
            let path = this.file(program, "kubeconfig");
            control_plane.write_kubeconfig_at(&url, &path, &user, groups)?;
        }
        let kubelet = this.kubelet_configuration(containerd, control_plane);
        fs::write(this.file("kubelet", "json"), kubelet.to_string())?;
        let proxy = this.proxy_configuration();
        fs::write(this.file("kube-proxy", "json"), proxy.to_string())?;
        Ok(this)
    }

    /// Returns the socket on which the kubelet tells who holds which devices.
    pub(super) fn pod_resources(&self) -> PathBuf {
        self.directory.join("kubelet/pod-resources/kubelet.sock")
    }

    pub(super) fn start_kubelet(&self, sandbox: &Sandbox) -> Result<Process> {
        let mut kubelet = sandbox.command(assets::path("kubelet")?);
        kubelet.arg("--config").arg(self.file("kubelet", "json"));
        kubelet
            .arg("--kubeconfig")
            .arg(self.file("kubelet", "kubeconfig"));
        kubelet.args(["--hostname-override", &self.node]);
        kubelet.args(["--node-ip", &self.network.node().to_string()]);
        Process::start("kubelet", &self.directory, kubelet)
    }

    pub(super) fn start_proxy(&self, sandbox: &Sandbox) -> Result<Process> {
        let mut proxy = sandbox.command(assets::path("kube-proxy")?);
        proxy.arg("--config").arg(self.file("kube-proxy", "json"));
        Process::start("kube-proxy", &self.directory, proxy)
    }

    fn file(&self, program: &str, extension: &str) -> PathBuf {
        self.directory.join(format!("{program}.{extension}"))
    }

    fn kubelet_configuration(
        &self,
        containerd: &Containerd,
        control_plane: &ControlPlane,
    ) -> Value {
        json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": format!("unix://{}", containerd.socket.display()),
            "volumePluginDir": self.directory.join("volume-plugins"),
            "podLogsDir": self.directory.join("pod-logs"),
            "resolvConf": "", // no names are resolved
            "authentication": {
                "anonymous": {"enabled": false},
                "webhook": {"enabled": false},
                "x509": {"clientCAFile": control_plane.authority()},
            },
            // Only the API server has a certificate.
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": format!("/{}", cgroup::name(&self.network.name())),
            "enforceNodeAllocatable": [],
            "failCgroupV1": false,
            "failSwapOn": false,
            "localStorageCapacityIsolation": false,
            // The disk of the machine may be nearly full.
            "evictionHard": {
                "memory.available": "1Ki", "nodefs.available": "0%",
                "nodefs.inodesFree": "0%", "imagefs.available": "0%",
            },
            "imageGCHighThresholdPercent": 100,
            "nodeStatusUpdateFrequency": "2s",
        })
    }

    fn proxy_configuration(&self) -> Value {
        json!({
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": self.file("kube-proxy", "kubeconfig")},
            "hostnameOverride": self.node,
            "mode": "iptables",
            "clusterCIDR": self.network.pods(),
            // The limits belong to the machine.
            "conntrack": {"maxPerCore": 0},
        })
    }
}
