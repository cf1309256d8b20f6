//! Builds the document of a profile.

use super::{Damage, NicSlot, Profile, Wiring, peers};
use crate::{
    Domain, Fabric, Gpu, Link, Nic, NodeTopologySpec, Path, PathClass, Remote, RemoteKind, Source,
    SourceKind, Tray, bandwidth,
};

/// Lanes of every slot.
const WIDTH: u32 = 16;

impl Profile {
    /// Returns the hardware of the node `name`: GPUs with their links, PCIe paths and NICs
    /// that the `damage` leaves. [`NodeTopologySpec::complete`] adds edges and domains.
    #[must_use]
    pub fn spec(&self, name: &str, damage: &Damage) -> NodeTopologySpec {
        let profile = self;
        let gpu = |n: usize| Gpu {
            index: n as u32,
            uuid: Some(uuid(name, n)),
            pci_bus_id: Some(profile.gpus[n].bus.to_owned()),
            model: Some(profile.model.to_owned()),
            numa_node: Some(profile.gpus[n].numa),
            mig_enabled: false,
            virtual_machine: false,
            faults: Vec::new(),
            links: Some(links(profile, n, damage)),
        };
        let gpus: Vec<usize> = (0..profile.gpus.len())
            .filter(|&n| !damage.lost.contains(&(n as u32)))
            .collect();
        let fabric = profile.fabric.filter(|_| !damage.fabric_down);
        let fabric = fabric.map(|(uuid, clique)| Fabric {
            cluster_uuid: uuid.to_owned(),
            clique,
        });
        let source = Source {
            kind: SourceKind::Sim,
            from: profile.name.to_owned(),
        };
        NodeTopologySpec {
            tray: fabric.as_ref().and_then(|fabric| tray(name, fabric)),
            paths: paths(profile, &gpus),
            domains: fabric
                .map(|fabric| Domain {
                    gpus: gpus.iter().map(|&n| n as u32).collect(),
                    fabric: Some(fabric),
                    ..Domain::default()
                })
                .into_iter()
                .collect(),
            nics: profile
                .nics
                .iter()
                .map(|slot| nic(profile, slot, &gpus, damage))
                .collect(),
            ..NodeTopologySpec::of(source, gpus.iter().copied().map(gpu).collect())
        }
    }
}

/// Returns the tray of a simulated node in the only rack of its fabric: the number at the end of its
/// name, from 1 on. `None` without one.
fn tray(name: &str, fabric: &Fabric) -> Option<Tray> {
    let digits = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let number: u8 = name[digits.len()..].parse().ok()?;
    Some(Tray {
        chassis: format!("SIM-{}", fabric.cluster_uuid.split('-').next()?),
        index: number.checked_sub(1)?,
        slot: number,
    })
}

/// Returns the links of GPU `n`. Links to switches whose fabric is not set up stay
/// trained, but the driver does not report their far ends.
fn links(profile: &Profile, n: usize, damage: &Damage) -> Vec<Link> {
    let kind = match damage.fabric_down {
        false => RemoteKind::Switch,
        true => RemoteKind::Unknown,
    };
    let switch = |bus: Option<&str>| Remote {
        kind,
        pci_bus_id: bus.map(str::to_owned),
    };
    let remotes: Vec<Remote> = match &profile.wiring {
        Wiring::None => Vec::new(),
        Wiring::HiddenSwitches => (0..profile.links).map(|_| switch(None)).collect(),
        Wiring::Switches(boards) => boards[n * boards.len() / profile.gpus.len()]
            .iter()
            .flat_map(|&(bus, links)| (0..links).map(move |_| switch(Some(bus))))
            .collect(),
        Wiring::Direct(_) => peers(profile, n)
            .map(|(peer, _)| Remote {
                kind: RemoteKind::Gpu,
                pci_bus_id: Some(profile.gpus[peer].bus.to_owned()),
            })
            .collect(),
    };
    let link = |(index, remote): (usize, Remote)| {
        let up = damage.is_up(n as u32, index as u32);
        Link {
            index: index as u32,
            up,
            bytes_per_second: up.then_some(profile.link_rate),
            remote: up.then_some(remote),
        }
    };
    remotes.into_iter().enumerate().map(link).collect()
}

fn paths(profile: &Profile, gpus: &[usize]) -> Vec<Path> {
    let mut paths = Vec::new();
    for (n, &a) in gpus.iter().enumerate() {
        for &b in &gpus[n + 1..] {
            let class = profile.gpus[a].class(&profile.gpus[b]);
            paths.push(Path {
                a: a as u32,
                b: b as u32,
                class,
                bytes_per_second: bandwidth::pcie(profile.pcie_generation, WIDTH, class),
                assumed: false,
            });
        }
    }
    paths
}

fn nic(profile: &Profile, nic: &NicSlot, gpus: &[usize], damage: &Damage) -> Nic {
    let class = |&n: &usize| nic.slot.class(&profile.gpus[n]);
    let best = gpus.iter().map(class).min().unwrap_or(PathClass::Sys);
    let near = gpus
        .iter()
        .filter(|n| best < PathClass::Sys && class(n) == best);
    let down = damage.nics_down.contains(nic.name);
    Nic {
        name: nic.name.to_owned(),
        pci_bus_id: Some(nic.slot.bus.to_owned()),
        guid: None,
        numa_node: Some(nic.slot.numa),
        bytes_per_second: (!down).then_some(nic.rate),
        down,
        gpus: near.map(|&n| n as u32).collect(),
    }
}

/// Returns a UUID that depends only on the node and the GPU's index.
#[must_use]
pub fn uuid(node: &str, gpu: usize) -> String {
    let hash = |seed: u64| {
        // FNV-1a, then the finalizer of SplitMix64.
        let bytes = node.bytes().chain([0]).chain((gpu as u64).to_le_bytes());
        let hash = bytes.fold(seed, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        hash ^ (hash >> 31)
    };
    let (high, low) = (hash(0xcbf2_9ce4_8422_2325), hash(0x6c62_272e_07bb_0142));
    format!(
        "GPU-{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        high >> 32,
        high >> 16 & 0xffff,
        high & 0xffff,
        low >> 48,
        low & 0xffff_ffff_ffff
    )
}
