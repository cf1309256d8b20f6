//! What `complete` derives from a document, and which documents it refuses.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use std::collections::BTreeSet;

use nvlink_topology::{
    Domain, Edge, Fabric, Gpu, Link, Nic, NodeTopology, NodeTopologySpec, Path, PathClass, Remote,
    RemoteKind, Source, SourceKind, Via, bandwidth,
    labels::{self, node_labels},
};
use proptest::prelude::*;

mod calibration;
mod comparison;
mod published;

fn bus(gpu: u32) -> String {
    format!("00000000:{gpu:02X}:00.0")
}

/// Returns a GPU whose links end on `remotes`.
fn gpu(index: u32, model: &str, rate: u64, remotes: &[Remote]) -> Gpu {
    let link = |(index, remote): (u32, &Remote)| Link {
        index,
        up: true,
        bytes_per_second: Some(rate),
        remote: Some(remote.clone()),
    };
    Gpu {
        index,
        uuid: Some(format!("GPU-{index}")),
        pci_bus_id: Some(bus(index)),
        model: Some(model.to_owned()),
        links: Some((0..).zip(remotes).map(link).collect()),
        ..Gpu::default()
    }
}

fn to(gpu: u32) -> Remote {
    // The kernel's spelling of the address, which NVML sometimes uses as well.
    let pci_bus_id = Some(format!("0000:{gpu:02x}:00.0"));
    Remote {
        kind: RemoteKind::Gpu,
        pci_bus_id,
    }
}

fn switch() -> Remote {
    Remote {
        kind: RemoteKind::Switch,
        pci_bus_id: None,
    }
}

fn spec(gpus: Vec<Gpu>) -> NodeTopologySpec {
    let source = Source {
        kind: SourceKind::File,
        from: String::new(),
    };
    NodeTopologySpec::of(source, gpus)
}

fn h100(n: u32) -> NodeTopologySpec {
    let links = vec![switch(); 18];
    let mut spec = spec(
        (0..n)
            .map(|i| gpu(i, "NVIDIA H100 80GB HBM3", 26_562_000_000, &links))
            .collect(),
    );
    assert_eq!(spec.complete("n1").unwrap(), Vec::<String>::new());
    spec
}

/// Clears what `complete` derived.
fn forget(spec: &mut NodeTopologySpec) {
    spec.edges.clear();
    spec.paths.clear();
    spec.domains.clear();
}

#[test]
fn switch_links_join_every_pair() {
    let spec = h100(8);
    assert_eq!(spec.edges.len(), 28);
    assert!(
        spec.edges
            .iter()
            .all(|edge| (edge.via, edge.links) == (Via::Switch, 18))
    );
    assert_eq!(
        spec.edges[0].bytes_per_second, 370_800_000_000,
        "18 × NCCL's 20.6 GB/s"
    );
    assert_eq!(spec.paths.len(), 28);
    assert!(
        spec.paths
            .iter()
            .all(|path| path.class == PathClass::Nvlink && !path.assumed)
    );
    assert_eq!(spec.domains.len(), 1);
    assert_eq!(spec.domains[0].id, "n1.0");
}

#[test]
fn a_dead_link_makes_the_edge_narrower_and_a_dead_gpu_leaves_the_domain() {
    let mut spec = h100(4);
    forget(&mut spec);
    spec.gpus[1].links.as_mut().unwrap()[5].up = false;
    spec.gpus[3]
        .links
        .as_mut()
        .unwrap()
        .iter_mut()
        .for_each(|link| link.up = false);
    spec.complete("n1").unwrap();
    let links: Vec<_> = spec
        .edges
        .iter()
        .map(|edge| (edge.a, edge.b, edge.links))
        .collect();
    assert_eq!(links, [(0, 1, 17), (0, 2, 18), (1, 2, 17)]);
    assert_eq!(spec.domains[0].gpus, [0, 1, 2]);
    let path = spec.paths.iter().find(|path| path.b == 3).unwrap();
    assert_eq!((path.class, path.assumed), (PathClass::Sys, true));
}

