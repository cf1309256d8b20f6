//! The facts of a pod that decide about its class, read once.

use nvlink_topology::labels;
use serde_json::Value;

use nvlink_api::{
    class::GPU,
    pod::{self, Container},
};

/// The facts of a pod that decide about its class.
#[derive(Clone, Debug)]
pub(in crate::decide) struct Held<'a> {
    /// Its containers, init containers first.
    pub(in crate::decide) containers: Vec<Container<'a>>,
    /// Some container may hold a GPU.
    pub(in crate::decide) gpus: bool,
    /// The class that its annotation names.
    pub(super) named: Option<&'a str>,
    /// The class in its label, which it already has.
    pub(super) label: Option<&'a str>,
    /// The pod already exists: its class is in its label, and the namespace may have got its
    /// default class later.
    pub(super) running: bool,
}

impl<'a> Held<'a> {
    /// Reads a new pod.
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

    /// Reads an existing pod.
    pub(super) fn of_running(pod: &'a Value) -> Self {
        Self {
            running: true,
            ..Self::of(pod)
        }
    }

    /// Reports whether the namespace's default class applies to the pod.
    pub(super) fn takes_default(&self) -> bool {
        self.gpus && self.named.is_none() && !(self.running && self.label.is_some())
    }
}
