//! The dashboards: that they are complete, and that all names in them exist.

use std::collections::{BTreeMap, BTreeSet};

use nvlink_tests::{
    dashboards::{self, Dashboard, NAMES},
    promql,
};
use serde_json::Value;

use crate::project;

fn all() -> Vec<Dashboard> {
    let read = |name| Dashboard::read(name).unwrap();
    NAMES.into_iter().map(read).collect()
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
