use std::{collections::BTreeMap, time::Duration};

use nvlink_topology::Via;

use super::*;

fn read(name: &str, seconds: u64) -> Reading {
    SimSource::new(profile(name).unwrap(), "node-a")
        .read(Duration::from_secs(seconds))
        .unwrap()
}

#[test]
fn boards_have_the_expected_links() {
    // Profile, GPUs, links of a GPU, edges, via, links of an edge (least, most), domains.
    let cases = [
        ("dgx-h100", 8, 18, 28, Some(Via::Switch), (18, 18), 1),
        ("hgx-b200", 8, 18, 28, Some(Via::Switch), (18, 18), 1),
        ("dgx-a100", 8, 12, 28, Some(Via::Switch), (12, 12), 1),
        ("hgx-a100-4", 4, 12, 6, Some(Via::Direct), (4, 4), 1),
        ("dgx1-v100", 8, 6, 16, Some(Via::Direct), (1, 2), 1),
        ("dgx2-v100", 16, 6, 120, Some(Via::Switch), (6, 6), 1),
        ("a100-pcie-pairs", 8, 12, 4, Some(Via::Direct), (12, 12), 4),
        ("rtx-a6000-pairs", 4, 4, 2, Some(Via::Direct), (4, 4), 2),
        ("l40s", 8, 0, 0, None, (0, 0), 0),
        ("gb200-nvl72", 4, 18, 6, Some(Via::Switch), (18, 18), 1),
        ("h200-degraded", 8, 18, 28, Some(Via::Switch), (16, 18), 1),
    ];
    assert_eq!(cases.len(), names().len());
    for (name, gpus, links, edges, via, (least, most), domains) in cases {
        let reading = read(name, 0);
        let spec = &reading.topology.spec;
        assert_eq!(spec.gpus.len(), gpus, "{name}");
        assert!(
            spec.gpus
                .iter()
                .all(|gpu| gpu.links.as_ref().unwrap().len() == links),
            "{name}"
        );
        assert_eq!(spec.edges.len(), edges, "{name}");
        assert!(
            spec.edges.iter().all(|edge| Some(edge.via) == via),
            "{name}"
        );
        assert_eq!(
            spec.edges.iter().map(|edge| edge.links).min().unwrap_or(0),
            least,
            "{name}"
        );
        assert_eq!(
            spec.edges.iter().map(|edge| edge.links).max().unwrap_or(0),
            most,
            "{name}"
        );
        assert_eq!(spec.domains.len(), domains, "{name}");
        assert_eq!(spec.paths.len(), gpus * (gpus - 1) / 2, "{name}");
        assert!(
            reading.warnings.is_empty(),
            "{name}: {:?}",
            reading.warnings
        );
    }
}

#[test]
fn one_tray_shares_its_domain_with_the_others() {
    let domain = |node| {
        let mut source = SimSource::new(profile("gb200-nvl72").unwrap(), node);
        source
            .read(Duration::ZERO)
            .unwrap()
            .topology
            .spec
            .domains
            .remove(0)
    };
    assert_eq!(domain("a"), domain("b"));
    assert!(domain("a").fabric.is_some());
    assert_eq!(read("dgx-h100", 0).topology.spec.domains[0].id, "node-a.0");
}

#[test]
fn uuids_differ_by_node_and_gpu() {
    let uuids = |node| {
        let mut source = SimSource::new(profile("l40s").unwrap(), node);
        let gpus = source.read(Duration::ZERO).unwrap().topology.spec.gpus;
        gpus.into_iter()
            .map(|gpu| gpu.uuid.unwrap())
            .collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(uuids("a"), uuids("a"));
    assert_eq!(uuids("a").union(&uuids("b")).count(), 16);
}

#[test]
fn each_end_of_a_direct_link_receives_what_the_other_sends() {
    for name in [
        "dgx1-v100",
        "hgx-a100-4",
        "a100-pcie-pairs",
        "rtx-a6000-pairs",
    ] {
        let reading = read(name, 100);
        let at: BTreeMap<_, _> = reading
            .counters
            .iter()
            .map(|one| ((one.gpu, one.link), one))
            .collect();
        for (&(gpu, link), counters) in &at {
            let (peer, there) = board::peers(profile(name).unwrap(), gpu as usize)
                .nth(link as usize)
                .unwrap();
            let far = at[&(peer as u32, there)];
            assert_eq!(
                counters.transmit_bytes, far.receive_bytes,
                "{name} {gpu}.{link}"
            );
            assert_eq!(
                counters.receive_bytes, far.transmit_bytes,
                "{name} {gpu}.{link}"
            );
        }
    }
}

#[test]
fn the_sums_of_sent_and_received_bytes_agree() {
    for profile in profiles() {
        let counters = read(profile.name, 100).counters;
        let sent: u64 = counters.iter().filter_map(|one| one.transmit_bytes).sum();
        let received: u64 = counters.iter().filter_map(|one| one.receive_bytes).sum();
        assert_eq!(sent, received, "{}", profile.name);
    }
}

#[test]
fn counters_only_increase() {
    for profile in profiles() {
        let mut source = SimSource::new(profile, "n");
        let mut before = source.read(Duration::ZERO).unwrap().counters;
        assert!(before.iter().all(|one| one.transmit_bytes == Some(0)));
        for seconds in [1, 44, 46, 59, 60, 61, 3600, 1_000_000] {
            let after = source.read(Duration::from_secs(seconds)).unwrap().counters;
            for (old, new) in before.iter().zip(&after) {
                assert!(old.transmit_bytes < new.transmit_bytes, "{}", profile.name);
                assert!(
                    old.errors
                        .iter()
                        .zip(&new.errors)
                        .all(|(old, new)| old.1 <= new.1)
                );
            }
            before = after;
        }
        source.read(Duration::MAX).unwrap();
    }
}

#[test]
fn a_degraded_board_has_dead_links_and_errors() {
    let reading = read("h200-degraded", 3600);
    let down = |gpu: usize| {
        let links = reading.topology.spec.gpus[gpu].links.as_ref().unwrap();
        links.iter().filter(|link| !link.up).count()
    };
    assert_eq!(
        (0..8).map(down).collect::<Vec<_>>(),
        [0, 0, 0, 2, 0, 1, 0, 0]
    );
    let errors: u64 = reading
        .counters
        .iter()
        .flat_map(|one| &one.errors)
        .map(|(_, count)| count)
        .sum();
    assert_eq!(errors, 7200 + 1800 + 60 + 240);
}
