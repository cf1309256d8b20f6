//! Runs a real Prometheus, and the checks of promtool.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::Command,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::{
    alertmanager::Alertmanager,
    assets, http, port,
    process::{Process, command, feed},
    rules::Rules,
    wait::wait_until,
    workdir,
};

const START: Duration = Duration::from_secs(60);

/// A running Prometheus that scrapes every second. It ends when dropped.
#[derive(Debug)]
pub struct Prometheus {
    /// `http://127.0.0.1:PORT`.
    pub url: String,
    pub process: Process,
}

/// One series in the answer to an instant query.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

impl Prometheus {
    /// Starts a Prometheus that scrapes `targets`: addresses, each with its `instance` label.
    ///
    /// # Errors
    /// When it does not become ready; shows the end of its log.
    pub fn start(targets: &[(&str, &str)]) -> Result<Self> {
        let group = |(address, instance): &(&str, &str)| json!({"targets": [address], "labels": {"instance": instance}});
        let groups: Vec<Value> = targets.iter().map(group).collect();
        Self::scraping(vec![
            json!({"job_name": "nvlink", "static_configs": groups}),
        ])
    }

    /// Starts a Prometheus with these scrape configurations, in the form of its configuration file.
    ///
    /// # Errors
    /// When it does not become ready; shows the end of its log.
    pub fn scraping(jobs: Vec<Value>) -> Result<Self> {
        Self::with(json!({"scrape_configs": jobs}))
    }

    /// Starts a Prometheus that evaluates `rules` every second and sends alerts to `alertmanager`.
    ///
    /// # Errors
    /// When it does not become ready; shows the end of its log.
    pub fn alerting(jobs: Vec<Value>, rules: &Rules, alertmanager: &Alertmanager) -> Result<Self> {
        let directory = workdir::fresh("rules")?;
        let targets = [alertmanager.address.as_str()];
        Self::with(json!({
            "scrape_configs": jobs,
            "rule_files": rules.write(&directory)?,
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": targets}]}]},
        }))
    }

    /// Starts a Prometheus that evaluates `rules` every second, without an Alertmanager.
    ///
    /// # Errors
    /// When it does not become ready; shows the end of its log.
    pub fn recording(jobs: Vec<Value>, rules: &Rules) -> Result<Self> {
        let directory = workdir::fresh("rules")?;
        Self::with(json!({"scrape_configs": jobs, "rule_files": rules.write(&directory)?}))
    }

    /// Starts a Prometheus on the data in `data` that scrapes nothing, and evaluates `rules`, if there are any,
    /// every `interval`. It does not compact, so that nothing else runs while it is measured.
    ///
    /// # Errors
    /// When it does not become ready; shows the end of its log.
    pub fn over(data: &Path, rules: Option<&Rules>, interval: Duration) -> Result<Self> {
        let directory = workdir::fresh("prometheus")?;
        let files = rules.map(|rules| rules.write(&directory)).transpose()?;
        let interval = format!("{}ms", interval.as_millis());
        let config = json!({
            "global": {"evaluation_interval": interval},
            "rule_files": files.unwrap_or_default(),
        });
        let blocks = ["min", "max"].map(|end| format!("--storage.tsdb.{end}-block-duration=2h"));
        Self::launch(&config, &directory, data, &blocks)
    }

    /// Starts a Prometheus with this configuration, and scrapes and evaluates every second.
    fn with(mut config: Value) -> Result<Self> {
        config["global"] =
            json!({"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"});
        let directory = workdir::fresh("prometheus")?;
        Self::launch(&config, &directory, &directory.join("data"), &[])
    }

    fn launch(config: &Value, directory: &Path, data: &Path, arguments: &[String]) -> Result<Self> {
        let file = directory.join("prometheus.yml");
        // YAML is a superset of JSON.
        fs::write(&file, config.to_string())?;
        let listen = format!("127.0.0.1:{}", port::free()?);
        let mut prometheus = command(assets::path("prometheus")?);
        prometheus
            .arg("--config.file")
            .arg(&file)
            .arg("--storage.tsdb.path")
            .arg(data)
            .args(arguments);
        prometheus.args(["--web.listen-address", &listen]);
        let process = Process::start("prometheus", directory, prometheus)?;
        let url = format!("http://{listen}");
        process.wait_until("Prometheus to be ready", START, || {
            http::text(&format!("{url}/-/ready")).map(Some)
        })?;
        Ok(Self { url, process })
    }

