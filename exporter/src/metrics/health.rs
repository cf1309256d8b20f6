//! The exporter itself.

use std::{fmt, time::Duration};

use prometheus_client::encoding::DescriptorEncoder;

use super::family::{self, Value};
use crate::snapshot::Snapshot;

/// The only collector so far.
const COLLECTOR: &str = "topology";

pub(super) fn write(
    encoder: &mut DescriptorEncoder<'_>,
    snapshot: Option<&Snapshot>,
    age: Option<Duration>,
) -> fmt::Result {
    let health = snapshot.map(|snapshot| &snapshot.health);
    let collector = || vec![COLLECTOR.to_owned()];
    family::COLLECTOR_SUCCESS.write(
        encoder,
        health.map(|health| (collector(), Value::Whole(health.error.is_none().into()))),
    )?;
    family::COLLECTION_DURATION.write(
        encoder,
        health.map(|health| (collector(), Value::Real(health.duration.as_secs_f64()))),
    )?;
    family::SNAPSHOT_AGE.write(
        encoder,
        age.map(|age| (Vec::new(), Value::Real(age.as_secs_f64()))),
    )?;
    let data = snapshot.and_then(|snapshot| snapshot.data.as_ref());
    family::SOURCE_INFO.write(
        encoder,
        data.map(|data| {
            let source = &data.topology.spec.source;
            let labels = vec![source.kind.as_str().to_owned(), source.from.clone()];
            (labels, Value::Whole(1))
        }),
    )?;
    let version = vec![env!("CARGO_PKG_VERSION").to_owned()];
    family::BUILD_INFO.write(encoder, [(version, Value::Whole(1))])
}
