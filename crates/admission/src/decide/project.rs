//! The project that a pod belongs to, as its CI system reports it.

use nvlink_api::{
    class::{Class, provider::Identity},
    crd::access::{Account, CiProject},
    pod,
};
use serde_json::Value;

use crate::authorize::Subject;

/// Returns the project of a pod of `class` in `namespace`, from sources that the pod's author
/// cannot forge: the pod's CI label if a runner that the class trusts creates the pod, as in
/// `gitlab.42` (no namespace has a dot in its name), else the namespace, in which RBAC controls who
/// may create pods.
pub(super) fn of(class: &Class, subject: &Subject, pod: &Value, namespace: &str) -> String {
    let mut runners = class.ci_projects.iter();
    let project = runners.find_map(|entry| {
        if !runs(entry, subject) {
            return None;
        }
        match entry.provider.identity() {
            Identity::Labels { project, .. } => Some(format!(
                "{}.{}",
                entry.provider.into_str(),
                told(pod, project).ok()??
            )),
            Identity::Account => None,
        }
    });
    project.unwrap_or_else(|| namespace.to_owned())
}

/// Reports whether the class lists the pod's CI project.
pub(super) fn is_listed(class: &Class, subject: &Subject, pod: &Value, namespace: &str) -> bool {
    let mut entries = class.ci_projects.iter();
    entries.any(|entry| lists(entry, subject, pod, namespace))
}

/// Reports whether the request comes from a runner of `entry`.
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

/// Reports whether `entry` lists the pod's project and the request comes from one of its runners.
fn lists(entry: &CiProject, subject: &Subject, pod: &Value, namespace: &str) -> bool {
    runs(entry, subject)
        && match entry.provider.identity() {
            Identity::Labels { project, group } => told(pod, project).is_ok_and(|project| {
                project.is_some_and(|id| entry.project_ids.contains(&id))
                    || id(pod, group).is_some_and(|id| entry.root_namespace_ids.contains(&id))
            }),
            Identity::Account => entry.identities.iter().any(|account| {
                account.namespace == namespace && account.service_account == subject.service_account
            }),
        }
}

/// Returns the project that a runner wrote into a label, if it wrote one. An error says that it cannot be
/// told: the runner writes the same id into an annotation of the same name, and here they differ. Before
/// GitLab Runner 17.9, a job may overwrite both.
pub(super) fn told(pod: &Value, label: &str) -> Result<Option<u64>, String> {
    let text = |field| pod::metadata(pod, field, label).and_then(Value::as_str);
    let (written, noted) = (text("labels"), text("annotations"));
    match noted {
        Some(noted) if Some(noted) != written => Err(format!(
            "the project of the pod cannot be told: its annotation {label} is {noted:?}, and its label is {:?}",
            written.unwrap_or_default()
        )),
        _ => Ok(id(pod, label)),
    }
}

/// Returns why the project of a pod is not known whose runner `class` lists, if the CI system should have
/// written it.
pub(super) fn unknown(class: &Class, subject: &Subject, pod: &Value) -> Option<String> {
    let entry = class
        .ci_projects
        .iter()
        .find(|entry| runs(entry, subject))?;
    let Identity::Labels { project, .. } = entry.provider.identity() else {
        return None;
    };
    let upgrade = "GitLab Runner writes both, and no job can overwrite the label, from version 17.9 on: upgrade the runner";
    match told(pod, project) {
        Err(why) => Some(format!("{why}. {upgrade}")),
        Ok(None) => Some(format!(
            "the pod has no label {project} with the id of its project. GitLab Runner writes it, and no job can overwrite it, from version 17.9 on: upgrade the runner"
        )),
        Ok(Some(_)) => None,
    }
}

/// Digits of the longest id: classes list ids as signed 64-bit numbers.
const DIGITS: usize = 19;

/// Returns the id in a label. It must be a number in its usual form: `042` is not an id.
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
    fn an_id_is_a_number_in_its_usual_form() {
        let read = |text: &str| id(&json!({"metadata": {"labels": {"l": text}}}), "l");
        assert_eq!(read("42"), Some(42));
        for odd in ["", "042", "+42", "42 ", "4_2", "x", "18446744073709551615"] {
            assert_eq!(read(odd), None, "{odd}");
        }
    }
}