#[test]
fn direct_links_connect_the_gpus_that_they_name_and_asymmetry_is_a_warning() {
    let model = "NVIDIA A100 80GB PCIe";
    let mut spec = spec(vec![
        gpu(0, model, 25_000_000_000, &[to(1), to(1), to(1)]),
        gpu(1, model, 25_000_000_000, &[to(0), to(0)]),
        gpu(2, model, 25_000_000_000, &[to(2)]),
    ]);
    let odd = spec.complete("n1").unwrap();
    assert_eq!(
        odd,
        ["GPU 0 reports 3 NVLinks to GPU 1, which reports 2 back: using the smaller"]
    );
    assert_eq!(spec.edges.len(), 1, "a link to the same GPU is no edge");
    assert_eq!((spec.edges[0].links, spec.edges[0].via), (2, Via::Direct));
}

#[test]
fn a_gpu_with_mig_enabled_has_no_edges() {
    let mut spec = h100(2);
    forget(&mut spec);
    spec.gpus[0].mig_enabled = true;
    spec.complete("n1").unwrap();
    assert!(spec.edges.is_empty() && spec.domains.is_empty());
}

#[test]
fn a_fabric_is_kept_unless_its_uuid_is_all_zero() {
    for (uuid, id) in [
        (
            "7b5c0000-0000-0000-0000-000000000001",
            "7b5c0000-0000-0000-0000-000000000001.4",
        ),
        ("00000000-0000-0000-0000-000000000000", "n1.0"),
    ] {
        let mut spec = h100(4);
        let fabric = Some(Fabric {
            cluster_uuid: uuid.to_owned(),
            clique: 4,
        });
        spec.domains = vec![Domain {
            gpus: vec![0, 1, 2, 3],
            fabric,
            ..Domain::default()
        }];
        spec.complete("n1").unwrap();
        assert_eq!(spec.domains[0].id, id);
        let node = NodeTopology::new("n1", spec);
        assert_eq!(node_labels(&node)[labels::DOMAIN], id);
    }
}

/// Returns the ids and GPUs of the domains of a spec whose `gpus` are in the fabric `7b5c.4`.
fn of_fabric(mut spec: NodeTopologySpec, gpus: &[u32]) -> Vec<(String, Vec<u32>)> {
    let fabric = Fabric {
        cluster_uuid: "7b5c".to_owned(),
        clique: 4,
    };
    spec.domains = vec![Domain {
        gpus: gpus.to_vec(),
        fabric: Some(fabric),
        ..Domain::default()
    }];
    spec.complete("n1").unwrap();
    let domains = spec.domains.into_iter();
    domains.map(|one| (one.id, one.gpus)).collect()
}

fn cut_off(gpu: &mut Gpu) {
    for link in gpu.links.iter_mut().flatten() {
        link.up = false;
    }
}

#[test]
fn a_gpu_of_a_fabric_without_links_is_in_no_domain() {
    let mut tray = h100(4);
    forget(&mut tray);
    cut_off(&mut tray.gpus[0]);
    let rest = ("7b5c.4".to_owned(), vec![1, 2, 3]);
    assert_eq!(of_fabric(tray.clone(), &[0, 1, 2, 3]), [rest]);
    tray.gpus.iter_mut().for_each(cut_off);
    assert_eq!(of_fabric(tray, &[0, 1, 2, 3]), []);
    let lone = h100(1);
    let peers_elsewhere = ("7b5c.4".to_owned(), vec![0]);
    assert_eq!(of_fabric(lone, &[0]), [peers_elsewhere]);
}

#[test]
fn unconnected_parts_of_a_fabric_have_different_ids() {
    let pairs: Vec<Remote> = [1, 0, 3, 2, 5, 4, 4].map(to).to_vec();
    let one = |index: u32| {
        gpu(
            index,
            "NVIDIA H100",
            26_562_000_000,
            &pairs[index as usize..][..1],
        )
    };
    let mut spec = spec((0..7).map(one).collect());
    spec.gpus[4].links = gpu(4, "", 26_562_000_000, &[to(5), to(6)]).links;
    let ids = [
        ("7b5c.4-2", vec![0, 1]),
        ("7b5c.4-3", vec![2, 3]),
        ("7b5c.4", vec![4, 5, 6]),
    ];
    let ids = ids.map(|(id, gpus)| (id.to_owned(), gpus));
    assert_eq!(of_fabric(spec, &[0, 1, 2, 3, 4, 5, 6]), ids);
}

