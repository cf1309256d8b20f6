//! What the program prints for the cluster: CRDs and registration.

#![allow(clippy::unwrap_used)]

mod fixture;

use fixture::check_golden;
use nvlink_webhook::{WebhookTarget, crd, registration};
use serde_json::Value;

#[test]
fn crds() {
    let documents = crd::documents().unwrap();
    check_golden(
        "crds.yaml",
        &serde_saphyr::to_string_multiple(&documents).unwrap(),
    );
}

#[test]
fn the_schemas_are_structural() {
    fn walk(path: &str, schema: &Value) {
        let Some(map) = schema.as_object() else {
            return;
        };
        for word in ["$ref", "oneOf", "anyOf", "allOf", "definitions"] {
            assert!(!map.contains_key(word), "{path} has {word}");
        }
        assert!(map.contains_key("type"), "{path} has no type");
        for (key, property) in schema["properties"].as_object().into_iter().flatten() {
            walk(&format!("{path}.{key}"), property);
        }
        if let Some(items) = map.get("items") {
            assert!(
                map.contains_key("maxItems") || path.ends_with("gpus"),
                "{path} has no bound"
            );
            walk(&format!("{path}[]"), items);
        }
    }
    for document in crd::documents().unwrap() {
        walk(
            "",
            &document["spec"]["versions"][0]["schema"]["openAPIV3Schema"],
        );
    }
}

#[test]
fn webhook_configuration() {
    let target = WebhookTarget::Service {
        namespace: "nvlink-system".to_owned(),
        name: "nvlink-webhook".to_owned(),
        port: 443,
    };
    let text = serde_saphyr::to_string(&registration(
        &target,
        &["nvlink-system".to_owned()],
        b"PEM",
    ))
    .unwrap();
    check_golden("registration.yaml", &text);
}
