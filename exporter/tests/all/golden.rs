//! The outputs that people and Prometheus read, byte for byte: one node with
//! faults and jobs, its page, and the numbers of every simulated board.

use std::{
    collections::BTreeSet,
    convert::Infallible,
    fmt::Write,
    time::{Duration, Instant, SystemTime},
};

use crate::support::{PAIRS, broken, golden, reading, snapshot};
use nvlink_exporter::{
    imex::Channel,
    metrics::{self, FAMILIES, Groups},
    output::{self, TopologyFormat},
    page,
    placement::{Judged, PatternFrom, Placements},
    snapshot::{Latest, Snapshot, View},
    statistics::{Publishing, Statistics},
};
use nvlink_runtime::supervise::Weight;
use nvlink_source::sim;
use nvlink_topology::{Allocation, NodeTopologyStatus, PathClass, Pattern, Via};

fn view(snapshot: Snapshot, placements: Option<Placements>) -> View {
    let finished = snapshot.health.finished;
    let latest = Latest::default();
    latest.publish(snapshot);
    if let Some(placements) = placements {
        latest.place(placements);
    }
    let mut view = latest.view(finished + Duration::from_millis(1500));
    // 2026-08-01T10:00:01.5Z
    view.clock.wall = SystemTime::UNIX_EPOCH + Duration::from_millis(1_785_578_401_500);
    view
}

fn metrics(source: &str, reading: nvlink_source::Reading) -> String {
    let view = view(snapshot(source, reading, Instant::now()), None);
    metrics::render(&view, Groups::ALL).unwrap()
}

/// Returns two bridged pairs. The pair 0 and 1 has a link that one end reports as
/// down, GPU 1 has errors, GPU 3 is lost; one job spans both pairs.
fn troubled() -> View {
    let faults = r#"[{"link-down": {"gpu": 0, "link": 0, "oneSided": true}},
        {"errors": {"gpu": 1, "link": 1, "kind": "replay", "perHour": 3600}},
        {"rates-only": {"gpu": 0}}, {"xid": {"gpu": 1, "xid": 74}}, {"gpu-lost": {"gpu": 3}},
        {"recovery-action": {"gpu": 1, "action": "gpu_reset"}},
        {"row-remap": {"gpu": 2, "state": "failed"}}]"#;
    let snapshot = broken("rtx-a6000-pairs", faults, Instant::now());
    let data = snapshot.data.as_ref().unwrap();
    let across = Judged {
        model: None,
        path: Some(PathClass::Sys),
        class: None,
        project: None,
        gang: None,
        domains: Some(2),
        bottleneck_bytes_per_second: Some(21_000_000_000),
        pattern: Pattern::AllToAll,
        pattern_from: PatternFrom::Decision,
        quality_node: Some(0.4375),
        quality_free: None,
        ..crate::full::judged(&[0, 2])
    };
    let broken = Judged {
        lost: data.lost.clone(),
        bottleneck_bytes_per_second: None,
        ..crate::full::judged(&[1])
    };
    let mut placements = crate::full::placements(data, vec![across, broken]);
    let of = |pod: &str| ("ci".to_owned(), pod.to_owned());
    let (namespace, pod) = of("train-0");
    placements.imex.channels = [Channel {
        namespace,
        pod,
        container: "main".to_owned(),
        number: 0,
    }]
    .into();
    let daemons = [("daemon-a", Some(false)), ("daemon-b", None)];
    placements.imex.daemons = daemons.map(|(pod, ready)| (of(pod), ready)).into();
    view(snapshot, Some(placements))
}

/// Returns a tray of a rack with a faulty fabric.
fn in_a_fabric() -> View {
    let faults = r#"[{"fabric-condition": {"gpu": 1, "condition": "route_unhealthy"}},
        {"errors": {"gpu": 1, "link": 1, "kind": "symbol", "perHour": 3600}},
        {"link-down": {"gpu": 0, "link": 3}}, {"link-down": {"gpu": 1, "link": 3}},
        {"link-down": {"gpu": 2, "link": 3}}, {"link-down": {"gpu": 3, "link": 3}}]"#;
    view(broken("gb200-nvl72", faults, Instant::now()), None)
}

#[test]
fn a_node_with_faults_and_jobs() {
    let text = metrics::render(&troubled(), Groups::ALL).unwrap();
    crate::scrape::read(&text);
    golden("metrics/node.prom", &text);
}

