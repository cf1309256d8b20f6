//! CI systems, and which attributes of their pods can be trusted.
//!
//! Each attribute counts only together with the service account that makes the
//! request: anybody who may create pods can set any label and use any service
//! account of the namespace.

use crate::crd::access::CiProvider;

/// The attribute of a pod that identifies its project.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// Labels with the ids of the project and of its root namespace.
    Labels {
        /// Label with the project's id.
        project: &'static str,
        /// Label with the root namespace's id.
        group: &'static str,
    },
    /// The service account that the pod runs as, with its namespace.
    Account,
}

impl CiProvider {
    /// Returns what identifies the projects of this CI system.
    #[must_use]
    pub fn identity(self) -> Identity {
        match self {
            // These labels come from the job's payload, and users cannot override labels of
            // this domain. The labels `/namespace`, `/namespace-id` and `/root-namespace`
            // come from variables that a project may redefine, and anybody can set annotations.
            Self::Gitlab => Identity::Labels {
                project: "project.runner.gitlab.com/id",
                group: "project.runner.gitlab.com/root-namespace-id",
            },
            // The stack's controller creates Jobs, so the job controller creates the pods.
            // Their labels come from what the pipeline's author writes.
            Self::Buildkite => Identity::Account,
            // The author of a TaskRun sets its labels, which are copied to the pod.
            Self::Tekton => Identity::Account,
            // The labels name the scale set of a runner, but its template may change them.
            Self::Arc => Identity::Account,
        }
    }
}
