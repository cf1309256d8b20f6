//! The alerting rules: that each has what a person needs, and tests.

use std::{collections::BTreeSet, fs, path::PathBuf};

use nvlink_tests::Rules;
use serde_json::Value;

use crate::path;

/// Returns the names of all alerts. One name may have a rule for each severity.
fn names() -> BTreeSet<String> {
    Rules::read().unwrap().alerts()
}

/// Returns the YAML files of a directory.
fn yaml(directory: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(path(directory)).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|kind| kind == "yaml"));
    assert!(!files.is_empty(), "{directory} has no YAML files");
    files
}

#[test]
fn each_alert_says_what_to_do_and_has_a_runbook() {
    let rules = Rules::read().unwrap();
    for alert in rules.all().filter(|rule| rule["alert"].is_string()) {
        let name = alert["alert"].as_str().unwrap();
        let severity = alert["labels"]["severity"].as_str().unwrap_or_default();
        let known = ["critical", "warning"].contains(&severity);
        assert!(known, "{name} has the severity {severity:?}");
        let annotation = |key: &str| alert["annotations"][key].as_str().unwrap_or_default();
        for key in ["summary", "description"] {
            assert!(annotation(key).len() > 20, "{name} has no {key}");
        }
        // The chart replaces it by an address (monitoring.rules.runbookUrl).
        assert_eq!(
            annotation("runbook_url"),
            format!("docs/runbooks/{name}.md")
        );
    }
    let pages = fs::read_dir(path("docs/runbooks")).unwrap();
    let pages = pages.map(|page| page.unwrap().file_name().into_string().unwrap());
    let pages: BTreeSet<_> = pages
        .filter_map(|page| page.strip_suffix(".md").map(str::to_owned))
        .filter(|page| page != "README")
        .collect();
    assert_eq!(pages, names(), "pages in docs/runbooks, and alerts");
}

/// A person whom alerts wake too often stops reading them.
#[test]
fn alerts_stay_few() {
    let rules = Rules::read().unwrap();
    let of = |severity: &str| {
        let rules = rules.all().filter(|rule| rule["alert"].is_string());
        let those = rules.filter(|rule| rule["labels"]["severity"] == severity);
        let names = those.map(|rule| rule["alert"].as_str().unwrap());
        names.collect::<BTreeSet<_>>()
    };
    for (severity, most) in [("critical", 10), ("warning", 15)] {
        let names = of(severity);
        assert!(
            names.len() <= most,
            "{} alerts are {severity}, at most {most} may be: {names:?}",
            names.len()
        );
    }
}

/// Alertmanager shows one of two alerts that have the same labels.
#[test]
fn rules_of_one_alert_and_severity_have_different_reasons() {
    let rules = Rules::read().unwrap();
    let mut seen = BTreeSet::new();
    for rule in rules.all().filter(|rule| rule["alert"].is_string()) {
        let label = |key: &str| rule["labels"][key].as_str().unwrap_or_default();
        let labels = (
            rule["alert"].as_str().unwrap(),
            label("severity"),
            label("reason"),
        );
        assert!(seen.insert(labels), "two rules are {labels:?}");
    }
}

/// An alert that no test sees firing, or none sees quiet, may do anything.
#[test]
fn each_alert_is_tested_firing_and_quiet() {
    let (mut firing, mut quiet) = (BTreeSet::new(), BTreeSet::new());
    for file in yaml("alerts/tests") {
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
