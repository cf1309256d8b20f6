//! The exporter reads the same document from NVML as from a recording of the board.

use nvlink_tests::{FakeNvml, check_metrics, nvml::recording};
use serde_json::{Value, json};

use super::{
    scrape::{good, series, start, values},
    wiring::{Board, Wiring, mesh},
};

const PROFILES: [&str; 11] = [
    "a100-pcie-pairs",
    "dgx-a100",
    "dgx-h100",
    "dgx1-v100",
    "dgx2-v100",
    "gb200-nvl72",
    "h200-degraded",
    "hgx-a100-4",
    "hgx-b200",
    "l40s",
    "rtx-a6000-pairs",
];

/// Returns the paths of the pairs without NVLink.
fn pcie_paths(document: &Value) -> Vec<&Value> {
    let paths = document["spec"]["paths"].as_array().unwrap();
    paths
        .iter()
        .filter(|path| path["class"] != "NVLINK")
        .collect()
}

/// Removes the marks of broken GPUs: XIDs and conditions of the fabric are no part of a recording,
/// from which the fake library takes what it answers.
fn without_marks(mut document: Value) -> Value {
    for gpu in document["spec"]["gpus"].as_array_mut().unwrap() {
        gpu.as_object_mut().unwrap().remove("faults");
    }
    document
}

#[test]
fn every_profile_is_read_exactly_as_recorded() {
    for profile in PROFILES {
        let recorded = recording(profile).unwrap();
        let read = FakeNvml::new(&recorded).unwrap().topology().unwrap();
        let (read, recorded) = (without_marks(read), without_marks(recorded));
        for part in ["gpus", "edges", "domains"] {
            assert_eq!(
                read["spec"][part], recorded["spec"][part],
                "{profile}: {part}"
            );
        }
        assert_eq!(pcie_paths(&read), pcie_paths(&recorded), "{profile}");
        assert_eq!(read["spec"]["source"]["kind"], "nvml");
        let from = read["spec"]["source"]["from"].as_str().unwrap();
        assert!(from.contains("580.95.05"), "the driver's version: {from}");
    }
}

/// Returns the wiring of two fully connected quads, with one link across from each GPU.
fn cube() -> Vec<(usize, usize, usize)> {
    let pairs = mesh(8, 1).into_iter();
    pairs
        .filter(|&(a, b, _)| a / 4 == b / 4 || b == a + 4)
        .collect()
}

