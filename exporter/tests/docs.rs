//! Compares the documentation of metrics and flags with the code, from which it
//! is generated. `make generate` writes it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test may fail by panicking"
)]

#[path = "support/flags.rs"]
mod flags;
#[path = "support/full.rs"]
mod full;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

use clap::CommandFactory;
use nvlink_exporter::{
    args::Cli,
    collect::collect,
    metrics::{self, FAMILIES, Groups},
    snapshot::{Latest, View},
};
use nvlink_source::{SourceSpec, sim};

const GENERATED: &str = "<!-- Generated from the code: make generate -->";

fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn compare(name: &str, text: &str) {
    let path = root().join("docs").join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        return fs::write(path, text).unwrap();
    }
    let there = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        there == text,
        "docs/{name} differs from the code: run `make generate`"
    );
}

/// Counts the series of `view`, by family.
fn series(view: &View) -> BTreeMap<String, usize> {
    let text = metrics::render(view, Groups::ALL).unwrap();
    let mut series = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap();
        *series.entry(name.to_owned()).or_default() += 1;
    }
    series
}

/// Returns the kinds of errors and the sources of traffic of all simulated boards.
fn kinds() -> BTreeSet<String> {
    let mut kinds = BTreeSet::new();
    for name in sim::names() {
        let spec: SourceSpec = format!("sim:{name}").parse().unwrap();
        let mut source = spec.open(Some("n")).unwrap();
        let latest = Latest::default();
        latest.publish(collect(name, source.as_mut(), Duration::from_secs(1000)));
        let text = metrics::render(&latest.view(Instant::now()), Groups::ALL).unwrap();
        let families = ["nvlink_errors_total{", "nvlink_traffic_source_info{"];
        let lines = text
            .lines()
            .filter(|line| families.iter().any(|one| line.starts_with(one)));
        let value = |line: &str| {
            let (_, rest) = line
                .split_once("kind=\"")
                .or(line.split_once("source=\""))
                .unwrap();
            rest.split('"').next().unwrap().to_owned()
        };
        kinds.extend(lines.map(value));
    }
    assert!(kinds.len() > 10, "{kinds:?}");
    kinds
}

#[test]
fn metrics_md() {
    let text = format!(
        "# Metrics of nvlink-exporter\n\n{GENERATED}\n\n\
         A value that cannot be measured is absent, never 0, as is a label with an unknown value.\n\
         Names that end in `_total` are counters, all others gauges.\n\
         `gpu`, `UUID` and `pci_bus_id` are named as in DCGM, so that series join.\n\
         `nvlink-exporter metrics` prints these tables; [series.md](series.md) has the number of series.\n\n{}",
        metrics::reference()
    );
    for kind in kinds() {
        assert!(
            text.contains(&format!("\n| `{kind}` |")),
            "{kind} is not documented"
        );
    }
    compare("metrics.md", &text);
}

/// What the table of families says of values is what their help says, and what is exported.
#[test]
fn units_agree_with_help_texts_and_values() {
    let documented = metrics::reference();
    let unit = |name: &str| {
        let row = documented
            .lines()
            .find(|line| line.starts_with(&format!("| `{name}` |")));
        row.unwrap().split(" | ").nth(1).unwrap()
    };
    let ends = [
        ("_bytes_per_second", "bytes/s"),
        ("_bytes", "bytes"),
        ("_timestamp_seconds", "seconds since 1970"),
        ("_seconds", "seconds"),
        ("_ratio", "ratio"),
        ("_info", "always 1"),
    ];
    for family in FAMILIES {
        let (name, unit) = (family.name, unit(&family.sample_name()));
        let of_name = ends.iter().find(|(end, _)| name.ends_with(end));
        assert!(
            of_name.is_none_or(|(_, of_name)| unit.starts_with(of_name)),
            "{name}: {unit}"
        );
        assert_eq!(
            unit == "always 1",
            family.help.contains("always 1"),
            "{name}: {unit}"
        );
        let says = ["Whether ", ", 0 for the others", ", else 0"];
        let chooses = says.iter().any(|words| family.help.contains(words));
        assert_eq!(unit == "0 or 1", chooses, "{name}: {unit}");
    }
    let text = metrics::render(&full::eight(), Groups::ALL).unwrap();
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    for sample in samples {
        let name = sample.split(['{', ' ']).next().unwrap();
        let value = sample.rsplit(' ').next().unwrap();
        match unit(name) {
            "always 1" => assert_eq!(value, "1", "{sample}"),
            "0 or 1" => assert!(["0", "1"].contains(&value), "{sample}"),
            _ => {}
        }
    }
}

#[test]
fn series_md() {
    let views = [full::eight(), full::seventy_two()].map(|view| series(&view));
    let [eight, seventy_two] = views.each_ref().map(|one| one.values().sum::<usize>());
    let mut text = format!(
        "# Series of nvlink-exporter\n\n{GENERATED}\n\n\
         The hardware and the containers that use GPUs limit the number of series. Series of a removed pod disappear.\n\
         To have fewer series, leave out the links (`--no-collector.throughput` and `--no-collector.error` keep the totals \
         `nvlink_gpu_…`) and the pairs of GPUs (`--no-collector.peer`).\n\n\
         The list shows how many series of each metric a node has. In parentheses is their sum for 8 GPUs of 18 links (NVLink 4), \
         used by 2 containers, and for 72 GPUs of 18 links (NVLink 5) on one node, used by 9; all metrics together have {eight} \
         and {seventy_two}.\n\n"
    );
    // A row has all families with the same number of series, in the place of the first of them.
    let mut rows: Vec<(&str, Vec<String>, [usize; 2])> = Vec::new();
    for family in FAMILIES {
        let name = family.sample_name();
        let counts = views
            .each_ref()
            .map(|one| one.get(&name).copied().unwrap_or(0));
        let row = rows.iter().position(|(each, ..)| *each == family.series);
        let row = row.unwrap_or_else(|| {
            rows.push((family.series, Vec::new(), [0; 2]));
            rows.len() - 1
        });
        let (_, names, sums) = &mut rows[row];
        names.push(format!("`{name}`"));
        *sums = [sums[0] + counts[0], sums[1] + counts[1]];
    }
    for (each, names, [eight, seventy_two]) in rows {
        let names = names.join(", ");
        writeln!(text, "- {each}: {names} ({eight}, {seventy_two})").unwrap();
    }
    compare("series.md", &text);
}

#[test]
fn exporter_flags_md() {
    let preface = format!(
        "# Flags of nvlink-exporter\n\n{GENERATED}\n\n\
         The default subcommand is `serve`.\n\
         A flag takes precedence over its environment variable.\n"
    );
    let text = flags::page(&preface, Cli::command(), &[]);
    compare("exporter-flags.md", &text);
}
