//! What a pod says of its class, read once.

use nvlink_topology::labels;
use serde_json::Value;

use super::Case;
use crate::{
    class::GPU,
    decide::pod::{self, Container},
};

/// What a pod says of its class.
#[derive(Debug)]
pub struct Held<'a> {
    /// Its containers, init containers first.
    pub containers: Vec<Container<'a>>,
    /// Some container may hold a GPU.
    pub gpus: bool,
    /// The class that its annotation names.
    pub named: Option<&'a str>,
    /// The class that its namespace gives it, because it holds GPUs and names
    /// none. None for a pod that is there and has a label: it was given that.
    pub default: Option<&'a str>,
    /// The class that its label says it was given.
    pub label: Option<&'a str>,
}

impl<'a> Held<'a> {
    pub(super) fn of(case: Case<'a>) -> Self {
        let containers = pod::containers(case.pod);
        let gpus = containers
            .iter()
            .any(|container| container.may_hold_gpu(GPU));
        let text = |map| pod::metadata(case.pod, map, labels::CLASS).and_then(Value::as_str);
        let named = text("annotations");
        let default = case
            .view
            .default_class(case.namespace)
            .filter(|_| gpus && named.is_none());
        Self {
            containers,
            gpus,
            named,
            default,
            label: text("labels"),
        }
    }

    /// The same of a pod that is there already: what it was given is in its
    /// label, and the namespace may have got its default class since then.
    pub(super) fn of_running(case: Case<'a>) -> Self {
        let held = Self::of(case);
        Self {
            default: held.default.filter(|_| held.label.is_none()),
            ..held
        }
    }

    /// The class that the pod asks for.
    #[must_use]
    pub fn wanted(&self) -> Option<&'a str> {
        self.named.or(self.default)
    }

    /// The class that the pod asks for or was given.
    #[must_use]
    pub fn class(&self) -> Option<&'a str> {
        self.wanted().or(self.label)
    }
}
