//! Snapshot → metrics. Each scrape builds the families anew from the snapshot,
//! so that no series outlives the object that it describes.

mod collective;
mod domain;
mod fabric;
mod families;
mod family;
mod gpu;
mod health;
mod imex;
mod link;
mod nic;
mod peer;
mod placement;
mod reference;
mod writer;

use std::{collections::BTreeSet, fmt};

use nvlink_source::{LinkCounters, Reading};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, text},
    registry::Registry,
};

use crate::snapshot::View;
use nvlink_history::{remotes::Remotes, xids::XidTimes};

use self::writer::Writer;
pub use self::{
    families::FAMILIES,
    family::{Family, Group, Groups, Unit},
    reference::reference,
};

/// The `Content-Type` of the text that [`render`] returns.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Renders the answer to a scrape, in the OpenMetrics text format: the families
/// of `groups`, and those of the exporter itself.
///
/// # Errors
/// When a metric cannot be written (no such case is known).
pub fn render(view: &View, groups: Groups) -> Result<String, fmt::Error> {
    let mut out = String::with_capacity(view.data().map_or(4096, size));
    let view = view.clone();
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Scrape { view, groups }));
    text::encode(&mut out, &registry)?;
    Ok(out)
}

/// One scrape, at one point in time.
#[derive(Debug)]
struct Scrape {
    view: View,
    groups: Groups,
}

impl Collector for Scrape {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut out = Writer::new(encoder, self.groups);
        let view = &self.view;
        if let Some(data) = view.data() {
            let snapshot = view.snapshot.as_deref();
            let totals = snapshot.map_or(&[][..], |one| &one.totals);
            gpu::write(&mut out, data, totals)?;
            let remotes = snapshot.map(|one| &one.remotes);
            link::write(&mut out, data, remotes.unwrap_or(&Remotes::default()))?;
            peer::write(&mut out, data)?;
            nic::write(&mut out, &data.topology.spec)?;
            let placements = view.placements.as_deref();
            let status = placements.map_or(&data.topology.status, |one| &one.status);
            // Values that depend on the whole graph are not known from a part of it.
            let whole = data.unread.is_empty();
            if whole {
                let none = BTreeSet::new();
                let uncertain = placements.map_or(&none, |one| &one.uncertain);
                domain::write(&mut out, &data.topology, status.as_ref(), uncertain)?;
            }
            let xids = snapshot.map(|one| &one.xids);
            fabric::write(
                &mut out,
                data,
                xids.unwrap_or(&XidTimes::default()),
                view.clock,
            )?;
            let judged = placements.map(|one| &one.judged[..]).unwrap_or_default();
            placement::write(&mut out, &data.topology.spec, judged, whole)?;
            if let Some(placements) = placements {
                imex::write(&mut out, &data.topology.metadata.name, &placements.imex)?;
            }
        }
        if let Some(results) = &view.results {
            collective::write(&mut out, &results.state)?;
        }
        collective::compared(&mut out, view.comparisons())?;
        health::write(&mut out, view)
    }
}

/// Estimates the length of the text: a string that grows step by step is copied again and again.
fn size(data: &Reading) -> usize {
    let series = |one: &LinkCounters| 5 + one.errors.len() + one.bit_error_ratios.len();
    let of_links: usize = data.counters.iter().map(series).sum();
    let of_pairs = 4 * data.topology.spec.edges.len();
    8192 + of_links * 115 + of_pairs * 175
}
