//! Labels that only the webhook may write.

use nvlink_api::{class::syntax, patch::Editor, pod};
use nvlink_topology::labels;
use serde_json::Value;

use super::refusal::{Refusal, Rule};

/// Refuses a pod with one of the labels `keys`, because the webhook does not write them here.
pub(super) fn refuse(pod: &Value, keys: &[&str]) -> Result<(), Refusal> {
    let forged = keys
        .iter()
        .find(|key| pod::metadata(pod, "labels", key).is_some());
    match forged {
        None => Ok(()),
        Some(key) => Err(Refusal::new(
            Rule::ReservedLabel,
            format!(
                "only the webhook may write label {key}, and this pod gets none: remove the label from the pod{}",
                hint(key)
            ),
        )),
    }
}

pub(super) fn hint(key: &str) -> &'static str {
    match key {
        labels::CLASS => "; to choose a class, set the annotation of the same name",
        labels::GANG => "; to name a gang, set the annotation of the same name",
        _ => "",
    }
}

/// Sets a label. Refuses the pod if the label already has another value, because others rely on
/// these labels to show what the webhook decided.
pub(super) fn label(editor: &mut Editor, key: &str, value: &str) -> Result<(), Refusal> {
    match pod::metadata(editor.document(), "labels", key) {
        Some(Value::String(own)) if own == value => Ok(()),
        Some(other) => Err(Refusal::new(
            Rule::ReservedLabel,
            format!(
                "only the webhook may write label {key}: the pod has {other}, but its value for this pod is {value:?}: remove the label from the pod{}",
                hint(key)
            ),
        )),
        None => Ok(editor.insert(pod::LABELS, key, value.into())?),
    }
}

/// Returns `name` if it can be a label value, else a short hash of it.
pub(super) fn label_value(name: &str) -> String {
    if !name.is_empty() && syntax::is_label_value(name) {
        return name.to_owned();
    }
    // FNV-1a is short, and the same in every replica and version.
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("x{hash:016x}")
}

/// Returns a gang's name for messages: the hash if the name is too long to read.
pub(super) fn shown(gang: &str) -> String {
    if gang.chars().count() > 63 {
        label_value(gang)
    } else {
        gang.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_label_values() {
        for name in ["a", "gang-1", "A.b_c-9", &"x".repeat(63)] {
            assert_eq!(label_value(name), name);
        }
        for name in ["", "-a", "a-", "a b", "a/b", "ä", &"x".repeat(64)] {
            let value = label_value(name);
            assert!(
                value.len() == 17 && value.starts_with('x'),
                "{name} became {value}"
            );
        }
        assert_ne!(label_value("a b"), label_value("a c"));
    }
}
