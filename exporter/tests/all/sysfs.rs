//! What is shown of a node that only the kernel describes.

use std::process::Command;

use crate::{machine::virtual_machine, support};

#[test]
fn the_matrix_is_that_of_nvidia_smi_without_nvlink() {
    use nvlink_exporter::output;
    use nvlink_source::file;
    let reading = virtual_machine().read().unwrap();
    let text = output::topology(&reading, output::TopologyFormat::Matrix, false).unwrap();
    let row = text.lines().find(|line| line.starts_with("GPU5")).unwrap();
    let cells =
        "SYS\tSYS\tSYS\tSYS\tNODE\t X \tNODE\tNODE\tSYS\tSYS\tSYS\tSYS\tNODE\tPIX\tNODE\tNODE";
    assert!(row.starts_with(&format!("GPU5\t{cells}\t")), "{text}");
    let again = file::parse("x", text.as_bytes(), Some("node-a")).unwrap();
    let spec = again.topology.spec;
    assert_eq!(spec.paths.len(), 28);
    for (path, other) in spec.paths.iter().zip(&reading.topology.spec.paths) {
        assert_eq!(
            (path.a, path.b, path.class),
            (other.a, other.b, other.class)
        );
    }
    let near = |nics: &[nvlink_topology::Nic]| -> Vec<_> {
        nics.iter()
            .map(|nic| (nic.name.clone(), nic.gpus.clone()))
            .collect()
    };
    assert_eq!(near(&spec.nics), near(&reading.topology.spec.nics));
}

#[test]
fn nvlink_is_unknown_rather_than_none() {
    use nvlink_exporter::{metrics, snapshot::Latest};
    use std::time::Instant;
    let now = Instant::now();
    let latest = Latest::default();
    latest.publish(support::snapshot(
        "sysfs",
        virtual_machine().read().unwrap(),
        now,
    ));
    let text = metrics::render(&latest.view(now), metrics::Groups::ALL).unwrap();
    assert!(text.contains("nvlink_gpu_info{gpu=\"0\""), "{text}");
    for absent in [
        "nvlink_link_",
        "nvlink_missing_links",
        "nvlink_peer_",
        "bytes_total{",
    ] {
        assert!(!text.contains(&format!("\n{absent}")), "{absent}: {text}");
    }
}

#[test]
fn the_program_reads_another_root() {
    let machine = virtual_machine();
    let source = format!("sysfs:{}", machine.0.path().display());
    let run = |args: &[&str]| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_nvlink-exporter"));
        program
            .args(args)
            .args(["--source", &source, "--node-name", "vm"]);
        let output = program.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (text(output.stdout), text(output.stderr))
    };
    let (table, _) = run(&["topology"]);
    assert!(
        table.starts_with("vm  8 × NVIDIA H200, NVLink unknown, from sysfs:"),
        "{table}"
    );
    assert!(
        table.contains("unknown: sysfs does not show NVLink"),
        "{table}"
    );
    let (placement, warning) = run(&["place", "--gpus", "2"]);
    let wanted =
        "NVLink is unknown in this source, so no domain is known (--scope node chooses by PCIe)";
    assert!(
        placement.is_empty() && warning.contains(wanted),
        "{warning}"
    );
    let (placement, warning) = run(&["place", "--gpus", "2", "--scope", "node"]);
    assert!(!placement.is_empty());
    assert!(
        warning.contains("the source cannot see NVLink"),
        "{warning}"
    );
}
