//! What the chart has from the programs and from other directories: one source of truth.
//! `tests/files` compares what is generated.

use std::{collections::BTreeSet, fs, path::Path, process::Command};

use nvlink_tests::{CHART, Helm, programs, workdir};
use nvlink_topology::{NodeTopology, labels};
use serde_json::Value;

use super::{chart, documents, read};

#[test]
fn the_policies_have_the_exemptions_of_the_values() {
    let arguments = ["policies", "--exempt-namespace"];
    let namespaces = ["nvlink-system,nvlink-exporter,gpu-operator"];
    let arguments = [&arguments[..], &namespaces].concat();
    let printed = programs::run(programs::WEBHOOK, &arguments, "");
    let helm = Helm::new().unwrap();
    let rendered = helm.template("policies.yaml", "exemptNamespaces: [gpu-operator]");
    let rendered = sorted(&rendered.unwrap());
    assert_eq!(rendered.len(), 22);
    assert!(rendered == sorted(&printed.unwrap()));
}

/// Returns the names of the files in a directory that end with `ending`.
fn names(directory: &Path, ending: &str) -> BTreeSet<String> {
    let files = fs::read_dir(directory).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.ends_with(ending)).collect()
}

/// Rules and dashboards are links in a clone. Helm follows them: a package has files, and renders
/// the same. It has the presets, too.
#[test]
fn a_package_has_the_rules_and_dashboards_of_the_project() {
    let helm = Helm::new().unwrap();
    let directory = workdir::fresh("package").unwrap();
    let into = directory.to_str().unwrap();
    helm.run(&["package", CHART, "--destination", into], "")
        .unwrap();
    let package = format!("{into}/nvlink-domains-{}.tgz", env!("CARGO_PKG_VERSION"));
    let mut tar = Command::new("tar");
    tar.args(["xzf", &package, "-C", into]);
    assert!(tar.status().unwrap().success());

    let packed = directory.join("nvlink-domains");
    for (link, wanted) in [
        ("alerts", names(&chart("../../../alerts/rules"), ".yaml")),
        ("dashboards", names(&chart("../../../dashboards"), ".json")),
    ] {
        assert!(chart(link).is_symlink() && !packed.join(link).is_symlink());
        assert_eq!(names(&packed.join(link), ""), wanted);
        for name in wanted {
            let file = packed.join(link).join(&name);
            assert!(file.symlink_metadata().unwrap().is_file(), "{name}");
            assert!(read(&file) == read(&chart(link).join(&name)), "{name}");
        }
    }
    let presets = names(&chart("presets"), ".yaml");
    assert_eq!(names(&packed.join("presets"), ""), presets);

    let both = "monitoring: {rules: {enabled: true}, dashboards: {enabled: true}}";
    let render = |chart: &str| {
        let registry = Helm::registry();
        let arguments = ["template", "nvlink-domains", chart, "--values", "-"];
        let arguments = [&arguments[..], &["--set", &registry]].concat();
        helm.run(&arguments, both).unwrap()
    };
    assert!(render(&package) == render(CHART));
}

/// Returns the documents in an order of their own, because helm sorts them by kind.
fn sorted(text: &str) -> Vec<Value> {
    let mut documents = documents(text);
    documents.sort_by_key(|one| format!("{} {}", one["kind"], one["metadata"]["name"]));
    documents
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
