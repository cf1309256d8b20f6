use nvlink_topology::{Edge, PathClass};
use proptest::prelude::*;

use super::*;

const SENTINEL: Option<&str> = None;

fn fabric(cluster: u8, clique: u32, state: u32) -> FabricInfo {
    FabricInfo {
        cluster_uuid: [cluster; 16],
        clique,
        state,
        status: 0,
        health: None,
    }
}

fn far(device_type: Option<u32>, address: Option<&str>) -> FarEnd {
    FarEnd {
        device_type,
        address: address.map(str::to_owned),
        hidden: address.is_none(),
        is_switch: false,
        failed: false,
    }
}

fn bus(n: u32) -> String {
    format!("00000000:{:02X}:00.0", 0x10 + n)
}

/// Creates a GPU whose active links end on `ends`.
fn gpu(n: u32, ends: Vec<FarEnd>, fabric: Option<FabricInfo>) -> GpuFacts {
    let link = |(index, far)| LinkFacts {
        index: index as u32,
        up: Some(true),
        bytes_per_second: Some(26_562_000_000),
        far,
    };
    GpuFacts {
        gpu: Gpu {
            index: n,
            uuid: Some(format!("GPU-{n}")),
            pci_bus_id: Some(bus(n)),
            model: Some("NVIDIA H200".to_owned()),
            ..Gpu::default()
        },
        links: Some(ends.into_iter().enumerate().map(link).collect()),
        fabric,
        tray: None,
    }
}

fn switched(count: u32, links: usize, end: &FarEnd, fabric: Option<FabricInfo>) -> Vec<GpuFacts> {
    (0..count)
        .map(|n| gpu(n, vec![end.clone(); links], fabric))
        .collect()
}

fn of(facts: &[GpuFacts], peers: &PeerStatus) -> (NodeTopologySpec, Vec<String>) {
    spec("n", "driver 1".to_owned(), facts, peers, Vec::new()).unwrap()
}

fn edges(spec: &NodeTopologySpec) -> Vec<(u32, u32, u32, Via)> {
    let short = |edge: &Edge| (edge.a, edge.b, edge.links, edge.via);
    spec.edges.iter().map(short).collect()
}

fn kinds(spec: &NodeTopologySpec, gpu: usize) -> Vec<RemoteKind> {
    let links = spec.gpus[gpu].links.iter().flatten();
    links
        .filter_map(|link| Some(link.remote.as_ref()?.kind))
        .collect()
}

fn all_pairs(count: u32, status: &Result<(), String>) -> PeerStatus {
    let pairs = (0..count).flat_map(|a| (a + 1..count).map(move |b| (a, b)));
    pairs.map(|pair| (pair, status.clone())).collect()
}

fn refused() -> Result<(), String> {
    Err("not supported".to_owned())
}

#[test]
fn far_ends_are_recognized_by_address_type_and_class() {
    let own = bus(0);
    let (peer, switch) = (bus(1), "00000000:C3:00.0".to_owned());
    let gpus = [&*own, &*peer];
    use RemoteKind::*;
    for (device_type, address, expected) in [
        (Some(0), Some(&*peer), Gpu),
        (None, Some(&*peer), Gpu),
        (Some(2), Some(&*switch), Switch),
        (Some(2), SENTINEL, Switch),
        (Some(0xff), SENTINEL, Switch),
        (None, SENTINEL, Switch),
        // The peer is not in this container.
        (Some(0), Some("00000000:99:00.0"), Gpu),
        (Some(0), SENTINEL, Gpu),
        (None, Some(&*switch), Unknown),
        (Some(1), Some("00000035:00:00.0"), Unknown),
        // A table of the system that links each GPU to itself.
        (Some(0), Some(&*own), Unknown),
    ] {
        let found = far(device_type, address).kind(Some(&*own), &gpus);
        assert_eq!(found, expected, "{device_type:?} {address:?}");
    }
    let by_class = FarEnd {
        is_switch: true,
        ..far(None, Some(&*switch))
    };
    assert_eq!(by_class.kind(Some(&*own), &gpus), Switch);
}

