//! `nvlink-exporter serve`, running.

use std::{
    ffi::{OsStr, OsString},
    path::Path,
    time::Duration,
};

use anyhow::Result;

use crate::{
    http, port,
    process::{Process, command},
    programs, workdir,
};

const START: Duration = Duration::from_secs(30);

/// A running exporter; gone when dropped.
#[derive(Debug)]
pub struct Exporter {
    /// `127.0.0.1:PORT`.
    pub address: String,
    pub process: Process,
}

impl Exporter {
    /// Starts `nvlink-exporter serve ARGUMENTS` on a free port and waits until it is ready.
    ///
    /// # Errors
    /// When it does not become ready; shows the end of its log.
    pub fn start(arguments: &[&str]) -> Result<Self> {
        Self::launch(arguments, None)
    }

    /// The same, with access to a cluster: what it publishes goes there.
    ///
    /// # Errors
    /// When it does not become ready; shows the end of its log.
    pub fn publishing(kubeconfig: &Path, node: &str, arguments: &[&str]) -> Result<Self> {
        let publish = ["--publish", "--node-name", node];
        Self::launch(&[&publish, arguments].concat(), Some(kubeconfig))
    }

    /// Starts it with variables of its own, and waits until it answers at all:
    /// for sources that may never become ready.
    ///
    /// # Errors
    /// When it does not answer; shows the end of its log.
    pub fn with_environment(environment: &[(&str, OsString)], arguments: &[&str]) -> Result<Self> {
        let this = Self::spawn(arguments, None, environment)?;
        this.process
            .wait_until("the exporter to answer", START, || {
                http::text(&this.url("/livez")).map(Some)
            })?;
        Ok(this)
    }

    /// The same, for one that lets only those in who can prove themselves:
    /// waits until it says that it serves.
    ///
    /// # Errors
    /// When it does not say so; shows the end of its log.
    pub fn guarded(arguments: &[&str]) -> Result<Self> {
        let this = Self::spawn(arguments, None, &[])?;
        this.process
            .wait_until("the exporter to serve", START, || {
                Ok(this.process.log().contains("serving").then_some(()))
            })?;
        Ok(this)
    }

    fn launch(arguments: &[&str], kubeconfig: Option<&Path>) -> Result<Self> {
        let this = Self::spawn(arguments, kubeconfig, &[])?;
        this.process
            .wait_until("the exporter to be ready", START, || {
                http::text(&this.url("/readyz")).map(Some)
            })?;
        Ok(this)
    }

    fn spawn(
        arguments: &[&str],
        kubeconfig: Option<&Path>,
        environment: &[(&str, OsString)],
    ) -> Result<Self> {
        let address = format!("127.0.0.1:{}", port::free()?);
        let mut exporter = command(programs::path(programs::EXPORTER)?);
        exporter
            .args(["serve", "--web.listen-address", &address])
            .args(arguments);
        // Never the user's own cluster.
        exporter.env(
            "KUBECONFIG",
            kubeconfig.map_or(OsStr::new("/dev/null"), Path::as_os_str),
        );
        for (name, value) in environment {
            exporter.env(name, value);
        }
        let process = Process::start("nvlink-exporter", &workdir::fresh("exporter")?, exporter)?;
        Ok(Self { address, process })
    }

    /// The address of a page of it.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// What a scrape gets.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn metrics(&self) -> Result<String> {
        http::text(&self.url("/metrics"))
    }
}
