//! The kernel's tree: several kinds of machines, built of directories and links as the
//! kernel does, and malicious trees.

use std::{fs, os::unix::fs::symlink, path::Path, process::Command};

use nvlink_source::{Reading, sysfs};
use nvlink_topology::{Gpu, PathClass, SourceKind, bandwidth};

use crate::machine::{GPU, Machine, NIC, read, virtual_machine};

/// Returns the class of each pair, and whether it is assumed.
fn classes(reading: &Reading) -> Vec<(u32, u32, PathClass, bool)> {
    let paths = reading.topology.spec.paths.iter();
    paths
        .map(|path| (path.a, path.b, path.class, path.assumed))
        .collect()
}

#[test]
fn a_virtual_machine_with_switches() {
    let reading = virtual_machine().read().unwrap();
    let spec = &reading.topology.spec;
    assert_eq!(spec.source.kind, SourceKind::Sysfs);
    assert!(reading.warnings.is_empty() && spec.edges.is_empty() && spec.domains.is_empty());
    for (n, gpu) in (0_u32..).zip(&spec.gpus) {
        let expected = Gpu {
            index: n,
            uuid: Some(format!("GPU-00000000-0000-0000-0000-00000000000{n}")),
            pci_bus_id: Some(format!("00000000:{:02X}:00.0", 0x83 + 8 * n)),
            model: Some("NVIDIA H200".to_owned()),
            numa_node: Some(n / 4),
            mig_enabled: false,
            virtual_machine: false,
            faults: Vec::new(),
            links: None,
        };
        assert_eq!(*gpu, expected);
    }
    for path in &spec.paths {
        let class = if path.a / 4 == path.b / 4 {
            PathClass::Node
        } else {
            PathClass::Sys
        };
        let rate = bandwidth::pcie(5, 16, class);
        assert_eq!(
            (path.class, path.bytes_per_second, path.assumed),
            (class, rate, false)
        );
    }
    assert_eq!(
        (spec.gpus.len(), spec.paths.len(), spec.nics.len()),
        (8, 28, 8)
    );
    for (n, nic) in (0_u32..).zip(&spec.nics) {
        assert_eq!((&nic.name, &nic.gpus[..]), (&format!("mlx5_{n}"), &[n][..]));
        assert_eq!(
            (nic.numa_node, nic.bytes_per_second),
            (Some(n / 4), Some(25_000_000_000))
        );
        assert_eq!(
            nic.pci_bus_id,
            Some(format!("00000000:{:02X}:00.0", 0x84 + 8 * n))
        );
    }
}

#[test]
fn one_host_bridge_for_each_gpu_and_its_slingshot_nic() {
    let machine = Machine::new();
    machine.write("sys/devices/system/node/online", "0-3");
    for (n, (gpu, nic)) in [("03", "01"), ("41", "42"), ("82", "81"), ("c1", "c2")]
        .iter()
        .enumerate()
    {
        let (host, numa) = (format!("pci0000:{n:x}0"), (3 - n).to_string());
        machine.device(
            &format!("{host}/0000:{n:x}0:01.1/0000:{gpu}:00.0"),
            &numa,
            &GPU,
        );
        let path = format!("{host}/0000:{n:x}0:03.1/0000:{nic}:00.0");
        machine.device(&path, &numa, &[("vendor", "0x17db"), ("class", "0x020000")]);
        let speed = format!("sys/devices/{path}/net/hsn{n}/speed");
        machine.write(&speed, "200000");
        fs::create_dir_all(machine.path("sys/class/cxi")).unwrap();
        fs::create_dir_all(machine.path(&format!("sys/devices/{path}/cxi/cxi{n}"))).unwrap();
        symlink(
            "../..",
            machine.path(&format!("sys/devices/{path}/cxi/cxi{n}/device")),
        )
        .unwrap();
        let link = machine.path(&format!("sys/class/cxi/cxi{n}"));
        symlink(format!("../../devices/{path}/cxi/cxi{n}"), link).unwrap();
    }
    let reading = machine.read().unwrap();
    assert!(
        classes(&reading)
            .iter()
            .all(|pair| (pair.2, pair.3) == (PathClass::Sys, false))
    );
    let spec = &reading.topology.spec;
    let numa: Vec<_> = spec.gpus.iter().map(|gpu| gpu.numa_node.unwrap()).collect();
    assert_eq!(numa, [3, 2, 1, 0]);
    for (n, nic) in spec.nics.iter().enumerate() {
        assert_eq!(nic.gpus, [n as u32]);
        assert_eq!(nic.bytes_per_second, Some(25_000_000_000));
    }
    let matrix = reading.matrix.unwrap();
    let class = |n: usize| matrix.gpus[n].to_nics[n].to_string();
    assert_eq!((0..4).map(class).collect::<Vec<_>>(), ["PHB"; 4]);
}

