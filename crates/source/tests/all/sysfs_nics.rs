//! Network devices in the kernel's tree: which of them are used, and their facts.

use std::{fs, os::unix::fs::symlink};

use crate::machine::{GPU, Machine, NIC, virtual_machine};

#[test]
fn virtual_functions_share_the_ports_of_their_nic() {
    let names = |machine: &Machine| {
        let nics = machine.read().unwrap().topology.spec.nics;
        nics.into_iter().map(|nic| nic.name).collect::<Vec<_>>()
    };
    let machine = Machine::new();
    let bridge = "pci0000:80/0000:80:00.0";
    machine.device(&format!("{bridge}/0000:81:00.0"), "0", &GPU);
    for (name, function) in [("mlx5_1", 1), ("mlx5_2", 2)] {
        let address = format!("0000:82:00.{function}");
        let path = format!("{bridge}/{address}");
        machine.device(&path, "0", &NIC);
        machine.hca(name, &path, "4: ACTIVE", "200 Gb/sec (4X HDR)");
        let physical = machine.path(&format!("sys/devices/{path}/physfn"));
        symlink("../0000:82:00.0", physical).unwrap();
    }
    let physical = format!("{bridge}/0000:82:00.0");
    machine.device(&physical, "0", &NIC);
    // If the NIC itself is not an RDMA device, one virtual function represents it.
    assert_eq!(names(&machine), ["mlx5_1"]);
    machine.hca("mlx5_0", &physical, "4: ACTIVE", "200 Gb/sec (4X HDR)");
    assert_eq!(names(&machine), ["mlx5_0"]);

    let guid = |text: &str| {
        let directory = format!("sys/devices/{physical}/infiniband/mlx5_0");
        machine.write(&format!("{directory}/node_guid"), text);
        machine.read().unwrap().topology.spec.nics[0].guid.clone()
    };
    let written = "b83f:d203:0012:3456";
    assert_eq!(guid(written).as_deref(), Some(written));
    for none in ["0000:0000:0000:0000", "x", "b83f:d203:0012:34567"] {
        assert_eq!(guid(none), None, "{none}");
    }
}

#[test]
fn a_network_device_with_an_invalid_name_is_skipped() {
    let machine = virtual_machine();
    fs::create_dir_all(machine.path("sys/class/infiniband/mlx5\n0")).unwrap();
    let reading = machine.read().unwrap();
    assert_eq!(reading.topology.spec.gpus.len(), 8);
    assert_eq!(reading.topology.spec.nics.len(), 8);
    let told = |warning: &String| warning.contains("is not a valid network device name: skipped");
    let warning = reading.warnings.iter().find(|warning| told(warning));
    assert!(!warning.unwrap().contains('\n'), "{warning:?}");
}
