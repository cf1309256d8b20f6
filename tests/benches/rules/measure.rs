//! Measures groups of rules, and the queries of panels, and marks what misses the goals.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use nvlink_tests::{Prometheus, Rules, http, wait_until};
use serde::Deserialize;
use serde_json::Value;

use crate::panels::{self, Form, Query, RANGE};

/// The goal of a query or a rule.
const SECOND: Duration = Duration::from_secs(1);
/// The goal of a panel.
const SERIES: usize = 1000;
const REPEATS: usize = 3;
/// Evaluations of each group, so that it has read what the others recorded.
const EVALUATIONS: f64 = 3.0;
const MOST_BYTES: u64 = 1 << 30;
/// Rules that take longer are listed.
const NOTABLE: Duration = Duration::from_millis(100);
const TIMEOUT: Duration = Duration::from_secs(120);

/// What a query takes: the least of some runs.
#[derive(Clone, Copy, Default)]
struct Cost {
    /// Until the answer has arrived. Includes what others do on the machine.
    wall: Duration,
    /// CPU time of Prometheus; without other load, `wall` is not longer.
    cpu: Duration,
}

impl Cost {
    fn least(self, other: Self) -> Self {
        Self {
            wall: self.wall.min(other.wall),
            cpu: self.cpu.min(other.cpu),
        }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            wall: self.wall + other.wall,
            cpu: self.cpu + other.cpu,
        }
    }

    /// Two cells of a table, marked if the CPU time misses the goal.
    fn cells(self, goal: Duration) -> String {
        let mark = if self.cpu > goal { " **slow**" } else { "" };
        format!(
            "{:.2} | {:.2}{mark}",
            self.wall.as_secs_f64(),
            self.cpu.as_secs_f64()
        )
    }
}

/// Evaluates all groups until each has read what the others recorded, and prints how long the latest evaluations
/// took, all groups at once. Returns the time of the data then.
pub(crate) fn evaluate(prometheus: &Prometheus) -> Result<f64> {
    let metrics = wait_until("the rules to be evaluated", TIMEOUT * 10, || {
        prometheus.process.check_running()?;
        thread::sleep(SECOND);
        let text = http::text(&format!("{}/metrics", prometheus.url))?;
        let done = of_groups(&text, "iterations_total");
        let all = !done.is_empty() && done.iter().all(|(_, count)| *count >= EVALUATIONS);
        Ok(all.then_some(text))
    })?;
    println!("\n| group | seconds, all at once | series |\n|---|--:|--:|");
    let samples = of_groups(&metrics, "last_evaluation_samples");
    let seconds = of_groups(&metrics, "last_duration_seconds");
    for ((name, seconds), (_, samples)) in seconds.iter().zip(samples) {
        println!("| {name} | {seconds:.2} | {samples} |");
    }
    let now = prometheus.query("time()")?;
    Ok(now.first().context("time() is empty")?.value)
}

/// Returns Prometheus' metric `prometheus_rule_group_NAME` of each group.
fn of_groups(text: &str, name: &str) -> Vec<(String, f64)> {
    let start = format!("prometheus_rule_group_{name}{{rule_group=\"");
    let lines = text
        .lines()
        .filter_map(|line| line.strip_prefix(&start)?.split_once("\"} "));
    let group = |file: &str| file.rsplit(';').next().unwrap_or(file).to_owned();
    lines
        .filter_map(|(file, value)| Some((group(file), value.parse().ok()?)))
        .collect()
}

/// Runs the expressions of all rules, one after the other as Prometheus does in a group, and prints what each group
/// and its slow rules took.
pub(crate) fn rules(
    prometheus: &Prometheus,
    rules: &Rules,
    interval: Duration,
    now: f64,
) -> Result<()> {
    println!("\n| group or rule | seconds | of CPU | series |\n|---|--:|--:|--:|");
    for (group, rules) in rules.groups() {
        let mut total = Cost::default();
        let mut lines = String::new();
        for rule in rules {
            let text = |key: &str| rule[key].as_str().unwrap_or_default().to_owned();
            let query = Query {
                dashboard: "",
                panel: text("record") + &text("alert"),
                expr: text("expr"),
                form: Form::Instant,
            };
            let (cost, found) = measure(prometheus, &query, now)?;
            total = total.plus(cost);
            if cost.cpu > NOTABLE {
                lines += &format!(
                    "| {} | {} | {} |\n",
                    query.panel,
                    cost.cells(SECOND),
                    found.len()
                );
            }
        }
        print!("| **{group}** | {} | |\n{lines}", total.cells(interval / 2));
    }
    Ok(())
}