#[test]
fn a_switch_is_hidden_only_if_the_driver_reports_a_hidden_far_end() {
    let switch = bus(9);
    let gpus = [&*bus(0), &*bus(1)];
    let kind = |far: FarEnd| far.kind(Some(gpus[0]), &gpus);
    for device_type in [None, Some(0xff)] {
        let silent = FarEnd {
            hidden: false,
            ..far(device_type, SENTINEL)
        };
        assert_eq!(kind(silent), RemoteKind::Unknown, "{device_type:?}");
    }
    let failed = |far: FarEnd| FarEnd {
        failed: true,
        ..far
    };
    for far in [
        far(None, SENTINEL),
        far(Some(2), SENTINEL),
        far(None, Some(&switch)),
    ] {
        assert_eq!(kind(failed(far)), RemoteKind::Unknown);
    }
    let to_gpu = failed(far(None, Some(gpus[1])));
    assert_eq!(kind(to_gpu), RemoteKind::Gpu, "its address is enough");
}

#[test]
fn a_link_whose_state_is_unknown_is_not_reported_as_down() {
    let mut facts = switched(2, 4, &far(Some(2), SENTINEL), None);
    if let Some(links) = &mut facts[0].links {
        links[1].up = None;
        links[2].up = Some(false);
    }
    let (spec, _) = of(&facts, &PeerStatus::new());
    let links = spec.gpus[0].links.iter().flatten();
    let told: Vec<_> = links.map(|link| (link.index, link.up)).collect();
    assert_eq!(told, [(0, true), (2, false), (3, true)]);
}

#[test]
fn direct_links_are_edges_and_a_link_to_itself_is_not() {
    let to = |n: u32, links: usize| vec![far(Some(0), Some(&bus(n))); links];
    let mut ends = to(1, 4);
    ends.extend(to(0, 1));
    let facts = [
        gpu(0, ends, None),
        gpu(1, to(0, 4), None),
        gpu(2, to(9, 4), None),
    ];
    let (spec, odd) = of(&facts, &PeerStatus::new());
    assert_eq!(edges(&spec), [(0, 1, 4, Via::Direct)]);
    assert!(odd.is_empty(), "{odd:?}");
    let own = spec.gpus[0].links.as_ref().unwrap()[4]
        .remote
        .clone()
        .unwrap();
    assert_eq!((own.kind, own.pci_bus_id), (RemoteKind::Unknown, None));
    assert_eq!(
        kinds(&spec, 2),
        [RemoteKind::Gpu; 4],
        "a GPU of another container"
    );
}

#[test]
fn ends_that_disagree_give_the_smaller_count_and_a_warning() {
    let to = |n: u32, links: usize| vec![far(Some(0), Some(&bus(n))); links];
    let facts = [gpu(0, to(1, 4), None), gpu(1, to(0, 3), None)];
    let (spec, odd) = of(&facts, &PeerStatus::new());
    assert_eq!(edges(&spec), [(0, 1, 3, Via::Direct)]);
    assert_eq!(odd.len(), 1);
}

#[test]
fn a_visible_switch_joins_each_pair_with_the_smaller_number_of_links() {
    let end = far(Some(2), Some("00000000:C3:00.0"));
    let mut facts = switched(3, 18, &end, Some(fabric(0, 0, 3)));
    facts[2].links.as_mut().unwrap()[0].up = Some(false);
    let (spec, odd) = of(&facts, &all_pairs(3, &Ok(())));
    let joined = [(0, 1, 18), (0, 2, 17), (1, 2, 17)].map(|(a, b, n)| (a, b, n, Via::Switch));
    assert_eq!(edges(&spec), joined);
    assert_eq!(
        spec.domains[0].fabric, None,
        "a fabric with an all-zero cluster does not span nodes"
    );
    assert!(odd.is_empty(), "{odd:?}");
    let down = &spec.gpus[2].links.as_ref().unwrap()[0];
    assert_eq!(
        (down.up, &down.remote, down.bytes_per_second),
        (false, &None, None)
    );
}

