//! What the queue writes into pods: JSON patches, pure.
//!
//! Each patch names the version of the pod that it changes, so it fails if the pod has changed.
//! Each that moves a pod on carries the number of the leader's term.

use json_patch::{
    Patch,
    jsonptr::{Pointer, PointerBuf},
};
use nvlink_admission::decide::{affinity, gate};
use nvlink_api::{
    patch::{Editor, WrongType},
    pod,
};
use nvlink_topology::labels;
use serde_json::{Value, json};

use super::{
    Life, Placement, channel, claim::Named, metrics::Written, notice::TEMPORARY, prune::prune,
};

/// The reason in the status of a pod that waited too long.
pub(crate) const TIMEOUT: &str = "QueueTimeout";
/// The reason in the status of a pod that was released to a node which then was lost.
pub(crate) const NODE_LOST: &str = "QueueNodeLost";
/// The reason in the status of a pod whose claim nobody can make, because its class does not exist
/// any more, or does not queue.
pub(crate) const CLASS_GONE: &str = "QueueClassGone";
/// The reason in the status of a released pod that the scheduler does not bind to its node.
pub(crate) const REFUSED: &str = "QueueNodeRefuses";

/// Of these pods it was the turn, and they did nothing wrong: their successors keep the turn, and a Job
/// can leave them out of its `backoffLimit` (`podFailurePolicy`, `onPodConditions`).
pub(crate) const DISRUPTED: [&str; 3] = [NODE_LOST, CLASS_GONE, REFUSED];
/// The condition by which Kubernetes tells such pods from those that failed by themselves.
const DISRUPTION: &str = "DisruptionTarget";