#[test]
fn an_arm_machine_has_a_pci_domain_for_each_gpu() {
    let machine = Machine::new();
    machine.write("sys/devices/system/node/online", "0-1,2-9");
    for (n, domain) in ["0008", "0009", "0018", "0019"].iter().enumerate() {
        let path = format!("pci{domain}:00/{domain}:00:00.0/{domain}:01:00.0");
        machine.device(&path, &(n / 2).to_string(), &GPU);
    }
    let reading = machine.read().unwrap();
    let addresses: Vec<_> = reading
        .topology
        .spec
        .gpus
        .iter()
        .map(|gpu| gpu.pci_bus_id.clone().unwrap())
        .collect();
    assert_eq!(addresses[3], "00000019:01:00.0");
    let (node, sys) = (PathClass::Node, PathClass::Sys);
    let all: Vec<_> = classes(&reading).iter().map(|pair| pair.2).collect();
    assert_eq!(all, [node, sys, sys, sys, sys, node]);
}

#[test]
fn a_riscv_machine_has_host_bridges_in_its_soc_and_no_numa() {
    let machine = Machine::new();
    fs::create_dir_all(machine.path("sys/devices/system/cpu")).unwrap();
    let soc = "platform/soc";
    for path in [
        "7060000000.pcie/pci0000:00/0000:00:00.0/0000:01:00.0",
        "7062000000.pcie/pci0002:00/0002:00:00.0/0002:01:00.0/0002:02:01.0/0002:03:00.0",
        "7062000000.pcie/pci0002:00/0002:00:00.0/0002:01:00.0/0002:02:02.0/0002:04:00.0",
    ] {
        machine.device(&format!("{soc}/{path}"), "-1", &GPU);
    }
    // The two devices below one switch share its slow upstream link, which is not on the
    // path between them.
    machine.attribute("0002:00:00.0", "max_link_speed", "8.0 GT/s PCIe");
    machine.attribute("0002:00:00.0", "max_link_width", "4");
    let reading = machine.read().unwrap();
    let spec = &reading.topology.spec;
    assert!(spec.gpus.iter().all(|gpu| gpu.numa_node.is_none()));
    // There is one NUMA node, even if the kernel has no number for it.
    let expected = [
        (0, 1, PathClass::Node, false),
        (0, 2, PathClass::Node, false),
        (1, 2, PathClass::Pix, false),
    ];
    assert_eq!(classes(&reading), expected);
    let rates: Vec<_> = spec
        .paths
        .iter()
        .map(|path| path.bytes_per_second)
        .collect();
    let slow = bandwidth::pcie(3, 4, PathClass::Node);
    assert_eq!(rates, [slow, slow, bandwidth::pcie(5, 16, PathClass::Pix)]);
}