/// Model, GPUs, MB/s of a link, wiring, links of each pair with an edge, and usable MB/s
/// of each of these links.
type Row = (&'static str, usize, u64, Wiring, usize, u64);

fn bridged() -> Vec<Row> {
    let pair = |links| Wiring::Direct(mesh(2, links));
    vec![
        ("Quadro RTX 8000", 2, 25_781, pair(2), 2, 20_000),
        ("NVIDIA GeForce RTX 3090", 2, 14_062, pair(4), 4, 12_000),
        ("NVIDIA A40", 2, 14_062, pair(4), 4, 12_000),
        ("NVIDIA H100 PCIe", 2, 26_562, pair(12), 12, 20_600),
        ("NVIDIA H100 NVL", 2, 26_562, pair(12), 12, 20_600),
    ]
}

fn modules() -> Vec<Row> {
    use Wiring::*;
    let eight = || Switches(&[2, 2, 2, 2]);
    let quad = Direct(mesh(4, 6));
    vec![
        ("Tesla P100-SXM2-16GB", 8, 20_000, Direct(cube()), 1, 18_000),
        ("NVIDIA A800-SXM4-80GB", 8, 25_000, eight(), 8, 20_000),
        ("NVIDIA H800", 8, 26_562, eight(), 8, 20_600),
        ("NVIDIA H100 80GB HBM3", 4, 26_562, quad, 6, 20_600),
        ("NVIDIA H200", 8, 26_562, Hidden(18), 18, 20_600),
        ("NVIDIA GB300", 4, 53_125, Hidden(18), 18, 40_100),
        ("NVIDIA B300 SXM6 AC", 8, 53_125, Hidden(18), 18, 40_100),
    ]
}

#[test]
fn boards_that_the_simulator_lacks_are_read_correctly() {
    for (model, gpus, rate, wiring, links, usable) in bridged().into_iter().chain(modules()) {
        let board = Board {
            model,
            gpus,
            rate,
            wiring,
        };
        let recorded = board.recording();
        let read = FakeNvml::new(&recorded).unwrap().topology().unwrap();
        let spec = &read["spec"];
        assert_eq!(spec["gpus"], recorded["spec"]["gpus"], "{model}");
        let (via, joined) = match board.wiring {
            Wiring::Direct(pairs) => ("direct", pairs),
            _ => ("switch", mesh(gpus, 1)),
        };
        let edge = |(a, b, _)| {
            let rate = links as u64 * usable * 1_000_000;
            json!({"a": a, "b": b, "via": via, "links": links, "bytesPerSecond": rate})
        };
        let edges: Vec<_> = joined.into_iter().map(edge).collect();
        assert_eq!(spec["edges"], json!(edges), "{model}");
        let all: Vec<_> = (0..gpus).collect();
        assert_eq!(
            spec["domains"],
            json!([{"id": "gpu-1.0", "gpus": all}]),
            "{}",
            board.model
        );
    }
}

#[test]
fn unused_links_of_cards_are_not_reported_as_missing() {
    let unused = [
        ("NVIDIA GH200 480GB", 1, 18),
        ("NVIDIA A100-PCIE-40GB", 2, 12),
    ];
    for (model, gpus, links) in unused {
        let board = Board {
            model,
            gpus,
            rate: 0,
            wiring: Wiring::Inactive(links),
        };
        let exporter = start(&FakeNvml::new(&board.recording()).unwrap(), &[]);
        let text = good(&exporter);
        assert_eq!(
            values(&text, "nvlink_link_up", &[]),
            vec![0.0; gpus * links],
            "{model}"
        );
        let missing = values(&text, "nvlink_missing_links", &[]);
        assert!(
            missing.iter().all(|&missing| missing == 0.0),
            "{model}: {missing:?}"
        );
        for silent in [
            "nvlink_peer_links",
            "nvlink_domain_gpus",
            "nvlink_link_speed_bytes_per_second",
        ] {
            assert_eq!(series(&text, silent), [], "{model}");
        }
        check_metrics(&text).unwrap();
    }
}

#[test]
fn all_links_of_a_board_that_are_down_are_reported_as_missing() {
    let board = Board {
        model: "NVIDIA H100 80GB HBM3",
        gpus: 2,
        rate: 0,
        wiring: Wiring::Inactive(18),
    };
    let mut fake = FakeNvml::new(&board.recording()).unwrap();
    let text = good(&start(&fake, &[]));
    assert_eq!(values(&text, "nvlink_missing_links", &[]), [18.0, 18.0]);
    // The exception is two of its GPUs in a virtual machine, which may correctly have no links.
    const PASSTHROUGH: u32 = 1;
    let guest = json!({"virtualization": PASSTHROUGH});
    fake.put("gpus", json!({"0": guest, "1": guest})).unwrap();
    let text = good(&start(&fake, &[]));
    assert_eq!(series(&text, "nvlink_missing_links"), []);
}

#[test]
fn both_remote_types_of_a_hidden_switch_are_read_as_a_switch() {
    let recorded = recording("hgx-b200").unwrap();
    let mut fake = FakeNvml::new(&recorded).unwrap();
    for kind in [2, 255] {
        let gpus = (0..8).map(|gpu| (gpu.to_string(), json!({"hiddenType": kind})));
        let gpus = gpus.collect::<serde_json::Map<_, _>>();
        fake.put("gpus", gpus.into()).unwrap();
        let read = fake.topology().unwrap();
        assert_eq!(
            read["spec"]["edges"], recorded["spec"]["edges"],
            "type {kind}"
        );
    }
}
