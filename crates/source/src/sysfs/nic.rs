//! Network devices that can do RDMA: InfiniBand, RoCE and Slingshot.

use std::{collections::BTreeSet, path::Path};

use nvlink_topology::Nic;

use super::{
    SysfsError,
    device::Device,
    root::{Root, attribute},
};
use crate::pci::{Address, Place, Tree, is_name};

/// The maximum number of NICs in a NodeTopology object.
const MAX_NICS: usize = 256;
/// The maximum number of warnings about invalid names.
const MAX_ODD: usize = 4;
/// Slingshot devices are not of the class `infiniband`.
const CLASSES: [&str; 2] = ["sys/class/infiniband", "sys/class/cxi"];

/// The NICs of a node, by PCI address.
#[derive(Default)]
pub(super) struct Nics {
    pub(super) nics: Vec<Nic>,
    /// The place of each NIC.
    pub(super) places: Vec<Place>,
    pub(super) warnings: Vec<String>,
}

/// Reads all NICs below `root`, each with the nearest of `gpus`. Skips software
/// devices (rxe, siw), which have no place in the PCI tree; virtual functions of
/// a NIC that is present itself, since they share its ports; and, with a
/// warning, devices whose name is not valid for a network device.
pub(super) fn read(root: &Root, tree: Tree, gpus: &[(u32, Place)]) -> Result<Nics, SysfsError> {
    let (mut found, mut odd) = (Vec::new(), Vec::new());
    for class in CLASSES {
        let class = root.path(class);
        for name in root.names(&class)?.unwrap_or_default() {
            let entry = class.join(&name);
            if !is_name(&name) {
                odd.push(format!(
                    "{:?} is not a valid network device name: skipped",
                    entry.display().to_string()
                ));
                continue;
            }
            let Some(device) = Device::open(root, &entry.join("device"))? else {
                continue;
            };
            let directory = root.resolve(&entry)?.unwrap_or(entry);
            let rate = Rate::read(root, &directory, &device.directory)?;
            let physical = physical(root, &device)?;
            found.push(Found {
                address: device.address,
                guid: attribute(&directory, "node_guid").filter(|guid| is_guid(guid)),
                name,
                place: device.place,
                rate,
                physical,
            });
        }
    }
    found.sort_unstable_by(|a, b| (a.address, &a.name).cmp(&(b.address, &b.name)));
    let found = without_virtual(found);
    let mut all = collect(found, tree, gpus);
    odd.truncate(MAX_ODD);
    all.warnings.extend(odd);
    Ok(all)
}

/// A NIC as it was found.
struct Found {
    address: Address,
    guid: Option<String>,
    name: String,
    place: Place,
    rate: Rate,
    /// The physical function, if this is a virtual one.
    physical: Option<Address>,
}

/// Reports whether `text` is a GUID such as `b83f:d203:0012:3456`. A function
/// without an assigned GUID has zeros.
fn is_guid(text: &str) -> bool {
    let is_group = |group: &str| group.len() == 4 && group.bytes().all(|b| b.is_ascii_hexdigit());
    let is_set = text.contains(|c: char| c != '0' && c != ':');
    is_set && text.split(':').count() == 4 && text.split(':').all(is_group)
}

/// Returns the physical function of `device` if `device` is a virtual function.
/// Virtual machines do not see it.
fn physical(root: &Root, device: &Device) -> Result<Option<Address>, SysfsError> {
    let physical = root.resolve(&device.directory.join("physfn"))?;
    let name = physical.as_deref().and_then(Path::file_name);
    Ok(name.and_then(|name| name.to_str()?.parse().ok()))
}

/// Keeps one NIC for each physical function: itself, else the first of its virtual functions.
fn without_virtual(found: Vec<Found>) -> Vec<Found> {
    let real = found.iter().filter(|one| one.physical.is_none());
    let mut there: BTreeSet<Address> = real.map(|one| one.address).collect();
    let mut is_first = |one: &Found| one.physical.is_none_or(|physical| there.insert(physical));
    found.into_iter().filter(|one| is_first(one)).collect()
}