#[test]
fn where_numa_is_unknown_the_slower_class_is_assumed() {
    let machine = Machine::new();
    machine.write("sys/devices/system/node/online", "0-1");
    machine.device("pci0000:10/0000:10:00.0/0000:11:00.0", "-1", &GPU);
    machine.device("pci0000:10/0000:10:01.0/0000:12:00.0", "-1", &GPU);
    machine.device("pci0000:20/0000:20:00.0/0000:21:00.0", "-1", &GPU[..2]);
    let reading = machine.read().unwrap();
    let expected = [
        (0, 1, PathClass::Phb, false),
        (0, 2, PathClass::Sys, true),
        (1, 2, PathClass::Sys, true),
    ];
    assert_eq!(classes(&reading), expected);
    // The bandwidth is assumed, too, if no link of one end has a rate.
    machine.device("pci0000:20/0000:20:01.0/0000:22:00.0", "-1", &GPU[..2]);
    let path = machine.read().unwrap().topology.spec.paths.pop().unwrap();
    assert_eq!((path.class, path.assumed), (PathClass::Phb, true));
    assert_eq!(path.bytes_per_second, bandwidth::assumed(PathClass::Phb));
}

#[test]
fn gpus_that_the_driver_does_not_use_are_skipped() {
    let machine = Machine::new();
    for n in 1..=4 {
        machine.device(
            &format!("pci0000:00/0000:00:0{n}.0/0000:0{n}:00.0"),
            "0",
            &GPU,
        );
        machine.information(
            &format!("0000:0{n}:00.0"),
            n,
            if n == 1 { "Yes" } else { "No" },
        );
    }
    let driver = |name: &str, device: &str| {
        let link = machine.path(&format!("sys/bus/pci/devices/{device}/driver"));
        symlink(format!("../../../../bus/pci/drivers/{name}"), link).unwrap();
    };
    driver("vfio-pci", "0000:03:00.0");
    driver("nvidia", "0000:04:00.0");
    // The sound function of a GPU, and graphics of another vendor.
    let sound = [("vendor", "0x10de"), ("class", "0x040300")];
    machine.device("pci0000:00/0000:00:02.0/0000:02:00.1", "0", &sound);
    machine.device(
        "pci0000:00/0000:00:05.0",
        "0",
        &[("vendor", "0x1002"), ("class", "0x030000")],
    );
    let reading = machine.read().unwrap();
    let gpus = &reading.topology.spec.gpus;
    let numbered: Vec<_> = gpus
        .iter()
        .map(|gpu| (gpu.index, gpu.pci_bus_id.clone().unwrap()))
        .collect();
    assert_eq!(
        numbered,
        [
            (0, "00000000:02:00.0".to_owned()),
            (1, "00000000:04:00.0".to_owned())
        ]
    );
    assert_eq!(reading.warnings.len(), 2);
    assert!(
        reading.warnings[0].contains("00000000:01:00.0 is excluded"),
        "{:?}",
        reading.warnings
    );
    assert!(
        reading.warnings[1].contains("00000000:03:00.0 is assigned to virtual"),
        "{:?}",
        reading.warnings
    );
}

#[test]
fn nics_for_gpus_known_from_elsewhere() {
    let machine = virtual_machine();
    let path = "pci0000:80/0000:80:00.0/0000:81:00.0/0000:82:02.0/0000:85:00.0";
    machine.device(path, "0", &NIC);
    machine.hca("mlx5_bond_0", path, "1: DOWN", "10 Gb/sec (4X SDR)");
    // A software NIC has no place in the PCI tree.
    fs::create_dir_all(machine.path("sys/devices/virtual/infiniband/rxe0/ports/1")).unwrap();
    symlink(
        "../../devices/virtual/infiniband/rxe0",
        machine.path("sys/class/infiniband/rxe0"),
    )
    .unwrap();
    let gpu = |index, address: Option<&str>| Gpu {
        index,
        pci_bus_id: address.map(str::to_owned),
        ..Gpu::default()
    };
    let gpus = [
        gpu(7, Some("00000000:83:00.0")),
        gpu(3, Some("00000000:8B:00.0")),
        gpu(1, None),
        gpu(2, Some("x")),
    ];
    let (nics, warnings) = sysfs::nics(machine.0.path(), &gpus).unwrap();
    let near: Vec<_> = nics
        .iter()
        .map(|nic| (&nic.name[..], &nic.gpus[..]))
        .take(4)
        .collect();
    let expected: [(&str, &[u32]); 4] = [
        ("mlx5_0", &[7]),
        ("mlx5_bond_0", &[7]),
        ("mlx5_1", &[3]),
        ("mlx5_2", &[7, 3]),
    ];
    assert_eq!(near, expected);
    assert_eq!((nics.len(), nics[1].bytes_per_second), (9, None));
    let down = nics.iter().filter(|nic| nic.down);
    let down: Vec<_> = down.map(|nic| &nic.name[..]).collect();
    assert_eq!(down, ["mlx5_bond_0"]);
    assert_eq!(
        warnings,
        ["RDMA devices without an active port: mlx5_bond_0"]
    );
    // A machine without NICs.
    let (nics, warnings) = sysfs::nics(Machine::new().0.path(), &gpus).unwrap();
    assert!(nics.is_empty() && warnings.is_empty());
}

