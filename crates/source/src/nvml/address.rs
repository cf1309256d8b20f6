//! PCI addresses as the driver prints them, and the kernel's attributes of their devices.

use std::{fs, path::Path};

use crate::pci::Address;

/// The PCI class of an NVSwitch: "bridge, other".
const SWITCH_CLASS: u32 = 0x068000;

/// Returns an address in NVML's spelling: upper case, with a domain of eight digits.
/// Returns `None` for the address that means "not visible from here"
/// (`FFFFFFFF:FF:FF.0`).
pub(super) fn normal(address: &str) -> Option<String> {
    let address: Address = address.trim().parse().ok()?;
    Some(address.to_string())
}

/// Reads the kernel's attribute `name` of the device at `address` in the tree at `devices`.
fn attribute(devices: &Path, address: &str, name: &str) -> Option<String> {
    let address: Address = address.parse().ok()?;
    fs::read_to_string(devices.join(address.kernel_name()).join(name)).ok()
}

/// Reports whether the kernel has an NVSwitch at `address`, in the tree at `devices`.
pub(super) fn is_switch(devices: &Path, address: &str) -> bool {
    let class = attribute(devices, address, "class").unwrap_or_default();
    let class = class.trim().trim_start_matches("0x");
    u32::from_str_radix(class, 16) == Ok(SWITCH_CLASS)
}

/// Returns the kernel's NUMA node of `address`, in the tree at `devices`.
pub(super) fn numa_node(devices: &Path, address: &str) -> Option<u32> {
    let node = attribute(devices, address, "numa_node")?;
    node.trim().parse().ok() // -1 if the firmware does not provide it
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_one_spelling_and_the_sentinel_is_none() {
        for (address, expected) in [
            ("00000000:1A:00.0", Some("00000000:1A:00.0")),
            ("0000:1a:00.0", Some("00000000:1A:00.0")),
            ("00010000:c3:00.0", Some("00010000:C3:00.0")),
            ("FFFFFFFF:FF:FF.0", None),
            ("fffffff:ff:ff.0", None),
            ("FFFF:FF:FF.0", None),
            ("", None),
            ("N/A", None),
        ] {
            assert_eq!(normal(address).as_deref(), expected, "{address}");
        }
    }

    #[test]
    fn a_switch_is_recognized_by_its_class() {
        let devices = tempfile::tempdir().unwrap();
        let device = |name: &str, class: &str, numa: &str| {
            let device = devices.path().join(name);
            fs::create_dir(&device).unwrap();
            fs::write(device.join("class"), format!("{class}\n")).unwrap();
            fs::write(device.join("numa_node"), format!("{numa}\n")).unwrap();
        };
        device("0000:c3:00.0", "0x068000", "1");
        device("0000:1a:00.0", "0x030200", "-1");
        assert!(is_switch(devices.path(), "00000000:C3:00.0"));
        assert!(!is_switch(devices.path(), "00000000:1A:00.0"));
        assert!(!is_switch(devices.path(), "00000000:1B:00.0"));
        assert_eq!(numa_node(devices.path(), "00000000:C3:00.0"), Some(1));
        assert_eq!(numa_node(devices.path(), "00000000:1A:00.0"), None);
        assert_eq!(numa_node(devices.path(), "00000000:1B:00.0"), None);
    }
}