#[test]
fn a_model_is_shortened() {
    let mut spec = spec(vec![Gpu::default()]);
    spec.gpus[0].model = Some("é".repeat(70_000));
    spec.complete("n").unwrap();
    assert_eq!(spec.gpus[0].model, Some("é".repeat(128)));
}

type Change = fn(&mut NodeTopologySpec);

const CONTRADICTIONS: [(&str, Change); 17] = [
    (
        "spec.gpus[1].uuid: 70000 bytes; a name has at most 256",
        |s| {
            s.gpus[1].uuid = Some("u".repeat(70_000));
        },
    ),
    (
        "spec.nics[0].name: 300 bytes; a name has at most 256",
        |s| {
            s.nics = vec![Nic {
                name: "n".repeat(300),
                ..Nic::default()
            }];
        },
    ),
    ("spec.gpus[1].index: duplicate GPU 0", |s| {
        s.gpus[1].index = 0
    }),
    ("spec.gpus[1].uuid: duplicate GPU GPU-0", |s| {
        s.gpus[1].uuid = Some("GPU-0".into())
    }),
    (
        "spec.gpus[1].pciBusId: duplicate GPU at 0000:00:00.0",
        |s| {
            s.gpus[1].pci_bus_id = Some("0000:00:00.0".into());
        },
    ),
    ("spec.gpus[0].links[1].index: duplicate link 0", |s| {
        s.gpus[0].links.as_mut().unwrap()[1].index = 0;
    }),
    (
        "spec.gpus: 129 GPUs; one node has at most 128: describe each node of a rack on its own",
        |s| {
            s.gpus = (0..129)
                .map(|index| Gpu {
                    index,
                    ..Gpu::default()
                })
                .collect();
        },
    ),
    (
        "spec.edges[0].a: a = 1, b = 0: a must be less than b",
        |s| {
            (s.edges[0].a, s.edges[0].b) = (1, 0);
        },
    ),
    ("spec.edges[0].b: GPU 9 is not in spec.gpus", |s| {
        s.edges[0].b = 9
    }),
    ("spec.edges[1]: duplicate edge 0-1", |s| {
        s.edges[1] = s.edges[0].clone()
    }),
    (
        "spec.edges[0].bytesPerSecond: 0; omit an edge or path of unknown bandwidth",
        |s| {
            s.edges[0].bytes_per_second = 0;
        },
    ),
    (
        "spec.edges[0].links: 0 links; omit an edge without links",
        |s| s.edges[0].links = 0,
    ),
    (
        "spec.edges[0].links: 4294967295 links with under 1 byte per second each",
        |s| (s.edges[0].links, s.edges[0].bytes_per_second) = (u32::MAX, 1000),
    ),
    (
        "spec.edges[0].bytesPerSecond: a petabyte per second or more; the unit is bytes per second",
        |s| s.edges[0].bytes_per_second = 7_000_000_000_000_000_000,
    ),
    ("spec.paths[1]: duplicate path 0-1", |s| {
        s.paths[1] = s.paths[0].clone()
    }),
    (
        "spec.paths[0].class: NVLINK, but spec.edges has no edge 0-1",
        |s| {
            s.edges.remove(0);
        },
    ),
    ("spec.domains[0].gpus: GPU 9 is not in spec.gpus", |s| {
        s.domains[0].gpus.push(9)
    }),
];

#[test]
fn every_contradiction_is_an_error_that_names_its_place() {
    for (expected, change) in CONTRADICTIONS {
        let mut spec = h100(3);
        change(&mut spec);
        assert_eq!(spec.complete("n1").unwrap_err().to_string(), expected);
    }
}

