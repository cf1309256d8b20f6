//! Where pods are in a document.

use serde_json::Value;

use crate::pod;

/// A pod, or the template of pods, in a document.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Template {
    /// JSON pointer to what has the pod's `metadata` and `spec`.
    pub(super) path: String,
    /// What to call it: `Job/train`.
    pub(super) name: String,
    /// Its namespace, if the document names one.
    pub(super) namespace: Option<String>,
}

/// The pods and pod templates of a document; none for a kind that makes no pods.
pub(super) fn find(document: &Value) -> Vec<Template> {
    let kind = document
        .get("kind")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let path = match kind {
        "Pod" => "",
        "Job" | "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet" => "/spec/template",
        "CronJob" => "/spec/jobTemplate/spec/template",
        "List" | "PodList" => return items(document),
        _ => return Vec::new(),
    };
    if !document.pointer(path).is_some_and(Value::is_object) {
        return Vec::new();
    }
    let namespace = document
        .pointer("/metadata/namespace")
        .and_then(Value::as_str);
    vec![Template {
        path: path.to_owned(),
        name: format!("{kind}/{}", pod::display_name(document)),
        namespace: namespace.filter(|name| !name.is_empty()).map(str::to_owned),
    }]
}

/// What a document says of its own that only its pods' annotations can say.
pub(super) fn unheard(document: &Value, template: &Template) -> Option<String> {
    if template.path.is_empty() {
        return None;
    }
    let annotations = document.pointer("/metadata/annotations")?.as_object()?;
    let prefix = format!("{}/", nvlink_topology::GROUP);
    let name = annotations.keys().find(|name| name.starts_with(&prefix))?;
    Some(format!(
        "the annotation {name} has no effect here: put it into the pod template's metadata ({}/metadata/annotations)",
        template.path
    ))
}

fn items(list: &Value) -> Vec<Template> {
    let items = list
        .get("items")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .enumerate();
    let templates = items.flat_map(|(index, item)| {
        // Lists do not nest in lists.
        let nested = item.get("items").is_some();
        let found = if nested { Vec::new() } else { find(item) };
        found.into_iter().map(move |template| Template {
            path: format!("/items/{index}{}", template.path),
            ..template
        })
    });
    templates.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn templates_are_found_where_pods_are_made() {
        let paths =
            |document: Value| -> Vec<_> { find(&document).into_iter().map(|t| t.path).collect() };
        assert_eq!(paths(json!({"kind": "Pod"})), [""]);
        assert_eq!(
            paths(json!({"kind": "Job", "spec": {"template": {}}})),
            ["/spec/template"]
        );
        let cron = json!({"kind": "CronJob", "spec": {"jobTemplate": {"spec": {"template": {}}}}});
        assert_eq!(
            paths(json!({"kind": "List", "items": [{"kind": "ConfigMap"}, cron]})),
            ["/items/1/spec/jobTemplate/spec/template"]
        );
        assert!(paths(json!({"kind": "Job", "spec": {}})).is_empty());
        assert!(paths(json!([1])).is_empty());
    }
}
