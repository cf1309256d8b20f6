//! The objects that the program prints for the cluster: CRDs, registration and policies.

#![allow(clippy::unwrap_used)]

#[path = "../../crates/admission/tests/all/fixture/mod.rs"]
mod fixture;

use std::process::Command;

use fixture::check_golden;
use nvlink_api::crd;
use nvlink_webhook::{WebhookTarget, registration};
use serde_json::{Value, json};

#[test]
fn crds() {
    let mut text = String::new();
    for mut document in crd::documents().unwrap() {
        let schema = document["spec"]["versions"][0]["schema"]["openAPIV3Schema"].take();
        text += &format!("# {}\n", document["metadata"]["name"].as_str().unwrap());
        text += &serde_saphyr::to_string(&document).unwrap();
        outline(&mut text, "", schema);
    }
    check_golden("crds.txt", &text);
}

/// Appends an outline of `schema` and its fields: one line for each field, with
/// everything except its description, which the field must have.
fn outline(text: &mut String, path: &str, mut schema: Value) {
    let Some(own) = schema.as_object_mut() else {
        return;
    };
    let described = own.remove("description").is_some();
    let field = path.starts_with(".spec.") && !path.ends_with([']', '}']);
    assert!(described || !field, "{path} has no description");
    let properties = own.remove("properties").unwrap_or_default();
    let items = own.remove("items").unwrap_or_default();
    let values = own.remove("additionalProperties").unwrap_or_default();
    *text += &format!("{path}: {}\n", json!(own));
    for (key, property) in properties.as_object().into_iter().flatten() {
        outline(text, &format!("{path}.{key}"), property.clone());
    }
    outline(text, &format!("{path}[]"), items);
    outline(text, &format!("{path}{{}}"), values);
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
    let configuration = json!(registration(&target, &["gpu-operator".to_owned()], b"PEM"));
    let mut entries = configuration["webhooks"].as_array().unwrap().clone();
    // The fields that differ between the entries; expressions only by their names.
    let mut text = String::new();
    for entry in &mut entries {
        let entry = entry.as_object_mut().unwrap();
        for key in [
            "name",
            "failurePolicy",
            "matchConditions",
            "rules",
            "objectSelector",
        ] {
            let Some(mut own) = entry.remove(key) else {
                continue;
            };
            for condition in own.as_array_mut().into_iter().flatten() {
                condition.as_object_mut().unwrap().remove("expression");
            }
            text += &format!("{key}: {own}\n");
        }
    }
    assert!(entries.iter().all(|entry| *entry == entries[0]));
    text += &serde_saphyr::to_string(&entries[0]).unwrap();
    check_golden("registration.txt", &text);
}

/// Status 1 means that the policies differ: a pipeline must be able to tell the two apart.
#[test]
fn without_a_cluster_to_compare_with_the_status_is_2() {
    let output = Command::new(env!("CARGO_BIN_EXE_nvlink-webhook"))
        .args(["policies", "--check"])
        .env("KUBECONFIG", "/nonexistent/kubeconfig")
        .env_remove("KUBERNETES_SERVICE_HOST")
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.starts_with("error: no access to the cluster: not in a pod"),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
}

/// Runs the program. Returns its exit status and what it printed.
fn run(arguments: &[&str]) -> (Option<i32>, String) {
    let program = env!("CARGO_BIN_EXE_nvlink-webhook");
    let output = Command::new(program).args(arguments).output().unwrap();
    let printed = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(printed).unwrap())
}

#[test]
fn bad_usage_is_status_2() {
    let registration = ["registration", "--url", "http://x", "--ca-file", "x"];
    for arguments in [&["serve"][..], &["nonsense"], &["preview"], &registration] {
        let (status, printed) = run(arguments);
        assert_eq!(status, Some(2), "{printed}");
    }
}

#[test]
fn a_command_of_the_plugin_says_where_it_is() {
    let (status, printed) = run(&["status", "-A"]);
    assert_eq!(status, Some(2));
    let wanted = "error: nvlink-webhook has no command status: run `kubectl nvlink status`;";
    assert!(printed.starts_with(wanted), "{printed}");
}

#[test]
fn crds_and_registration_are_printed() {
    let (_, crds) = run(&["crds"]);
    assert_eq!(crds.matches("kind: CustomResourceDefinition").count(), 3);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("ca.pem");
    let registration = || {
        let service = ["registration", "--service", "ns/hook", "--ca-file"];
        run(&[&service[..], &[file.to_str().unwrap()]].concat())
    };
    std::fs::write(&file, "x").unwrap();
    let (status, printed) = registration();
    assert_eq!(status, Some(1), "{printed}");
    assert!(printed.contains("ca.pem is not a PEM file"), "{printed}");
    std::fs::write(&file, "-----BEGIN CERTIFICATE-----\n").unwrap();
    let (_, printed) = registration();
    assert!(printed.contains("kind: MutatingWebhookConfiguration"));
}
