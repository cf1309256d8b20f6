//! The dashboards: that they are what the script builds, that Grafana's own types accept them, and
//! that each query has data. `tests/files` checks the names in them.

mod data;
mod queue;
mod scrape;
mod world;

use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use nvlink_tests::{
    dashboards::{DIRECTORY, Dashboard, NAMES},
    workdir,
};

fn all() -> Vec<Dashboard> {
    let read = |name| Dashboard::read(name).unwrap();
    NAMES.into_iter().map(read).collect()
}

/// Runs a script of the directory of dashboards.
fn script(name: &str, arguments: &[&Path]) -> Output {
    let mut script = Command::new(Path::new(DIRECTORY).join(name));
    script.args(arguments).output().unwrap()
}

fn said(output: &Output) -> String {
    let said = [&output.stdout[..], &output.stderr].concat();
    String::from_utf8_lossy(&said).into_owned()
}

/// Returns the names of the JSON files in a directory.
fn files(directory: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(directory).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.ends_with(".json")).collect()
}

#[test]
fn the_committed_json_is_what_the_script_builds() {
    let directory = workdir::fresh("dashboards").unwrap();
    let update = env::var_os("UPDATE_GOLDEN").is_some();
    let target = if update { DIRECTORY.into() } else { directory };
    let output = script("build", &[target.as_path()]);
    assert!(output.status.success(), "{}", said(&output));
    let wanted: BTreeSet<_> = NAMES.iter().map(|name| format!("{name}.json")).collect();
    assert_eq!(files(&target), wanted);
    assert_eq!(files(Path::new(DIRECTORY)), wanted);
    for name in wanted {
        let [built, committed] = [target.join(&name), Path::new(DIRECTORY).join(&name)];
        assert!(
            fs::read(built).unwrap() == fs::read(committed).unwrap(),
            "dashboards/{name} is not what the script builds: run `make generate` and read the diff"
        );
    }
}

#[test]
fn grafanas_types_accept_the_dashboards() {
    let output = script("check/run", &[]);
    assert!(output.status.success(), "{}", said(&output));
}

#[test]
fn grafanas_types_refuse_what_grafana_does_not_have() {
    let fabric = fs::read_to_string(Path::new(DIRECTORY).join("fabric.json")).unwrap();
    let directory = workdir::fresh("dashboards").unwrap();
    // Fields of the dashboard, of a panel, of its options, of an override, and of a query.
    let changes = [
        (r#""graphTooltip": 1"#, r#""graphTooltip": 9"#),
        (r#""gridPos""#, r#""gridPosition""#),
        (r#""showHeader""#, r#""showHead""#),
        (r#""id": "links""#, r#""id": "link""#),
        (r#""instant": true"#, r#""instant": "yes""#),
    ];
    let mut broken: Vec<PathBuf> = Vec::new();
    for (at, (from, to)) in changes.into_iter().enumerate() {
        assert!(fabric.contains(from), "{from}");
        let path = directory.join(format!("broken{at}.json"));
        fs::write(&path, fabric.replacen(from, to, 1)).unwrap();
        broken.push(path);
    }
    let paths: Vec<_> = broken.iter().map(PathBuf::as_path).collect();
    let output = script("check/run", &paths);
    assert!(!output.status.success());
    let said = said(&output);
    for (at, (_, to)) in changes.into_iter().enumerate() {
        assert!(said.contains(&format!("broken{at}.ts(")), "{to}: {said}");
    }
}
