//! The exporter itself.

use std::{fmt, time::Duration};

use super::{
    families,
    family::{Label, Value},
    writer::Writer,
};
use crate::snapshot::View;

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
    // Where nothing was ever read, the wait for it is as long as the exporter runs.
    let age = view.age.unwrap_or(view.since_start);
    let age = [([], Value::Real(age.as_secs_f64()))];
    out.write(&families::SNAPSHOT_AGE, age)?;
    let source = view.data().map(|data| {
        let source = &data.topology.spec.source;
        let labels = [source.kind.as_str().into(), Label::Text(&source.from)];
        (labels, Value::Whole(1))
    });
    out.write(&families::SOURCE_INFO, source)?;
    let version = Label::Text(env!("CARGO_PKG_VERSION"));
    out.write(&families::BUILD_INFO, [([version], Value::Whole(1))])
}

/// Name, success and duration of the last collection of each collector. A
/// source that hangs has not succeeded, nor one whose first collection has not
/// ended; that one has no duration.
fn collectors(view: &View) -> Vec<(&'static str, bool, Option<Duration>)> {
    let topology = view.snapshot.as_ref().map(|snapshot| &snapshot.health);
    let ok = topology.is_some_and(|health| health.error.is_none()) && view.is_fresh();
    let topology = ("topology", ok, topology.map(|health| health.duration));
    let placements = view.placements.as_ref();
    let allocations = placements
        .and_then(|placements| placements.health.as_ref())
        .map(|health| ("allocations", health.error.is_none(), Some(health.duration)));
    [topology].into_iter().chain(allocations).collect()
}
