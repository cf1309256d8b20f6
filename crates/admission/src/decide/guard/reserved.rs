//! Labels, annotations and the gate that only the webhook and its queue may write, in new pods.
//!
//! A new pod may already have what the webhook writes if it is a copy of another pod, or if the API server calls the
//! webhook again. They must then be exactly what the webhook would write.

use std::sync::Arc;

use nvlink_api::{class::Class, patch::Editor, pod};
use nvlink_topology::labels;
use serde_json::Value;

use super::Case;
use crate::decide::{
    claim, gate, identity, intent, project,
    refusal::{Refusal, Rule},
};

/// Removes the annotations in which the queue keeps its state from a new pod, which is the copy of
/// another one if it has any: `kubectl debug --copy-to` and backups keep them. The queue believes
/// what it reads there, so the policies refuse pods that still have them. Returns a warning for the
/// user.
pub(super) fn strip(editor: &mut Editor) -> Option<String> {
    let keys = pod::entries(editor.document(), &["metadata", "annotations"]);
    let ours: Vec<_> = keys
        .filter(|(key, _)| key.starts_with(labels::QUEUE_STATE))
        .map(|(key, _)| key.clone())
        .collect();
    for key in &ours {
        editor.remove(pod::ANNOTATIONS, key);
    }
    (!ours.is_empty()).then(|| {
        format!(
            "annotations {}* were removed, because only the queue writes them, and not in a new pod",
            labels::QUEUE_STATE
        )
    })
}

pub(super) fn check(case: Case<'_>) -> Result<(), Refusal> {
    let Case { pod, held, .. } = case;
    let label = |key| pod::metadata(pod, "labels", key);
    if pod::metadata(pod, "annotations", labels::DECISION).is_some()
        && label(labels::CLASS).is_none()
    {
        return Err(Refusal::new(
            Rule::ReservedAnnotation,
            format!(
                "only the webhook may write annotation {}: remove it from the pod; with kubectl debug --copy-to, leave out --keep-annotations or add --keep-labels",
                labels::DECISION
            ),
        ));
    }
    if label(labels::CLASS).is_some() {
        match case.wanted() {
            Some(wanted) if held.label != Some(wanted) => {
                return Err(forged(labels::CLASS, Some(wanted)));
            }
            // A pod without GPUs has no class, even if it names one.
            _ if !held.gpus => return Err(forged(labels::CLASS, None)),
            _ => {}
        }
    }
    if let Some(own) = label(labels::PROJECT) {
        check_project(case, own)?;
    }
    check_gang(case)?;
    check_claim(case)?;
    check_gate(case)
}

/// Refuses the gate in a pod that the queue would never release from it.
fn check_gate(case: Case<'_>) -> Result<(), Refusal> {
    if !gate::is_queued(case.pod) {
        return Ok(());
    }
    if class_with_gpus(case).is_some_and(|class| class.queue.is_some()) {
        return Ok(());
    }
    Err(Refusal::new(
        Rule::ReservedGate,
        format!(
            "only the webhook may add the scheduling gate {}, and this pod does not wait in a queue: remove the gate; to wait, name a class with whenUnavailable Queue in annotation {}",
            labels::QUEUE_GATE,
            labels::CLASS
        ),
    ))
}

/// Returns the class of the pod, if the pod requests GPUs of it.
fn class_with_gpus(case: Case<'_>) -> Option<&Arc<Class>> {
    let class = case.view.class(case.class()?)?.ok()?;
    let gpus = pod::request(&case.held.containers, &class.resource);
    gpus.is_ok_and(|gpus| gpus > 0).then_some(class)
}

/// Refuses the queue's claim in a pod that does not get its GPUs by one. The webhook names a claim
/// of its own in a pod that does.
fn check_claim(case: Case<'_>) -> Result<(), Refusal> {
    let gives = |class: &&Arc<Class>| {
        let mut ours = [labels::CLAIM, labels::CHANNEL].into_iter();
        ours.any(|entry| claim::gives(class, entry))
    };
    let class = class_with_gpus(case).filter(gives);
    match class {
        _ if !claim::is_named(case.pod) => Ok(()),
        Some(class) if !claim::is_shared(case.pod, class) => Ok(()),
        Some(_) => Err(claim::refuse(format!(
            "the pod names a claim of the queue in another entry of spec.resourceClaims than the webhook writes for its class ({:?} for GPUs, {:?} for an IMEX channel), which would give it the devices of another pod: remove the entry",
            labels::CLAIM,
            labels::CHANNEL
        ))),
        None => Err(claim::refuse(format!(
            "only the webhook may name a claim of the queue, and this pod requests no GPUs of a class with the devices mapping Claim or with environment.mnnvl Managed: remove {:?} and {:?} from spec.resourceClaims and from the claims of the containers",
            labels::CLAIM,
            labels::CHANNEL
        ))),
    }
}

/// Checks the gang's label: it attracts the gang's other pods, so it must name this pod's own gang.
fn check_gang(case: Case<'_>) -> Result<(), Refusal> {
    let Some(own) = pod::metadata(case.pod, "labels", labels::GANG) else {
        return Ok(());
    };
    let gang = intent::gang(case.pod).filter(|_| case.held.gpus && case.class().is_some());
    let right = gang.as_deref().map(identity::label_value);
    if right.is_some() && own.as_str() == right.as_deref() {
        return Ok(());
    }
    Err(forged(labels::GANG, right.as_deref()))
}

fn check_project(case: Case<'_>, own: &Value) -> Result<(), Refusal> {
    let Case {
        pod,
        namespace,
        subject,
        view,
        ..
    } = case;
    let Some(name) = case.class().filter(|_| case.held.gpus) else {
        return Err(forged(labels::PROJECT, None));
    };
    let Some(Ok(class)) = view.class(name) else {
        // Another check refuses such a pod, or it is left unchanged.
        return Ok(());
    };
    let project = project::of(class, subject, pod, namespace);
    if own.as_str() == Some(&project) {
        return Ok(());
    }
    Err(forged(labels::PROJECT, Some(&project)))
}

/// Returns the refusal for a forged label. `right`: the value that the webhook would write, if any.
fn forged(key: &str, right: Option<&str>) -> Refusal {
    let here = match right {
        Some(right) => format!("and its value for this pod is {right:?}"),
        None => "and this pod gets none".to_owned(),
    };
    Refusal::new(
        Rule::ReservedLabel,
        format!(
            "only the webhook may write label {key}, {here}: remove the label from the pod{}",
            identity::hint(key)
        ),
    )
}