/// What our labels and annotations begin with.
const OURS: &str = "nvlink-domains.io/";

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
    pub operations: Patch,
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
    /// Returns what it is called in metrics, in the log and in tests.
    pub(super) fn kind(&self) -> Written {
        match self {
            Self::Prepare(_) => Written::Prepare,
            Self::Release(_) => Written::Release,
            Self::Reassign(_) => Written::Reassign,
            Self::Reject { .. } => Written::Reject,
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
        let mut editor = Editor::of_version(pod);
        match self {
            Self::Prepare(placement) => {
                at?;
                place(&mut editor, placement, term)?;
            }
            Self::Release(placement) => {
                let at = at?.to_string();
                editor.expect(&gate::PATH.concat(&PointerBuf::from_tokens([&at, "name"])));
                place(&mut editor, placement, term)?;
                tell(&mut editor, placement)?;
                for key in TEMPORARY {
                    editor.remove(pod::ANNOTATIONS, key);
                }
                if let Some(node) = &placement.node {
                    affinity::pin(&mut editor, node)?;
                }
                editor.remove(gate::PATH, &at);
            }
            Self::Reassign(placement) => {
                if Life::of(pod) != Life::Released {
                    return Err(Unwritable::NotWaiting);
                }
                place(&mut editor, placement, term)?;
                tell(&mut editor, placement)?;
            }
            Self::Reject { reason, message } => {
                if *reason == TIMEOUT {
                    at?;
                }
                sign(&mut editor, term)?;
                fail(&mut editor, reason, message)?;
            }
        }
        Ok(PodPatch {
            operations: editor.finish().1,
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

/// Records a placement.
fn place(editor: &mut Editor, placement: &Placement, term: i32) -> Result<(), Unwritable> {
    let text =
        serde_json::to_string(placement).map_err(|error| Unwritable::Json(error.to_string()))?;
    editor.insert(pod::ANNOTATIONS, labels::QUEUE_PLACEMENT, text.into())?;
    sign(editor, term)
}

/// Ends the life of the pod.
fn fail(editor: &mut Editor, reason: &str, message: &str) -> Result<(), Unwritable> {
    let status = [
        ("phase", "Failed"),
        ("reason", reason),
        ("message", message),
    ];
    for (key, value) in status {
        editor.insert(Pointer::from_static("/status"), key, value.into())?;
    }
    unschedule(editor, reason, message)?;
    if DISRUPTED.contains(&reason) {
        disrupt(editor, reason, message)?;
    }
    Ok(())
}

/// Ends the condition by which `kubectl get pods` shows a pod as one that waits, whatever its phase.
fn unschedule(editor: &mut Editor, reason: &str, message: &str) -> Result<(), Unwritable> {
    let gated = pod::list(editor.document(), &["status", "conditions"]).position(|one| {
        pod::text(one, &["type"]) == "PodScheduled"
            && pod::text(one, &["reason"]) == "SchedulingGated"
    });
    let Some(at) = gated else { return Ok(()) };
    let condition = PointerBuf::from_tokens(["status", "conditions", &at.to_string()]);
    for (key, value) in [("reason", reason), ("message", message)] {
        editor.insert(&condition, key, value.into())?;
    }
    Ok(())
}

/// Says that the pod did not fail by itself, unless somebody has said so.
fn disrupt(editor: &mut Editor, reason: &str, message: &str) -> Result<(), Unwritable> {
    let is_told = pod::list(editor.document(), &["status", "conditions"])
        .any(|one| pod::text(one, &["type"]) == DISRUPTION);
    if is_told {
        return Ok(());
    }
    let condition = json!({
        "type": DISRUPTION, "status": "True", "reason": reason, "message": message,
    });
    Ok(editor.append(Pointer::from_static("/status/conditions"), condition)?)
}

/// Names the leader's term.
fn sign(editor: &mut Editor, term: i32) -> Result<(), Unwritable> {
    let term = term.to_string().into();
    Ok(editor.insert(pod::ANNOTATIONS, labels::QUEUE_TERM, term)?)
}

/// Tells the containers of a pod with claims the GPUs of their ranks, and whether they have a channel.
fn tell(editor: &mut Editor, placement: &Placement) -> Result<(), Unwritable> {
    let named = Named::of(editor.document()).into_iter();
    for (key, value) in named.flat_map(|named| named.annotations(placement)) {
        editor.insert(pod::ANNOTATIONS, &key, value.into())?;
    }
    if channel::named(editor.document()).is_some() {
        let value = channel::variable(placement).into();
        editor.insert(pod::ANNOTATIONS, labels::QUEUE_MNNVL, value)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod() -> Value {
        json!({
            "metadata": {
                "name": "p", "namespace": "n", "uid": "u", "resourceVersion": "7",
                "annotations": {labels::QUEUE_REASON: "Insufficient: …", labels::QUEUE_ETA: "…", "a": "b"}
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
            "status": {"phase": "Pending", "conditions": [
                {"type": "example.com/Other", "reason": "SchedulingGated"},
                {"type": "PodScheduled", "reason": "SchedulingGated"},
            ]}
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
            nics: None,
            compute_domain: None,
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
        json_patch::patch(&mut pod, &patch.operations).unwrap();
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
        let status = json!({
            "phase": "Failed", "reason": TIMEOUT, "message": "waited 150s",
            "conditions": [
                {"type": "example.com/Other", "reason": "SchedulingGated"},
                {"type": "PodScheduled", "reason": TIMEOUT, "message": "waited 150s"},
            ],
        });
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
            let Ok(patch) = patch else { continue };
            let mut failed = pod.clone();
            json_patch::patch(&mut failed, &patch.operations).unwrap();
            let condition = &failed["status"]["conditions"][2];
            assert_eq!(condition["type"], "DisruptionTarget");
            assert_eq!(
                (&condition["status"], &condition["reason"]),
                (&json!("True"), &json!(reason))
            );
        }
    }

    #[test]
    fn changes_by_others_matter_if_they_change_what_was_decided() {
        let changed = |path: &str, value: Value| {
            let mut pod = pod();
            let operation = json!([{"op": "add", "path": path, "value": value}]);
            let operation: Patch = serde_json::from_value(operation).unwrap();
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
        for (field, value) in [("uid", "v"), ("resourceVersion", "8")] {
            let mut other = pod();
            other["metadata"][field] = json!(value);
            json_patch::patch(&mut other, &patch.operations).unwrap_err();
        }
    }
}
