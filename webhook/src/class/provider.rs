//! CI systems, and what of their pods can be trusted.
//!
//! Each holds only together with the service account that makes the request:
//! whoever may create pods can write any label and run as any service account
//! of the namespace.

use crate::crd::access::CiProvider;

/// What says which project a pod is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// Labels with the ids of the project and of its topmost group.
    Labels {
        /// Label of the project's id.
        project: &'static str,
        /// Label of the topmost group's id.
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
    /// What says which project a pod is of.
    pub identity: Identity,
}

pub const PROVIDERS: [Provider; 4] = [
    // From the job's payload, and users cannot override labels of this domain.
    // The labels `/namespace`, `/namespace-id` and `/root-namespace` come from
    // variables that a project may redefine, and annotations have no guard at all.
    Provider {
        provider: CiProvider::Gitlab,
        word: "gitlab",
        identity: Identity::Labels {
            project: "project.runner.gitlab.com/id",
            group: "project.runner.gitlab.com/root-namespace-id",
        },
    },
    // The stack's controller makes Jobs, so the pods come from the job
    // controller; its labels are made from what the pipeline's author writes.
    Provider {
        provider: CiProvider::Buildkite,
        word: "buildkite",
        identity: Identity::Account,
    },
    // Labels of a TaskRun are its author's, and are copied to the pod.
    Provider {
        provider: CiProvider::Tekton,
        word: "tekton",
        identity: Identity::Account,
    },
    // The labels say which scale set a runner is of, but its template may say otherwise.
    Provider {
        provider: CiProvider::Arc,
        word: "arc",
        identity: Identity::Account,
    },
];

/// What is known of a CI system.
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
