//! What the program prints for the cluster: CRDs, registration and policies.

#![allow(clippy::unwrap_used)]

mod fixture;

use std::process::Command;

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

/// Status 1 says that the policies differ: a pipeline has to tell the two apart.
#[test]
fn where_there_is_no_cluster_to_compare_with_the_status_is_2() {
    let output = Command::new(env!("CARGO_BIN_EXE_nvlink-webhook"))
        .args(["policies", "--check"])
        .env("KUBECONFIG", "/nonexistent/kubeconfig")
        .env_remove("KUBERNETES_SERVICE_HOST")
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.starts_with("error: cannot find the API server"),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
}
