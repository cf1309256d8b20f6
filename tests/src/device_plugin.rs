//! Runs `nvlink-exporter device-plugin`.

use std::{ffi::OsString, path::Path, time::Duration};

use anyhow::Result;

use crate::{
    http, port,
    process::{Process, command},
    programs, workdir,
};

const START: Duration = Duration::from_secs(30);

/// A process that stands between a kubelet and a device plugin. It is killed when dropped.
#[derive(Debug)]
pub struct DevicePlugin {
    /// `127.0.0.1:PORT`, of its metrics.
    pub address: String,
    pub process: Process,
}

impl DevicePlugin {
    /// Starts `nvlink-exporter device-plugin ARGUMENTS` between two directories of sockets, the
    /// kubelet's and the vendor's, and waits until device plugins can register.
    ///
    /// # Errors
    /// When it does not become ready; shows the end of its log.
    pub fn start(
        (kubelet, vendor): (&Path, &Path),
        kubeconfig: &Path,
        environment: &[(&str, OsString)],
        arguments: &[&str],
    ) -> Result<Self> {
        let address = format!("127.0.0.1:{}", port::free()?);
        let mut program = command(programs::path(programs::EXPORTER)?);
        program
            .args(["device-plugin", "--web.listen-address", &address])
            .arg("--kubelet-plugins")
            .arg(kubelet)
            .arg("--vendor-plugins")
            .arg(vendor)
            .args(arguments)
            .env("KUBECONFIG", kubeconfig)
            .envs(environment.iter().map(|(name, value)| (name, value)));
        let directory = workdir::fresh("device-plugin")?;
        let process = Process::start("nvlink-exporter device-plugin", &directory, program)?;
        let this = Self { address, process };
        this.process
            .wait_until("the device plugin to be ready", START, || {
                http::text(&format!("http://{}/readyz", this.address)).map(Some)
            })?;
        Ok(this)
    }

    /// Returns its metrics.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn metrics(&self) -> Result<String> {
        http::text(&format!("http://{}/metrics", self.address))
    }

    /// Returns the value of a series, `NAME{LABELS}`; 0 where there is none yet.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn metric(&self, series: &str) -> Result<f64> {
        let text = self.metrics()?;
        let line = text.lines().find_map(|line| line.strip_prefix(series));
        Ok(line.map_or(0.0, |value| value.trim().parse().unwrap_or(f64::NAN)))
    }
}
