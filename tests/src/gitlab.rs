//! Runs jobs by `controlplane/gitlab-runner`, the double of GitLab Runner's Kubernetes executor.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::{
    assets,
    process::{Process, command},
    workdir,
};

/// A job that a runner runs.
#[derive(Debug)]
pub struct GitlabJob(Process);

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobEnd {
    Succeeded,
    /// Its script failed.
    Failed,
    /// The runner gave up: `retry: when: runner_system_failure` repeats the job.
    SystemFailure,
    Cancelled,
}

impl JobEnd {
    fn of(code: Option<i32>) -> Result<Self> {
        Ok(match code {
            Some(0) => Self::Succeeded,
            Some(1) => Self::Failed,
            Some(2) => Self::SystemFailure,
            Some(3) => Self::Cancelled,
            other => anyhow::bail!("the runner ended with {other:?}"),
        })
    }
}

impl GitlabJob {
    /// Starts a job by a runner that has this access to the cluster. The double says what a job is.
    ///
    /// # Errors
    /// When the runner cannot be built or started.
    pub fn start(kubeconfig: &Path, job: &Value) -> Result<Self> {
        Self::start_with(kubeconfig, None, job)
    }

    /// Starts a job by the first runner of a config.toml, which is this text.
    ///
    /// # Errors
    /// When the runner cannot be built or started.
    pub fn start_with(kubeconfig: &Path, config: Option<&str>, job: &Value) -> Result<Self> {
        let directory = workdir::fresh("gitlab-runner")?;
        let mut runner = command(assets::go_program("gitlab-runner")?);
        runner.arg("--kubeconfig").arg(kubeconfig);
        if let Some(config) = config {
            let path = directory.join("config.toml");
            fs::write(&path, config)?;
            runner.arg("--config").arg(path);
        }
        let process = Process::start_with_input("gitlab-runner", &directory, runner)?;
        process.write(&job.to_string())?;
        Ok(Self(process))
    }

    /// Returns the log of the job so far, which is all that its developer sees.
    #[must_use]
    pub fn log(&self) -> String {
        self.0.log()
    }

    /// Waits until the log has this text.
    ///
    /// # Errors
    /// When it does not, with the log.
    pub fn wait_for(&self, text: &str, limit: Duration) -> Result<()> {
        self.0
            .wait_until(&format!("{text:?} in the job log"), limit, || {
                Ok(self.log().contains(text).then_some(()))
            })
    }

    /// Waits until the job has ended, and returns how.
    ///
    /// # Errors
    /// When it does not end.
    pub fn end(&self, limit: Duration) -> Result<JobEnd> {
        let status = self.0.ended(limit).with_context(|| self.log())?;
        JobEnd::of(status.code()).with_context(|| self.log())
    }

    /// Cancels the job, as a user does.
    ///
    /// # Errors
    /// When it does not end.
    pub fn cancel(&self, limit: Duration) -> Result<JobEnd> {
        let status = self.0.terminate(limit).with_context(|| self.log())?;
        JobEnd::of(status.code())
    }
}
