//! Runs `nvlink-exporter serve`.

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

/// A running exporter. It ends when dropped.
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

    /// Starts an exporter that publishes to the cluster of `kubeconfig`, and waits until it is
    /// ready.
    ///
    /// # Errors
    /// When it does not become ready; shows the end of its log.
    pub fn publishing(kubeconfig: &Path, node: &str, arguments: &[&str]) -> Result<Self> {
        let publish = ["--publish", "--node-name", node];
        Self::launch(&[&publish, arguments].concat(), Some(kubeconfig))
    }

    /// Starts an exporter with additional environment variables, and waits until it answers
    /// requests: for sources that may never become ready.
    ///
    /// # Errors
    /// When it does not answer; shows the end of its log.
    pub fn with_environment(environment: &[(&str, OsString)], arguments: &[&str]) -> Result<Self> {
        Self::of(&programs::path(programs::EXPORTER)?, environment, arguments)
    }

    /// Does the same with another `program`, such as one of a [`crate::Foreign`].
    ///
    /// # Errors
    /// As [`Exporter::with_environment`].
    pub fn of(
        program: &Path,
        environment: &[(&str, OsString)],
        arguments: &[&str],
    ) -> Result<Self> {
        let this = Self::spawn(program, arguments, None, environment)?;
        this.process
            .wait_until("the exporter to answer", START, || {
                http::text(&this.url("/livez")).map(Some)
            })?;
        Ok(this)
    }

    /// Starts an exporter that requires authentication, and waits until it logs that it serves.
    ///
    /// # Errors
    /// When it does not log that; shows the end of its log.
    pub fn guarded(arguments: &[&str]) -> Result<Self> {
        let program = programs::path(programs::EXPORTER)?;
        let this = Self::spawn(&program, arguments, None, &[])?;
        this.process
            .wait_until("the exporter to serve", START, || {
                Ok(this.process.log().contains("serving").then_some(()))
            })?;
        Ok(this)
    }

    fn launch(arguments: &[&str], kubeconfig: Option<&Path>) -> Result<Self> {
        let program = programs::path(programs::EXPORTER)?;
        let this = Self::spawn(&program, arguments, kubeconfig, &[])?;
        this.process
            .wait_until("the exporter to be ready", START, || {
                http::text(&this.url("/readyz")).map(Some)
            })?;
        Ok(this)
    }

    fn spawn(
        program: &Path,
        arguments: &[&str],
        kubeconfig: Option<&Path>,
        environment: &[(&str, OsString)],
    ) -> Result<Self> {
        let address = format!("127.0.0.1:{}", port::free()?);
        let mut exporter = command(program);
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

    /// Returns the URL of `path` on this exporter.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Returns the text of a scrape.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn metrics(&self) -> Result<String> {
        http::text(&self.url("/metrics"))
    }
}
