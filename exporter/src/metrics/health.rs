//! The exporter itself.

use std::{fmt, time::Duration};

use prometheus_client::encoding::DescriptorEncoder;

use super::{families, family::Value};
use crate::snapshot::View;

pub(super) fn write(encoder: &mut DescriptorEncoder<'_>, view: &View) -> fmt::Result {
    let collectors = || collectors(view).into_iter();
    families::COLLECTOR_SUCCESS.write(
        encoder,
        collectors().map(|(name, ok, _)| (vec![name.to_owned()], Value::Whole(ok.into()))),
    )?;
    families::COLLECTION_DURATION.write(
        encoder,
        collectors()
            .map(|(name, _, took)| (vec![name.to_owned()], Value::Real(took.as_secs_f64()))),
    )?;
    families::SNAPSHOT_AGE.write(
        encoder,
        view.age
            .map(|age| (Vec::new(), Value::Real(age.as_secs_f64()))),
    )?;
    families::SOURCE_INFO.write(
        encoder,
        view.data().map(|data| {
            let source = &data.topology.spec.source;
            let labels = vec![source.kind.as_str().to_owned(), source.from.clone()];
            (labels, Value::Whole(1))
        }),
    )?;
    let version = vec![env!("CARGO_PKG_VERSION").to_owned()];
    families::BUILD_INFO.write(encoder, [(version, Value::Whole(1))])
}

/// Name, success and duration of the last collection of each collector. A
/// source that hangs has not succeeded.
fn collectors(view: &View) -> Vec<(&'static str, bool, Duration)> {
    let topology = view.snapshot.as_ref().map(|snapshot| {
        let ok = snapshot.health.error.is_none() && view.is_fresh();
        ("topology", ok, snapshot.health.duration)
    });
    let placements = view.placements.as_ref();
    let allocations = placements
        .and_then(|placements| placements.health.as_ref())
        .map(|health| ("allocations", health.error.is_none(), health.duration));
    topology.into_iter().chain(allocations).collect()
}