fn collect(mut found: Vec<Found>, tree: Tree, gpus: &[(u32, Place)]) -> Nics {
    let mut all = Nics::default();
    if found.len() > MAX_NICS {
        all.warnings.push(format!(
            "{} RDMA devices: only the first {MAX_NICS} by PCI address are kept",
            found.len()
        ));
        found.truncate(MAX_NICS);
    }
    let mut down = Vec::new();
    for Found {
        address,
        guid,
        name,
        place,
        rate,
        ..
    } in found
    {
        if matches!(rate, Rate::Down) {
            down.push(name.clone());
        }
        all.nics.push(Nic {
            name,
            pci_bus_id: Some(address.to_string()),
            guid,
            numa_node: place.numa,
            down: matches!(rate, Rate::Down),
            bytes_per_second: match rate {
                Rate::Up(rate) => Some(rate),
                Rate::Down | Rate::Unknown => None,
            },
            gpus: tree.nearest(&place, gpus),
        });
        all.places.push(place);
    }
    if !down.is_empty() {
        let down = down.join(", ");
        all.warnings
            .push(format!("RDMA devices without an active port: {down}"));
    }
    all
}

/// The rate of a NIC's ports.
enum Rate {
    /// The fastest active port, bytes per second.
    Up(u64),
    /// No port is active, so their rates mean nothing.
    Down,
    /// No port reports a rate.
    Unknown,
}

impl Rate {
    /// Reads the rate of the NIC with the class directory `class` and the PCI device `device`.
    fn read(root: &Root, class: &Path, device: &Path) -> Result<Self, SysfsError> {
        let mut rate = Self::Unknown;
        let ports = class.join("ports");
        for port in root.names(&ports)?.unwrap_or_default() {
            let Some(port) = root.resolve(&ports.join(port))? else {
                continue;
            };
            // "4: ACTIVE"
            let active = attribute(&port, "state").map(|state| state.starts_with("4:"));
            rate = rate.and(match (active, attribute(&port, "rate")) {
                (Some(false), _) => Self::Down,
                (Some(true), Some(text)) => gigabits(&text).map_or(Self::Unknown, Self::Up),
                _ => Self::Unknown,
            });
        }
        if matches!(rate, Self::Unknown) {
            // Slingshot: its network interface has the rate, in Mbit/s.
            let interfaces = device.join("net");
            for name in root.names(&interfaces)?.unwrap_or_default() {
                if let Some(interface) = root.resolve(&interfaces.join(name))? {
                    rate = rate.and(Self::of_interface(&interface));
                }
            }
        }
        Ok(rate)
    }

    fn of_interface(directory: &Path) -> Self {
        let speed = attribute(directory, "speed").and_then(|text| text.parse::<u64>().ok());
        match (speed, attribute(directory, "operstate").as_deref()) {
            (_, Some("down")) => Self::Down,
            (Some(megabits), _) if megabits > 0 => Self::Up(megabits.saturating_mul(1_000_000 / 8)),
            _ => Self::Unknown,
        }
    }

    /// Returns the better of the two.
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Up(a), Self::Up(b)) => Self::Up(a.max(b)),
            (Self::Up(rate), _) | (_, Self::Up(rate)) => Self::Up(rate),
            (Self::Down, _) | (_, Self::Down) => Self::Down,
            (Self::Unknown, Self::Unknown) => Self::Unknown,
        }
    }
}

/// Parses `200 Gb/sec (4X HDR)` or `2.5 Gb/sec (1X SDR)` as bytes per second.
fn gigabits(text: &str) -> Option<u64> {
    let number: f64 = text.split_whitespace().next()?.parse().ok()?;
    let good = (0.1..=100_000.0).contains(&number) && text.contains("Gb/sec");
    good.then_some((number * 125_000_000.0) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates() {
        assert_eq!(gigabits("200 Gb/sec (4X HDR)"), Some(25_000_000_000));
        assert_eq!(gigabits("2.5 Gb/sec (1X SDR)"), Some(312_500_000));
        for bad in [
            "",
            "-1 Gb/sec",
            "NaN Gb/sec",
            "inf Gb/sec",
            "200",
            "x Gb/sec",
        ] {
            assert_eq!(gigabits(bad), None, "{bad}");
        }
    }
}
