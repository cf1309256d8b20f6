//! What the queue writes into pods: JSON patches, pure.
//!
//! Each patch names the version of the pod that it changes, so it fails if the pod has changed.
//! Each that moves a pod on carries the number of the leader's term.

use nvlink_admission::decide::{affinity, gate};
use nvlink_api::{
    patch::{Editor, Step, WrongType},
    pod,
};
use nvlink_topology::labels;
use serde_json::{Value, json};

use super::{Life, Placement, claim::Named, notice::TEMPORARY, prune::prune};

/// The reason in the status of a pod that waited too long.
pub(crate) const TIMEOUT: &str = "QueueTimeout";
/// The reason in the status of a pod that was released to a node which then was lost.
pub(crate) const NODE_LOST: &str = "QueueNodeLost";
/// The reason in the status of a pod whose claim nobody can make, because its class does not exist
/// any more, or does not queue.
pub(crate) const CLASS_GONE: &str = "QueueClassGone";
/// The reason in the status of a released pod that the scheduler does not bind to its node.
pub(crate) const REFUSED: &str = "QueueNodeRefuses";

/// What our labels and annotations begin with.
const OURS: &str = "nvlink-domains.io/";
const ANNOTATIONS: [Step<'_>; 2] = [Step::Key("metadata"), Step::Key("annotations")];

/// Something that the queue writes into a pod.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Write {
    /// Records where the pod will go, while it still waits.
    Prepare(Placement),
    /// Puts the pod on its node and lets it go.
    Release(Placement),
    /// Gives a pod that was released, and that no scheduler has bound, other GPUs of its node.
    Reassign(Placement),
    /// Fails the pod.
    Reject {
        /// [`TIMEOUT`], or [`NODE_LOST`] or [`REFUSED`] for a pod that was released.
        reason: &'static str,
        /// Why, for the author of the pod.
        message: String,
    },
}

/// A patch of a pod.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PodPatch {
    /// The operations of a JSON patch.
    pub operations: Value,
    /// Whether it is one of the pod's status.
    pub status: bool,
}

/// Why a pod cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unwritable {
    /// It has no gate of the queue, or none is left.
    #[error("the pod does not wait")]
    NotWaiting,
    /// It is not of the expected form.
    #[error(transparent)]
    WrongType(#[from] WrongType),
    /// The patch is no JSON.
    #[error("the patch cannot be written: {0}")]
    Json(String),
}

impl Write {
    /// Returns what it is called in tests.
    #[cfg(debug_assertions)]
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Prepare(_) => "prepare",
            Self::Release(_) => "release",
            Self::Reassign(_) => "reassign",
            Self::Reject { .. } => "reject",
        }
    }

    /// Reports whether the pod has a place of the same plan.
    pub(super) fn is_prepared(&self, pod: &Value) -> bool {
        let (Self::Prepare(placement) | Self::Release(placement)) = self else {
            return false;
        };
        Placement::of(pod).is_some_and(|found| found.plan == placement.plan)
    }

    /// Reports whether this release, and no other, has let the pod go.
    pub(super) fn is_done(&self, pod: &Value) -> bool {
        self.is_prepared(pod) && !matches!(Life::of(pod), Life::Waiting { .. })
    }

    /// Returns the patch of `pod` in the leader's term of number `term`.
    ///
    /// # Errors
    /// When the pod cannot be written.
    pub(crate) fn patch(&self, pod: &Value, term: i32) -> Result<PodPatch, Unwritable> {
        let at = gate::gates(pod).position(|gate| gate == labels::QUEUE_GATE);
        let at = at.ok_or(Unwritable::NotWaiting);
        let mut operations = version(pod);
        match self {
            Self::Prepare(placement) => {
                at?;
                operations.extend(placed(pod, placement, term, false)?);
            }
            Self::Release(placement) => {
                let gate = format!("/spec/schedulingGates/{}", at?);
                operations.push(json!({
                    "op": "test", "path": format!("{gate}/name"), "value": labels::QUEUE_GATE
                }));
                operations.extend(placed(pod, placement, term, true)?);
                operations.push(json!({"op": "remove", "path": gate}));
            }
            Self::Reassign(placement) => {
                if Life::of(pod) != Life::Released {
                    return Err(Unwritable::NotWaiting);
                }
                operations.extend(placed(pod, placement, term, false)?);
            }
            Self::Reject { reason, message } => {
                if *reason == TIMEOUT {
                    at?;
                }
                let mut editor = Editor::new(pod.clone());
                editor.insert(&ANNOTATIONS, labels::QUEUE_TERM, term.to_string().into())?;
                operations.extend(recorded(editor)?);
                operations.extend(failed(reason, message));
            }
        }
        Ok(PodPatch {
            operations: Value::Array(operations),
            status: matches!(self, Self::Reject { .. }),
        })
    }
}