/// What happened before the clock was set has the right time after it, in both directions.
#[test]
fn times_follow_a_clock_that_is_set() {
    let mut view = troubled();
    let time = |view: &View| {
        let text = metrics::render(view, Groups::ALL).unwrap();
        let mut lines = text.lines();
        let line = lines.find(|line| line.starts_with("nvlink_xid_timestamp_seconds{"));
        let value = line.unwrap().rsplit(' ').next().unwrap();
        value.parse::<u64>().unwrap()
    };
    let before = time(&view);
    view.clock.wall += Duration::from_secs(5 * 3600);
    assert_eq!(time(&view), before + 5 * 3600);
    view.clock.wall -= Duration::from_secs(8 * 3600);
    assert_eq!(time(&view), before - 3 * 3600);
}

#[test]
fn the_page_of_a_node_with_faults_and_jobs() {
    let page = page::render(&troubled(), "/metrics");
    // Style and script have addresses that change with their content.
    let mut parts = page.split("?v=");
    let mut html = parts.next().unwrap().to_owned();
    for part in parts {
        html += part.trim_start_matches(|c: char| c.is_ascii_hexdigit());
    }
    golden("page/node.html", &html);
}

#[test]
fn a_gpu_in_a_fabric() {
    let text = metrics::render(&in_a_fabric(), Groups::ALL).unwrap();
    crate::scrape::read(&text);
    // Only two of the links, which are alike.
    let shown = |line: &&str| {
        let has = |label: &str, values: &[&str]| {
            let value = line.split_once(&format!("{label}=\""));
            let value = value.and_then(|(_, rest)| rest.split('"').next());
            value.is_none_or(|value| values.contains(&value))
        };
        has("{gpu", &["1"]) && has("link", &["0", "1"])
    };
    let lines: Vec<_> = text.lines().filter(shown).collect();
    golden("metrics/gpu-in-a-fabric.prom", &(lines.join("\n") + "\n"));
}

/// Compares, for each board, its families with the number of series and their values.
#[test]
fn the_numbers_of_every_board() {
    let mut boards: Vec<(String, String)> = sim::names()
        .iter()
        .map(|name| {
            (
                format!("sim:{name}"),
                metrics("x", reading(&format!("sim:{name}"))),
            )
        })
        .collect();
    let capture = nvlink_source::file::parse("topo.txt", PAIRS.as_bytes(), Some("node-a")).unwrap();
    boards.push(("nvidia-smi topo -m".to_owned(), metrics("x", capture)));
    let mut text = String::new();
    for (name, scraped) in &boards {
        writeln!(text, "{name}").unwrap();
        for (family, values) in crate::scrape::read(scraped) {
            if !family.name.starts_with("nvlink_exporter_") {
                let values = crate::scrape::summary(&values);
                writeln!(text, "  {:<40} {values}", family.sample_name()).unwrap();
            }
        }
    }
    golden("metrics/boards.txt", &text);
}

/// Returns a node that is published, by a process that has parts.
fn published() -> View {
    let published = Publishing::default();
    published.succeeded();
    let statistics = Statistics {
        publishing: vec![("topology", published)],
        ..Statistics::default()
    };
    let park = || -> Result<(), Infallible> {
        loop {
            std::thread::park();
        }
    };
    let part = statistics
        .supervisor
        .thread("the collector", Weight::Minor, park);
    part.unwrap();
    Latest::default().with(statistics).view(Instant::now())
}

#[test]
fn every_family_has_series_in_some_view() {
    let texts = [
        published(),
        troubled(),
        in_a_fabric(),
        crate::full::eight(),
        crate::full::seventy_two(),
    ];
    let texts = texts.map(|view| metrics::render(&view, Groups::ALL).unwrap());
    let seen: BTreeSet<_> = texts
        .iter()
        .flat_map(|text| crate::scrape::read(text))
        .map(|(family, _)| family.name)
        .collect();
    let dead = FAMILIES.iter().filter(|family| !seen.contains(family.name));
    let dead: Vec<_> = dead.map(|family| family.name).collect();
    assert!(
        dead.is_empty(),
        "families without series anywhere: {dead:?}"
    );
    assert!(FAMILIES.iter().all(|family| family.help.ends_with('.')));
}

