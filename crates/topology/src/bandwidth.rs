//! Usable bandwidth of a path, bytes per second in one direction.
//!
//! The values are constants from the literature, not measurements. They rank paths and do
//! not predict benchmark results.

use crate::{PathClass, generation::Generation};

/// Usable bandwidth of one NVLink of a GPU of an unknown product.
///
/// From Volta to Hopper every SXM generation is within 3 % of this
/// ([`Generation::bytes_per_second_per_link`]).
pub const ASSUMED_NVLINK: u64 = 20_000_000_000;

/// Nominal bandwidth of one NVLink of a GPU of an unknown product: the data sheets'
/// figure for every SXM generation from Volta to Hopper.
pub const ASSUMED_NOMINAL_NVLINK: u64 = 25_000_000_000;

/// Returns the nominal bandwidth of `links` NVLinks, bytes per second in one direction:
/// from the product's data sheet, else from the line rate that the driver reports, else
/// from [`ASSUMED_NOMINAL_NVLINK`].
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

/// Returns the usable bandwidth of `links` NVLinks of the product `model`, bytes per
/// second in one direction.
///
/// It uses the generation's usable bandwidth if the product is known (capped at
/// `line_rate`, bytes per second of one link), else the line rate that the driver
/// reports, else [`ASSUMED_NVLINK`].
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

/// Returns how many times as fast as rings an all-reduce of large messages is where NVSwitches add
/// up the data (NVLS, NVLink SHARP); `None` where the product's switches cannot, and where it makes
/// nothing faster. `gpus` is the number of GPUs that share the switches.
///
/// It is no bandwidth of a path: between any two GPUs, the links carry what they carry without it.
/// The rate of eight GPUs is measured ([`Generation::in_switch_bytes_per_second_per_link`]), and
/// larger sets do not exceed it (72 GPUs of a GB200 NVL72 measure the same). A smaller set gets less:
/// each GPU sends the whole payload to be added up, and an n-th of it as the sum of its part to all
/// others, so at the same load of a link the bus bandwidth, 2(n-1)/n of the payload a second, is
/// proportional to (n-1)/(n+1). For four GPUs and fewer, that is no more than rings reach.
#[must_use]
pub fn in_switch_gain(model: &str, gpus: u32) -> Option<f64> {
    let generation = Generation::of_model(model)?;
    let in_switch = generation.in_switch_bytes_per_second_per_link?;
    let n = f64::from(gpus.max(1));
    let of_eight = (n - 1.0) / (n + 1.0) / (7.0 / 9.0);
    #[allow(clippy::cast_precision_loss)] // far below 2^53
    let eight = in_switch as f64 / generation.bytes_per_second_per_link as f64;
    Some(eight * of_eight.min(1.0)).filter(|gain| *gain > 1.0)
}

/// Returns the usable bandwidth of `links` NVLinks of an unknown product and line rate.
#[must_use]
pub fn assumed_nvlink(links: u32) -> u64 {
    nvlink(None, links, None)
}

/// Returns the usable bandwidth of a PCIe path whose slowest link has this generation (1
/// to 7) and width (lanes).
///
/// The usable bandwidth of the link is NCCL's: 12 GB/s for sixteen lanes of generation 3,
/// twice that for each later generation (`PCI_BW` in `src/graph/topo.h`, `kvDictPciGen`
/// in `src/graph/topo.cc`). Farther classes get only a share of it; the shares are this
/// project's.
#[must_use]
pub fn pcie(generation: u32, width: u32, class: PathClass) -> u64 {
    let lane: u64 = 187_500_000 << (generation.clamp(1, 7) - 1);
    lane * u64::from(width.clamp(1, 32)) * share(class) / 100
}

/// Returns the rate of the slowest PCIe link of a path whose usable bandwidth is that of [`pcie`],
/// bytes per second: no path is faster. PCIe 3.0 x16 has 8 GT/s on 16 lanes with 128 of 130 bits of
/// data, 15.75 GB/s, of which NCCL counts 12 as usable; later generations have the same proportion.
#[must_use]
pub fn nominal_pcie(usable: u64, class: PathClass) -> u64 {
    usable.saturating_mul(100) / share(class) / 12_000 * 15_754
}

/// Returns the percentage of the slowest PCIe link that is left for a GPU-to-GPU copy.
///
/// One switch forwards at line rate; each further hop is shared or slower. The figures
/// are this project's: the throughput of a host bridge or of the link between sockets
/// depends on the CPU (NCCL's constants for links between sockets range from 6 to 40
/// GB/s), and no source names the CPU. Only the order of the figures matters.
fn share(class: PathClass) -> u64 {
    match class {
        PathClass::Nvlink | PathClass::Pix => 100,
        PathClass::Pxb => 95,
        PathClass::Phb => 80,
        PathClass::Node => 70,
        PathClass::Sys => 50,
    }
}

/// Returns the usable bandwidth of a path of which only the class is known: PCIe 4.0 x16,
/// or one NVLink.
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
    fn nvlink_uses_the_most_specific_bandwidth_known() {
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
    fn switches_make_all_reduces_faster_from_five_gpus_of_hopper_on() {
        let gain = |model: &str, gpus| {
            let gain = in_switch_gain(model, gpus);
            gain.map(|gain| (gain * 100.0).round() as u64)
        };
        let h100 = "NVIDIA H100 80GB HBM3";
        let sets = [2, 4, 5, 6, 7, 8, 16].map(|gpus| gain(h100, gpus));
        let expected = [
            None,
            None,
            Some(111),
            Some(119),
            Some(125),
            Some(129),
            Some(129),
        ];
        assert_eq!(sets, expected);
        let sets = [4, 5, 6, 8, 72].map(|gpus| gain("NVIDIA GB200", gpus));
        assert_eq!(sets, [None, None, Some(106), Some(116), Some(116)]);
        assert_eq!(gain("NVIDIA A100-SXM4-80GB", 8), None);
        assert_eq!(gain("Something new", 8), None);
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
        for class in classes {
            let rate = nominal_pcie(pcie(4, 16, class), class);
            assert!((31_400..=31_600).contains(&(rate / 1_000_000)), "{rate}");
        }
        assert!(assumed(PathClass::Sys) < ASSUMED_NVLINK);
    }
}
