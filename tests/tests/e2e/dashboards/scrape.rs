//! The ways in which a Prometheus gets the metrics of the same programs.

use anyhow::{Context, Result};
use nvlink_tests::Helm;
use serde_json::{Map, Value, json};

use super::world::{CLUSTER, Target, World};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// As docs/exporter.md says, with a label `cluster` on all targets.
    Plain,
    /// By the monitors of the chart: the operator adds the labels of the program's own pod.
    Operator,
    /// The same, by a Prometheus with `overrideHonorLabels`, which has the labels of jobs renamed.
    HonorLabelsIgnored,
}

impl Way {
    pub(super) const ALL: [Self; 3] = [Self::Plain, Self::Operator, Self::HonorLabelsIgnored];

    /// Returns the scrape configurations for all programs.
    pub(super) fn jobs(self, world: &World) -> Result<Vec<Value>> {
        let relabeling = match self {
            Self::HonorLabelsIgnored => relabeling_of_the_chart()?,
            Self::Plain | Self::Operator => json!([]),
        };
        let targets = world.targets(self)?;
        let targets = targets.into_iter().enumerate();
        Ok(targets
            .map(|(number, target)| self.job(number, target, &relabeling))
            .collect())
    }

    fn job(self, number: usize, target: Target, relabeling: &Value) -> Value {
        let labels = match self {
            Self::Plain => json!({"instance": target.name, "cluster": CLUSTER}),
            Self::Operator | Self::HonorLabelsIgnored => json!({
                "instance": format!("10.0.0.{number}:80"),
                "job": format!("monitoring/{}", target.program),
                "namespace": "monitoring",
                "pod": format!("{}-{}", target.program, target.name),
                "container": target.program,
                "endpoint": "metrics",
            }),
        };
        let mut job = target.access;
        let own = json!({
            "job_name": format!("{}-{}", target.program, target.name),
            "honor_labels": self != Self::HonorLabelsIgnored || target.is_foreign,
            "metric_relabel_configs": relabeling,
            "static_configs": [{"targets": [target.address], "labels": labels}],
        });
        for (key, value) in own.as_object().into_iter().flatten() {
            job.entry(key).or_insert_with(|| value.clone());
        }
        Value::Object(job)
    }
}

/// Returns the relabeling of the chart's monitor of the exporter, in the form of Prometheus' configuration.
fn relabeling_of_the_chart() -> Result<Value> {
    let text = Helm::new()?.template("monitoring.yaml", "monitoring: {kind: PodMonitor}")?;
    let monitors: Vec<Value> = serde_saphyr::from_multiple(&text)?;
    let of_exporter = |one: &&Value| one["metadata"]["name"] == "nvlink-exporter";
    let monitor = monitors.iter().find(of_exporter).context("no monitor")?;
    let endpoint = &monitor["spec"]["podMetricsEndpoints"][0];
    let rules = endpoint["metricRelabelings"]
        .as_array()
        .context("no relabeling")?;
    Ok(rules
        .iter()
        .map(|rule| Value::Object(snake(rule)))
        .collect())
}

/// Converts the operator's `sourceLabels` to Prometheus' `source_labels`, and so on.
fn snake(rule: &Value) -> Map<String, Value> {
    let fields = rule.as_object().into_iter().flatten();
    let renamed = fields.map(|(key, value)| {
        let mut name = String::new();
        for c in key.chars() {
            if c.is_ascii_uppercase() {
                name.push('_');
            }
            name.push(c.to_ascii_lowercase());
        }
        (name, value.clone())
    });
    renamed.collect()
}
