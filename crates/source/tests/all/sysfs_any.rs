//! Random trees instead of the kernel's: names and texts that are valid, nearly valid
//! or invalid.

use std::{fs, os::unix::fs::symlink};

use crate::machine::Machine;
use proptest::prelude::*;

fn name() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "pci0000:00",
        "pci10000:e0",
        "0000:00:01.0",
        "0000:01:00.0",
        "0000:02:00.0",
        "0009:01:00.0",
        "platform",
        "10000:e1:00.0",
        "ports",
        "device",
        "x",
        "pci",
        "0000:01:00.8",
    ])
}

fn text() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "0x10de",
        "0x030200",
        "0x0300",
        "-1",
        "0",
        "4294967295",
        "99999999999",
        "16",
        "255",
        "32.0 GT/s PCIe",
        "Unknown",
        "",
        "4: ACTIVE",
        "1e300 Gb/sec",
        "\u{fffd}\u{0}",
    ])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_tree_is_harmless(
        paths in prop::collection::vec(prop::collection::vec(name(), 1..6), 1..8),
        links in prop::collection::vec((name(), prop::collection::vec(name(), 0..5)), 0..6),
        texts in prop::collection::vec((0..8_usize, prop::sample::select(vec![
            "vendor", "class", "numa_node", "max_link_speed", "max_link_width", "speed",
        ]), text()), 0..30),
    ) {
        let machine = Machine::new();
        let path = |parts: &[&str]| format!("sys/devices/{}", parts.join("/"));
        for (n, parts) in paths.iter().enumerate() {
            drop(fs::create_dir_all(machine.path(&path(parts))));
            let link = machine.path(&format!("sys/bus/pci/devices/{}", parts[parts.len() - 1]));
            drop(symlink(format!("../../../devices/{}", parts.join("/")), link));
            for (of, name, text) in &texts {
                if *of == n {
                    drop(fs::write(machine.path(&path(parts)).join(name), text));
                }
            }
        }
        let class = machine.path("sys/class/infiniband");
        fs::create_dir_all(&class).unwrap();
        for (name, target) in &links {
            drop(symlink(format!("../../devices/../{}", target.join("/../")), class.join(name)));
        }
        match machine.read() {
            Ok(reading) => prop_assert!(!reading.topology.spec.gpus.is_empty()),
            Err(error) => prop_assert!(!error.contains('\n'), "{error}"),
        }
    }
}
