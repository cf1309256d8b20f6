//! The files of the chart: what the programs print is up to date, and the schema knows each value.

use nvlink_tests::programs;
use serde_json::Value;

use crate::{chart, documents, golden, read};

/// The template replaces this name, which no cluster has.
const PLACEHOLDER: &str = "exempt-namespaces-of-the-chart";

#[test]
fn the_crds_are_those_of_the_program() {
    let printed = programs::run(programs::WEBHOOK, &["crds"], "").unwrap();
    golden("files/crds.yaml", &printed);
}

#[test]
fn the_policies_are_those_of_the_program() {
    let lease = ["--lease-namespace", "lease-namespace-of-the-chart"];
    let exempt = ["policies", "--exempt-namespace", PLACEHOLDER];
    let arguments = [&exempt[..], &lease].concat();
    let printed = programs::run(programs::WEBHOOK, &arguments, "").unwrap();
    golden("files/policies.yaml", &printed);
}

#[test]
fn the_chart_has_the_version_of_the_programs() {
    let [chart] = &documents(&read(&chart("Chart.yaml")))[..] else {
        panic!("Chart.yaml is not one document");
    };
    for field in ["version", "appVersion"] {
        assert_eq!(chart[field], env!("CARGO_PKG_VERSION"), "{field}");
    }
}

/// Finds the objects of the default values whose fields the schema does not list.
fn open(schema: &Value, values: &Value, path: &str, found: &mut Vec<String>) {
    let Some(fields) = values.as_object() else {
        return;
    };
    for (name, value) in fields {
        let path = format!("{path}.{name}");
        match &schema["properties"][name] {
            Value::Null => found.push(path),
            inner => open(inner, value, &path, found),
        }
    }
}

/// A value that the schema does not know could not be set.
#[test]
fn the_schema_knows_each_value() {
    let schema: Value = serde_json::from_str(&read(&chart("values.schema.json"))).unwrap();
    let values = documents(&read(&chart("values.yaml"))).remove(0);
    let mut found = Vec::new();
    open(&schema, &values, "", &mut found);
    // Objects with free keys, and those of shared definitions, which the default values pass.
    let free = [".image.", ".resources.", ".labels.", ".env."];
    found.retain(|path| !free.iter().any(|part| path.contains(part)));
    assert_eq!(found, Vec::<String>::new());
}
