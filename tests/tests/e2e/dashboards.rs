//! The dashboards: that they are what the script builds, that Grafana's own types accept them, that
//! all names in them exist, and that each query has data.

mod data;
mod queue;
mod scrape;
mod world;

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use nvlink_tests::{
    dashboards::{self, DIRECTORY, Dashboard, NAMES},
    promql, workdir,
};
use serde_json::Value;

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

fn project(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
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
            "dashboards/{name} is not what the script builds: run `dashboards/build` and read the diff"
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
    let fabric = project("dashboards/fabric.json");
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

#[test]
fn each_panel_says_what_it_shows_and_in_which_unit() {
    for dashboard in all() {
        let name = dashboard.name;
        assert_eq!(dashboard.json["uid"], format!("nvlink-{name}"));
        let mut seen = BTreeSet::new();
        for panel in dashboard.panels() {
            let title = panel["title"].as_str().unwrap();
            assert!(seen.insert(title), "{name}: two panels are called {title}");
            let description = panel["description"].as_str().unwrap_or_default();
            assert!(
                description.ends_with('.'),
                "{name}, {title}: {description:?}"
            );
            let unit = &panel["fieldConfig"]["defaults"]["unit"];
            assert!(
                unit.as_str().is_some_and(|unit| !unit.is_empty()),
                "{name}, {title}"
            );
            assert_eq!(
                panel["datasource"]["uid"], "${datasource}",
                "{name}, {title}"
            );
            assert!(panel["targets"][0]["expr"].is_string(), "{name}, {title}");
        }
    }
}

#[test]
fn panels_do_not_overlap() {
    for dashboard in all() {
        let mut taken = BTreeMap::new();
        for panel in dashboard.json["panels"].as_array().unwrap() {
            let place = |side: &str| panel["gridPos"][side].as_u64().unwrap_or(0);
            assert!(place("x") + place("w") <= 24, "{}: {panel}", dashboard.name);
            for y in place("y")..place("y") + place("h") {
                for x in place("x")..place("x") + place("w") {
                    let other = taken.insert((x, y), &panel["title"]);
                    assert!(
                        other.is_none(),
                        "{}: {other:?} and {}",
                        dashboard.name,
                        panel["title"]
                    );
                }
            }
        }
    }
}

/// Calls `visit` with each string in a JSON value.
fn strings<'a>(value: &'a Value, visit: &mut impl FnMut(&'a str)) {
    match value {
        Value::String(text) => visit(text),
        Value::Array(values) => values.iter().for_each(|value| strings(value, visit)),
        Value::Object(fields) => fields.values().for_each(|value| strings(value, visit)),
        _ => {}
    }
}

#[test]
fn links_lead_to_dashboards_that_have_the_variables() {
    let all = all();
    let mut links = 0;
    for dashboard in &all {
        let to_all = &dashboard.json["links"][0];
        assert_eq!(to_all["tags"], dashboard.json["tags"], "{}", dashboard.name);
        assert!(to_all["keepTime"] == true && to_all["includeVars"] == true);
        strings(&dashboard.json["panels"], &mut |text| {
            let Some(url) = text.strip_prefix("/d/") else {
                return;
            };
            links += 1;
            let (uid, query) = url.split_once('?').unwrap();
            let target = all.iter().find(|one| one.json["uid"] == uid);
            let target = target.unwrap_or_else(|| panic!("{}: {text}", dashboard.name));
            let has = |one: &Dashboard, name: &str| one.variables().any(|own| own["name"] == name);
            for parameter in query.split('&') {
                if let Some(chosen) = parameter.strip_prefix("var-") {
                    let name = chosen.split('=').next().unwrap();
                    assert!(has(target, name), "{uid} has no variable {name}: {text}");
                } else if let Some(own) = parameter.strip_suffix(":queryparam}") {
                    let name = own.trim_start_matches("${");
                    assert!(has(dashboard, name) && has(target, name), "{text}");
                }
            }
            assert!(query.contains("${__url_time_range}"), "{text}");
        });
    }
    assert!(links > 10, "{links}");
}

/// Returns the names in backticks at the start of the rows of Markdown tables.
fn first_cells(page: &str) -> impl Iterator<Item = &str> {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.filter_map(|row| row.split('`').next())
}

/// Returns the metrics that the rules record.
fn recorded(rules: &str) -> impl Iterator<Item = &str> {
    rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- record: "))
}

#[test]
fn each_metric_of_a_query_is_documented() {
    let page = project("docs/dashboards.md");
    let (_, foreign) = page.split_once("\n## Foreign metrics\n").unwrap();
    let foreign = foreign.split("\n## ").next().unwrap();
    let foreign: BTreeSet<_> = first_cells(foreign).collect();
    let own = ["metrics", "reference", "preferred"].map(|page| project(&format!("docs/{page}.md")));
    let rules = project("alerts/rules/recording.yaml");
    let known: BTreeSet<_> = own
        .iter()
        .flat_map(|page| first_cells(page))
        .chain(recorded(&rules))
        .collect();

    let queries = dashboards::queries(&BTreeMap::new()).unwrap();
    let mut unused = foreign.clone();
    let mut missing = BTreeMap::new();
    for query in &queries {
        let used = promql::metrics(&query.expr);
        assert!(!used.is_empty(), "{query:?}");
        for name in used {
            // A table names a histogram, not its buckets.
            let names = [name, name.strip_suffix("_bucket").unwrap_or(name)];
            unused.retain(|name| !names.contains(name));
            let known = |name| known.contains(name) || foreign.contains(name);
            if !names.iter().any(known) {
                missing.entry(name).or_insert(&query.panel);
            }
        }
    }
    assert!(
        missing.is_empty(),
        "in no table and no rule, with the first panel: {missing:#?}"
    );
    assert!(unused.is_empty(), "foreign, and in no query: {unused:?}");
}

#[test]
fn each_alert_that_a_panel_names_exists() {
    let rules = [
        "exporter",
        "device-plugin",
        "fabric",
        "jobs",
        "webhook",
        "queue",
    ];
    let rules = rules.map(|name| project(&format!("alerts/rules/{name}.yaml")));
    let alerts: BTreeSet<_> = rules
        .iter()
        .flat_map(|text| text.lines())
        .filter_map(|line| line.trim().strip_prefix("- alert: "))
        .collect();
    let mut named = 0;
    for dashboard in all() {
        for panel in dashboard.panels() {
            let description = panel["description"].as_str().unwrap_or_default();
            let words = description.split(|c: char| !c.is_ascii_alphanumeric());
            for word in words.filter(|word| word.starts_with("Nvlink")) {
                named += 1;
                assert!(alerts.contains(word), "{}: {word}", panel["title"]);
            }
        }
    }
    assert!(named > 10, "{named}");
}
