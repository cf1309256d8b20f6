//! What is read from a pod that is created: once, whatever the classes are and
//! however often the choice among them is asked for.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Intent, Refusal, classify::Evidence, guard};
use crate::authorize::Subject;

/// A pod that is created, and what was read from it.
#[derive(Debug)]
pub struct Facts<'a> {
    pub(super) pod: &'a Value,
    pub(super) namespace: &'a str,
    pub(super) subject: &'a Subject,
    pub(super) held: guard::Held<'a>,
    /// What it says; none of a pod that a kubelet runs whatever is said here.
    pub(super) intent: Option<Intent>,
    pub(super) evidence: Evidence,
}

impl<'a> Facts<'a> {
    /// Reads `pod`, which `subject` creates in `namespace`. `variables` are
    /// those that classes set: they say nothing about the job.
    ///
    /// # Errors
    /// When an annotation means nothing.
    pub fn of(
        pod: &'a Value,
        namespace: &'a str,
        subject: &'a Subject,
        variables: &BTreeSet<String>,
    ) -> Result<Self, Refusal> {
        let held = guard::Held::of(pod);
        let intent = match guard::is_mirror(pod, subject) {
            true => None,
            false => Some(Intent::of(pod)?),
        };
        let evidence = Evidence::of(pod, &held.containers, &|name| variables.contains(name));
        Ok(Self {
            pod,
            namespace,
            subject,
            held,
            intent,
            evidence,
        })
    }
}
