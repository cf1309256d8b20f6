//! Snapshot → metrics. Families are made anew from the snapshot at each
//! scrape, so that nothing outlives the thing it describes.

mod domain;
mod exposition;
mod fabric;
mod families;
mod family;
mod gpu;
mod health;
mod link;
mod peer;
mod placement;
mod reference;

use std::fmt;

use crate::snapshot::View;

use self::exposition::Exposition;
pub use self::{
    families::FAMILIES,
    family::{Family, Group, Groups, Kind},
    reference::reference,
};

/// How a scrape wants its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics text 1.0.0.
    OpenMetrics,
    /// Prometheus text 0.0.4.
    Prometheus,
}

impl Format {
    /// The `Content-Type` of the answer.
    #[must_use]
    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// The format that the header `Accept` prefers; Prometheus text where it says nothing.
    #[must_use]
    pub fn accepted(accept: &str) -> Self {
        let weight = |wanted: &[&str]| {
            let weights = accept.split(',').filter_map(|range| {
                let mut parts = range.split(';').map(str::trim);
                let media = parts.next().unwrap_or_default().to_ascii_lowercase();
                let mut weight = 1.0;
                for part in parts {
                    match part.split_once('=') {
                        Some(("q", q)) => weight = q.trim().parse().unwrap_or(0.0),
                        Some(("version", version)) if media != "text/plain" => {
                            let version = version.trim_matches('"');
                            if version != "1.0.0" && version != "0.0.1" {
                                return None;
                            }
                        }
                        _ => {}
                    }
                }
                wanted.contains(&&*media).then_some(weight)
            });
            weights.fold(0.0_f64, f64::max)
        };
        let open = weight(&["application/openmetrics-text"]);
        match open > 0.0 && open >= weight(&["text/plain"]) {
            true => Self::OpenMetrics,
            false => Self::Prometheus,
        }
    }
}

/// The answer to a scrape: the families of `groups`, and those of the exporter itself.
///
/// # Errors
/// When a metric cannot be written (never, as far as is known).
pub fn render(view: &View, format: Format, groups: Groups) -> Result<String, fmt::Error> {
    let data = view.data();
    // Grown step by step, a long text would be copied again and again.
    let counters = data.map_or(0, |data| data.counters.len());
    let edges = data.map_or(0, |data| data.topology.spec.edges.len());
    let capacity = 8192 + counters * BYTES_PER_LINK + edges * BYTES_PER_EDGE;
    let mut out = Exposition::new(format, groups, capacity);
    if let Some(data) = data {
        let spec = &data.topology.spec;
        gpu::write(&mut out, data)?;
        link::write(&mut out, data)?;
        peer::write(&mut out, data)?;
        let placements = view.placements.as_deref();
        let status = placements.map_or(&data.topology.status, |one| &one.status);
        // What is made of the whole graph is not known from a part of it.
        let whole = data.unread.is_empty();
        if whole {
            domain::write(&mut out, &data.topology, status.as_ref())?;
        }
        fabric::write(&mut out, data)?;
        fabric::write_xids(&mut out, data)?;
        let judged = placements.filter(|_| whole).map(|one| &one.judged[..]);
        placement::write(&mut out, spec, judged.unwrap_or_default())?;
    }
    health::write(&mut out, view)?;
    Ok(out.end())
}

/// What the series of a link take, roughly; measured on NVLink 4.
const BYTES_PER_LINK: usize = 1100;
/// What the series of a pair of GPUs take.
const BYTES_PER_EDGE: usize = 700;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_accept_header_decides() {
        let prometheus_3 = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
             application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;q=0.4,\
             text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        let cases = [
            (prometheus_3, Format::OpenMetrics),
            ("application/openmetrics-text", Format::OpenMetrics),
            (
                "application/openmetrics-text; version=1.0.0, text/plain;q=0.5",
                Format::OpenMetrics,
            ),
            (
                "application/openmetrics-text;version=7.0.0",
                Format::Prometheus,
            ),
            (
                "application/openmetrics-text;q=0.1,text/plain;q=0.5",
                Format::Prometheus,
            ),
            ("application/openmetrics-text;q=0", Format::Prometheus),
            (
                "text/html,application/xhtml+xml,*/*;q=0.8",
                Format::Prometheus,
            ),
            ("text/plain;version=0.0.4", Format::Prometheus),
            ("", Format::Prometheus),
            ("*/*", Format::Prometheus),
            (";;q=,,=", Format::Prometheus),
        ];
        for (accept, format) in cases {
            assert_eq!(Format::accepted(accept), format, "{accept}");
        }
    }
}
