//! What the queue writes into pods: JSON patches, pure.
//!
//! Each patch names the version of the pod that it changes, so it fails if the pod has changed.
//! Each that moves a pod on carries the number of the leader's term.

use nvlink_topology::labels;
use serde_json::{Value, json};

use super::{Placement, notice::TEMPORARY};
use crate::decide::{
    affinity, gate,
    patch::{Editor, Step, WrongType},
    pod,
};

/// The reason in the status of a pod that waited too long.
pub const TIMEOUT: &str = "QueueTimeout";

const ANNOTATIONS: [Step<'_>; 2] = [Step::Key("metadata"), Step::Key("annotations")];

/// Something that the queue writes into a pod.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// Records where the pod will go, while it still waits.
    Prepare(Placement),
    /// Puts the pod on its node and lets it go.
    Release(Placement),
    /// Fails the pod.
    Reject {
        /// Why, for the author of the pod.
        message: String,
    },
}

/// A patch of a pod.
#[derive(Clone, Debug, PartialEq)]
pub struct PodPatch {
    /// The operations of a JSON patch.
    pub operations: Value,
    /// Whether it is one of the pod's status.
    pub status: bool,
}

/// Why a pod cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unwritable {
    /// It has no gate of the queue, or none is left.
    #[error("the pod does not wait in the queue")]
    NotWaiting,
    /// It is not of the expected form.
    #[error(transparent)]
    WrongType(#[from] WrongType),
    /// The patch is no JSON.
    #[error("the patch cannot be written: {0}")]
    Json(String),
}

impl Write {
    /// Returns the patch of `pod` in the leader's term of number `term`.
    ///
    /// # Errors
    /// When the pod cannot be written.
    pub fn patch(&self, pod: &Value, term: i32) -> Result<PodPatch, Unwritable> {
        let at = gate::gates(pod).position(|gate| gate == labels::QUEUE_GATE);
        let at = at.ok_or(Unwritable::NotWaiting)?;
        let mut operations = version(pod);
        match self {
            Self::Prepare(placement) => {
                operations.extend(placed(pod, placement, term, false)?);
            }
            Self::Release(placement) => {
                let gate = format!("/spec/schedulingGates/{at}");
                operations.push(json!({
                    "op": "test", "path": format!("{gate}/name"), "value": labels::QUEUE_GATE
                }));
                operations.extend(placed(pod, placement, term, true)?);
                operations.push(json!({"op": "remove", "path": gate}));
            }
            Self::Reject { message } => {
                let mut editor = Editor::new(pod.clone());
                editor.insert(&ANNOTATIONS, labels::QUEUE_TERM, term.to_string().into())?;
                operations.extend(recorded(editor)?);
                operations.extend(failed(message));
            }
        }
        Ok(PodPatch {
            operations: Value::Array(operations),
            status: matches!(self, Self::Reject { .. }),
        })
    }
}

/// Returns the tests that the pod is the same one, and has not changed.
fn version(pod: &Value) -> Vec<Value> {
    let test = |field: &str| {
        let value = pod::at(pod, &["metadata", field]);
        json!({"op": "test", "path": format!("/metadata/{field}"), "value": value})
    };
    vec![test("uid"), test("resourceVersion")]
}

/// Returns the operations that record a placement, and with `pinned` narrow the affinity to it.
fn placed(
    pod: &Value,
    placement: &Placement,
    term: i32,
    pinned: bool,
) -> Result<Vec<Value>, Unwritable> {
    let text =
        serde_json::to_string(placement).map_err(|error| Unwritable::Json(error.to_string()))?;
    let mut editor = Editor::new(pod.clone());
    editor.insert(&ANNOTATIONS, labels::QUEUE_PLACEMENT, text.into())?;
    editor.insert(&ANNOTATIONS, labels::QUEUE_TERM, term.to_string().into())?;
    if pinned {
        for key in TEMPORARY {
            editor.remove(&ANNOTATIONS, key);
        }
        if let Some(node) = &placement.node {
            affinity::pin(&mut editor, node)?;
        }
    }
    recorded(editor)
}

