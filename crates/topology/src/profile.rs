//! Boards by name: the hardware of well-known machines, for simulated nodes.

mod boards;
mod build;

use std::collections::BTreeSet;

use crate::{Invalid, NodeTopology, PathClass, generation::Generation};

pub use build::uuid;

/// The hardware of a node, as data.
#[derive(Debug, PartialEq, Eq)]
pub struct Profile {
    /// Its name, for example `dgx-h100`.
    pub name: &'static str,
    /// A short description.
    pub about: &'static str,
    /// The product name of its GPUs, as the driver prints it.
    pub model: &'static str,
    /// The PCIe generation of its slots.
    pub pcie_generation: u32,
    /// The position of each GPU.
    pub gpus: &'static [Slot],
    /// NVLinks of each GPU.
    pub links: u32,
    /// Line rate of a link, bytes per second in one direction.
    pub link_rate: u64,
    /// How the NVLinks are wired.
    pub wiring: Wiring,
    /// Cluster UUID and clique, for a fabric that spans nodes.
    pub fabric: Option<(&'static str, u32)>,
    /// The NICs.
    pub nics: &'static [NicSlot],
    /// GPU and link of each link that is down.
    pub dead_links: &'static [(u32, u32)],
}

/// The parts of a node that do not work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Damage {
    /// GPU and link of each link that its GPU reports as down.
    pub down: BTreeSet<(u32, u32)>,
    /// GPUs that do not answer.
    pub lost: BTreeSet<u32>,
    /// Whether the links to switches are trained, but nothing is routed over them.
    pub fabric_down: bool,
    /// Names of the NICs without an active port.
    pub nics_down: BTreeSet<String>,
}

/// Returns all profiles, sorted by name.
#[must_use]
pub fn profiles() -> &'static [Profile] {
    boards::PROFILES
}

/// Returns the names of all profiles, sorted.
#[must_use]
pub fn names() -> Vec<&'static str> {
    profiles().iter().map(|profile| profile.name).collect()
}

/// Returns the profile with this name.
#[must_use]
pub fn profile(name: &str) -> Option<&'static Profile> {
    profiles().iter().find(|profile| profile.name == name)
}

impl Profile {
    /// Returns what does not work on a new node of this profile.
    #[must_use]
    pub fn damage(&self) -> Damage {
        Damage {
            down: self.dead_links.iter().copied().collect(),
            ..Damage::default()
        }
    }

    /// Returns the document of a node called `name`, with edges and domains.
    ///
    /// # Errors
    /// Never for the profiles of [`profiles`].
    pub fn node(&self, name: &str) -> Result<NodeTopology, Invalid> {
        let mut node = NodeTopology::new(name, self.spec(name, &self.damage()));
        node.spec.complete(name)?;
        Ok(node)
    }

    /// Reports whether the GPUs' links end on switches.
    #[must_use]
    pub fn is_switched(&self) -> bool {
        matches!(self.wiring, Wiring::Switches(_) | Wiring::HiddenSwitches)
    }

    /// Reports whether the GPUs report their registration with a fabric. They do
    /// behind switches, from Hopper on.
    #[must_use]
    pub fn knows_fabric(&self) -> bool {
        self.is_switched() && self.compute_capability() >= 90
    }

    /// Reports whether the links are NVLink 4.
    #[must_use]
    pub fn is_nvlink4(&self) -> bool {
        (90..100).contains(&self.compute_capability())
    }

    /// Reports whether the links are NVLink 5.
    #[must_use]
    pub fn is_nvlink5(&self) -> bool {
        self.compute_capability() >= 100
    }

    fn compute_capability(&self) -> u32 {
        Generation::of_model(self.model).map_or(0, |one| one.compute_capability)
    }
}

impl Damage {
    /// Reports whether the GPU answers and reports the link as up.
    #[must_use]
    pub fn is_up(&self, gpu: u32, link: u32) -> bool {
        !self.lost.contains(&gpu) && !self.down.contains(&(gpu, link))
    }
}

/// How the NVLinks are wired.
#[derive(Debug, PartialEq, Eq)]
pub enum Wiring {
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
pub struct Slot {
    /// The PCI address.
    pub bus: &'static str,
    /// The NUMA node.
    pub numa: u32,
    /// The PCI root complex.
    pub root: u8,
    /// The PCIe switch under the root.
    pub switch: u8,
    /// The port of the switch.
    pub port: u8,
}

/// A NIC and its position.
#[derive(Debug, PartialEq, Eq)]
pub struct NicSlot {
    /// The name of its RDMA device.
    pub name: &'static str,
    /// Its position.
    pub slot: Slot,
    /// Bytes per second in one direction.
    pub rate: u64,
}

const fn slot(bus: &'static str, numa: u32, root: u8, switch: u8, port: u8) -> Slot {
    Slot {
        bus,
        numa,
        root,
        switch,
        port,
    }
}

/// Returns a NIC of `gigabits` per second.
const fn nic(name: &'static str, gigabits: u64, slot: Slot) -> NicSlot {
    NicSlot {
        name,
        slot,
        rate: gigabits * 1_000_000_000 / 8,
    }
}

impl Slot {
    /// Returns the PCIe class between two devices, as in `topo -m`.
    #[must_use]
    pub fn class(&self, other: &Self) -> PathClass {
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
pub fn peers(profile: &Profile, n: usize) -> impl Iterator<Item = (usize, u32)> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Graph;

    #[test]
    fn every_profile_is_a_node() {
        for profile in profiles() {
            let node = profile.node("node-a").unwrap();
            let graph = Graph::new(&node.spec).unwrap();
            assert_eq!(graph.len(), profile.gpus.len(), "{}", profile.name);
        }
        assert!(names().is_sorted());
        assert_eq!(profile("dgx-h100").map(|one| one.links), Some(18));
        assert_eq!(profile("dgx"), None);
    }
}
