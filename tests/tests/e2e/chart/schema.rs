//! The schema of the values.

use nvlink_tests::Helm;
use serde_json::Value;

use super::{chart, documents, read};

#[test]
fn typos_and_wrong_values_are_refused() {
    let helm = Helm::new().unwrap();
    for (values, part) in [
        ("exportr: {}", "exportr"),
        ("exporter: {tolerance: []}", "tolerance"),
        ("exporter: {image: {tagg: x}}", "tagg"),
        (
            "exporter: {image: {digest: latest}}",
            "/exporter/image/digest",
        ),
        ("exporter: {platform: openshift}", "bottlerocket"),
        ("exporter: {source: nvm}", "/exporter/source"),
        (
            "exporter: {maxUnavailable: 10}\nwebhook: {replicas: 0}",
            "/webhook/replicas",
        ),
        ("exporter: {tolerations: [{kee: x}]}", "kee"),
        (
            "exporter: {nodeSelectorTerms: [{matchExpression: []}]}",
            "matchExpression",
        ),
        ("webhook: {drainSeconds: soon}", "/webhook/drainSeconds"),
        ("webhook: {certManager: {issuerRef: {nam: x}}}", "nam"),
        ("webhook: {page: {enable: true}}", "enable"),
        ("classes: {fast: {minBandwith: 400GBps}}", "minBandwith"),
        ("classes: {Fast: {}}", "Fast"),
        ("classes: {a..b: {}}", "a..b"),
        (
            "webhook: {image: {repository: 'reg:5000/x:0.1.0'}}",
            "/webhook/image/repository",
        ),
        ("exporter: {maxUnavailable: 0}", "/exporter/maxUnavailable"),
        // No rule applies to the pods of the exporter's namespace.
        ("exporter: {namespace: {name: default}}", "name another one"),
        // The policies would refuse all pods.
        ("crds: {enabled: false}", "apply the CRDs first"),
        ("exemptNamespaces: [Kube_System]", "/exemptNamespaces/0"),
        ("monitoring: {kind: podmonitor}", "PodMonitor"),
        ("benchmark: {enabled: true}", "benchmark.image is empty"),
        ("benchmark: {classes: {a: {}}}", "/benchmark/classes/a"),
        (
            "networkPolicy: {apiServerPorts: []}",
            "/networkPolicy/apiServerPorts",
        ),
    ] {
        let error = helm.release("template", values, &[]).unwrap_err();
        let error = format!("{error:#}");
        assert!(error.contains(part), "{values}: {error}");
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
