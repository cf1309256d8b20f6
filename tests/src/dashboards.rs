//! The dashboards in `dashboards/`: their panels, and their queries as Grafana sends them.

use std::{collections::BTreeMap, fs, path::PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// The directory of the dashboards.
pub const DIRECTORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../dashboards");

/// The names of the dashboards: each is a file `NAME.json` and has the uid `nvlink-NAME`.
pub const NAMES: [&str; 5] = ["fabric", "job", "placement", "admission", "benchmarks"];

/// What Grafana puts in place of its own variables, for a time range of an hour.
const BUILT_IN: [(&str, &str); 2] = [("__range", "1h"), ("__rate_interval", "1m")];

/// A query of a dashboard, without variables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// The name of the dashboard, such as `fabric`.
    pub dashboard: String,
    /// The title of the panel, or `variable NAME` or `annotation NAME`.
    pub panel: String,
    /// PromQL. Of a variable, the series or the expression that its values come from.
    pub expr: String,
    /// Whether it is evaluated at one time; else over a time range.
    pub instant: bool,
}

/// A dashboard as it is committed.
#[derive(Clone, Debug)]
pub struct Dashboard {
    pub name: &'static str,
    pub json: Value,
}

impl Dashboard {
    /// Reads the dashboard of this name.
    ///
    /// # Errors
    /// When the file cannot be read or is not JSON.
    pub fn read(name: &'static str) -> Result<Self> {
        let path = PathBuf::from(DIRECTORY).join(format!("{name}.json"));
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let json = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
        Ok(Self { name, json })
    }

    /// Returns the panels, without rows.
    pub fn panels(&self) -> impl Iterator<Item = &Value> {
        list(&self.json["panels"]).filter(|panel| panel["type"] != "row")
    }

    /// Returns the variables.
    pub fn variables(&self) -> impl Iterator<Item = &Value> {
        list(&self.json["templating"]["list"])
    }

    /// Returns all queries, with `values` in place of the variables of these names. The other
    /// variables have their value at first, where All and no value are `.*`.
    ///
    /// # Errors
    /// When a query uses a variable that does not exist.
    pub fn queries(&self, values: &BTreeMap<&str, &str>) -> Result<Vec<Query>> {
        let mut all = self.defaults();
        for (name, value) in values {
            if let Some(own) = all.get_mut(name) {
                *own = value;
            }
        }
        let query = |panel: &str, expr: &str, instant| -> Result<Query> {
            let expr = substitute(expr, &all);
            Ok(Query {
                dashboard: self.name.into(),
                panel: panel.into(),
                expr: expr.with_context(|| format!("dashboard {}, {panel}", self.name))?,
                instant,
            })
        };
        let mut found = Vec::new();
        for panel in self.panels() {
            for target in list(&panel["targets"]) {
                let instant = target["instant"] == true;
                found.push(query(
                    text(&panel["title"]),
                    text(&target["expr"]),
                    instant,
                )?);
            }
        }
        for note in list(&self.json["annotations"]["list"]) {
            let name = format!("annotation {}", text(&note["name"]));
            found.push(query(&name, text(&note["target"]["expr"]), false)?);
        }
        for variable in self.variables().filter(|one| one["type"] == "query") {
            let name = format!("variable {}", text(&variable["name"]));
            let source = source(text(&variable["query"]["query"]))
                .with_context(|| format!("dashboard {}, {name}", self.name))?;
            found.push(query(&name, source, true)?);
        }
        Ok(found)
    }

    /// Returns the values of variables that a user has not changed.
    fn defaults(&self) -> BTreeMap<&str, &str> {
        let own = self.variables().map(|variable| {
            let value = match text(&variable["current"]["value"]) {
                "" | "$__all" => ".*",
                value => value,
            };
            (text(&variable["name"]), value)
        });
        BUILT_IN.into_iter().chain(own).collect()
    }
}

/// Returns all queries of all dashboards; see [`Dashboard::queries`].
///
/// # Errors
/// When a dashboard cannot be read, or a query uses a variable that does not exist.
pub fn queries(values: &BTreeMap<&str, &str>) -> Result<Vec<Query>> {
    let of = |name| Dashboard::read(name)?.queries(values);
    let all: Result<Vec<_>> = NAMES.into_iter().map(of).collect();
    Ok(all?.concat())
}

