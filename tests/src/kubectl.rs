//! kubectl, as a user runs it.

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
}

impl Kubectl {
    /// kubectl with this kubeconfig.
    ///
    /// # Errors
    /// When there is no kubectl.
    pub fn new(kubeconfig: impl Into<PathBuf>) -> Result<Self> {
        Ok(Self {
            program: assets::path("kubectl")?,
            kubeconfig: kubeconfig.into(),
            namespace: None,
        })
    }

    /// The same for the namespace `name`.
    #[must_use]
    pub fn in_namespace(&self, name: &str) -> Self {
        Self {
            namespace: Some(name.to_owned()),
            ..self.clone()
        }
    }

    #[must_use]
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Its namespace, `default` if none was chosen.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or("default")
    }

    /// Runs `kubectl ARGUMENTS` with `input` on standard input, whatever the exit status.
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

    /// Runs a line of shell in which `kubectl` is this one, whatever the exit status.
    ///
    /// # Errors
    /// When there is no shell.
    pub fn shell(&self, line: &str) -> Result<Output> {
        let mut shell = Command::new("sh");
        let system = env::var_os("PATH").unwrap_or_default();
        let first = self.program.parent().map(Path::to_owned);
        shell.env(
            "PATH",
            env::join_paths(first.into_iter().chain(env::split_paths(&system)))?,
        );
        feed(self.environment(&mut shell).args(["-c", line]), "").context("cannot run sh")
    }

    /// Runs `kubectl ARGUMENTS` and gives what it prints.
    ///
    /// # Errors
    /// When it fails, with what it says on standard error.
    pub fn run(&self, arguments: &[&str]) -> Result<String> {
        self.run_with(arguments, "")
    }

    /// As [`Self::run`], with `input` on standard input.
    ///
    /// # Errors
    /// When it fails, with what it says on standard error.
    pub fn run_with(&self, arguments: &[&str], input: &str) -> Result<String> {
        let output = self.output(arguments, input)?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("kubectl {}: {}", arguments.join(" "), said.trim_end());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs `kubectl ARGUMENTS` and expects it to fail; gives what it says on standard error.
    ///
    /// # Errors
    /// When it succeeds.
    pub fn refused(&self, arguments: &[&str], input: &str) -> Result<String> {
        let output = self.output(arguments, input)?;
        if output.status.success() {
            bail!(
                "kubectl {} was expected to fail, and did not",
                arguments.join(" ")
            );
        }
        Ok(String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// `kubectl get WHAT -o json`.
    ///
    /// # Errors
    /// When it fails.
    pub fn get(&self, what: &[&str]) -> Result<Value> {
        let text = self.run(&[&["get"], what, &["-o", "json"]].concat())?;
        serde_json::from_str(&text).context("kubectl prints JSON")
    }

    /// Nothing of the user's own configuration.
    fn environment<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        command
            .env("KUBECONFIG", &self.kubeconfig)
            .env("KUBERC", "off");
        command.env("KUBECACHEDIR", self.kubeconfig.with_extension("cache"))
    }

    /// `kubectl create -f -`; gives the object as the API server stored it.
    ///
    /// # Errors
    /// When it is refused.
    pub fn create(&self, object: &Value) -> Result<Value> {
        let text = self.run_with(&["create", "-f", "-", "-o", "json"], &object.to_string())?;
        serde_json::from_str(&text).context("kubectl prints JSON")
    }

    /// `kubectl apply -f -`.
    ///
    /// # Errors
    /// When it is refused.
    pub fn apply(&self, manifest: &str) -> Result<String> {
        self.run_with(&["apply", "-f", "-"], manifest)
    }
}
