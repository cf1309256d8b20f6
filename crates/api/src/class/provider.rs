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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Provider {
    pub provider: CiProvider,
    /// Its name in classes and in the names of projects.
    pub word: &'static str,
    pub identity: Identity,
}

pub const PROVIDERS: [Provider; 4] = [
    // These labels come from the job's payload, and users cannot override labels of
    // this domain. The labels `/namespace`, `/namespace-id` and `/root-namespace`
    // come from variables that a project may redefine, and anybody can set annotations.
    Provider {
        provider: CiProvider::Gitlab,
        word: "gitlab",
        identity: Identity::Labels {
            project: "project.runner.gitlab.com/id",
            group: "project.runner.gitlab.com/root-namespace-id",
        },
    },
    // The stack's controller creates Jobs, so the job controller creates the pods.
    // Their labels come from what the pipeline's author writes.
    Provider {
        provider: CiProvider::Buildkite,
        word: "buildkite",
        identity: Identity::Account,
    },
    // The author of a TaskRun sets its labels, which are copied to the pod.
    Provider {
        provider: CiProvider::Tekton,
        word: "tekton",
        identity: Identity::Account,
    },
    // The labels name the scale set of a runner, but its template may change them.
    Provider {
        provider: CiProvider::Arc,
        word: "arc",
        identity: Identity::Account,
    },
];

/// Returns what is known about a CI system.
#[must_use]
pub fn of(provider: CiProvider) -> &'static Provider {
    let [gitlab, buildkite, tekton, arc] = &PROVIDERS;
    match provider {
        CiProvider::Gitlab => gitlab,
        CiProvider::Buildkite => buildkite,
        CiProvider::Tekton => tekton,
        CiProvider::Arc => arc,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_table_is_complete() {
        for provider in PROVIDERS {
            assert_eq!(of(provider.provider), &provider);
            assert_eq!(json!(provider.provider), json!(provider.word));
        }
    }
}
