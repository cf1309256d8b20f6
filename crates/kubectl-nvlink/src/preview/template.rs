//! Finds pods and pod templates in a document.

use json_patch::jsonptr::{Pointer, PointerBuf};
use nvlink_topology::GROUP;
use serde_json::Value;

use nvlink_api::pod;

/// A pod or a pod template in a document.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Template {
    /// JSON pointer to the value with the pod's `metadata` and `spec`.
    pub(super) path: PointerBuf,
    /// The object that the pods are created for.
    pub(super) object: Object,
}

/// An object in a document, or in a list of a document.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Object {
    /// JSON pointer to the object.
    pub(super) path: PointerBuf,
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) name: String,
    /// Its namespace, if it has one.
    pub(super) namespace: Option<String>,
}

impl Object {
    /// Parses `value`, if it is an object of the API.
    fn of(value: &Value, path: &Pointer) -> Option<Self> {
        let text = |name: &str| Some(value.get(name)?.as_str()?.to_owned());
        let metadata = value.get("metadata");
        let namespace = metadata.and_then(|metadata| metadata.get("namespace")?.as_str());
        Some(Self {
            path: path.to_buf(),
            kind: text("kind")?,
            api_version: text("apiVersion").unwrap_or_default(),
            name: pod::display_name(value),
            namespace: namespace.filter(|name| !name.is_empty()).map(str::to_owned),
        })
    }
}

impl Template {
    /// Returns its name for people: `Job/train`.
    pub(super) fn name(&self) -> String {
        let Object { kind, name, .. } = &self.object;
        format!("{kind}/{name}")
    }

    /// Reports whether it is a pod, not a template for pods that a controller creates.
    pub(super) fn is_pod(&self) -> bool {
        self.object.kind == "Pod"
    }
}

/// Returns the pods and pod templates of a document of any kind. Every value with
/// `spec.containers` is one, so this covers the kinds of operators too.
pub(super) fn find(document: &Value) -> Vec<Template> {
    let mut found = Vec::new();
    walk(document, Pointer::root(), &Object::default(), &mut found);
    found
}

fn walk(value: &Value, path: &Pointer, within: &Object, found: &mut Vec<Template>) {
    match value {
        Value::Object(fields) => {
            let own = Object::of(value, path);
            let is_pod = own.as_ref().map(|object| object.kind == "Pod");
            let containers = value.get("spec").and_then(|spec| spec.get("containers"));
            let object = own.as_ref().unwrap_or(within);
            if is_pod.unwrap_or(containers.is_some() && !object.kind.is_empty()) {
                let (path, object) = (path.to_buf(), object.clone());
                return found.push(Template { path, object });
            }
            for (key, value) in fields {
                walk(value, &path.with_trailing_token(key), object, found);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                walk(item, &path.with_trailing_token(index), within, found);
            }
        }
        _ => {}
    }
}

/// Returns a note on an annotation of the object that works only on its pods.
pub(super) fn unheard(document: &Value, template: &Template) -> Option<String> {
    if template.is_pod() {
        return None;
    }
    let object = document.pointer(template.object.path.as_str())?;
    let annotations = object.pointer("/metadata/annotations")?.as_object()?;
    let prefix = format!("{GROUP}/");
    let name = annotations.keys().find(|name| name.starts_with(&prefix))?;
    Some(format!(
        "the annotation {name} of the {} has no effect: move it to the pod template's metadata ({}/metadata/annotations)",
        template.object.kind, template.path
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn templates_are_found_at_their_paths() {
        let paths =
            |document: Value| -> Vec<_> { find(&document).into_iter().map(|t| t.path).collect() };
        let template = || json!({"spec": {"containers": []}});
        assert_eq!(paths(json!({"kind": "Pod"})), [""]);
        assert_eq!(
            paths(json!({"kind": "Job", "spec": {"template": template()}})),
            ["/spec/template"]
        );
        let cron =
            json!({"kind": "CronJob", "spec": {"jobTemplate": {"spec": {"template": template()}}}});
        assert_eq!(
            paths(json!({"kind": "List", "items": [{"kind": "ConfigMap"}, cron]})),
            ["/items/1/spec/jobTemplate/spec/template"]
        );
        let kinds = json!({"kind": "PyTorchJob", "spec": {"pytorchReplicaSpecs": {
            "Master": {"template": template()}, "a/b": {"template": template()}
        }}});
        assert_eq!(
            paths(kinds),
            [
                "/spec/pytorchReplicaSpecs/Master/template",
                "/spec/pytorchReplicaSpecs/a~1b/template"
            ]
        );
        assert!(paths(json!({"kind": "Job", "spec": {}})).is_empty());
        assert!(paths(json!([1])).is_empty());
        assert!(paths(template()).is_empty(), "not an object of the API");
    }

    #[test]
    fn the_object_is_the_innermost() {
        let job = json!({"kind": "Job", "apiVersion": "batch/v1", "metadata": {"name": "j"},
            "spec": {"template": {"spec": {"containers": []}}}});
        let wrapper = json!({"kind": "AppWrapper", "metadata": {"name": "w"},
            "spec": {"components": [{"template": job}]}});
        let found = find(&wrapper);
        assert_eq!(found[0].name(), "Job/j");
        assert_eq!(found[0].object.path, "/spec/components/0/template");
    }
}