#[test]
fn a_hidden_switch_is_assumed_unless_driver_or_fabric_deny_it() {
    let end = far(Some(0xff), SENTINEL);
    let of = |state: Option<u32>, status: Option<Result<(), String>>| {
        let facts = switched(2, 18, &end, state.map(|state| fabric(0, 0, state)));
        let peers = status
            .map(|status| all_pairs(2, &status))
            .unwrap_or_default();
        let (spec, odd) = of(&facts, &peers);
        (spec.edges.len(), kinds(&spec, 0)[0], odd)
    };
    let (yes, no) = (Some(Ok(())), Some(refused()));
    // An Ampere board has no fabric, an old driver no status.
    for (state, status) in [
        (None, yes.clone()),
        (None, None),
        (Some(0), yes.clone()),
        (Some(3), yes.clone()),
        (Some(3), None),
    ] {
        let (edges, kind, odd) = of(state, status.clone());
        assert_eq!(
            (edges, kind),
            (1, RemoteKind::Switch),
            "{state:?} {status:?}"
        );
        assert!(odd.is_empty(), "{odd:?}");
    }
    for (state, status, word) in [
        (None, no.clone(), "the driver reports"),
        (Some(3), no, "the driver reports"),
        (Some(1), yes.clone(), "fabric manager"),
        (Some(2), yes.clone(), "in progress"),
    ] {
        let (edges, kind, odd) = of(state, status.clone());
        assert_eq!(
            (edges, kind),
            (0, RemoteKind::Unknown),
            "{state:?} {status:?}"
        );
        assert_eq!(odd.len(), 2, "one for each GPU");
        assert!(
            odd[0].contains("18 NVLinks up") && odd[0].contains(word),
            "{odd:?}"
        );
    }
}

#[test]
fn the_warning_of_a_gpu_has_its_own_problem_first() {
    let mut facts = switched(3, 18, &far(Some(2), SENTINEL), Some(fabric(0, 0, 3)));
    facts[1].fabric = Some(fabric(0, 0, 1));
    facts[2].fabric = Some(fabric(0, 0, 2));
    let (spec, odd) = of(&facts, &PeerStatus::new());
    assert!(spec.edges.is_empty());
    // GPU 0 is healthy but has no peer.
    let wanted = [
        ("GPU 0 has", "GPU 1 is not registered"),
        ("GPU 1 has", "GPU 1 is not registered"),
        ("GPU 2 has", "of GPU 2 with the fabric is in progress"),
    ];
    assert_eq!(odd.len(), wanted.len(), "{odd:?}");
    for (said, (whose, why)) in odd.iter().zip(wanted) {
        assert!(said.starts_with(whose) && said.contains(why), "{said}");
    }
}

#[test]
fn one_faulty_gpu_does_not_affect_the_others() {
    let mut facts = switched(3, 18, &far(Some(2), SENTINEL), Some(fabric(0, 0, 3)));
    facts[1].fabric = Some(fabric(0, 0, 2));
    let (spec, odd) = of(&facts, &PeerStatus::new());
    assert_eq!(edges(&spec), [(0, 2, 18, Via::Switch)]);
    let seen = [0, 1, 2].map(|gpu| kinds(&spec, gpu)[0]);
    use RemoteKind::{Switch, Unknown};
    assert_eq!(seen, [Switch, Unknown, Switch]);
    assert_eq!(odd.len(), 1);
    assert!(odd[0].starts_with("GPU 1 has"), "{odd:?}");
}

