//! What a pod says of its class, read once.

use nvlink_topology::labels;
use serde_json::Value;

use crate::{
    class::GPU,
    decide::pod::{self, Container},
};

/// What a pod says of its class.
#[derive(Clone, Debug)]
pub(in crate::decide) struct Held<'a> {
    /// Its containers, init containers first.
    pub(in crate::decide) containers: Vec<Container<'a>>,
    /// Some container may hold a GPU.
    pub(in crate::decide) gpus: bool,
    /// The class that its annotation names.
    pub(super) named: Option<&'a str>,
    /// The class that its label says it was given.
    pub(super) label: Option<&'a str>,
    /// It is there already: what it was given is in its label, and the
    /// namespace may have got its default class since then.
    pub(super) running: bool,
}

impl<'a> Held<'a> {
    /// Reads a pod that is created.
    pub(in crate::decide) fn of(pod: &'a Value) -> Self {
        let containers = pod::containers(pod);
        let gpus = containers
            .iter()
            .any(|container| container.may_hold_gpu(GPU));
        let text = |map| pod::metadata(pod, map, labels::CLASS).and_then(Value::as_str);
        Self {
            containers,
            gpus,
            named: text("annotations"),
            label: text("labels"),
            running: false,
        }
    }

    /// Reads a pod that is there already.
    pub(super) fn of_running(pod: &'a Value) -> Self {
        Self {
            running: true,
            ..Self::of(pod)
        }
    }

    /// Whether a namespace's default class is for the pod.
    pub(super) fn takes_default(&self) -> bool {
        self.gpus && self.named.is_none() && !(self.running && self.label.is_some())
    }
}
