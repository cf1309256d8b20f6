//! Helpers that read the metrics of an exporter.

use std::{collections::BTreeMap, time::Duration};

use nvlink_tests::{Exporter, FakeNvml};

/// Short enough for tests, and long enough for two samples of GPM.
const INTERVAL: &str = "150ms";
const SOON: Duration = Duration::from_secs(20);

/// Starts an exporter that collects often.
pub(super) fn start(fake: &FakeNvml, arguments: &[&str]) -> Exporter {
    let interval = ["--collection-interval", INTERVAL];
    fake.exporter(&[&interval[..], arguments].concat()).unwrap()
}

/// Scrapes until the metrics are as `wanted`, and returns them.
pub(super) fn wait(exporter: &Exporter, what: &str, wanted: impl Fn(&str) -> bool) -> String {
    let probe = || Ok(Some(exporter.metrics()?).filter(|text| wanted(text)));
    exporter.process.wait_until(what, SOON, probe).unwrap()
}

/// Waits for a collection that succeeded, and returns its metrics.
pub(super) fn good(exporter: &Exporter) -> String {
    wait(exporter, "a good collection", succeeded)
}

/// Reports whether the last collection succeeded.
pub(super) fn succeeded(text: &str) -> bool {
    value(
        text,
        "nvlink_exporter_collector_success",
        &[("collector", "topology")],
    ) == Some(1.0)
}

/// The series of one name: labels and value.
pub(super) type Series = Vec<(BTreeMap<String, String>, f64)>;

/// Returns all series called `name`.
pub(super) fn series(text: &str, name: &str) -> Series {
    let parse = |line: &str| {
        let rest = line.strip_prefix(name)?;
        let (labels, value) = rest.rsplit_once(' ')?;
        let labels = match labels {
            "" => "",
            _ => labels.strip_prefix('{')?.strip_suffix('}')?,
        };
        // No label in these tests contains a comma or a quote.
        let pair = |label: &str| {
            let (name, value) = label.split_once('=')?;
            Some((name.to_owned(), value.trim_matches('"').to_owned()))
        };
        let labels = labels.split(',').filter_map(pair).collect();
        Some((labels, value.parse().unwrap()))
    };
    text.lines().filter_map(parse).collect()
}

/// Returns the series called `name` that have `labels`, among others.
pub(super) fn those(text: &str, name: &str, labels: &[(&str, &str)]) -> Series {
    let has = |one: &BTreeMap<String, String>| {
        labels
            .iter()
            .all(|(name, value)| one.get(*name).is_some_and(|found| found == value))
    };
    let all = series(text, name);
    all.into_iter().filter(|(one, _)| has(one)).collect()
}

/// Returns the value of the one series called `name` that has `labels`, among others.
pub(super) fn value(text: &str, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let found = those(text, name, labels);
    assert!(found.len() <= 1, "{name} {labels:?}: {found:?}");
    found.first().map(|(_, value)| *value)
}

/// Returns the values of all series called `name` that have `labels`, in order.
pub(super) fn values(text: &str, name: &str, labels: &[(&str, &str)]) -> Vec<f64> {
    those(text, name, labels)
        .into_iter()
        .map(|(_, value)| value)
        .collect()
}
