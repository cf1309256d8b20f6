//! Labels and annotations that only the webhook may write, in new pods.
//!
//! A new pod may already have them if it is a copy of another pod, or if the API server calls the
//! webhook again. They must then be exactly what the webhook would write.

use nvlink_topology::labels;
use serde_json::Value;

use super::Case;
use crate::{
    decide::pod,
    decide::{
        identity, intent, project,
        refusal::{Refusal, Rule},
    },
};

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
    check_gang(case)
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