#[test]
fn a_failed_registration_keeps_the_address_of_the_switch() {
    let mut failed = fabric(0, 0, 3);
    failed.status = 999;
    let facts = switched(2, 18, &far(Some(2), Some("00000000:C3:00.0")), Some(failed));
    let (spec, odd) = of(&facts, &PeerStatus::new());
    assert!(spec.edges.is_empty() && spec.domains.is_empty());
    let link = &spec.gpus[0].links.as_ref().unwrap()[0];
    let remote = link.remote.as_ref().unwrap();
    assert!(link.up);
    assert_eq!(remote.kind, RemoteKind::Unknown);
    assert_eq!(remote.pci_bus_id.as_deref(), Some("00000000:C3:00.0"));
    assert!(odd[0].contains("failed"), "{odd:?}");
}

#[test]
fn partitions_of_the_fabric_are_separate_domains() {
    let end = far(Some(2), SENTINEL);
    let mut facts = switched(5, 18, &end, None);
    for (n, clique) in [(0, 7), (1, 7), (2, 8), (3, 8), (4, 9)] {
        facts[n].fabric = Some(fabric(0xab, clique, 3));
    }
    let (spec, odd) = of(&facts, &PeerStatus::new());
    assert_eq!(
        edges(&spec),
        [(0, 1, 18, Via::Switch), (2, 3, 18, Via::Switch)]
    );
    let domains: Vec<_> = spec
        .domains
        .iter()
        .map(|one| (&one.id[..], &one.gpus[..]))
        .collect();
    let uuid = "abababab-abab-abab-abab-abababababab";
    assert_eq!(
        domains,
        [
            (&*format!("{uuid}.7"), &[0, 1][..]),
            (&*format!("{uuid}.8"), &[2, 3][..]),
            (&*format!("{uuid}.9"), &[4][..])
        ]
    );
    assert!(spec.paths.iter().all(|path| {
        (path.class == PathClass::Nvlink) == matches!((path.a, path.b), (0, 1) | (2, 3))
    }));
    // GPU 4 has all its peers elsewhere, so no pair can confirm its links.
    assert_eq!(odd.len(), 1);
}

#[test]
fn a_lone_gpu_of_a_fabric_is_a_domain_with_its_peers_elsewhere() {
    let facts = switched(1, 18, &far(None, SENTINEL), Some(fabric(0xab, 3, 3)));
    let (spec, odd) = of(&facts, &PeerStatus::new());
    assert_eq!(kinds(&spec, 0), [RemoteKind::Switch; 18]);
    assert_eq!(spec.domains.len(), 1);
    assert!(odd.is_empty(), "{odd:?}");
    let facts = switched(1, 18, &far(None, SENTINEL), Some(fabric(0xab, 3, 2)));
    let (spec, odd) = of(&facts, &PeerStatus::new());
    assert_eq!(kinds(&spec, 0), [RemoteKind::Unknown; 18]);
    assert_eq!((spec.domains.len(), odd.len()), (0, 1));
}

#[test]
fn a_gpu_split_by_mig_is_in_no_pair() {
    let mut facts = switched(3, 18, &far(Some(2), SENTINEL), Some(fabric(0xab, 1, 3)));
    facts[1].gpu.mig_enabled = true;
    facts[1].links = None;
    assert_eq!(switch_pairs(&facts), [(0, 2)]);
    let (spec, odd) = of(&facts, &all_pairs(3, &Ok(())));
    assert_eq!(edges(&spec), [(0, 2, 18, Via::Switch)]);
    assert_eq!(spec.gpus[1].links, None, "unknown, not dead");
    assert_eq!(spec.domains[0].gpus, [0, 2]);
    assert!(odd.is_empty(), "{odd:?}");
}