/// Reports whether two versions of a pod are alike in what the queue decided by: what the pod asks,
/// what it declares to us, and where an earlier write put it.
pub(super) fn is_same(before: &Value, after: &Value) -> bool {
    let asks = |pod: &Value| {
        let mut pod = pod.clone();
        prune(&mut pod);
        pod.get("spec").cloned()
    };
    let ours = |pod: &Value, field: &str| -> Vec<(String, Value)> {
        let entries = pod::entries(pod, &["metadata", field]);
        let ours = entries.filter(|(key, _)| key.starts_with(OURS));
        let lasting = ours.filter(|(key, _)| !TEMPORARY.contains(&key.as_str()));
        lasting
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    };
    let alike = |field: &str| ours(before, field) == ours(after, field);
    asks(before) == asks(after) && alike("labels") && alike("annotations")
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
    let released = pinned || Life::of(pod) == Life::Released;
    if let Some(named) = Named::of(pod).filter(|_| released) {
        for (key, value) in named.annotations(placement) {
            editor.insert(&ANNOTATIONS, &key, value.into())?;
        }
    }
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
fn failed(reason: &str, message: &str) -> [Value; 3] {
    [
        ("phase", "Failed"),
        ("reason", reason),
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
            gang: None,
            node: Some("n1".to_owned()),
            gpus: vec![2, 3],
            uuids: Vec::new(),
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
        let reason = TIMEOUT;
        let rejected = patched(&Write::Reject { reason, message });
        let status = json!({"phase": "Failed", "reason": TIMEOUT, "message": "waited 150s"});
        assert_eq!(rejected["status"], status);
        assert_eq!(rejected["spec"], pod()["spec"]);
        assert_eq!(rejected["metadata"]["annotations"][labels::QUEUE_TERM], "3");
    }

    #[test]
    fn only_a_released_pod_whose_node_is_lost_is_failed_without_a_gate() {
        let mut pod = pod();
        pod["spec"]["schedulingGates"] = json!([]);
        for (reason, allowed) in [(TIMEOUT, false), (NODE_LOST, true), (REFUSED, true)] {
            let message = "node n1 does not exist any more".to_owned();
            let patch = Write::Reject { reason, message }.patch(&pod, 3);
            assert_eq!(patch.is_ok(), allowed, "{patch:?}");
        }
    }

    #[test]
    fn changes_by_others_matter_if_they_change_what_was_decided() {
        let changed = |path: &str, value: Value| {
            let mut pod = pod();
            let operation = json!([{"op": "add", "path": path, "value": value}]);
            let operation: json_patch::Patch = serde_json::from_value(operation).unwrap();
            json_patch::patch(&mut pod, &operation).unwrap();
            is_same(&super::tests::pod(), &pod)
        };
        assert!(changed("/metadata/resourceVersion", json!("8")));
        assert!(changed("/metadata/annotations/b", json!("c")));
        assert!(changed("/metadata/labels", json!({"a": "b"})));
        assert!(changed(
            "/metadata/annotations/nvlink-domains.io~1queue-position",
            json!("2")
        ));
        assert!(!changed(
            "/metadata/annotations/nvlink-domains.io~1gang-size",
            json!("2")
        ));
        assert!(!changed(
            "/metadata/annotations/nvlink-domains.io~1queue-placement",
            json!("{}")
        ));
        assert!(!changed(
            "/metadata/labels",
            json!({"nvlink-domains.io/class": "b"})
        ));
        assert!(!changed("/spec/nodeSelector", json!({"a": "b"})));
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
