//! The queries that Grafana sends for the dashboards, as they open: six hours, everything chosen.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result};
use nvlink_tests::{
    Prometheus,
    dashboards::{self, Dashboard},
};
use serde_json::Value;

use crate::measure;

/// The range of the dashboards.
pub(crate) const RANGE: Duration = Duration::from_secs(6 * 60 * 60);
/// Samples are a minute apart, so that this is Grafana's `$__rate_interval`.
const BUILT_IN: [(&str, &str); 2] = [("__range", "6h"), ("__rate_interval", "4m")];
/// Points of a panel that does not say how many: the pixels of a wide one.
const POINTS: u64 = 1000;
/// The steps to which Grafana rounds.
const STEPS: [u64; 7] = [10, 15, 20, 30, 60, 120, 300];

/// What Grafana asks for.
#[derive(Clone, Debug)]
pub(crate) enum Form {
    Instant,
    /// A query over time, with its step.
    Range(Duration),
    /// The values of this label.
    Values(String),
}

/// A query of a panel, an annotation or a variable.
#[derive(Clone, Debug)]
pub(crate) struct Query {
    pub(crate) dashboard: &'static str,
    pub(crate) panel: String,
    pub(crate) expr: String,
    pub(crate) form: Form,
}

/// Returns the expressions of all queries over time.
pub(crate) fn over_time() -> Result<Vec<String>> {
    let queries = dashboards::queries(&BTreeMap::new())?.into_iter();
    let queries = queries.filter(|query| !query.instant);
    Ok(queries.map(|query| query.expr).collect())
}

/// Returns the queries of all dashboards, with the values that their variables have in this Prometheus.
pub(crate) fn queries(prometheus: &Prometheus, now: f64) -> Result<Vec<Query>> {
    let mut all = Vec::new();
    for name in dashboards::NAMES {
        let dashboard = Dashboard::read(name)?;
        let mut values: BTreeMap<String, String> = BUILT_IN
            .map(|(name, value)| (name.into(), value.into()))
            .into();
        for variable in dashboard
            .variables()
            .filter(|one| one["type"] == "query" && one["allValue"].is_null())
        {
            let name = text(&variable["name"]);
            let panel = format!("variable {name}");
            let queries = of(&dashboard, &values)?.into_iter();
            let query = queries.into_iter().find(|query| query.panel == panel);
            let query = query.with_context(|| format!("{} has no {panel}", dashboard.name))?;
            let found = measure::values(prometheus, &query, text(&variable["regex"]), now)?;
            let several = variable["multi"] == true;
            let chosen = if several {
                found.join("|")
            } else {
                found.into_iter().next().unwrap_or_default()
            };
            values.insert(name.to_owned(), chosen);
        }
        all.extend(of(&dashboard, &values)?);
    }
    Ok(all)
}

fn of(dashboard: &Dashboard, values: &BTreeMap<String, String>) -> Result<Vec<Query>> {
    let values = values
        .iter()
        .map(|(name, value)| (&**name, &**value))
        .collect();
    let made = dashboard.queries(&values)?.into_iter().map(|query| Query {
        form: form(dashboard, &query.panel, query.instant),
        dashboard: dashboard.name,
        panel: query.panel,
        expr: query.expr,
    });
    Ok(made.collect())
}

fn form(dashboard: &Dashboard, panel: &str, instant: bool) -> Form {
    if let Some(name) = panel.strip_prefix("variable ") {
        let variable = dashboard.variables().find(|one| one["name"] == name);
        let query = variable.map_or("", |one| text(&one["query"]["query"]));
        let label = query
            .strip_prefix("label_values(")
            .and_then(|rest| rest.strip_suffix(')'));
        let label = label.and_then(|arguments| arguments.rsplit_once(", "));
        return label.map_or(Form::Instant, |(_, label)| Form::Values(label.to_owned()));
    }
    let found = dashboard.panels().find(|one| one["title"] == panel);
    let points = found
        .and_then(|panel| panel["maxDataPoints"].as_u64())
        .unwrap_or(POINTS);
    let exact = RANGE.as_secs() / points;
    let near = STEPS.into_iter().min_by_key(|step| step.abs_diff(exact));
    match (instant, panel.starts_with("annotation ")) {
        (true, _) => Form::Instant,
        (_, true) => Form::Range(Duration::from_secs(60)),
        _ => Form::Range(Duration::from_secs(near.unwrap_or(exact))),
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