#[test]
fn a_capture_has_no_links_and_no_uuids() {
    let reading = nvlink_source::file::parse("topo.txt", PAIRS.as_bytes(), Some("node-a")).unwrap();
    let text = metrics("file:topo.txt", reading);
    assert!(
        !text.contains("UUID=") && !text.contains("nvlink_link_up"),
        "{text}"
    );
    assert!(
        text.contains("nvlink_gpu_info{gpu=\"0\",domain=\"node-a.0\""),
        "{text}"
    );
}

#[test]
fn a_recording_is_reported_as_a_file_and_not_as_its_source() {
    let document = output::json(&reading("sim:l40s").topology).unwrap();
    let recording = nvlink_source::file::parse("node.json", document.as_bytes(), None).unwrap();
    let text = metrics("file:node.json", recording);
    let line = "nvlink_exporter_source_info{source=\"file\",from=\"node.json, recorded of sim: l40s\"} 1\n";
    assert!(text.contains(line), "{text}");
}

#[test]
fn the_source_of_traffic_is_written_per_gpu_and_per_link_where_links_differ() {
    let mut reading = reading("sim:hgx-a100-4");
    let sources = |reading: &nvlink_source::Reading| {
        let text = metrics("x", reading.clone());
        let lines = text
            .lines()
            .filter(|line| line.starts_with("nvlink_traffic_source_info{"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let alike = sources(&reading);
    assert_eq!(alike.len(), 4);
    assert!(
        alike.iter().all(|line| !line.contains("link=")),
        "{alike:?}"
    );
    let other = reading
        .counters
        .iter_mut()
        .find(|one| (one.gpu, one.link) == (2, 3));
    other.unwrap().source = Some(nvlink_source::CounterSource::Gpm);
    let differ = sources(&reading);
    assert_eq!(differ.len(), 3 + 12);
    let gpm: Vec<_> = differ
        .iter()
        .filter(|line| line.contains("\"gpm\""))
        .collect();
    assert!(gpm.len() == 1 && gpm[0].contains("gpu=\"2\"") && gpm[0].contains("link=\"3\""));
}

#[test]
fn free_gpus_are_known_only_with_a_status() {
    let mut reading = reading("sim:a100-pcie-pairs");
    let text = metrics("x", reading.clone());
    assert!(!text.contains("_free_"), "{text}");
    let held = |gpus: &[u32]| Allocation {
        gpus: gpus.to_vec(),
        ..Allocation::default()
    };
    let allocations = vec![held(&[0, 2]), held(&[4, 5, 6])];
    reading.topology.status = Some(NodeTopologyStatus { allocations });
    let text = metrics("x", reading.clone());
    let free = |domain: u32, gpus: u32| {
        format!("nvlink_domain_free_gpus{{domain=\"node-a.{domain}\",node=\"node-a\"}} {gpus}\n")
    };
    assert!(
        text.contains(&free(0, 1)) && text.contains(&free(2, 0)),
        "{text}"
    );
    assert!(text.contains("nvlink_largest_free_set_gpus{node=\"node-a\"} 1\n"));
    reading.topology.status = Some(NodeTopologyStatus {
        allocations: vec![held(&[0])],
    });
    let text = metrics("x", reading);
    assert!(text.contains("nvlink_largest_free_set_gpus{node=\"node-a\"} 2\n"));
}

#[test]
fn label_values_are_escaped() {
    let mut reading = reading("sim:rtx-a6000-pairs");
    reading.topology.spec.gpus[0].model = Some("a\"b\\c\nd".into());
    let text = metrics("x", reading);
    assert!(text.contains(r#"model="a\"b\\c\nd""#), "{text}");
}

#[test]
fn topologies() {
    let formats = [
        (TopologyFormat::Table, "txt"),
        (TopologyFormat::Dot, "dot"),
        (TopologyFormat::Matrix, "matrix"),
        (TopologyFormat::Json, "json"),
    ];
    let pairs = reading("sim:rtx-a6000-pairs");
    for (format, suffix) in formats {
        let text = output::topology(&pairs, format, false).unwrap();
        golden(&format!("topology/rtx-a6000-pairs.{suffix}"), &text);
    }
    let degraded = reading("sim:h200-degraded");
    let text = output::topology(&degraded, TopologyFormat::Table, false).unwrap();
    golden("topology/h200-degraded.txt", &text);
}

#[test]
fn every_board_is_shown_completely() {
    for name in sim::names() {
        let reading = reading(&format!("sim:{name}"));
        let spec = &reading.topology.spec;
        let show = |format| output::topology(&reading, format, false).unwrap();
        let (table, dot) = (show(TopologyFormat::Table), show(TopologyFormat::Dot));
        for gpu in &spec.gpus {
            let address = gpu.pci_bus_id.as_deref().unwrap();
            assert_eq!(table.matches(address).count(), 1, "{name}: {table}");
            assert!(
                dot.contains(&format!("gpu{} [", gpu.index)),
                "{name}: {dot}"
            );
        }
        // Switched GPUs are joined to their switch, not to each other.
        let direct = spec.edges.iter().filter(|edge| edge.via == Via::Direct);
        let switched = spec.edges.iter().filter(|edge| edge.via != Via::Direct);
        let switched: BTreeSet<u32> = switched.flat_map(|edge| [edge.a, edge.b]).collect();
        let lines = dot.matches("penwidth=").count();
        assert_eq!(lines, direct.count() + switched.len(), "{name}: {dot}");
        let nics: usize = spec.nics.iter().map(|nic| nic.gpus.len()).sum();
        assert_eq!(dot.matches("style=dashed").count(), nics, "{name}: {dot}");
    }
}

#[test]
fn how_the_gpus_of_a_domain_are_joined() {
    for (name, words) in [
        (
            "dgx1-v100",
            "GPUs 0-7  1 to 2 links, 20 GB/s to 40 GB/s per pair, direct",
        ),
        (
            "dgx2-v100",
            "GPUs 0-15  6 links, 120 GB/s per pair, over NVSwitch",
        ),
        (
            "gb200-nvl72",
            ".1  GPUs 0-3  18 links, 722 GB/s per pair, over NVSwitch; spans nodes",
        ),
        ("l40s", "none: these GPUs have no NVLink between them"),
    ] {
        let reading = reading(&format!("sim:{name}"));
        let table = output::topology(&reading, TopologyFormat::Table, false).unwrap();
        assert!(table.contains(words), "{table}");
    }
}

#[test]
fn a_printed_matrix_is_read_back_unchanged() {
    let mut texts: Vec<String> = vec![PAIRS.to_owned()];
    for name in sim::names() {
        let reading = reading(&format!("sim:{name}"));
        texts.push(output::topology(&reading, TopologyFormat::Matrix, false).unwrap());
    }
    for text in texts {
        let first = nvlink_source::file::parse("x", text.as_bytes(), Some("n")).unwrap();
        let printed = output::topology(&first, TopologyFormat::Matrix, false).unwrap();
        let second = nvlink_source::file::parse("x", printed.as_bytes(), Some("n")).unwrap();
        assert_eq!(first.matrix, second.matrix, "{text}");
        assert_eq!(first.topology, second.topology);
        let again = output::topology(&second, TopologyFormat::Matrix, false).unwrap();
        assert_eq!(printed, again);
    }
}

#[test]
fn a_recording_is_read_back_unchanged() {
    for name in sim::names() {
        let reading = reading(&format!("sim:{name}"));
        let text = output::json(&reading.topology).unwrap();
        let again = nvlink_source::file::parse("x", text.as_bytes(), None).unwrap();
        assert_eq!(again.topology, reading.topology, "{name}");
    }
}

#[test]
fn nodes_of_any_size() {
    for gpus in [1, 2, 3, 5, 8, 9, 16, 17, 72, 128] {
        for links in [0, 1, 18] {
            let text = board(gpus, links);
            let reading = nvlink_source::file::parse("x", text.as_bytes(), Some("n")).unwrap();
            let table = output::topology(&reading, TopologyFormat::Table, true).unwrap();
            assert!(table.lines().count() > gpus, "{table}");
            let dot = output::topology(&reading, TopologyFormat::Dot, false).unwrap();
            assert_eq!(dot.matches("label=\"GPU ").count(), gpus, "{dot}");
        }
    }
}

/// Returns a matrix of `gpus` GPUs, each pair with `links` NVLinks (`SYS` for 0).
fn board(gpus: usize, links: u32) -> String {
    let relation = match links {
        0 => "SYS".to_owned(),
        links => format!("NV{links}"),
    };
    let header: String = (0..gpus).map(|gpu| format!("\tGPU{gpu}")).collect();
    let cell = |same: bool| format!("\t{}", if same { " X " } else { &relation });
    let row = |gpu: usize| {
        let cells: String = (0..gpus).map(|to| cell(to == gpu)).collect();
        format!("GPU{gpu}{cells}\n")
    };
    format!("{header}\n{}", (0..gpus).map(row).collect::<String>())
}
