//! CI systems, and what of their pods can be trusted.
//!
//! Each holds only together with the service account that makes the request:
//! whoever may create pods can write any label and run as any service account
//! of the namespace.

use serde_json::Value;

use crate::{
    authorize::Subject,
    crd::access::{Account, CiProject, CiProvider},
    decide::pod,
};

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

/// Whether the request comes from a runner of `entry`.
#[must_use]
pub fn runs(entry: &CiProject, subject: &Subject) -> bool {
    let name = |account: &Account| {
        format!(
            "system:serviceaccount:{}:{}",
            account.namespace, account.service_account
        )
    };
    let mut runners = entry.runners.iter();
    runners.any(|runner| name(runner) == subject.user.username)
}

/// Whether the class that holds `entry` lists the pod's project.
#[must_use]
pub fn lists(entry: &CiProject, subject: &Subject, pod: &Value, namespace: &str) -> bool {
    runs(entry, subject)
        && match of(entry.provider).identity {
            Identity::Labels { project, group } => {
                id(pod, project).is_some_and(|id| entry.project_ids.contains(&id))
                    || id(pod, group).is_some_and(|id| entry.root_namespace_ids.contains(&id))
            }
            Identity::Account => entry.identities.iter().any(|account| {
                account.namespace == namespace && account.service_account == subject.service_account
            }),
        }
}

/// Digits of the longest id: what 64 bits with a sign hold, as classes list them.
const DIGITS: usize = 19;

/// The id that a label holds. Only as a number is written: `042` is none.
#[must_use]
pub fn id(pod: &Value, label: &str) -> Option<u64> {
    let text = pod::metadata(pod, "labels", label)?.as_str()?;
    let id: u64 = text.parse().ok()?;
    (id.to_string() == text && text.len() <= DIGITS).then_some(id)
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

    #[test]
    fn ids_are_numbers_as_they_are_written() {
        let read = |text: &str| id(&json!({"metadata": {"labels": {"l": text}}}), "l");
        assert_eq!(read("42"), Some(42));
        for odd in ["", "042", "+42", "42 ", "4_2", "x", "18446744073709551615"] {
            assert_eq!(read(odd), None, "{odd}");
        }
    }
}