/// Runs all queries at the same time of the data, and prints what each took and returned.
pub(crate) fn queries(prometheus: &Prometheus, now: f64) -> Result<()> {
    println!("\n| dashboard | panel | seconds | of CPU | series |\n|---|---|--:|--:|--:|");
    for query in panels::queries(prometheus, now)? {
        let (cost, found) = measure(prometheus, &query, now)?;
        let of_panel = !matches!(query.form, Form::Values(_));
        let many = if of_panel && found.len() > SERIES {
            " **many**"
        } else {
            ""
        };
        println!(
            "| {} | {} | {} | {}{many} |",
            query.dashboard,
            query.panel,
            cost.cells(SECOND),
            found.len()
        );
    }
    Ok(())
}

/// Runs a query some times, and returns what it took and found.
fn measure(prometheus: &Prometheus, query: &Query, now: f64) -> Result<(Cost, Vec<Value>)> {
    let mut least = None;
    let mut body = Vec::new();
    for _ in 0..REPEATS {
        let start = (Instant::now(), prometheus.process.cpu()?);
        body = fetch(prometheus, query, now)?;
        let cost = Cost {
            wall: start.0.elapsed(),
            cpu: prometheus.process.cpu()? - start.1,
        };
        least = Some(least.map_or(cost, |least: Cost| least.least(cost)));
    }
    Ok((least.unwrap_or_default(), read(query, &body)?))
}

/// Returns the values of a variable: those of a label, or what the label in its pattern `/LABEL="(…)"/` has in
/// the answer.
pub(crate) fn values(
    prometheus: &Prometheus,
    query: &Query,
    pattern: &str,
    now: f64,
) -> Result<Vec<String>> {
    let label = pattern
        .trim_start_matches('/')
        .split('=')
        .next()
        .unwrap_or_default();
    let found = read(query, &fetch(prometheus, query, now)?)?.into_iter();
    let value = |one: Value| match one {
        Value::String(value) => Some(value),
        series => Some(series["metric"][label].as_str()?.to_owned()),
    };
    Ok(found.filter_map(value).collect())
}

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    error: String,
    data: Option<Data>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Data {
    Values(Vec<Value>),
    Query { result: Vec<Value> },
}

/// Returns what Prometheus answers.
fn fetch(prometheus: &Prometheus, query: &Query, now: f64) -> Result<Vec<u8>> {
    let config = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .timeout_global(Some(TIMEOUT));
    let agent = ureq::Agent::new_with_config(config.build());
    let get = |path: &str| agent.get(format!("{}/api/v1/{path}", prometheus.url));
    let start = (now - RANGE.as_secs_f64()).to_string();
    let end = now.to_string();
    let request = match &query.form {
        Form::Instant => get("query").query("query", &query.expr).query("time", &end),
        Form::Range(step) => {
            let request = get("query_range")
                .query("query", &query.expr)
                .query("step", step.as_secs().to_string());
            request.query("start", &start).query("end", &end)
        }
        Form::Values(label) => {
            let request = get(&format!("label/{label}/values")).query("match[]", &query.expr);
            request.query("start", &start).query("end", &end)
        }
    };
    let mut response = request.call().with_context(|| query.expr.clone())?;
    Ok(response
        .body_mut()
        .with_config()
        .limit(MOST_BYTES)
        .read_to_vec()?)
}

/// Returns the values, or the series of a query.
fn read(query: &Query, body: &[u8]) -> Result<Vec<Value>> {
    let answer: Answer = serde_json::from_slice(body)?;
    match answer.data {
        Some(Data::Values(found) | Data::Query { result: found }) => Ok(found),
        None => bail!(
            "{}, {}: {}: {}",
            query.dashboard,
            query.panel,
            query.expr,
            answer.error
        ),
    }
}
