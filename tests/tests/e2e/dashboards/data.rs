//! Each query of each panel, variable and annotation has data on a real Prometheus with the rules, which
//! scrapes the real programs: healthy, broken, with jobs, benchmarks, and pods that were refused.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use nvlink_tests::{
    Prometheus, Rules, Sample,
    dashboards::{Dashboard, Query},
    wait_until,
};
use serde_json::Value;

use super::{
    all,
    scrape::Way,
    world::{BROKEN, CLUSTER, World},
};

/// A minute of the rules is a second of the test.
const FACTOR: u32 = 60;
/// Long enough for a busy machine: all is there after about a minute of the simulated job.
const SOON: Duration = Duration::from_secs(300);
/// A point of a graph each second, because the rules are fast, too.
const STEP: Duration = Duration::from_secs(1);

/// The values of variables that somebody chose, by dashboard; the other variables have All.
type Choice = fn(dashboard: &str) -> &'static [Chosen];
type Chosen = (&'static str, &'static str);

/// Nothing is chosen. On a healthy node, the panels of links are empty.
fn nothing(dashboard: &str) -> &'static [Chosen] {
    match dashboard {
        "fabric" => &[("link_node", BROKEN)],
        _ => &[],
    }
}

/// One value is chosen for each variable.
fn one(dashboard: &str) -> &'static [Chosen] {
    match dashboard {
        "fabric" => &[
            ("cluster", CLUSTER),
            ("node", BROKEN),
            ("link_node", BROKEN),
        ],
        "job" => &[
            ("cluster", CLUSTER),
            ("node", "mesh"),
            ("namespace", "ci"),
            ("pod", "trainer"),
        ],
        // No domain of the pairs could hold a job of four GPUs.
        "placement" => &[
            ("cluster", CLUSTER),
            ("node", "mesh|pairs"),
            ("reference", "free"),
        ],
        "admission" => &[("cluster", CLUSTER), ("class", "restricted")],
        "benchmarks" => &[
            ("cluster", CLUSTER),
            ("collective", "all_reduce"),
            ("model", "NVIDIA H100 80GB HBM3"),
            ("path", "NVLINK"),
            ("size_class", "large"),
        ],
        _ => &[],
    }
}

#[test]
fn each_query_has_data() {
    let started = Instant::now();
    let world = World::start().unwrap();
    let rules = Rules::read().unwrap().faster(FACTOR);
    let watched: Vec<_> = Way::ALL
        .into_iter()
        .map(|way| {
            let prometheus = Prometheus::recording(way.jobs(&world).unwrap(), &rules).unwrap();
            (way, prometheus)
        })
        .collect();
    for (_, prometheus) in &watched {
        let up = |samples: &[Sample]| samples.is_empty();
        prometheus
            .wait_for("up == 0 or absent(up)", SOON, up)
            .unwrap();
    }
    world.happen().unwrap();
    for (way, prometheus) in &watched {
        let choices: [(&str, Choice); 2] = [("all values", nothing), ("one value each", one)];
        for (name, choice) in choices {
            // Only the first has a label `cluster`.
            let chosen = |dashboard: &str| {
                let chosen = choice(dashboard).iter().copied();
                let known = |name: &str| *way == Way::Plain || name != "cluster";
                chosen.filter(|(name, _)| known(name)).collect()
            };
            let result = all_have_data(prometheus, started, chosen);
            result.unwrap_or_else(|error| panic!("{way:?}, {name}: {error:#}"));
        }
    }
}

/// Waits until each query had data once, in graphs that begin when all `started`.
fn all_have_data(
    prometheus: &Prometheus,
    started: Instant,
    chosen: impl Fn(&str) -> Vec<Chosen>,
) -> Result<()> {
    let mut had = BTreeSet::new();
    wait_until("data of all queries", SOON, || {
        prometheus.process.check_running()?;
        let mut without = Vec::new();
        for dashboard in all() {
            let queries = match queries(prometheus, &dashboard, &chosen(dashboard.name)) {
                Ok(queries) => queries,
                Err(error) => {
                    without.push(format!("{}: {error:#}", dashboard.name));
                    continue;
                }
            };
            for query in queries {
                let line = format!("{}, {}: {}", query.dashboard, query.panel, query.expr);
                if !had.contains(&line) && has_data(prometheus, started, &query)? {
                    had.insert(line);
                } else if !had.contains(&line) {
                    without.push(line);
                }
            }
        }
        if !without.is_empty() {
            bail!("{} without data:\n{}", without.len(), without.join("\n"));
        }
        Ok(Some(()))
    })
}

fn has_data(prometheus: &Prometheus, started: Instant, query: &Query) -> Result<bool> {
    let values = match query.instant {
        true => {
            let samples = prometheus.query(&query.expr)?;
            samples.iter().map(|sample| sample.value).collect()
        }
        false => prometheus.query_range(&query.expr, started.elapsed(), STEP)?,
    };
    Ok(values.into_iter().any(f64::is_finite))
}

/// Returns the queries of a dashboard with the values that Grafana gives to its variables.
fn queries(
    prometheus: &Prometheus,
    dashboard: &Dashboard,
    chosen: &[(&str, &str)],
) -> Result<Vec<Query>> {
    let mut values: BTreeMap<&str, String> = chosen
        .iter()
        .map(|&(name, value)| (name, value.to_owned()))
        .collect();
    let with = |values: &BTreeMap<&str, String>| {
        let values = values.iter().map(|(name, value)| (*name, &**value));
        dashboard.queries(&values.collect())
    };
    // Each depends on those before it.
    for variable in dashboard.variables().filter(|one| one["type"] == "query") {
        let name = variable["name"].as_str().context("a variable has a name")?;
        let subject = format!("variable {name}");
        let found = with(&values)?.into_iter().find(|one| one.panel == subject);
        let expr = found.context(subject)?.expr;
        let label = label(variable)?;
        let mut offered: Vec<String> = prometheus
            .query(&expr)?
            .into_iter()
            .filter_map(|mut sample| sample.labels.remove(label))
            .filter(|value| !value.is_empty())
            .collect();
        offered.sort();
        offered.dedup();
        if variable["hide"] == 2 {
            ensure!(
                !offered.is_empty(),
                "the hidden variable {name} has no value: {expr}"
            );
            values.insert(name, format!("({})", offered.join("|")));
        } else if let Some(value) = values.get(name) {
            let missing = value
                .split('|')
                .find(|one| !offered.iter().any(|own| own == one));
            ensure!(
                missing.is_none(),
                "{name} does not offer {missing:?}, only {offered:?}: {expr}"
            );
        } else if name != "cluster" {
            ensure!(!offered.is_empty(), "{name} offers nothing: {expr}");
        }
    }
    with(&values)
}

/// Returns the label whose values a variable has: of `label_values(SERIES, LABEL)`, or of a regular expression
/// over the series of `query_result(…)`.
fn label(variable: &Value) -> Result<&str> {
    let query = variable["query"]["query"].as_str().unwrap_or_default();
    let regex = variable["regex"].as_str().unwrap_or_default();
    let label = match query.starts_with("label_values(") {
        true => query
            .trim_end_matches(')')
            .rsplit_once(", ")
            .map(|(_, label)| label),
        false => regex
            .strip_prefix('/')
            .and_then(|rest| rest.strip_suffix(r#"="([^"]+)"/"#)),
    };
    label.with_context(|| format!("no label in {query:?} with {regex:?}"))
}
