//! Shows the results of benchmarks.

use nvlink_runtime::columns::columns;
use nvlink_topology::PathClass;
use serde::Serialize;

use crate::{
    Collective, Expected, Place,
    model::ratio,
    run::{Failure, Known, Level, Origin, Row},
    verdict::{Report, gigabytes, size},
};

/// Renders one table of all runs, and what is to know about each.
#[must_use]
pub fn table(reports: &[Report]) -> String {
    let titles = [
        "COLLECTIVE",
        "GPUS",
        "NODES",
        "PATH",
        "SIZE",
        "LARGEST",
        "MEASURED",
        "MODEL SAYS",
        "RATIO",
        "BASELINE",
        "RATIO",
    ];
    let mut rows = vec![titles.map(str::to_owned).to_vec()];
    rows.extend(reports.iter().flat_map(rows_of));
    let notes: String = reports.iter().map(notes).collect();
    let table = if rows.len() > 1 {
        columns(&rows) + "\n"
    } else {
        String::new()
    };
    table + &notes
}

fn dash(text: Option<String>) -> String {
    text.filter(|text| !text.is_empty())
        .unwrap_or("-".to_owned())
}

fn rows_of(report: &Report) -> Vec<Vec<String>> {
    let place = &report.placed.place;
    let collective = report.placed.run.collective.as_ref();
    let row = |(class, level): (_, Level)| {
        let measured = level.bytes_per_second;
        let versus = |reference: Option<u64>| {
            let ratio = reference.map(|reference| format!("{:.2}", ratio(measured, reference)));
            [dash(reference.map(gigabytes)), dash(ratio)]
        };
        let [expected, of_expected] = versus(report.expected(class));
        let [baseline, of_baseline] = versus(report.baseline.get(&class).copied());
        vec![
            dash(collective.map(|known| known.value.to_string())),
            gpus(place),
            dash(place.nodes.as_ref().map(|nodes| nodes.value.to_string())),
            dash(
                place
                    .path
                    .as_ref()
                    .map(|path| path.value.as_str().to_owned()),
            ),
            class.as_str().to_owned(),
            size(level.size),
            gigabytes(measured),
            expected,
            of_expected,
            baseline,
            of_baseline,
        ]
    };
    report.levels().map(row).collect()
}

fn gpus(place: &Place) -> String {
    let count = place.gpus.as_ref().map(|gpus| gpus.value);
    match (count, &place.model) {
        (Some(count), Some(model)) => format!("{count} x {}", model.value),
        (Some(count), None) => count.to_string(),
        (None, Some(model)) => format!("? x {}", model.value),
        (None, None) => "-".to_owned(),
    }
}

/// Returns where the values come from, and what is unusual.
fn notes(report: &Report) -> String {
    let run = &report.placed.run;
    let mut facts = origins(report);
    facts.extend(report.chosen());
    facts.extend(
        run.average_bandwidth
            .map(|average| format!("average bus bandwidth {average} GB/s")),
    );
    facts.extend(
        run.setup_seconds
            .map(|seconds| format!("set-up {seconds:.2} s")),
    );
    let mut text = format!("{}: {}\n", report.name(), facts.join("; "));
    for warning in &run.warnings {
        text += &format!("  warning: {warning}\n");
    }
    if let Some(failure) = &run.failure {
        text += &format!("  failed: {}\n", told(failure));
    }
    text
}

/// Returns the reason of a failure with its line.
#[must_use]
pub fn told(failure: &Failure) -> String {
    format!(
        "{} on line {}: {}",
        failure.reason, failure.line, failure.text
    )
}

/// Groups what is known about the placement by where it comes from.
fn origins(report: &Report) -> Vec<String> {
    let (run, place) = (&report.placed.run, &report.placed.place);
    let parts = [
        (
            "collective",
            run.collective.as_ref().map(|known| known.from),
        ),
        ("GPUs", place.gpus.as_ref().map(|known| known.from)),
        ("model", place.model.as_ref().map(|known| known.from)),
        ("nodes", place.nodes.as_ref().map(|known| known.from)),
        ("path", place.path.as_ref().map(|known| known.from)),
    ];
    let of = |origin: Origin| {
        let named = parts.iter().filter(|(_, from)| *from == Some(origin));
        let names: Vec<&str> = named.map(|(name, _)| *name).collect();
        (!names.is_empty()).then(|| format!("{} from {}", names.join(", "), origin.words()))
    };
    let origins = [
        Origin::Flag,
        Origin::Output,
        Origin::Log,
        Origin::Topology,
        Origin::Bandwidths,
    ];
    origins.into_iter().filter_map(of).collect()
}

/// All runs, for programs.
#[derive(Serialize)]
struct Document<'a> {
    runs: Vec<RunDocument<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RunDocument<'a> {
    input: &'a str,
    line: u64,
    /// Unix time.
    ended_at: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    collective: Option<&'a Known<Collective>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gpus: Option<&'a Known<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<&'a Known<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nodes: Option<&'a Known<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<&'a Known<PathClass>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    model_says: Option<&'a Expected>,
    sizes: Vec<LevelDocument>,
    rows: &'a [Row],
    #[serde(rename = "averageGBps", skip_serializing_if = "Option::is_none")]
    average_bandwidth: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    setup_seconds: Option<f64>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    warnings: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<&'a Failure>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct LevelDocument {
    class: &'static str,
    size: u64,
    bytes_per_second: u64,
    seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    model_bytes_per_second: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    model_ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    baseline_bytes_per_second: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    baseline_ratio: Option<f64>,
}

/// Renders all runs as JSON.
///
/// # Errors
/// When they cannot be serialized (no such case is known).
pub fn json(reports: &[Report]) -> serde_json::Result<String> {
    let runs = reports.iter().map(document).collect();
    serde_json::to_string_pretty(&Document { runs }).map(|text| text + "\n")
}

fn document(report: &Report) -> RunDocument<'_> {
    let (run, place) = (&report.placed.run, &report.placed.place);
    let level = |(class, level): (_, Level)| {
        let (expected, baseline) = (report.expected(class), report.baseline.get(&class).copied());
        let versus = |reference: u64| ratio(level.bytes_per_second, reference);
        LevelDocument {
            class: class.as_str(),
            size: level.size,
            bytes_per_second: level.bytes_per_second,
            seconds: level.seconds,
            model_bytes_per_second: expected,
            model_ratio: expected.map(versus),
            baseline_bytes_per_second: baseline,
            baseline_ratio: baseline.map(versus),
        }
    };
    RunDocument {
        input: &report.input,
        line: run.line,
        ended_at: report.kept.at,
        collective: run.collective.as_ref(),
        gpus: place.gpus.as_ref(),
        model: place.model.as_ref(),
        nodes: place.nodes.as_ref(),
        path: place.path.as_ref(),
        model_says: report.placed.expected.as_ref(),
        sizes: report.levels().map(level).collect(),
        rows: &run.rows,
        average_bandwidth: run.average_bandwidth,
        setup_seconds: run.setup_seconds,
        warnings: &run.warnings,
        failure: run.failure.as_ref(),
    }
}
