//! The alerting rules: checked by promtool and amtool, and delivered by a real Alertmanager.

mod collectives;
mod covered;
mod devices;
mod inhibition;
mod live;
mod speed;
pub(crate) mod watch;
mod webhook;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use nvlink_tests::{Rules, assets};
use serde_json::Value;

/// Returns the path of a file or directory of the repository.
fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name)
}

/// Returns the YAML files of a directory, in the order of their names.
fn files(directory: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(path(directory)).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|kind| kind == "yaml"));
    files.sort();
    assert!(!files.is_empty(), "{directory} has no YAML files");
    files
}

fn passes(program: &str, arguments: &[&str], files: &[PathBuf]) {
    let mut command = Command::new(assets::path(program).unwrap());
    let output = command.args(arguments).args(files).output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{program} {arguments:?}: {said}");
}

/// Returns the alerts of all rules.
fn alerts() -> Vec<Value> {
    let rules = Rules::read().unwrap();
    let alerts = rules.all().filter(|rule| rule["alert"].is_string());
    alerts.cloned().collect()
}

fn name(alert: &Value) -> &str {
    alert["alert"].as_str().unwrap()
}

/// Returns the names of all alerts. One name may have a rule for each severity.
fn names() -> BTreeSet<String> {
    alerts()
        .iter()
        .map(|alert| name(alert).to_owned())
        .collect()
}

#[test]
fn promtool_accepts_the_rules() {
    passes("promtool", &["check", "rules"], &files("alerts/rules"));
}

#[test]
fn the_rules_do_on_promtool_what_their_tests_say() {
    passes("promtool", &["test", "rules"], &files("alerts/tests"));
}

#[test]
fn amtool_accepts_the_configuration_of_alertmanager() {
    let configuration = [path("alerts/alertmanager.yaml")];
    passes("amtool", &["check-config"], &configuration);
}

/// Each line of the table is a receiver and the labels of an alert.
#[test]
fn alerts_reach_the_team_that_can_help() {
    let configuration = path("alerts/alertmanager.yaml");
    let flag = format!("--config.file={}", configuration.display());
    let table = fs::read_to_string(path("alerts/tests/routes.txt")).unwrap();
    let rows = table.lines().filter(|line| !line.starts_with('#'));
    let mut told = BTreeSet::new();
    for (receiver, labels) in rows.filter_map(|line| line.split_once(' ')) {
        let verify = format!("--verify.receivers={receiver}");
        let arguments = ["config", "routes", "test", &flag, &verify];
        let labels = labels.split_whitespace();
        let alert = labels
            .clone()
            .find_map(|label| label.strip_prefix("alertname="));
        told.insert(alert.unwrap().to_owned());
        let arguments: Vec<&str> = arguments.into_iter().chain(labels).collect();
        passes("amtool", &arguments, &[]);
    }
    assert_eq!(told, names(), "alerts in the table of routes");
}

#[test]
fn each_alert_says_what_to_do_and_has_a_runbook() {
    for alert in alerts() {
        let name = name(&alert);
        let severity = alert["labels"]["severity"].as_str().unwrap_or_default();
        let known = ["critical", "warning", "info"].contains(&severity);
        assert!(known, "{name} has the severity {severity:?}");
        let annotation = |key: &str| alert["annotations"][key].as_str().unwrap_or_default();
        for key in ["summary", "description"] {
            assert!(annotation(key).len() > 20, "{name} has no {key}");
        }
        let url = format!("https://nvlink-domains.io/runbooks/{name}");
        assert_eq!(annotation("runbook_url"), url);
    }
    let pages = fs::read_dir(path("docs/runbooks")).unwrap();
    let pages = pages.map(|page| page.unwrap().file_name().into_string().unwrap());
    let pages: BTreeSet<_> = pages
        .filter_map(|page| page.strip_suffix(".md").map(str::to_owned))
        .filter(|page| page != "README")
        .collect();
    assert_eq!(pages, names(), "pages in docs/runbooks, and alerts");
}

/// An alert that no test sees firing, or none sees quiet, may do anything.
#[test]
fn each_alert_is_tested_firing_and_quiet() {
    let (mut firing, mut quiet) = (BTreeSet::new(), BTreeSet::new());
    for file in files("alerts/tests") {
        let text = fs::read_to_string(&file).unwrap();
        let parsed: Value = serde_saphyr::from_str(&text).unwrap();
        let cases = parsed["tests"].as_array().into_iter().flatten();
        for check in cases
            .filter_map(|case| case["alert_rule_test"].as_array())
            .flatten()
        {
            let name = check["alertname"].as_str().unwrap().to_owned();
            let expected = check["exp_alerts"].as_array();
            match expected.is_some_and(|alerts| !alerts.is_empty()) {
                true => firing.insert(name),
                false => quiet.insert(name),
            };
        }
    }
    assert_eq!(firing, names(), "alerts that a test sees firing");
    assert_eq!(quiet, names(), "alerts that a test sees quiet");
}
