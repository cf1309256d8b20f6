//! The facts of a new pod. They do not depend on the classes and are read once, although the choice
//! of a class may run several times.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Intent, Refusal, classify::Evidence, guard};
use crate::authorize::Subject;

/// A new pod, and the facts that were read from it.
#[derive(Debug)]
pub struct Facts<'a> {
    pub(super) pod: &'a Value,
    pub(super) namespace: &'a str,
    pub(super) subject: &'a Subject,
    /// The id of the request; empty if there is none.
    pub(super) request: &'a str,
    pub(super) held: guard::Held<'a>,
    /// The pod's annotations; `None` for a mirror pod, which runs whatever the decision is.
    pub(super) intent: Option<Intent>,
    pub(super) evidence: Evidence,
    /// The number of pods of its job, by the object that they are created from.
    pub(super) pods: Option<u32>,
}

impl<'a> Facts<'a> {
    /// Reads `pod`, which `subject` creates in `namespace`. `variables` are those that classes set:
    /// they show nothing about the job.
    ///
    /// # Errors
    /// When an annotation has an invalid value.
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
            request: "",
            held,
            intent,
            evidence,
            pods: None,
        })
    }

    /// Sets the number of pods of its job, by the object that they are created from.
    #[must_use]
    pub fn of_pods(self, pods: Option<u32>) -> Self {
        Self { pods, ..self }
    }

    /// Sets the id of the request.
    #[must_use]
    pub fn of_request(self, request: &'a str) -> Self {
        Self { request, ..self }
    }
}
