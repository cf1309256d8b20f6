//! The alerting rules: checked by promtool and amtool, and delivered by a real Alertmanager.
//! `tests/files` checks what is said of them.

mod collectives;
mod covered;
mod devices;
mod fleet;
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

/// Returns the names of all alerts. One name may have a rule for each severity.
fn names() -> BTreeSet<String> {
    Rules::read().unwrap().alerts()
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
