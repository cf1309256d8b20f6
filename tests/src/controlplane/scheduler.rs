//! kube-scheduler with a configuration file.

use std::fs;

use anyhow::{Context, Result, ensure};

use super::ControlPlane;
use crate::{
    assets,
    process::{Process, command},
};

/// The file that names the API server, in configurations as on a node of kubeadm.
const KUBECONFIG: &str = "/etc/kubernetes/scheduler.conf";

impl ControlPlane {
    /// Replaces the scheduler by one with a KubeSchedulerConfiguration, which names the
    /// kubeconfig as on a node of kubeadm.
    ///
    /// # Errors
    /// When the scheduler does not start.
    pub fn configure_scheduler(&mut self, configuration: &str) -> Result<()> {
        let kubeconfig = self.directory.join("scheduler.kubeconfig");
        ensure!(
            configuration.contains(KUBECONFIG),
            "it names no {KUBECONFIG}"
        );
        let configuration = configuration.replace(KUBECONFIG, &kubeconfig.to_string_lossy());
        let file = self.directory.join("scheduler.yaml");
        fs::write(&file, configuration)?;
        let mut scheduler = command(assets::path("kube-scheduler")?);
        scheduler.arg("--config").arg(file);
        scheduler.args(["--leader-elect=false", "--secure-port=0"]);
        let new = Process::start("kube-scheduler-configured", &self.directory, scheduler)?;
        // The old one ends here.
        self.scheduler = Some(new);
        Ok(())
    }

    /// Ends the scheduler.
    pub fn stop_scheduler(&mut self) {
        self.scheduler = None;
    }

    /// Starts the scheduler again. Before it binds a pod, it has read all that is in the API.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_scheduler(&mut self) -> Result<()> {
        let new = self.start_client("kube-scheduler", "scheduler", &[])?;
        self.scheduler = Some(new);
        Ok(())
    }

    /// Returns an error with the end of the scheduler's log if it has ended.
    ///
    /// # Errors
    /// When it has ended.
    pub fn check_scheduler(&self) -> Result<()> {
        let scheduler = self.scheduler.as_ref().context("no scheduler runs")?;
        scheduler.check_running()
    }
}
