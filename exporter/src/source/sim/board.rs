//! The parts of a simulated board.

use nvlink_topology::PathClass;

use crate::source::ErrorKind;

/// A simulated node, as data.
#[derive(Debug, PartialEq, Eq)]
pub struct Profile {
    /// The name after `sim:`.
    pub name: &'static str,
    /// A short description.
    pub about: &'static str,
    pub(super) model: &'static str,
    pub(super) pcie_generation: u32,
    pub(super) gpus: &'static [Slot],
    /// NVLinks of each GPU.
    pub(super) links: u32,
    /// Line rate of a link, bytes per second in one direction.
    pub(super) link_rate: u64,
    pub(super) wiring: Wiring,
    /// Cluster UUID and clique, for a fabric that spans nodes.
    pub(super) fabric: Option<(&'static str, u32)>,
    pub(super) nics: &'static [NicSlot],
    /// The kinds of errors that the GPUs count.
    pub(super) error_kinds: &'static [ErrorKind],
    /// GPU and link of each link that is down.
    pub(super) dead_links: &'static [(u32, u32)],
    pub(super) rising_errors: &'static [RisingError],
    /// GPU, XID, and its count before the exporter was started.
    pub(super) xids: &'static [(u32, u64, u64)],
}

/// A link with errors.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RisingError {
    pub(super) gpu: u32,
    pub(super) link: u32,
    pub(super) kind: ErrorKind,
    pub(super) per_hour: u64,
}

/// How the NVLinks are wired.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wiring {
    /// No bridge and no NVLink.
    None,
    /// From GPU to GPU: `(a, b, links)`.
    Direct(&'static [(u32, u32, u32)]),
    /// To the switches of the GPU's baseboard: address and links of each. The
    /// GPUs are spread evenly over the baseboards.
    Switches(&'static [&'static [(&'static str, u32)]]),
    /// To switches that the node cannot see.
    HiddenSwitches,
}

/// A position in the PCI tree. Devices of one `switch` (of one root)
/// share its upstream port; those of one `port` share the switch itself.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) bus: &'static str,
    pub(super) numa: u32,
    pub(super) root: u8,
    pub(super) switch: u8,
    pub(super) port: u8,
}

/// A NIC and its position.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NicSlot {
    pub(super) name: &'static str,
    pub(super) slot: Slot,
    /// Bytes per second in one direction.
    pub(super) rate: u64,
}

pub(super) const fn slot(bus: &'static str, numa: u32, root: u8, switch: u8, port: u8) -> Slot {
    Slot {
        bus,
        numa,
        root,
        switch,
        port,
    }
}

/// Returns a NIC of `gigabits` per second.
pub(super) const fn nic(name: &'static str, gigabits: u64, slot: Slot) -> NicSlot {
    NicSlot {
        name,
        slot,
        rate: gigabits * 1_000_000_000 / 8,
    }
}

impl Slot {
    /// Returns the PCIe class between two devices, as in `topo -m`.
    pub(super) fn class(&self, other: &Self) -> PathClass {
        if self.numa != other.numa {
            PathClass::Sys
        } else if self.root != other.root {
            PathClass::Node
        } else if self.switch != other.switch {
            PathClass::Phb
        } else if self.port != other.port {
            PathClass::Pxb
        } else {
            PathClass::Pix
        }
    }
}

/// Returns the far end of each direct link of GPU `n`: the peer and the link's index there.
pub(super) fn peers(profile: &Profile, n: usize) -> impl Iterator<Item = (usize, u32)> {
    let pairs: &[(u32, u32, u32)] = match profile.wiring {
        Wiring::Direct(pairs) => pairs,
        _ => &[],
    };
    // Links are numbered by ascending peer on both ends.
    let first_link = |of: u32, to: u32| -> u32 {
        let to_lower = |&&(a, b, _): &&(u32, u32, u32)| (a == of && b < to) || (b == of && a < to);
        pairs
            .iter()
            .filter(to_lower)
            .map(|&(_, _, links)| links)
            .sum()
    };
    let n = n as u32;
    let mut ends: Vec<_> = pairs
        .iter()
        .filter(|&&(a, b, _)| a == n || b == n)
        .map(|&(a, b, links)| (if a == n { b } else { a }, links))
        .collect();
    ends.sort_unstable();
    ends.into_iter().flat_map(move |(peer, links)| {
        let first = first_link(peer, n);
        (0..links).map(move |k| (peer as usize, first + k))
    })
}
