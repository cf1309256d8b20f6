//! Usable bandwidth of a path, bytes per second in one direction.
//!
//! These are constants from the literature until something is measured. They
//! rank paths; they do not promise a benchmark's figure.

use crate::{PathClass, generation::Generation};

/// Usable bandwidth of one NVLink of a GPU whose product is not known.
///
/// From Volta to Hopper every SXM generation is within 3 % of this
/// ([`Generation::bytes_per_second_per_link`]).
pub const ASSUMED_NVLINK: u64 = 20_000_000_000;

/// Nominal bandwidth of one NVLink of a GPU whose product is not known: the
/// data sheets' figure for every SXM generation from Volta to Hopper.
pub const ASSUMED_NOMINAL_NVLINK: u64 = 25_000_000_000;

/// Nominal bandwidth of `links` NVLinks: the product's data sheet, else the
/// line rate that the driver reports, else [`ASSUMED_NOMINAL_NVLINK`].
#[must_use]
pub fn nominal_nvlink(model: Option<&str>, links: u32, line_rate: Option<u64>) -> u64 {
    let nominal = model
        .and_then(Generation::of_model)
        .map(|generation| generation.nominal_bytes_per_second_per_link);
    nominal
        .or(line_rate)
        .unwrap_or(ASSUMED_NOMINAL_NVLINK)
        .saturating_mul(links.into())
}

/// `links` NVLinks of the product `model`.
///
/// The generation's usable bandwidth where the product is known (and never
/// more than `line_rate`, bytes per second of one link), else the line rate
/// that the driver reports, else [`ASSUMED_NVLINK`].
#[must_use]
pub fn nvlink(model: Option<&str>, links: u32, line_rate: Option<u64>) -> u64 {
    let usable = model
        .and_then(Generation::of_model)
        .map(|generation| generation.bytes_per_second_per_link);
    let one = match (usable, line_rate) {
        (Some(usable), Some(rate)) => usable.min(rate),
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => ASSUMED_NVLINK,
    };
    one.saturating_mul(links.into())
}

/// `links` NVLinks of which nothing is known but their number.
#[must_use]
pub fn assumed_nvlink(links: u32) -> u64 {
    nvlink(None, links, None)
}

/// A PCIe path whose slowest link is of this generation (1 to 7) and width (lanes).
///
/// What is usable of the link, as NCCL reckons it: 12 GB/s for sixteen lanes of
/// generation 3, twice that for each later one (`PCI_BW` in `src/graph/topo.h`,
/// `kvDictPciGen` in `src/graph/topo.cc`), times what the farther classes leave of
/// it, which is ours.
#[must_use]
pub fn pcie(generation: u32, width: u32, class: PathClass) -> u64 {
    let lane: u64 = 187_500_000 << (generation.clamp(1, 7) - 1);
    lane * u64::from(width.clamp(1, 32)) * share(class) / 100
}

/// Per cent of the slowest PCIe link that is left for a GPU-to-GPU copy.
///
/// One switch forwards at line rate; each further thing on the way is shared
/// or slower. The figures are this project's: what a host bridge or the link
/// between sockets passes differs by CPU (NCCL's constants for links between
/// sockets go from 6 to 40 GB/s), and no source tells the CPU. Only the order is relied upon.
fn share(class: PathClass) -> u64 {
    match class {
        PathClass::Nvlink | PathClass::Pix => 100,
        PathClass::Pxb => 95,
        PathClass::Phb => 80,
        PathClass::Node => 70,
        PathClass::Sys => 50,
    }
}

/// A path of which only the class is known: PCIe 4.0 x16, or one NVLink.
#[must_use]
pub fn assumed(class: PathClass) -> u64 {
    match class {
        PathClass::Nvlink => ASSUMED_NVLINK,
        class => pcie(4, 16, class),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nvlink_takes_the_best_knowledge() {
        assert_eq!(
            nvlink(Some("NVIDIA H100 80GB HBM3"), 18, Some(26_562_000_000)),
            370_800_000_000
        );
        assert_eq!(nvlink(Some("NVIDIA RTX A6000"), 4, None), 48_000_000_000);
        assert_eq!(
            nvlink(Some("NVIDIA H100 80GB HBM3"), 1, Some(10_000_000_000)),
            10_000_000_000
        );
        assert_eq!(
            nvlink(Some("Something new"), 2, Some(100_000_000_000)),
            200_000_000_000
        );
        assert_eq!(nvlink(None, 2, None), 40_000_000_000);
    }

    #[test]
    fn pcie_is_rate_times_width_and_falls_with_distance() {
        assert_eq!(pcie(3, 16, PathClass::Pix), 12_000_000_000);
        assert_eq!(pcie(4, 16, PathClass::Pix), 24_000_000_000);
        assert_eq!(pcie(5, 16, PathClass::Pix), 48_000_000_000);
        assert_eq!(pcie(1, 1, PathClass::Pix), 187_500_000);
        let classes = [
            PathClass::Pix,
            PathClass::Pxb,
            PathClass::Phb,
            PathClass::Node,
            PathClass::Sys,
        ];
        let falls = classes
            .windows(2)
            .all(|pair| assumed(pair[0]) > assumed(pair[1]));
        assert!(falls, "a farther class is slower");
        assert!(assumed(PathClass::Sys) < ASSUMED_NVLINK);
    }
}
