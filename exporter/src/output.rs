//! Prints a topology and a placement. Every output is deterministic.

pub mod dot;
pub mod environment;
pub mod matrix;
pub mod placement;
pub mod summary;
pub mod table;

pub use nvlink_runtime::words::ranges;

use nvlink_source::Reading;
use nvlink_topology::Nic;

/// Values of `topology --output`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum TopologyFormat {
    /// For people.
    #[default]
    Table,
    /// The NodeTopology document.
    Json,
    /// Graphviz.
    Dot,
    /// The layout of `nvidia-smi topo -m`.
    Matrix,
}

/// Renders a reading.
///
/// # Errors
/// When the document cannot be written as JSON (which does not happen).
pub fn topology(
    reading: &Reading,
    format: TopologyFormat,
    color: bool,
) -> Result<String, serde_json::Error> {
    let node = &reading.topology;
    Ok(match format {
        TopologyFormat::Table => table::render(node, color),
        TopologyFormat::Json => json(node)?,
        TopologyFormat::Dot => dot::render(node),
        TopologyFormat::Matrix => matrix::render(reading),
    })
}

/// Returns pretty-printed JSON that ends with a line break.
///
/// # Errors
/// When `value` cannot be written as JSON.
pub fn json(value: &impl serde::Serialize) -> Result<String, serde_json::Error> {
    serde_json::to_string_pretty(value).map(|text| text + "\n")
}

/// Formats a rate: `371 GB/s`, or `12.5 GB/s` where a tenth matters.
#[must_use]
pub fn rate(bytes_per_second: u64) -> String {
    let tenths = bytes_per_second.saturating_add(50_000_000) / 100_000_000;
    match tenths % 10 {
        tenth if tenth > 0 && tenths < 200 => format!("{}.{tenth} GB/s", tenths / 10),
        _ => format!("{} GB/s", (tenths + 5) / 10),
    }
}

/// Formats the rate of a NIC: `50 GB/s`, or `down`; `None` if it is not known.
#[must_use]
pub fn nic_rate(nic: &Nic) -> Option<String> {
    match nic.down {
        true => Some("down".to_owned()),
        false => nic.bytes_per_second.map(rate),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_for_people() {
        assert_eq!(rate(370_800_000_000), "371 GB/s");
        assert_eq!(rate(9_950_000_000), "10 GB/s");
        assert_eq!(rate(12_500_000_000), "12.5 GB/s");
        assert_eq!(rate(u64::MAX), "18446744074 GB/s");
        assert_eq!(rate(4_460_000_000), "4.5 GB/s");
    }
}