/// Returns the operations of the edits.
fn recorded(editor: Editor) -> Result<Vec<Value>, Unwritable> {
    let (_, patch) = editor.finish();
    serde_json::from_slice(&patch.to_json()).map_err(|error| Unwritable::Json(error.to_string()))
}

/// Returns the operations that fail a pod, on its status.
fn failed(message: &str) -> [Value; 3] {
    [
        ("phase", "Failed"),
        ("reason", TIMEOUT),
        ("message", message),
    ]
    .map(|(key, value)| json!({"op": "add", "path": format!("/status/{key}"), "value": value}))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod() -> Value {
        json!({
            "metadata": {
                "name": "p", "namespace": "n", "uid": "u", "resourceVersion": "7",
                "annotations": {labels::QUEUE_REASON: "Full: …", labels::QUEUE_ETA: "…", "a": "b"}
            },
            "spec": {
                "schedulingGates": [{"name": "example.com/x"}, {"name": labels::QUEUE_GATE}],
                "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "a", "operator": "Exists"}]},
                        {}
                    ]
                }}}
            },
            "status": {"phase": "Pending"}
        })
    }

    fn placement() -> Placement {
        Placement {
            plan: "3-1".to_owned(),
            at: "2026-08-01T10:00:00Z".parse().unwrap(),
            node: Some("n1".to_owned()),
            gpus: vec![2, 3],
            domain: None,
            rank: 0,
            cost: 1e-11,
            quality: 1.0,
            scope: "nvlink-domain".to_owned(),
            why: "it is its turn".to_owned(),
            others: Vec::new(),
        }
    }

    fn patched(write: &Write) -> Value {
        let mut pod = pod();
        let patch = write.patch(&pod, 3).unwrap();
        assert_eq!(patch.status, matches!(write, Write::Reject { .. }));
        let operations: json_patch::Patch = serde_json::from_value(patch.operations).unwrap();
        json_patch::patch(&mut pod, &operations).unwrap();
        pod
    }

    #[test]
    fn a_release_removes_only_our_gate_and_narrows_each_term() {
        let released = patched(&Write::Release(placement()));
        assert_eq!(
            released["spec"]["schedulingGates"],
            json!([{"name": "example.com/x"}])
        );
        let required = &released["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
        let field = json!([{"key": "metadata.name", "operator": "In", "values": ["n1"]}]);
        assert_eq!(
            required["nodeSelectorTerms"],
            json!([
                {"matchExpressions": [{"key": "a", "operator": "Exists"}], "matchFields": field},
                {}
            ])
        );
        let annotations = &released["metadata"]["annotations"];
        assert_eq!(annotations[labels::QUEUE_TERM], "3");
        // What it showed while it waited is gone.
        let keys: Vec<_> = annotations.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["a", labels::QUEUE_PLACEMENT, labels::QUEUE_TERM]);
        assert_eq!(Placement::of(&released), Some(placement()));
        let again = Write::Release(placement()).patch(&released, 3);
        assert_eq!(again, Err(Unwritable::NotWaiting));
    }

    #[test]
    fn a_preparation_leaves_the_gate_and_the_affinity() {
        let prepared = patched(&Write::Prepare(placement()));
        assert_eq!(Placement::of(&prepared), Some(placement()));
        assert_eq!(prepared["spec"], pod()["spec"]);
    }

    #[test]
    fn a_rejection_is_of_the_status() {
        let message = "waited 150s".to_owned();
        let rejected = patched(&Write::Reject { message });
        let status = json!({"phase": "Failed", "reason": TIMEOUT, "message": "waited 150s"});
        assert_eq!(rejected["status"], status);
        assert_eq!(rejected["spec"], pod()["spec"]);
        assert_eq!(rejected["metadata"]["annotations"][labels::QUEUE_TERM], "3");
    }

    #[test]
    fn a_patch_fails_on_another_version_or_another_pod() {
        let patch = Write::Release(placement()).patch(&pod(), 3).unwrap();
        let patch: json_patch::Patch = serde_json::from_value(patch.operations).unwrap();
        for (field, value) in [("uid", "v"), ("resourceVersion", "8")] {
            let mut other = pod();
            other["metadata"][field] = json!(value);
            json_patch::patch(&mut other, &patch).unwrap_err();
        }
    }
}
