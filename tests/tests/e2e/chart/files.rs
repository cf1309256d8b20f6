//! The chart's copies of what the programs know: one source of truth.

use std::{collections::BTreeSet, fs, path::Path};

use nvlink_tests::{Helm, dashboards, programs};
use nvlink_topology::{NodeTopology, labels};
use serde_json::Value;

use super::{chart, documents, golden, read};

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

    let arguments = ["policies", "--exempt-namespace"];
    let namespaces = ["nvlink-system,nvlink-exporter,gpu-operator"];
    let printed = programs::run(
        programs::WEBHOOK,
        &[&arguments[..], &namespaces].concat(),
        "",
    );
    let helm = Helm::new().unwrap();
    let rendered = helm.template("policies.yaml", "exemptNamespaces: [gpu-operator]");
    let rendered = sorted(&rendered.unwrap());
    assert_eq!(rendered.len(), 14);
    assert!(rendered == sorted(&printed.unwrap()));
}

#[test]
fn the_rules_are_those_of_the_project() {
    let directory = chart("../../../alerts/rules");
    let names = |directory: &Path| -> BTreeSet<String> {
        let files = fs::read_dir(directory).unwrap();
        let name = |file: fs::DirEntry| file.file_name().into_string().unwrap();
        files.map(|file| name(file.unwrap())).collect()
    };
    for name in names(&directory) {
        golden(&format!("alerts/{name}"), &read(&directory.join(&name)));
    }
    assert_eq!(names(&chart("alerts")), names(&directory));
}

#[test]
fn the_dashboards_are_those_of_the_project() {
    for name in dashboards::NAMES {
        let file = format!("{name}.json");
        let text = read(&Path::new(dashboards::DIRECTORY).join(&file));
        golden(&format!("dashboards/{file}"), &text);
    }
    let files = fs::read_dir(chart("dashboards")).unwrap().count();
    assert_eq!(files, dashboards::NAMES.len());
}

/// Returns the documents in an order of their own, because helm sorts them by kind.
fn sorted(text: &str) -> Vec<Value> {
    let mut documents = documents(text);
    documents.sort_by_key(|one| format!("{} {}", one["kind"], one["metadata"]["name"]));
    documents
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

/// Returns the strings in the list of the policy's variable `name`.
fn listed(policy: &Value, name: &str) -> BTreeSet<String> {
    let variables = policy["spec"]["variables"].as_array().unwrap();
    let found = variables.iter().find(|one| one["name"] == name).unwrap();
    let quoted = found["expression"].as_str().unwrap().split('\'');
    quoted.skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn the_policy_of_exporters_lists_what_they_write() {
    let rendered = Helm::new()
        .unwrap()
        .template("exporter/node-policy.yaml", "");
    let rendered = documents(&rendered.unwrap());
    let set = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    assert_eq!(listed(&rendered[0], "own"), set(&labels::NODE_LABELS));
    let annotations: BTreeSet<_> = set(&labels::NODE_ANNOTATIONS);
    assert_eq!(listed(&rendered[0], "ownAnnotations"), annotations);

    let arguments = ["topology", "--source", "sim:dgx-h100", "--output", "json"];
    let node = programs::run(programs::EXPORTER, &arguments, "").unwrap();
    let node: NodeTopology = serde_json::from_str(&node).unwrap();
    let aliases: Vec<_> = labels::alias_labels(&node).into_keys().collect();
    assert_eq!(listed(&rendered[0], "aliases"), set(&aliases));
}
