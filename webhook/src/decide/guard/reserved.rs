//! What only the webhook writes, in a pod that is created. It may be there
//! already, where a pod is made from a copy of another or the webhook is asked
//! again, but then it must be what the webhook would write.

use nvlink_topology::labels;
use serde_json::Value;

use super::{Case, Held};
use crate::{
    decide::{
        identity, intent, project,
        refusal::{Refusal, Rule},
    },
    pod,
};

pub(super) fn check(case: Case<'_>, held: &Held<'_>) -> Result<(), Refusal> {
    let Case { pod, .. } = case;
    let label = |key| pod::metadata(pod, "labels", key);
    if pod::metadata(pod, "annotations", labels::DECISION).is_some()
        && label(labels::CLASS).is_none()
    {
        return Err(Refusal::new(
            Rule::ReservedAnnotation,
            format!(
                "annotation {} is written by the webhook alone: remove it from the pod",
                labels::DECISION
            ),
        ));
    }
    if label(labels::CLASS).is_some() {
        match held.wanted() {
            Some(wanted) if held.label != Some(wanted) => {
                return Err(forged(labels::CLASS, Some(wanted)));
            }
            // Nobody claims a pod without GPUs.
            None if !held.gpus => return Err(forged(labels::CLASS, None)),
            _ => {}
        }
    }
    if let Some(own) = label(labels::PROJECT) {
        check_project(case, held, own)?;
    }
    let gang = [labels::GANG, intent::ALIAS_GROUP];
    let named = gang
        .iter()
        .any(|key| pod::metadata(pod, "annotations", key).is_some());
    if label(labels::GANG).is_some() && !named {
        return Err(forged(labels::GANG, None));
    }
    Ok(())
}

fn check_project(case: Case<'_>, held: &Held<'_>, own: &Value) -> Result<(), Refusal> {
    let Case {
        pod,
        namespace,
        subject,
        view,
    } = case;
    let Some(name) = held.class() else {
        return Err(forged(labels::PROJECT, None));
    };
    let Some(Ok(class)) = view.class(name) else {
        // Refused or left alone for that.
        return Ok(());
    };
    let project = project::of(class, subject, pod, namespace);
    if own.as_str() == Some(&project) {
        return Ok(());
    }
    Err(forged(labels::PROJECT, Some(&project)))
}

/// `right`: what the webhook would write, if it would write anything.
fn forged(key: &str, right: Option<&str>) -> Refusal {
    let here = match right {
        Some(right) => format!("and here it is {right:?}"),
        None => "which gives this pod none".to_owned(),
    };
    Refusal::new(
        Rule::ReservedLabel,
        format!(
            "label {key} is written by the webhook alone, {here}: remove the label from the pod{}",
            identity::hint(key)
        ),
    )
}
