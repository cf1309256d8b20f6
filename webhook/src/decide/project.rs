//! The project that a pod belongs to.

use serde_json::Value;

use super::provider::{self, Identity};
use crate::{authorize::Subject, class::Class};

/// The project of a pod of `class` in `namespace`, from sources that its
/// author cannot forge: what a runner says whom the class trusts, as in
/// `gitlab.42` (no namespace has a dot in its name), else the namespace. RBAC
/// holds who may create pods in that.
pub(super) fn of(class: &Class, subject: &Subject, pod: &Value, namespace: &str) -> String {
    let mut runners = class.ci_projects.iter();
    let project = runners.find_map(|entry| {
        if !provider::runs(entry, subject) {
            return None;
        }
        let provider = provider::of(entry.provider);
        match provider.identity {
            Identity::Labels { project, .. } => {
                Some(format!("{}.{}", provider.word, provider::id(pod, project)?))
            }
            Identity::Account => None,
        }
    });
    project.unwrap_or_else(|| namespace.to_owned())
}

/// Whether the class lists the CI project that the pod is of.
pub(super) fn is_listed(class: &Class, subject: &Subject, pod: &Value, namespace: &str) -> bool {
    let mut entries = class.ci_projects.iter();
    entries.any(|entry| provider::lists(entry, subject, pod, namespace))
}
