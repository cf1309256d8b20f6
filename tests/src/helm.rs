//! Runs helm on the project's chart.

use std::{
    path::PathBuf,
    process::{Command, Output},
};

use anyhow::{Context, Result, bail};

use crate::{assets, kubectl::Kubectl, process::feed, workdir};

/// The chart's directory.
pub const CHART: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../deploy/charts/nvlink-domains"
);
/// The registry of the images, which the chart requires and README names.
pub const REGISTRY: &str = "registry.example.com/gpu";
/// The release, and the namespace into which it is installed.
const RELEASE: [&str; 3] = ["nvlink-domains", "--namespace", "nvlink-system"];

/// helm with a home of its own, and with a cluster if it was given one.
#[derive(Debug)]
pub struct Helm {
    program: PathBuf,
    home: PathBuf,
    kubeconfig: PathBuf,
}

impl Helm {
    /// Returns helm without a cluster. Builds it first if it was never built on this machine.
    ///
    /// # Errors
    /// When it cannot be built.
    pub fn new() -> Result<Self> {
        Ok(Self {
            program: assets::helm()?,
            home: workdir::fresh("helm")?,
            kubeconfig: "/dev/null".into(), // never the user's own cluster
        })
    }

    /// Returns helm for the cluster and the user of `kubectl`.
    ///
    /// # Errors
    /// When it cannot be built.
    pub fn on(kubectl: &Kubectl) -> Result<Self> {
        let kubeconfig = kubectl.kubeconfig().to_owned();
        Ok(Self {
            kubeconfig,
            ..Self::new()?
        })
    }

    /// Runs `helm ARGUMENTS` with `values` on standard input. Accepts any exit status.
    ///
    /// # Errors
    /// When helm cannot be run.
    pub fn output(&self, arguments: &[&str], values: &str) -> Result<Output> {
        let mut helm = Command::new(&self.program);
        for name in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
            helm.env(name, &self.home);
        }
        helm.env("KUBECONFIG", &self.kubeconfig);
        feed(helm.args(arguments), values).context("cannot run helm")
    }

    /// Runs `helm ARGUMENTS` with `values` on standard input and returns its standard output.
    ///
    /// # Errors
    /// When it fails, with its standard error.
    pub fn run(&self, arguments: &[&str], values: &str) -> Result<String> {
        let output = self.output(arguments, values)?;
        let said = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            bail!("helm {}: {}", arguments.join(" "), said.trim_end());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs `helm COMMAND RELEASE CHART` with `values` (YAML) and the registry, and returns its standard
    /// output; `template`, `install` and `upgrade` are such commands.
    ///
    /// # Errors
    /// When it fails, with its standard error.
    pub fn release(&self, command: &str, values: &str, flags: &[&str]) -> Result<String> {
        let registry = Self::registry();
        self.without_registry(
            command,
            values,
            &[&["--set", &*registry][..], flags].concat(),
        )
    }

    /// Does the same without a registry.
    ///
    /// # Errors
    /// When it fails, with its standard error.
    pub fn without_registry(&self, command: &str, values: &str, flags: &[&str]) -> Result<String> {
        let chart = [CHART, "--values", "-"];
        let [name, place @ ..] = RELEASE;
        let arguments = [&[command, name], &chart[..], &place, flags].concat();
        self.run(&arguments, values)
    }

    /// Returns what the flag `--set` sets, so that the chart can be rendered.
    #[must_use]
    pub fn registry() -> String {
        format!("global.registry={REGISTRY}")
    }

    /// Runs `helm COMMAND RELEASE`, such as `uninstall`, and returns its standard output.
    ///
    /// # Errors
    /// When it fails, with its standard error.
    pub fn on_release(&self, command: &str, flags: &[&str]) -> Result<String> {
        let [name, place @ ..] = RELEASE;
        self.run(&[&[command, name], &place[..], flags].concat(), "")
    }

    /// Returns the objects of one template of the chart, such as `webhook/rbac.yaml`.
    ///
    /// # Errors
    /// When the template does not exist, or renders nothing.
    pub fn template(&self, template: &str, values: &str) -> Result<String> {
        let path = format!("templates/{template}");
        self.release("template", values, &["--show-only", &path])
    }
}
