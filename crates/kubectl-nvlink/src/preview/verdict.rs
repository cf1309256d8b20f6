//! The decision on one pod, or on the pods of one template.

use json_patch::{
    AddOperation, Patch, PatchOperation, RemoveOperation, ReplaceOperation, jsonptr::PointerBuf,
};
use nvlink_admission::{
    authorize::Subject,
    decide::{Record, Refusal, STAYS_PENDING},
};
use serde::Serialize;

use super::template::Template;

/// The decision on the pods of a template, and its reasons; `--output report` prints it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Verdict {
    /// `Job/train`.
    pub(super) name: String,
    /// Namespace of the pods.
    pub(super) namespace: String,
    /// JSON pointer to the template in its document.
    pub(super) path: PointerBuf,
    /// The user who creates the pods.
    pub(super) user: String,
    /// The service account that the pods run as.
    pub(super) service_account: String,
    /// Whether the pods are admitted.
    pub(super) allowed: bool,
    /// The rule that refuses them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rule: Option<&'static str>,
    /// Why they are refused, and what to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) message: Option<String>,
    /// Their class, or the one that they are refused for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) class: Option<String>,
    /// The decision, as in the pods' annotation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) decision: Option<Record>,
    /// Warnings that kubectl would print, one line each.
    pub(super) warnings: Vec<String>,
    /// Further notes, one line each.
    pub(super) notes: Vec<String>,
    /// The nodes, if the input has any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) nodes: Option<Fit>,
    /// The JSON Patch of the document.
    pub(super) patch: Patch,
}

/// The nodes that fit the pods.
#[derive(Debug, Serialize)]
pub(super) struct Fit {
    pub(super) fitting: Vec<String>,
    /// The number of all nodes.
    pub(super) all: usize,
}

impl Verdict {
    /// Returns a verdict on the pods of `template`: admitted and not changed.
    pub(super) fn new(template: &Template, namespace: &str, subject: &Subject) -> Self {
        Self {
            name: template.name(),
            namespace: namespace.to_owned(),
            path: template.path.clone(),
            user: subject.user.username.clone(),
            service_account: subject.service_account.clone(),
            allowed: true,
            rule: None,
            message: None,
            class: None,
            decision: None,
            warnings: Vec::new(),
            notes: Vec::new(),
            nodes: None,
            patch: Patch::default(),
        }
    }

    pub(super) fn refuse(&mut self, refusal: Refusal) {
        self.allowed = false;
        self.rule = Some(refusal.rule.into_str());
        self.message = Some(refusal.message);
        self.class = refusal.class;
    }

    /// Returns why no node of the input can hold the pods of a class, if so. GPUs that are in use
    /// count as free.
    pub(super) fn unplaceable(&self) -> Option<&str> {
        let nodes = self.nodes.as_ref()?;
        let mut warnings = self.warnings.iter();
        let warning = warnings.find(|warning| warning.contains(STAYS_PENDING));
        match warning {
            Some(warning) => Some(warning),
            None if nodes.fitting.is_empty() => Some("no node of the input fits"),
            None => None,
        }
    }

    /// Adds `patch`, which applies to the template, as a patch of the document. The other kinds of
    /// operations do not occur.
    pub(super) fn patch(&mut self, mut patch: Patch) {
        for operation in &mut patch.0 {
            if let PatchOperation::Add(AddOperation { path, .. })
            | PatchOperation::Remove(RemoveOperation { path })
            | PatchOperation::Replace(ReplaceOperation { path, .. }) = operation
            {
                *path = self.path.concat(path);
            }
        }
        self.patch = patch;
    }
}