#[test]
fn nvlink_is_known_if_all_links_are_known_or_an_edge_is() {
    let known = |links: Option<Vec<Link>>, mig_enabled: bool, edges: Vec<Edge>| {
        let mut spec = spec(vec![gpu(0, "x", 0, &[]), gpu(1, "x", 0, &[])]);
        (spec.gpus[1].links, spec.gpus[1].mig_enabled) = (links, mig_enabled);
        spec.edges = edges;
        spec.complete("n1").unwrap();
        spec.knows_nvlink()
    };
    assert!(known(Some(Vec::new()), false, Vec::new()), "no links");
    assert!(!known(None, false, Vec::new()), "the links are unknown");
    assert!(known(None, true, Vec::new()), "MIG has no peers");
    let edge = Edge {
        a: 0,
        b: 1,
        via: Via::Direct,
        links: 4,
        bytes_per_second: 80_000_000_000,
    };
    assert!(known(None, false, vec![edge]), "`topo -m`");
}

#[test]
fn a_document_survives_a_json_round_trip_and_unknown_keys() {
    let node = NodeTopology::new("n1", h100(4));
    let mut json = serde_json::to_value(&node).unwrap();
    assert_eq!(json["apiVersion"], "nvlink-domains.io/v1alpha1");
    assert_eq!(
        json["spec"]["gpus"][0]["links"][0]["remote"]["kind"],
        "switch"
    );
    assert!(
        json["spec"]["gpus"][0].get("numaNode").is_none(),
        "absent, never null"
    );
    json["spec"]["future"] = serde_json::json!({"field": [1]});
    json["metadata"]["uid"] = "7".into();
    assert_eq!(serde_json::from_value::<NodeTopology>(json).unwrap(), node);
}

proptest! {
    /// Completing twice changes nothing.
    #[test]
    fn completing_is_idempotent(links in prop::collection::vec(0u32..4, 15), from_links: bool) {
        let n = 6u32;
        let mut spec = spec((0..n).map(|index| Gpu { index, ..Gpu::default() }).collect());
        let pairs = (0..n).flat_map(|a| (a + 1..n).map(move |b| (a, b)));
        for ((a, b), links) in pairs.zip(links).filter(|(_, links)| *links > 0) {
            let bytes_per_second = bandwidth::assumed_nvlink(links);
            if from_links {
                spec.edges.push(Edge { a, b, via: Via::Direct, links, bytes_per_second });
            } else {
                let class = PathClass::Pix;
                spec.paths.push(Path { a, b, class, bytes_per_second, assumed: false });
            }
        }
        spec.complete("n").unwrap();
        let once = spec.clone();
        spec.complete("n").unwrap();
        prop_assert_eq!(once, spec);
    }

    /// For any links and fabrics, each domain has a unique id and each GPU is in at most
    /// one domain.
    #[test]
    fn ids_of_domains_are_unique(
        edges in prop::collection::vec(prop::bool::weighted(0.15), 28),
        up in prop::collection::vec(prop::option::of(any::<bool>()), 8),
        fabrics in prop::collection::vec(prop::option::of(0u32..3), 8),
    ) {
        let mut spec = spec((0u32..8).map(|index| Gpu { index, ..Gpu::default() }).collect());
        for (gpu, up) in spec.gpus.iter_mut().zip(up) {
            gpu.links = up.map(|up| {
                vec![Link { index: 0, up, bytes_per_second: None, remote: None }]
            });
        }
        let pairs = (0u32..8).flat_map(|a| (a + 1..8).map(move |b| (a, b)));
        for ((a, b), _) in pairs.zip(edges).filter(|(_, there)| *there) {
            spec.edges.push(Edge { a, b, via: Via::Direct, links: 1, bytes_per_second: 1 });
        }
        for (gpu, clique) in (0u32..).zip(fabrics) {
            let fabric = clique.map(|clique| Fabric { cluster_uuid: "7b5c".to_owned(), clique });
            spec.domains.push(Domain { gpus: vec![gpu], fabric, ..Domain::default() });
        }
        spec.complete("n").unwrap();
        let ids: BTreeSet<_> = spec.domains.iter().map(|one| &one.id).collect();
        prop_assert_eq!(ids.len(), spec.domains.len());
        let gpus: BTreeSet<_> = spec.domains.iter().flat_map(|one| &one.gpus).collect();
        prop_assert_eq!(gpus.len(), spec.domains.iter().map(|one| one.gpus.len()).sum::<usize>());
        let once = spec.domains.clone();
        spec.complete("n").unwrap();
        prop_assert_eq!(once, spec.domains);
    }
}