#[test]
fn without_a_gpu_the_error_names_what_was_searched() {
    let machine = Machine::new();
    machine.device("pci0000:00/0000:00:1f.0", "0", &NIC);
    let error = machine.refused();
    assert!(
        error.contains("no NVIDIA GPU among the 1 devices of ROOT/sys/bus/pci/devices"),
        "{error}"
    );
    assert!(
        error.contains("vendor 0x10de, class 0x0302 or 0x0300"),
        "{error}"
    );
    let empty = tempfile::tempdir().unwrap();
    let error = read(empty.path()).unwrap_err();
    assert!(
        error.contains("sys/bus/pci/devices does not exist: there is no PCI bus"),
        "{error}"
    );
    let error = read(Path::new("/no/such/root")).unwrap_err();
    assert!(error.contains("/no/such/root: No such file"), "{error}");
}

#[test]
fn malicious_trees_are_refused_or_parts_of_them_skipped() {
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("vendor"), "0x10de").unwrap();
    let machine = Machine::new();
    machine.device("pci0000:00/0000:00:01.0/0000:01:00.0", "0", &GPU);
    let devices = machine.path("sys/bus/pci/devices");
    let trap = devices.join("0000:02:00.0");
    symlink(outside.path(), &trap).unwrap();
    let error = machine.refused();
    assert!(
        error.contains("ROOT/sys/bus/pci/devices/0000:02:00.0 points to "),
        "{error}"
    );
    fs::remove_file(&trap).unwrap();
    symlink("0000:02:00.0", &trap).unwrap();
    let error = machine.refused();
    assert!(
        error.contains("0000:02:00.0: ") && error.contains("symbolic link"),
        "{error}"
    );
    fs::remove_file(&trap).unwrap();
    // A dangling link is a device that was removed.
    symlink("../../../devices/pci0000:00/gone", &trap).unwrap();
    assert_eq!(machine.read().unwrap().topology.spec.gpus.len(), 1);
    // Attributes that are not regular files.
    let odd = |name: &str| {
        machine.path(&format!(
            "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/{name}"
        ))
    };
    fs::remove_file(odd("numa_node")).unwrap();
    symlink("/etc/hostname", odd("numa_node")).unwrap();
    fs::remove_file(odd("max_link_speed")).unwrap();
    assert!(
        Command::new("mkfifo")
            .arg(odd("max_link_speed"))
            .status()
            .unwrap()
            .success()
    );
    fs::remove_file(odd("max_link_width")).unwrap();
    fs::create_dir(odd("max_link_width")).unwrap();
    let gpu = machine.read().unwrap().topology.spec.gpus.remove(0);
    assert_eq!(gpu.numa_node, None);
}

#[test]
fn more_gpus_than_a_node_may_have_are_refused() {
    let machine = Machine::new();
    for n in 0..129 {
        machine.device(&format!("pci0000:00/0000:{n:02x}:00.0"), "0", &GPU);
    }
    assert!(
        machine
            .refused()
            .contains("129 NVIDIA GPUs in ROOT/sys/bus/pci/devices")
    );
}