/// Returns what the values of a variable come from: the series of `label_values(SERIES, LABEL)`, or the
/// expression of `query_result(EXPRESSION)`.
fn source(query: &str) -> Result<&str> {
    let inside = |function| query.strip_prefix(function)?.strip_suffix(')');
    if let Some(expr) = inside("query_result(") {
        return Ok(expr);
    }
    let series = inside("label_values(").and_then(|arguments| arguments.rsplit_once(", "));
    match series {
        Some((series, _)) => Ok(series),
        None => bail!(
            "cannot read {query:?}: it is neither label_values(SERIES, LABEL) nor query_result(EXPRESSION)"
        ),
    }
}

/// Replaces each `$name` by its value.
fn substitute(expr: &str, values: &BTreeMap<&str, &str>) -> Result<String> {
    let mut parts = expr.split('$');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| c != '_' && !c.is_ascii_alphanumeric());
        let (name, rest) = part.split_at(end.unwrap_or(part.len()));
        // `$1` is a part of a match in label_replace.
        let own = name
            .starts_with(|c: char| c.is_ascii_digit())
            .then(|| format!("${name}"));
        let Some(value) = own.as_deref().or_else(|| values.get(name).copied()) else {
            bail!("there is no variable ${name}");
        };
        out += value;
        out += rest;
    }
    Ok(out)
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A dashboard with a row, a panel, an annotation and two variables.
    fn dashboard(expr: &str) -> Dashboard {
        let variable =
            |name, query| json!({"type": "query", "name": name, "query": {"query": query}});
        let panel =
            json!({"type": "stat", "title": "Jobs", "targets": [{"expr": expr, "instant": true}]});
        let json = json!({
            "panels": [{"type": "row", "title": "Row"}, panel],
            "annotations": {"list": [{"name": "alerts", "target": {"expr": r#"ALERTS{node=~"$node"}"#}}]},
            "templating": {"list": [
                variable("node", "label_values(node_info, node)"),
                variable("busy", r#"query_result(topk(2, rate(sent{node=~"$node"}[$__range])))"#),
            ]},
        });
        Dashboard { name: "job", json }
    }

    #[test]
    fn queries_have_values_in_place_of_variables() {
        let job = dashboard(r#"rate(sent{node=~"$node"}[$__rate_interval]) + $node_count"#);
        let error = job.queries(&BTreeMap::new()).unwrap_err();
        let said = format!("{error:#}");
        assert_eq!(
            said,
            "dashboard job, Jobs: there is no variable $node_count"
        );

        let job = dashboard(r#"rate(sent{node=~"$node"}[$__rate_interval]) + "$1""#);
        let of = |panel: &str, expr: &str, instant| Query {
            dashboard: "job".into(),
            panel: panel.into(),
            expr: expr.into(),
            instant,
        };
        let found = job.queries(&BTreeMap::from([("node", "a|b"), ("pod", "x")]));
        let wanted = [
            of("Jobs", r#"rate(sent{node=~"a|b"}[1m]) + "$1""#, true),
            of("annotation alerts", r#"ALERTS{node=~"a|b"}"#, false),
            of("variable node", "node_info", true),
            of(
                "variable busy",
                r#"topk(2, rate(sent{node=~"a|b"}[1h]))"#,
                true,
            ),
        ];
        assert_eq!(found.unwrap(), wanted);
    }

    #[test]
    fn without_values_all_dashboards_show_everything() {
        let found = queries(&BTreeMap::new()).unwrap();
        for name in NAMES {
            assert!(found.iter().any(|query| query.dashboard == name), "{name}");
        }
        let wanted = r#"count(max by (cluster, instance, node) (nvlink_exporter_node_info{cluster=~".*", node=~".*"}))"#;
        assert!(found.iter().any(|query| query.expr == wanted));
        let chosen = r#"reference="node""#; // not All: this variable has a value at first
        let quality = |query: &&Query| query.panel == "Lowest quality";
        let quality = found.iter().find(quality).unwrap();
        assert!(quality.expr.contains(chosen), "{}", quality.expr);
    }
}
