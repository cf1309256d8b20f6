//! A machine's `/sys` and `/proc`, with directories and links as in the kernel.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use nvlink_source::{Reading, sysfs};
use tempfile::TempDir;

pub(crate) const GPU: [(&str, &str); 4] = [
    ("vendor", "0x10de"),
    ("class", "0x030200"),
    ("max_link_speed", "32.0 GT/s PCIe"),
    ("max_link_width", "16"),
];
pub(crate) const NIC: [(&str, &str); 2] = [("vendor", "0x15b3"), ("class", "0x020700")];

/// A machine under construction.
pub(crate) struct Machine(pub(crate) TempDir);

impl Machine {
    pub(crate) fn new() -> Self {
        let machine = Self(tempfile::tempdir().unwrap());
        fs::create_dir_all(machine.path("sys/bus/pci/devices")).unwrap();
        machine
    }

    pub(crate) fn path(&self, inside: &str) -> PathBuf {
        self.0.path().join(inside)
    }

    pub(crate) fn write(&self, inside: &str, text: &str) {
        let path = self.path(inside);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    /// Adds the device at `/sys/devices/PATH`, and the bridges above it.
    pub(crate) fn device(&self, path: &str, numa: &str, attributes: &[(&str, &str)]) {
        let parts: Vec<_> = path.split('/').collect();
        let host = parts
            .iter()
            .rposition(|part| part.starts_with("pci"))
            .unwrap();
        for end in host + 2..=parts.len() {
            let path = parts[..end].join("/");
            let own = format!("sys/devices/{path}");
            let address = parts[end - 1];
            let link = self.path(&format!("sys/bus/pci/devices/{address}"));
            if link.symlink_metadata().is_err() {
                fs::create_dir_all(self.path(&own)).unwrap();
                symlink(format!("../../../devices/{path}"), link).unwrap();
                self.write(&format!("{own}/numa_node"), numa);
            }
            let bridge = [("vendor", "0x1000"), ("class", "0x060400")];
            let attributes = if end == parts.len() {
                attributes
            } else {
                &bridge
            };
            for (name, text) in attributes {
                self.write(&format!("{own}/{name}"), text);
            }
        }
    }

    pub(crate) fn attribute(&self, device: &str, name: &str, text: &str) {
        self.write(&format!("sys/bus/pci/devices/{device}/{name}"), text);
    }

    /// Adds a NIC of `/sys/class/infiniband` to the device at `/sys/devices/PATH`.
    pub(crate) fn hca(&self, name: &str, path: &str, state: &str, rate: &str) {
        let own = format!("sys/devices/{path}/infiniband/{name}");
        self.write(&format!("{own}/ports/1/state"), state);
        self.write(&format!("{own}/ports/1/rate"), rate);
        symlink("../..", self.path(&format!("{own}/device"))).unwrap();
        let class = self.path("sys/class/infiniband");
        fs::create_dir_all(&class).unwrap();
        symlink(
            format!("../../devices/{path}/infiniband/{name}"),
            class.join(name),
        )
        .unwrap();
    }

    pub(crate) fn information(&self, address: &str, n: u32, excluded: &str) {
        self.write(
            &format!("proc/driver/nvidia/gpus/{address}/information"),
            &format!(
                "Model: \t\t NVIDIA H200\nIRQ:   \t\t 10\nGPU UUID: \t GPU-00000000-0000-0000-0000-00000000000{n}\n\
                 Device Minor: \t {n}\nGPU Excluded:\t {excluded}"
            ),
        );
    }

    pub(crate) fn read(&self) -> Result<Reading, String> {
        read(self.0.path())
    }

    pub(crate) fn refused(&self) -> String {
        let error = self.read().unwrap_err();
        assert!(!error.contains('\n'), "{error}");
        error.replace(
            &self.0.path().canonicalize().unwrap().display().to_string(),
            "ROOT",
        )
    }
}

pub(crate) fn read(root: &Path) -> Result<Reading, String> {
    sysfs::read(root, "node-a").map_err(|error| error.to_string())
}

/// Returns a machine with eight GPUs and eight virtual functions, each pair under
/// its own switch and host bridge, and with NVSwitches passed through.
pub(crate) fn virtual_machine() -> Machine {
    let machine = Machine::new();
    machine.write("sys/devices/system/node/online", "0-1");
    for n in 0..8_u32 {
        let bus = 0x80 + 8 * n;
        let numa = if n < 4 { "0" } else { "1" };
        let (up, low) = (bus + 1, bus + 2);
        let switch = format!("pci0000:{bus:02x}/0000:{bus:02x}:00.0/0000:{up:02x}:00.0");
        let gpu = format!("0000:{:02x}:00.0", bus + 3);
        let nic = format!("{switch}/0000:{low:02x}:01.0/0000:{:02x}:00.0", bus + 4);
        machine.device(&format!("{switch}/0000:{low:02x}:00.0/{gpu}"), numa, &GPU);
        machine.device(&nic, numa, &NIC);
        machine.hca(
            &format!("mlx5_{n}"),
            &nic,
            "4: ACTIVE",
            "200 Gb/sec (4X HDR)",
        );
        machine.information(&gpu, n, "No");
        let nvswitch = [("vendor", "0x10de"), ("class", "0x068000")];
        if n < 4 {
            let path = format!(
                "pci0000:c0/0000:c0:00.0/0000:c1:00.0/0000:c2:0{n}.0/0000:c{}:00.0",
                n + 3
            );
            machine.device(&path, "1", &nvswitch);
        }
    }
    machine
}
