//! CI systems, as their pods show them, and how long each waits for a pod to start.
//!
//! Whoever makes a pod can give it these marks. They do no more than to shorten its time in the queue
//! and to choose the words of messages; who may use a class is in [`crate::class::provider`].

use std::time::Duration;

use serde_json::Value;

use crate::pod;

/// A CI system that made a pod, and gives up if the pod does not start in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::VariantArray)]
pub enum CiSystem {
    /// GitLab Runner's Kubernetes executor.
    Gitlab,
    /// Prow.
    Prow,
    /// Buildkite's agent-stack-k8s.
    Buildkite,
    /// The jobs of GitHub's Actions Runner Controller with `containerMode: kubernetes`.
    Arc,
    /// Tekton.
    Tekton,
}

/// A label or annotation, as the pods of a CI system have it.
type Mark = (CiSystem, &'static str, &'static str);

/// What their pods show, each by the code that writes it.
const MARKS: [Mark; 6] = [
    // executors/kubernetes/kubernetes.go of gitlab-runner 19.4.
    (CiSystem::Gitlab, "labels", "project.runner.gitlab.com/id"),
    (CiSystem::Gitlab, "annotations", "job.runner.gitlab.com/id"),
    // pkg/kube/prowjob.go of Prow.
    (CiSystem::Prow, "labels", "prow.k8s.io/job"),
    // internal/controller/config/config.go of agent-stack-k8s.
    (CiSystem::Buildkite, "labels", "buildkite.com/job-uuid"),
    // packages/k8s/src/hooks/constants.ts of actions/runner-container-hooks.
    (CiSystem::Arc, "labels", "runner-pod"),
    // pkg/apis/pipeline/register.go of Tekton.
    (CiSystem::Tekton, "labels", "tekton.dev/taskRun"),
];

impl CiSystem {
    /// Returns the CI system that made the pod.
    #[must_use]
    pub fn of(pod: &Value) -> Option<Self> {
        let marks = MARKS.iter();
        let mut found = marks.filter(|(_, field, key)| pod::metadata(pod, field, key).is_some());
        found.next().map(|&(system, ..)| system)
    }

    /// Returns its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gitlab => "GitLab Runner",
            Self::Prow => "Prow",
            Self::Buildkite => "Buildkite",
            Self::Arc => "Actions Runner Controller",
            Self::Tekton => "Tekton",
        }
    }

    /// Returns the setting after which it gives up, and where that is.
    #[must_use]
    pub const fn setting(self) -> &'static str {
        match self {
            Self::Gitlab => "poll_timeout in the runner's config.toml",
            Self::Prow => "pod_unscheduled_timeout of plank in Prow's configuration",
            Self::Buildkite => "pod-pending-timeout of agent-stack-k8s",
            Self::Arc => "ACTIONS_RUNNER_PREPARE_JOB_TIMEOUT_SECONDS of the runner",
            Self::Tekton => "timeout of the TaskRun",
        }
    }

    /// Returns where its administrators write what all its pods have.
    #[must_use]
    pub const fn configuration(self) -> &'static str {
        match self {
            Self::Gitlab => "the runner's config.toml",
            Self::Prow => "Prow's presets and decoration",
            Self::Buildkite => "pod-spec-patch of agent-stack-k8s",
            Self::Arc => "the values of the scale set",
            Self::Tekton => "default-pod-template of Tekton",
        }
    }

    /// Returns how long it waits, from the creation of the pod, if nobody has changed its setting.
    /// Tekton's time includes the run.
    #[must_use]
    pub const fn gives_up(self) -> Duration {
        Duration::from_secs(match self {
            // <https://docs.gitlab.com/runner/executors/kubernetes/>
            Self::Gitlab => 180,
            // `DefaultPodUnscheduledTimeout` (pkg/config/config.go).
            Self::Prow => 5 * 60,
            // `pod-pending-timeout` (charts/agent-stack-k8s/values.yaml).
            Self::Buildkite => 15 * 60,
            // `DEFAULT_WAIT_FOR_POD_TIME_SECONDS` (packages/k8s/src/k8s/utils.ts).
            Self::Arc => 10 * 60,
            // `DefaultTimeoutMinutes` (pkg/apis/config/default.go).
            Self::Tekton => 60 * 60,
        })
    }

    /// Returns how long its pods wait in the queue of a class without `queueTimeout`: so much shorter
    /// that the queue still says why the job did not start, and a job that is started in the last
    /// moment is not given up. Of Tekton's time, half is left to the run.
    #[must_use]
    pub const fn waits(self) -> Duration {
        Duration::from_secs(match self {
            Self::Gitlab => 150,
            Self::Prow => 4 * 60,
            Self::Buildkite => 14 * 60,
            Self::Arc => 9 * 60,
            Self::Tekton => 30 * 60,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use strum::VariantArray;

    use super::*;

    #[test]
    fn pods_wait_less_than_their_ci_system() {
        for system in CiSystem::VARIANTS {
            // What the planner adds for a place that becomes free in a moment, and a poll.
            let left = system.gives_up() - system.waits();
            assert!(left >= Duration::from_secs(25), "{system:?}");
        }
    }

    #[test]
    fn a_pod_shows_its_ci_system() {
        for (system, field, key) in MARKS {
            let pod = json!({"metadata": {field: {key: "x"}}});
            assert_eq!(CiSystem::of(&pod), Some(system));
        }
        assert_eq!(
            CiSystem::of(&json!({"metadata": {"labels": {"a": "b"}}})),
            None
        );
    }
}
