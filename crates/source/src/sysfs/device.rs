//! A PCI device as the kernel shows it.

use std::path::{Component, Path, PathBuf};

use super::{
    SysfsError,
    root::{Root, attribute},
};
use crate::pci::{Address, Bridge, LinkRate, Place};

/// A PCI device: the directory of its attributes, and its place in the tree.
pub(super) struct Device {
    pub(super) address: Address,
    /// The directory after resolving all links.
    pub(super) directory: PathBuf,
    pub(super) place: Place,
}

impl Device {
    /// Opens the device to which `path` points: a link in `/sys/bus/pci/devices`
    /// or the link `device` of a class. Returns `None` if it is not a PCI device.
    ///
    /// # Errors
    /// A link that points out of the root, or a loop of links.
    pub(super) fn open(root: &Root, path: &Path) -> Result<Option<Self>, SysfsError> {
        Ok(root.resolve(path)?.and_then(Self::at))
    }

    /// Returns the device of a resolved directory such as
    /// `/sys/devices/platform/soc/…/pci0000:80/0000:80:00.0/0000:81:00.0`.
    fn at(directory: PathBuf) -> Option<Self> {
        // Some devices (VMD) have a host bridge behind a bridge: use the last host bridge.
        let names: Vec<&str> = directory
            .components()
            .filter_map(|component| match component {
                Component::Normal(name) => name.to_str(),
                _ => None,
            })
            .collect();
        let host = names.iter().rposition(|name| is_host_bridge(name));
        let first = host.map_or(names.len().saturating_sub(1), |host| host + 1);
        let host_path: PathBuf = directory.components().take(first + 1).collect();
        let mut bridges = Vec::new();
        let mut path = host_path.clone();
        for name in names.get(first..)? {
            path.push(name);
            bridges.push(Bridge {
                address: name.parse().ok()?,
                rate: rate(&path),
            });
        }
        let own = bridges.pop()?;
        Some(Self {
            address: own.address,
            place: Place {
                numa: numa_node(&directory),
                host: host_path.display().to_string(),
                bridges,
                rate: own.rate,
            },
            directory,
        })
    }
}

/// Reports whether `name` is that of a host bridge: `pci0000:80`, `pci10000:00`.
fn is_host_bridge(name: &str) -> bool {
    let hex = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_hexdigit());
    let parts = name
        .strip_prefix("pci")
        .and_then(|rest| rest.split_once(':'));
    parts.is_some_and(|(domain, bus)| hex(domain) && hex(bus))
}

/// Returns the maximum rate of the link: an idle GPU slows its link down.
fn rate(directory: &Path) -> Option<LinkRate> {
    let rate = |which: &str| {
        let get = |what: &str| attribute(directory, &format!("{which}_link_{what}"));
        LinkRate::parse(&get("speed")?, &get("width")?)
    };
    rate("max").or_else(|| rate("current"))
}

/// Returns the NUMA node; `None` for -1 and for anything but a number.
fn numa_node(directory: &Path) -> Option<u32> {
    attribute(directory, "numa_node")?.parse().ok()
}
