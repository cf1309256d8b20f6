//! The project that a pod belongs to, by what its CI system says of it.

use serde_json::Value;

use crate::{
    authorize::Subject,
    class::{
        Class,
        provider::{self, Identity},
    },
    crd::access::{Account, CiProject},
    decide::pod,
};

/// The project of a pod of `class` in `namespace`, from sources that its
/// author cannot forge: what a runner says whom the class trusts, as in
/// `gitlab.42` (no namespace has a dot in its name), else the namespace. RBAC
/// holds who may create pods in that.
pub(super) fn of(class: &Class, subject: &Subject, pod: &Value, namespace: &str) -> String {
    let mut runners = class.ci_projects.iter();
    let project = runners.find_map(|entry| {
        if !runs(entry, subject) {
            return None;
        }
        let provider = provider::of(entry.provider);
        match provider.identity {
            Identity::Labels { project, .. } => {
                Some(format!("{}.{}", provider.word, id(pod, project)?))
            }
            Identity::Account => None,
        }
    });
    project.unwrap_or_else(|| namespace.to_owned())
}

/// Whether the class lists the CI project that the pod is of.
pub(super) fn is_listed(class: &Class, subject: &Subject, pod: &Value, namespace: &str) -> bool {
    let mut entries = class.ci_projects.iter();
    entries.any(|entry| lists(entry, subject, pod, namespace))
}

/// Whether the request comes from a runner of `entry`.
pub(super) fn runs(entry: &CiProject, subject: &Subject) -> bool {
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
fn lists(entry: &CiProject, subject: &Subject, pod: &Value, namespace: &str) -> bool {
    runs(entry, subject)
        && match provider::of(entry.provider).identity {
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
pub(super) fn id(pod: &Value, label: &str) -> Option<u64> {
    let text = pod::metadata(pod, "labels", label)?.as_str()?;
    let id: u64 = text.parse().ok()?;
    (id.to_string() == text && text.len() <= DIGITS).then_some(id)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ids_are_numbers_as_they_are_written() {
        let read = |text: &str| id(&json!({"metadata": {"labels": {"l": text}}}), "l");
        assert_eq!(read("42"), Some(42));
        for odd in ["", "042", "+42", "42 ", "4_2", "x", "18446744073709551615"] {
            assert_eq!(read(odd), None, "{odd}");
        }
    }
}
