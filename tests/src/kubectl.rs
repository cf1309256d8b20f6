//! Runs kubectl as a user would.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{assets, process::feed};

/// kubectl for one user and one namespace.
#[derive(Clone, Debug)]
pub struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
    namespace: Option<String>,
    /// A directory of plugins.
    plugins: Option<PathBuf>,
}

impl Kubectl {
    /// Uses this kubeconfig.
    ///
    /// # Errors
    /// When there is no kubectl.
    pub fn new(kubeconfig: impl Into<PathBuf>) -> Result<Self> {
        Ok(Self {
            program: assets::path("kubectl")?,
            kubeconfig: kubeconfig.into(),
            namespace: None,
            plugins: None,
        })
    }

    /// Returns the same for the namespace `name`.
    #[must_use]
    pub fn in_namespace(&self, name: &str) -> Self {
        Self {
            namespace: Some(name.to_owned()),
            ..self.clone()
        }
    }

    /// Returns the same with the plugins of a directory, for [`Kubectl::shell`].
    #[must_use]
    pub fn with_plugins(&self, directory: impl Into<PathBuf>) -> Self {
        Self {
            plugins: Some(directory.into()),
            ..self.clone()
        }
    }

    #[must_use]
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Returns the namespace, `default` if none was set.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or("default")
    }

    /// Runs `kubectl ARGUMENTS` with `input` on standard input. Accepts any exit status.
    ///
    /// # Errors
    /// When kubectl cannot be run.
    pub fn output(&self, arguments: &[&str], input: &str) -> Result<Output> {
        let mut command = Command::new(&self.program);
        self.environment(&mut command);
        if let Some(namespace) = &self.namespace {
            command.args(["--namespace", namespace]);
        }
        feed(command.args(arguments), input).context("cannot run kubectl")
    }

    /// Runs a shell command in which `kubectl` is this one. Accepts any exit status.
    ///
    /// # Errors
    /// When the shell cannot be run.
    pub fn shell(&self, line: &str) -> Result<Output> {
        let mut shell = Command::new("sh");
        let system = env::var_os("PATH").unwrap_or_default();
        let first = self.program.parent().map(Path::to_owned);
        let first = first.into_iter().chain(self.plugins.clone());
        shell.env(
            "PATH",
            env::join_paths(first.chain(env::split_paths(&system)))?,
        );
        feed(self.environment(&mut shell).args(["-c", line]), "").context("cannot run sh")
    }

    /// Runs `kubectl ARGUMENTS` and returns its standard output.
    ///
    /// # Errors
    /// When it fails, with its standard error.
    pub fn run(&self, arguments: &[&str]) -> Result<String> {
        self.run_with(arguments, "")
    }

    /// Runs `kubectl ARGUMENTS` with `input` on standard input and returns its standard output.
    ///
    /// # Errors
    /// When it fails, with its standard error.
    pub fn run_with(&self, arguments: &[&str], input: &str) -> Result<String> {
        let output = self.output(arguments, input)?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("kubectl {}: {}", arguments.join(" "), said.trim_end());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs `kubectl ARGUMENTS`, which must fail, and returns its standard error.
    ///
    /// # Errors
    /// When it succeeds.
    pub fn refused(&self, arguments: &[&str], input: &str) -> Result<String> {
        let output = self.output(arguments, input)?;
        if output.status.success() {
            bail!(
                "kubectl {} succeeded, but should have failed",
                arguments.join(" ")
            );
        }
        Ok(String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// Runs `kubectl get WHAT -o json` and returns the object.
    ///
    /// # Errors
    /// When it fails.
    pub fn get(&self, what: &[&str]) -> Result<Value> {
        let text = self.run(&[&["get"], what, &["-o", "json"]].concat())?;
        serde_json::from_str(&text).context("kubectl printed no JSON")
    }

    /// Sets the environment so that kubectl uses nothing of the user's own configuration.
    fn environment<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        command
            .env("KUBECONFIG", &self.kubeconfig)
            .env("KUBERC", "off");
        command.env("KUBECACHEDIR", self.kubeconfig.with_extension("cache"))
    }

    /// Runs `kubectl create -f -` and returns the object as the API server stored it.
    ///
    /// # Errors
    /// When it is refused.
    pub fn create(&self, object: &Value) -> Result<Value> {
        let text = self.run_with(&["create", "-f", "-", "-o", "json"], &object.to_string())?;
        serde_json::from_str(&text).context("kubectl printed no JSON")
    }

    /// Runs `kubectl apply -f -` and returns its standard output.
    ///
    /// # Errors
    /// When it is refused.
    pub fn apply(&self, manifest: &str) -> Result<String> {
        self.run_with(&["apply", "-f", "-"], manifest)
    }
}