#[test]
fn pcie_paths_are_kept_where_nvlink_does_not_join_the_pair() {
    let facts = switched(2, 2, &far(Some(2), SENTINEL), None);
    let path = Path {
        a: 0,
        b: 1,
        class: PathClass::Phb,
        bytes_per_second: 5,
        assumed: false,
    };
    let (joined, _) = spec(
        "n",
        String::new(),
        &facts,
        &PeerStatus::new(),
        vec![path.clone()],
    )
    .unwrap();
    assert_eq!(joined.paths[0].class, PathClass::Nvlink);
    let peers = all_pairs(2, &refused());
    let (apart, _) = spec("n", String::new(), &facts, &peers, vec![path.clone()]).unwrap();
    assert_eq!(apart.paths, [path]);
}

fn any_far() -> impl Strategy<Value = FarEnd> {
    let kinds = prop::sample::select(vec![None, Some(0), Some(1), Some(2), Some(0xff)]);
    let addresses = prop::option::of((0..8_u32).prop_map(bus));
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    (kinds, addresses, flags).prop_map(|(device_type, address, (hidden, is_switch, failed))| {
        FarEnd {
            device_type,
            hidden: hidden && address.is_none(),
            address,
            is_switch,
            failed,
        }
    })
}

fn any_gpu() -> impl Strategy<Value = GpuFacts> {
    let link = (any::<Option<bool>>(), any_far());
    let links = prop::option::of(prop::collection::vec(link, 0..6));
    let info = prop::option::of((0..2_u8, 0..2_u32, 0..5_u32, 0..2_u32));
    (links, info, any::<bool>()).prop_map(|(links, info, mig)| {
        let mut facts = gpu(0, Vec::new(), None);
        facts.gpu.mig_enabled = mig;
        facts.links = links.map(|links| {
            let link = |(index, (up, far))| LinkFacts {
                index: index as u32,
                up,
                bytes_per_second: None,
                far,
            };
            links.into_iter().enumerate().map(link).collect()
        });
        facts.fabric = info.map(|(cluster, clique, state, status)| FabricInfo {
            status,
            ..fabric(cluster, clique, state)
        });
        facts
    })
}

proptest! {
    /// Whatever the driver reports, the result is a document that stays the same when
    /// it is read back, without edges of GPUs with MIG and without edges over a
    /// fabric that is not ready.
    #[test]
    fn any_answers_of_the_driver_give_a_document(
        gpus in prop::collection::vec(any_gpu(), 1..7),
        denied in prop::collection::btree_set((0..7_u32, 0..7_u32), 0..8),
    ) {
        let number = |(n, mut one): (usize, GpuFacts)| {
            one.gpu.index = n as u32;
            one.gpu.uuid = Some(format!("GPU-{n}"));
            one.gpu.pci_bus_id = Some(bus(n as u32));
            one
        };
        let facts: Vec<_> = gpus.into_iter().enumerate().map(number).collect();
        let peers = denied.into_iter().map(|pair| (pair, refused())).collect();
        let (spec, _) = of(&facts, &peers);
        let mut again = spec.clone();
        again.complete("n").unwrap();
        prop_assert_eq!(&again, &spec);
        for edge in &spec.edges {
            let (a, b) = (&facts[edge.a as usize], &facts[edge.b as usize]);
            prop_assert!(!a.gpu.mig_enabled && !b.gpu.mig_enabled);
            if edge.via == Via::Switch {
                prop_assert!(!peers.contains_key(&(edge.a, edge.b)));
                prop_assert!(unregistered(a).is_none() && unregistered(b).is_none());
            }
        }
        let bare: Vec<_> = spec.gpus.iter().filter(|gpu| kinds(&spec, gpu.index as usize).contains(&RemoteKind::Switch)).collect();
        for gpu in bare {
            let alone = switch_pairs(&facts).iter().all(|&(a, b)| a != gpu.index && b != gpu.index);
            let joined = spec.edges.iter().any(|edge| edge.a == gpu.index || edge.b == gpu.index);
            prop_assert!(alone || joined, "GPU {} is reported to reach a switch", gpu.index);
        }
    }
}