    /// Returns the answer to an instant query, in the order of Prometheus.
    ///
    /// # Errors
    /// When Prometheus rejects the query.
    pub fn query(&self, promql: &str) -> Result<Vec<Sample>> {
        let data = self.ask("query", promql, &[])?;
        let result = &data["result"];
        match data["resultType"].as_str() {
            Some("vector") => list(result).iter().map(sample).collect(),
            Some("scalar") => Ok(vec![Sample {
                labels: BTreeMap::new(),
                value: number(&result[1])?,
            }]),
            other => bail!("{promql}: unexpected answer of type {other:?}"),
        }
    }

    /// Returns the values of all series over the time range that ended now, one each `step`.
    ///
    /// # Errors
    /// When Prometheus rejects the query.
    pub fn query_range(&self, promql: &str, range: Duration, step: Duration) -> Result<Vec<f64>> {
        let end = SystemTime::now().duration_since(UNIX_EPOCH)?;
        let seconds = |time: Duration| time.as_secs_f64().to_string();
        let [start, end] = [end.saturating_sub(range), end].map(seconds);
        let times = [("start", &*start), ("end", &end), ("step", &seconds(step))];
        let data = self.ask("query_range", promql, &times)?;
        let series = list(&data["result"]).iter();
        let points = series.flat_map(|one| list(&one["values"]));
        points.map(|point| number(&point[1])).collect()
    }

    /// Returns the data of the answer of `/api/v1/PATH`.
    fn ask(&self, path: &str, promql: &str, parameters: &[(&str, &str)]) -> Result<Value> {
        let url = format!("{}/api/v1/{path}", self.url);
        let parameters = [&[("query", promql)], parameters].concat();
        let answer = http::get(&url, &parameters, "application/json")?;
        let mut body: Value =
            serde_json::from_str(&answer.body).context("Prometheus sent no JSON")?;
        if body["status"] != "success" {
            bail!(
                "{promql}: {}",
                body["error"].as_str().unwrap_or(&answer.body)
            );
        }
        Ok(body["data"].take())
    }

    /// Repeats the query until `wanted` accepts the answer.
    ///
    /// # Errors
    /// When the deadline passes; shows the last answer.
    pub fn wait_for(
        &self,
        promql: &str,
        limit: Duration,
        wanted: impl Fn(&[Sample]) -> bool,
    ) -> Result<Vec<Sample>> {
        wait_until(&format!("the answer to {promql}"), limit, || {
            self.process.check_running()?;
            let samples = self.query(promql)?;
            if wanted(&samples) {
                return Ok(Some(samples));
            }
            bail!("the answer is {samples:?}")
        })
    }
}

/// Checks a scrape with `promtool check metrics`. Debian's promtool reads only the older text
/// format.
///
/// # Errors
/// When it prints anything.
pub fn check_metrics(text: &str) -> Result<()> {
    let mut promtool = Command::new(assets::path("promtool")?);
    let output =
        feed(promtool.args(["check", "metrics"]), &older(text)).context("cannot run promtool")?;
    let said = [output.stdout, output.stderr].concat();
    if !output.status.success() || !said.is_empty() {
        bail!("promtool check metrics: {}", String::from_utf8_lossy(&said));
    }
    Ok(())
}

/// Converts OpenMetrics to Prometheus' older text format: a family of counters has the name of its
/// samples, and there is no end marker.
fn older(text: &str) -> String {
    let kinds = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let counters: BTreeSet<&str> = kinds
        .filter_map(|kind| kind.strip_suffix(" counter"))
        .collect();
    let mut out = String::with_capacity(text.len());
    for line in text.lines().filter(|line| *line != "# EOF") {
        match line.splitn(4, ' ').collect::<Vec<_>>()[..] {
            ["#", what, name, rest] if counters.contains(name) => {
                out += &format!("# {what} {name}_total {rest}");
            }
            _ => out += line,
        }
        out.push('\n');
    }
    out
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn sample(result: &Value) -> Result<Sample> {
    let labels = result["metric"].as_object().into_iter().flatten();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Ok(Sample {
        labels: labels
            .map(|(name, value)| (name.clone(), text(value)))
            .collect(),
        value: number(&result["value"][1])?,
    })
}

fn number(value: &Value) -> Result<f64> {
    let text = value.as_str().context("a sample's value is a string")?;
    text.parse()
        .with_context(|| format!("{text:?} is not a number"))
}
