//! Finds fields of a document that its schema does not have.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use serde_json::Value;

/// Returns the paths of the fields in `document` that `schema` does not have. The
/// API server would drop them with a warning; offline, nothing else reports them.
#[must_use]
pub fn unknown_fields(schema: &JSONSchemaProps, document: &Value) -> Vec<String> {
    let mut found = Vec::new();
    walk(schema, document, "", &mut found);
    found
}

fn walk(schema: &JSONSchemaProps, value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            if let Some(JSONSchemaPropsOrBool::Schema(each)) = &schema.additional_properties {
                map.iter()
                    .for_each(|(key, value)| walk(each, value, &join(path, key), found));
            }
            let Some(properties) = &schema.properties else {
                return;
            };
            for (key, value) in map {
                match properties.get(key) {
                    Some(property) => walk(property, value, &join(path, key), found),
                    None => found.push(join(path, key)),
                }
            }
        }
        Value::Array(items) => {
            let Some(JSONSchemaPropsOrArray::Schema(each)) = &schema.items else {
                return;
            };
            for (index, item) in items.iter().enumerate() {
                walk(each, item, &format!("{path}[{index}]"), found);
            }
        }
        _ => {}
    }
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}
