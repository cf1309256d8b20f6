//! The exporter itself.

use std::{fmt, time::Duration};

use nvlink_topology::{Source, SourceKind};

use super::{
    families,
    family::{Label, Value},
    writer::Writer,
};
use crate::{snapshot::View, statistics::Failure};

pub(super) fn write(out: &mut Writer<'_>, view: &View) -> fmt::Result {
    let collectors = collectors(view);
    let successes = collectors
        .iter()
        .map(|&(name, ok, _)| ([name.into()], Value::Whole(ok.into())));
    out.write(&families::COLLECTOR_SUCCESS, successes)?;
    let durations = collectors
        .iter()
        .filter_map(|&(name, _, took)| Some(([name.into()], Value::Real(took?.as_secs_f64()))));
    out.write(&families::COLLECTION_DURATION, durations)?;
    // Without any successful reading, the age is the time since the exporter started.
    let age = view.age.unwrap_or(view.since_start);
    let age = [([], Value::Real(age.as_secs_f64()))];
    out.write(&families::SNAPSHOT_AGE, age)?;
    let released = Value::Whole(view.is_released().into());
    out.write(&families::SOURCE_RELEASED, [([], released)])?;
    work(out, view)?;
    let source = source(view);
    let source = source.as_ref().map(|(kind, from)| {
        let labels = [kind.as_str().into(), Label::Text(from)];
        (labels, Value::Whole(1))
    });
    out.write(&families::SOURCE_INFO, source)?;
    let version = Label::Text(env!("CARGO_PKG_VERSION"));
    out.write(&families::BUILD_INFO, [([version], Value::Whole(1))])?;
    let node = Label::Text(&view.node);
    out.write(&families::NODE_INFO, [([node], Value::Whole(1))])
}

/// Returns kind and name of the source: for a recording, the file and not the recorded source.
fn source(view: &View) -> Option<(SourceKind, String)> {
    let Source { kind, from } = &view.data()?.topology.spec.source;
    let read = &view.snapshot.as_ref()?.health.source;
    Some(match (kind, read.strip_prefix("file:")) {
        (SourceKind::File, _) | (_, None) => (*kind, from.clone()),
        (kind, Some(file)) => {
            let of = format!("{file}, recorded of {}: {from}", kind.as_str());
            (SourceKind::File, of)
        }
    })
}

/// Writes the process's statistics about itself.
fn work(out: &mut Writer<'_>, view: &View) -> fmt::Result {
    let statistics = &view.statistics;
    let publishing = &statistics.publishing;
    let published = publishing.iter().filter_map(|(what, one)| {
        let at = view.clock.unix(one.last_success()?)?;
        Some(([(*what).into()], Value::Whole(at)))
    });
    out.write(&families::PUBLISHED_AT, published)?;
    let failures = publishing.iter().flat_map(|(what, one)| {
        let labels = |why: Failure| [(*what).into(), why.as_str().into()];
        let failures = one.failures().into_iter();
        failures.map(move |(why, count)| (labels(why), Value::Whole(count)))
    });
    out.write(&families::PUBLISH_FAILURES, failures)?;
    let cut_offs = statistics.cut_offs.counts();
    let cut_offs = cut_offs.map(|(why, count)| ([why.as_str().into()], Value::Whole(count)));
    out.write(&families::CUT_OFFS, cut_offs)?;
    let restarts = statistics.supervisor.restarts().into_iter();
    let restarts = restarts.map(|(part, count)| ([part.into()], Value::Whole(count)));
    out.write(&families::RESTARTS, restarts)?;
    let dropped = Value::Whole(nvlink_runtime::log::dropped());
    out.write(&families::LOG_DROPPED, [([], dropped)])
}

/// Returns name, success and duration of the last collection of each collector.
/// A source that hangs has not succeeded. Neither has one whose first collection
/// has not ended; it has no duration either.
fn collectors(view: &View) -> Vec<(&'static str, bool, Option<Duration>)> {
    let topology = view.snapshot.as_ref().map(|snapshot| &snapshot.health);
    let ok = topology.is_some_and(|health| health.error.is_none()) && view.is_fresh();
    let topology = ("topology", ok, topology.map(|health| health.duration));
    let placements = view.placements.as_ref();
    let allocations = placements
        .and_then(|placements| placements.health.as_ref())
        .map(|health| ("allocations", health.error.is_none(), Some(health.duration)));
    let results = view.results.as_ref();
    let results = results.map(|results| ("collectives", results.error.is_none(), None));
    let rest = allocations.into_iter().chain(results);
    [topology].into_iter().chain(rest).collect()
}
