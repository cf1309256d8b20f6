//! Results of collective benchmarks.

use std::{collections::BTreeMap, fmt};

use nvlink_collectives::{
    SizeClass, State,
    run::Reason,
    state::{Class, Entry},
};
use nvlink_topology::Comparison;
use strum::IntoEnumIterator;

use super::{
    families,
    family::{Label, Value},
    writer::Writer,
};

pub(super) fn write(out: &mut Writer<'_>, state: &State) -> fmt::Result {
    let all = &state.collectives;
    let latest = levels(all, |entry, size| entry.latest(size).copied());
    let bandwidths = latest.iter().map(|(class, size, level)| {
        let value = Value::Whole(level.bytes_per_second);
        (of_size(class, *size), value)
    });
    out.write(&families::COLLECTIVE_BUS_BANDWIDTH, bandwidths)?;
    let baselines = levels(all, Entry::baseline);
    let baselines = baselines
        .iter()
        .map(|(class, size, value)| (of_size(class, *size), Value::Whole(*value)));
    out.write(&families::COLLECTIVE_BASELINE, baselines)?;
    let expected = all.iter().filter_map(|entry| {
        let expected = entry.expected_bytes_per_second?;
        Some((of(&entry.class), Value::Whole(expected)))
    });
    out.write(&families::COLLECTIVE_MODEL, expected)?;
    let durations = latest
        .iter()
        .map(|(class, size, level)| (of_size(class, *size), Value::Real(level.seconds)));
    out.write(&families::COLLECTIVE_DURATION, durations)?;
    let setups = all.iter().filter_map(|entry| {
        let seconds = entry.runs.last()?.setup_seconds?;
        Some((of(&entry.class), Value::Real(seconds)))
    });
    out.write(&families::COLLECTIVE_SETUP, setups)?;
    counts(out, all)
}

pub(super) fn compared(out: &mut Writer<'_>, all: &[Comparison]) -> fmt::Result {
    let ratios = all.iter().map(|one| {
        let labels = [
            one.model.as_str().into(),
            one.gpus.into(),
            one.path.as_str().into(),
        ];
        (labels, Value::Real(one.ratio))
    });
    out.write(&families::COLLECTIVE_SIBLINGS, ratios)
}

fn counts(out: &mut Writer<'_>, all: &[Entry]) -> fmt::Result {
    let runs = all
        .iter()
        .map(|entry| (of(&entry.class), Value::Whole(entry.total)));
    out.write(&families::COLLECTIVE_RUNS, runs)?;
    let count = |failures: &BTreeMap<Reason, u64>, reason| {
        let count = failures.get(&reason).copied();
        Value::Whole(count.unwrap_or(0))
    };
    let reasons = |entry| Reason::iter().map(move |reason| (entry, reason));
    let failures = all.iter().flat_map(reasons).map(|(entry, reason)| {
        let labels = of_reason(&entry.class, reason);
        (labels, count(&entry.failures, reason))
    });
    out.write(&families::COLLECTIVE_FAILURES, failures)?;
    let ends = all.iter().filter_map(|entry| {
        let at = entry.runs.last()?.at;
        Some((of(&entry.class), Value::Whole(at)))
    });
    out.write(&families::COLLECTIVE_TIMESTAMP, ends)?;
    let failed = all.iter().flat_map(reasons).filter_map(|(entry, reason)| {
        let at = entry.failed_at(reason)?;
        Some((of_reason(&entry.class, reason), Value::Whole(at)))
    });
    out.write(&families::COLLECTIVE_FAILURE_TIMESTAMP, failed)
}

/// Returns what is known of each class and size class.
fn levels<T>(
    all: &[Entry],
    value: impl Fn(&Entry, SizeClass) -> Option<T>,
) -> Vec<(&Class, SizeClass, T)> {
    let sizes = |entry| SizeClass::ALL.into_iter().map(move |size| (entry, size));
    let pairs = all.iter().flat_map(sizes);
    let known = pairs.filter_map(|(entry, size)| Some((&entry.class, size, value(entry, size)?)));
    known.collect()
}

fn of(class: &Class) -> [Label<'_>; 5] {
    [
        class.collective.as_str().into(),
        class.model.as_deref().into(),
        class.gpus.into(),
        class.nodes.map_or(Label::Unknown, Label::from),
        class.path.map(|path| path.as_str()).into(),
    ]
}

fn of_size(class: &Class, size: SizeClass) -> [Label<'_>; 6] {
    let [collective, model, gpus, nodes, path] = of(class);
    [collective, model, gpus, nodes, path, size.as_str().into()]
}

fn of_reason(class: &Class, reason: Reason) -> [Label<'_>; 6] {
    let [collective, model, gpus, nodes, path] = of(class);
    [collective, model, gpus, nodes, path, reason.as_str().into()]
}
