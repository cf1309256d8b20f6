//! Every output of every kind of node, byte for byte.

#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod support;

use std::time::{Duration, Instant};

use nvlink_exporter::{
    metrics::{self, FAMILIES, Format, Groups, Kind},
    output::{self, TopologyFormat},
    snapshot::Latest,
    source::{self, sim},
};
use nvlink_topology::{Allocation, NodeTopologyStatus};
use support::{PAIRS, golden, reading, snapshot};

fn metrics(source: &str, reading: source::Reading, format: Format) -> String {
    let now = Instant::now();
    let latest = Latest::default();
    latest.publish(snapshot(source, reading, now));
    let view = latest.view(now + Duration::from_millis(1500));
    metrics::render(&view, format, Groups::ALL).unwrap()
}

#[test]
fn metrics_of_every_profile() {
    for name in sim::names() {
        let source = format!("sim:{name}");
        let text = metrics(&source, reading(&source), Format::Prometheus);
        golden(&format!("metrics/{name}.prom"), &text);
    }
}

#[test]
fn metrics_of_a_capture_have_no_links() {
    let reading = source::file::parse("topo.txt", PAIRS.as_bytes(), Some("node-a")).unwrap();
    let text = metrics("file:topo.txt", reading, Format::Prometheus);
    assert!(
        !text.contains("nvlink_link_up") && !text.contains("UUID"),
        "{text}"
    );
    golden("metrics/capture.prom", &text);
}

