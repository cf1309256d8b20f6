//! Pods that name their only node, as the DaemonSet controller does and as storage systems do for
//! the managers of a node's disks.
//!
//! Such a pod without GPUs does not target the nodes of a class that the node is not in, whatever it tolerates.
//! The policies do not know nodes, so the webhook writes into the pod what they can check: that it
//! may not run on nodes with the labels of the class.

use nvlink_api::{
    class::Class,
    patch::{Editor, WrongType},
    pod::{self, list},
};
use serde_json::{Value, json};

use super::{
    Held, node_name,
    reach::{TERMS, tolerates},
};
use crate::{
    decide::affinity,
    view::{Labels, View},
};

/// Reports whether the pod requests neither a GPU nor a class, and it is certain that its only node
/// is not one of `class`.
pub(super) fn is_outside(pod: &Value, held: &Held<'_>, class: &Class, view: &View) -> bool {
    labels_outside(pod, held, class, view).is_some()
}

fn labels_outside<'a>(
    pod: &Value,
    held: &Held<'_>,
    class: &Class,
    view: &'a View,
) -> Option<&'a Labels> {
    let is_daemon = !held.gpus && held.named.is_none() && held.label.is_none();
    let node = node(pod).filter(|_| is_daemon)?;
    view.labels_outside(node, class)
}

/// Returns the only node that the pod may run on, if it names one: its `nodeName`, or the name that
/// all alternatives of its node affinity require.
fn node(pod: &Value) -> Option<&str> {
    match node_name(pod) {
        "" => {}
        name => return Some(name),
    }
    let mut names = list(pod, &TERMS).map(of_term);
    let first = names.next()??;
    names.all(|name| name == Some(first)).then_some(first)
}

fn of_term(term: &Value) -> Option<&str> {
    list(term, &["matchFields"]).find_map(|field| {
        let is = |key: &str, value: &str| pod::text(field, &[key]) == value;
        let values = field.get("values")?.as_array()?;
        match values.as_slice() {
            [one] if is("key", "metadata.name") && is("operator", "In") => one.as_str(),
            _ => None,
        }
    })
}

/// Excludes the nodes of the restricted classes that the pod would target if it did not name its
/// node.
pub(super) fn exclude(editor: &mut Editor, view: &View) -> Result<(), WrongType> {
    let pod = editor.document();
    let held = Held::of(pod);
    let mut excluded = Vec::new();
    for class in view.restricted() {
        let Some(labels) = labels_outside(pod, &held, class, view) else {
            continue;
        };
        let reaches = !node_name(pod).is_empty() || tolerates(pod, class);
        let mut selector = class.selector.iter();
        let other = selector.find(|(key, value)| labels.get(key) != Some(value));
        if let Some((key, value)) = other.filter(|_| reaches) {
            excluded.push(json!({"key": key, "operator": "NotIn", "values": [value]}));
        }
    }
    affinity::require(editor, excluded)
}