#[test]
fn openmetrics_differs_only_in_form() {
    let open = metrics("sim:l40s", reading("sim:l40s"), Format::OpenMetrics);
    assert!(open.ends_with("# EOF\n"));
    let pairs = metrics("x", reading("sim:rtx-a6000-pairs"), Format::OpenMetrics);
    assert!(pairs.contains("# TYPE nvlink_transmit_bytes counter\n"));
    assert!(pairs.contains("\nnvlink_transmit_bytes_total{"));
    let samples = |text: &str| {
        text.lines()
            .filter(|line| !line.starts_with('#'))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let old = metrics("x", reading("sim:rtx-a6000-pairs"), Format::Prometheus);
    assert!(old.contains("# TYPE nvlink_transmit_bytes_total counter\n"));
    assert_eq!(samples(&old), samples(&pairs));
}

#[test]
fn what_is_free_is_known_only_with_a_status() {
    let mut reading = reading("sim:a100-pcie-pairs");
    let text = metrics("x", reading.clone(), Format::Prometheus);
    assert!(!text.contains("free"), "{text}");
    let held = |gpus: &[u32]| Allocation {
        gpus: gpus.to_vec(),
        ..Allocation::default()
    };
    let allocations = vec![held(&[0, 2]), held(&[4, 5, 6])];
    reading.topology.status = Some(NodeTopologyStatus { allocations });
    let text = metrics("x", reading.clone(), Format::Prometheus);
    let free = |domain: u32| format!("domain=\"node-a.{domain}\",node=\"node-a\"}} 1\n");
    assert!(
        text.contains(&format!("nvlink_domain_free_gpus{{{}", free(0))),
        "{text}"
    );
    assert!(text.contains("nvlink_domain_free_gpus{domain=\"node-a.2\",node=\"node-a\"} 0\n"));
    assert!(text.contains("nvlink_largest_free_set_gpus{node=\"node-a\"} 1\n"));
    reading.topology.status = Some(NodeTopologyStatus {
        allocations: vec![held(&[0])],
    });
    let text = metrics("x", reading, Format::Prometheus);
    assert!(text.contains("nvlink_largest_free_set_gpus{node=\"node-a\"} 2\n"));
}

#[test]
fn label_values_are_escaped() {
    let mut reading = reading("sim:rtx-a6000-pairs");
    reading.topology.spec.gpus[0].model = Some("a\"b\\c\nd".into());
    let text = metrics("x", reading, Format::Prometheus);
    assert!(text.contains(r#"model="a\"b\\c\nd""#), "{text}");
}

#[test]
fn every_sample_belongs_to_a_described_family() {
    let text = metrics("x", reading("sim:h200-degraded"), Format::Prometheus);
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap();
        let family = FAMILIES.iter().find(|family| match family.kind {
            Kind::Counter => name.strip_suffix("_total") == Some(family.name),
            Kind::Gauge => name == family.name,
        });
        let family = family.unwrap_or_else(|| panic!("{name} is not described"));
        assert!(family.help.ends_with('.'), "{name}");
    }
}

#[test]
fn topologies() {
    let profiles = [
        "dgx1-v100",
        "h200-degraded",
        "rtx-a6000-pairs",
        "gb200-nvl72",
        "dgx2-v100",
        "l40s",
    ];
    let formats = [
        (TopologyFormat::Table, "txt"),
        (TopologyFormat::Dot, "dot"),
        (TopologyFormat::Matrix, "matrix"),
    ];
    for name in profiles {
        let reading = reading(&format!("sim:{name}"));
        for (format, suffix) in formats {
            let text = output::topology(&reading, format, false).unwrap();
            golden(&format!("topology/{name}.{suffix}"), &text);
        }
    }
    let text = output::topology(&reading("sim:rtx-a6000-pairs"), TopologyFormat::Json, false);
    golden("topology/rtx-a6000-pairs.json", &text.unwrap());
}

#[test]
fn a_matrix_reads_back_the_same() {
    let mut texts: Vec<String> = vec![PAIRS.to_owned()];
    for name in sim::names() {
        let reading = reading(&format!("sim:{name}"));
        texts.push(output::topology(&reading, TopologyFormat::Matrix, false).unwrap());
    }
    for text in texts {
        let first = source::file::parse("x", text.as_bytes(), Some("n")).unwrap();
        let printed = output::topology(&first, TopologyFormat::Matrix, false).unwrap();
        let second = source::file::parse("x", printed.as_bytes(), Some("n")).unwrap();
        assert_eq!(first.matrix, second.matrix, "{text}");
        assert_eq!(first.topology, second.topology);
        assert_eq!(
            printed,
            output::topology(&second, TopologyFormat::Matrix, false).unwrap()
        );
    }
}

#[test]
fn a_recording_reads_back_the_same() {
    for name in sim::names() {
        let reading = reading(&format!("sim:{name}"));
        let text = output::json(&reading.topology).unwrap();
        let again = source::file::parse("x", text.as_bytes(), None).unwrap();
        assert_eq!(again.topology, reading.topology, "{name}");
    }
}

#[test]
fn nodes_of_any_size() {
    for gpus in [1, 2, 3, 5, 8, 9, 16, 17, 72, 128] {
        for links in [0, 1, 18] {
            let text = support_board(gpus, links);
            let reading = source::file::parse("x", text.as_bytes(), Some("n")).unwrap();
            let table = output::topology(&reading, TopologyFormat::Table, true).unwrap();
            assert!(table.matches("GPU").count() > gpus, "{table}");
            let dot = output::topology(&reading, TopologyFormat::Dot, false).unwrap();
            assert_eq!(dot.matches("label=\"GPU ").count(), gpus, "{dot}");
            let lines = dot.matches(" -- ").count();
            // Never a line per pair of a switched board.
            assert!(links < 18 || lines <= gpus, "{gpus} {links}: {lines} lines");
        }
    }
}

/// `gpus` GPUs, each pair with `links` NVLinks (`SYS` for 0), as a matrix.
fn support_board(gpus: usize, links: u32) -> String {
    let header: String = (0..gpus).map(|gpu| format!("\tGPU{gpu}")).collect();
    let relation = if links == 0 {
        "SYS".to_owned()
    } else {
        format!("NV{links}")
    };
    let row = |gpu: usize| {
        let cells = (0..gpus).map(|to| if to == gpu { "\t X " } else { "\t" }.to_owned());
        let cells = cells.map(|cell| {
            if cell == "\t" {
                format!("\t{relation}")
            } else {
                cell
            }
        });
        format!("GPU{gpu}{}\n", cells.collect::<String>())
    };
    format!("{header}\n{}", (0..gpus).map(row).collect::<String>())
}
