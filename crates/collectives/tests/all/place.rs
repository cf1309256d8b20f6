//! Where runs took place, and what the model says.

use std::time::Duration;

use nvlink_collectives::{
    Collective, Expected, Given, Placed,
    model::{self, Site},
    placement::place,
    run::{Known, Origin},
};
use nvlink_source::SourceSpec;
use nvlink_topology::{NodeTopologySpec, PathClass};

use crate::{
    run,
    samples::{LOG, Test},
};

fn spec(profile: &str) -> NodeTopologySpec {
    let source: SourceSpec = format!("sim:{profile}").parse().unwrap();
    let mut source = source.open(Some("node-a")).unwrap();
    source.read(Duration::from_secs(100)).unwrap().topology.spec
}

/// Returns what the model says of rings, and of switches that add up.
fn both(
    collective: Collective,
    node: &NodeTopologySpec,
    used: Option<&[u32]>,
    gpus: u32,
    nodes: u32,
) -> Option<(u64, Option<u64>)> {
    let site = Site {
        node,
        used,
        gpus,
        nodes,
    };
    let expected = model::expected(collective, site, None)?;
    let nvls = expected.nvls.map(|nvls| nvls.bytes_per_second);
    Some((expected.bytes_per_second, nvls))
}

/// Returns what the model says of rings.
fn expected(
    collective: Collective,
    node: &NodeTopologySpec,
    used: Option<&[u32]>,
    gpus: u32,
    nodes: u32,
) -> Option<u64> {
    both(collective, node, used, gpus, nodes).map(|(rings, _)| rings)
}

/// Returns number of GPUs, number of nodes and path, and where they come from.
fn parts(placed: &Placed) -> [Option<(String, Origin)>; 4] {
    let place = &placed.place;
    [
        place
            .model
            .as_ref()
            .map(|one| (one.value.clone(), one.from)),
        place
            .gpus
            .as_ref()
            .map(|one| (one.value.to_string(), one.from)),
        place
            .nodes
            .as_ref()
            .map(|one| (one.value.to_string(), one.from)),
        place
            .path
            .as_ref()
            .map(|one| (one.value.as_str().to_owned(), one.from)),
    ]
}

#[test]
fn each_part_comes_from_what_knows_it_best() {
    use Origin::{Flag, Log, Output, Topology};
    let known = |text: &str, from| Some((text.to_owned(), from));
    let model = "NVIDIA H100 80GB HBM3";
    let (none, node) = (Given::default(), spec("dgx-h100"));
    let eight = run(&Test::all_reduce(8, 200.0).text());
    let alone = parts(&place(eight.clone(), &none, None));
    assert_eq!(
        alone,
        [
            known(model, Output),
            known("8", Output),
            known("1", Output),
            None
        ]
    );
    let placed = place(eight.clone(), &none, Some(&node));
    assert_eq!(parts(&placed)[3], known("NVLINK", Topology));
    let nvls = placed.expected.unwrap().nvls.unwrap();
    assert_eq!(nvls.expected, Known::new(true, Topology));
    let log = run(LOG);
    let of_log = [None, known("2", Log), known("1", Log), known("NVLINK", Log)];
    assert_eq!(parts(&place(log, &none, None)), of_log);
    let given = Given {
        collective: Some(Collective::SendRecv),
        model: Some("X".to_owned()),
        gpus: Some(4),
        nodes: Some(2),
        path: Some(PathClass::Sys),
        nvls: Some(false),
    };
    let flags = place(eight, &given, Some(&node));
    assert_eq!(
        parts(&flags),
        [
            known("X", Flag),
            known("4", Flag),
            known("2", Flag),
            known("SYS", Flag)
        ]
    );
    assert_eq!(flags.run.collective.unwrap().value, Collective::SendRecv);
}

#[test]
fn a_table_alone_is_placed_by_its_bandwidths_and_the_topology() {
    use Origin::{Bandwidths, Topology};
    let known = |text: &str, from| Some((text.to_owned(), from));
    let (none, node) = (Given::default(), spec("dgx-h100"));
    let test = Test {
        new: false,
        ..Test::all_reduce(8, 200.0)
    };
    let table = run(&(test.table() + &test.foot()));
    let placed = parts(&place(table, &none, Some(&node)));
    let expected = [
        known("NVIDIA H100 80GB HBM3", Topology),
        known("8", Bandwidths),
        known("1", Topology),
        known("NVLINK", Topology),
    ];
    assert_eq!(placed, expected);
}

#[test]
fn gpus_are_found_by_their_pci_addresses() {
    let node = spec("a100-pcie-pairs");
    let addresses = |gpus: &[usize], whole: bool| {
        let mut found = run(&Test::all_reduce(gpus.len() as u32, 20.0).text());
        for (device, &gpu) in found.devices.iter_mut().zip(gpus) {
            let address = node.gpus[gpu].pci_bus_id.as_deref().unwrap().to_lowercase();
            let parts: Vec<_> = address.split([':', '.']).collect();
            device.pci = match whole {
                true => format!("{}:{}:{}", &parts[0][4..], parts[1], parts[2]),
                false => format!("0x{}", parts[1]),
            };
        }
        let placed = place(found, &Given::default(), Some(&node));
        let expected = placed.expected.as_ref().map(Expected::of_run);
        (placed.place.path.map(|path| path.value), expected)
    };
    let pair = node.edges[0].clone();
    let (a, b) = (pair.a as usize, pair.b as usize);
    let other = (0..node.gpus.len())
        .find(|&gpu| gpu != a && gpu != b)
        .unwrap();
    for whole in [true, false] {
        let (path, expected) = addresses(&[a, b], whole);
        assert_eq!(
            (path, expected),
            (Some(PathClass::Nvlink), Some(pair.bytes_per_second))
        );
        let (path, across) = addresses(&[a, other], whole);
        assert!(
            path > Some(PathClass::Nvlink) && across < expected,
            "{path:?} {across:?}"
        );
    }
}

#[test]
fn what_the_model_says() {
    use Collective::{AllGather, AllReduce, AllToAll, Broadcast, Reduce, ReduceScatter, SendRecv};
    let dgx = spec("dgx-h100");
    for one in [
        AllReduce,
        AllGather,
        ReduceScatter,
        Broadcast,
        Reduce,
        AllToAll,
    ] {
        // Every resource is a GPU's 18 links.
        assert_eq!(
            expected(one, &dgx, None, 8, 1),
            Some(370_800_000_000),
            "{one}"
        );
        assert_eq!(
            expected(one, &dgx, Some(&[0, 5]), 2, 1),
            Some(370_800_000_000),
            "{one}"
        );
    }
    assert_eq!(expected(SendRecv, &dgx, None, 8, 1), None);
    assert_eq!(expected(AllReduce, &dgx, None, 1, 1), None);
    assert_eq!(
        expected(AllReduce, &dgx, None, 16, 1),
        None,
        "more than the node has"
    );
    // A DGX-1 holds six rings of one link.
    let volta = spec("dgx1-v100");
    assert_eq!(
        expected(AllReduce, &volta, None, 8, 1),
        Some(120_000_000_000)
    );
    let mut blind = dgx;
    blind.edges.clear();
    blind.gpus.iter_mut().for_each(|gpu| gpu.links = None);
    assert_eq!(expected(AllReduce, &blind, None, 8, 1), None);
    assert_eq!(blind.slowest_path(&[0, 1]), None);
}

#[test]
fn several_nodes_are_as_fast_as_their_nics() {
    use Collective::{AllReduce, AllToAll};
    let mut two = spec("dgx-h100");
    // Two nodes: eight NICs of 400 Gbit/s, or fewer.
    let rates: u64 = two.nics.iter().filter_map(|nic| nic.bytes_per_second).sum();
    let across = expected(AllReduce, &two, None, 16, 2);
    assert_eq!(across, (rates > 0).then(|| rates.min(370_800_000_000)));
    for nic in &mut two.nics {
        nic.bytes_per_second = Some(25_000_000_000);
    }
    let near = two.nics.iter().filter(|nic| !nic.gpus.is_empty()).count() as u64;
    let least = (near * 25_000_000_000).min(370_800_000_000);
    assert_eq!(expected(AllReduce, &two, None, 16, 2), Some(least));
    assert_eq!(expected(AllToAll, &two, None, 16, 2), None);
    two.nics[0].bytes_per_second = None;
    assert_eq!(
        expected(AllReduce, &two, None, 16, 2),
        None,
        "a rate is not known"
    );
    // The fabric of a rack spans 18 nodes.
    let rack = spec("gb200-nvl72");
    assert_eq!(
        expected(AllReduce, &rack, None, 72, 18),
        Some(721_800_000_000)
    );
}

#[test]
fn switches_add_up_all_reduces_from_hopper_on() {
    use Collective::{AllGather, AllReduce, ReduceScatter};
    let gb = |both: Option<(u64, Option<u64>)>| {
        let (rings, nvls) = both.unwrap();
        (rings / 100_000_000, nvls.map(|nvls| nvls / 100_000_000))
    };
    let [dgx, b200, rack] = ["dgx-h100", "hgx-b200", "gb200-nvl72"].map(spec);
    // About 480 GB/s are measured on eight H100, 838 on eight B200, 835 to 847 on an NVL72.
    assert_eq!(gb(both(AllReduce, &dgx, None, 8, 1)), (3708, Some(4788)));
    assert_eq!(gb(both(AllReduce, &b200, None, 8, 1)), (7218, Some(8370)));
    assert_eq!(gb(both(AllReduce, &rack, None, 72, 18)), (7218, Some(8370)));
    // Few GPUs gain nothing, and the links of each GPU bound what it must receive or send.
    assert_eq!(
        gb(both(AllReduce, &dgx, Some(&[0, 1, 2, 3]), 4, 1)),
        (3708, None)
    );
    assert_eq!(
        gb(both(AllReduce, &dgx, Some(&[0, 1, 2, 3, 4, 6]), 6, 1)),
        (3708, Some(4397))
    );
    assert_eq!(gb(both(AllReduce, &dgx, None, 6, 1)), (3708, Some(4397)));
    for one in [AllGather, ReduceScatter] {
        assert_eq!(gb(both(one, &dgx, None, 8, 1)), (3708, None));
    }
    // Eight nodes of eight H100 on InfiniBand measure 373 to 386.
    assert_eq!(gb(both(AllReduce, &dgx, None, 64, 8)), (3708, None));
    // Switches before Hopper, and direct links.
    for board in ["dgx-a100", "a100-pcie-pairs", "dgx1-v100"] {
        let node = spec(board);
        let all = node.gpus.len() as u32;
        assert_eq!(
            both(AllReduce, &node, None, all, 1).unwrap().1,
            None,
            "{board}"
        );
    }
    // A GPU outside the domain.
    let mut torn = dgx.clone();
    torn.edges.retain(|edge| edge.a != 7 && edge.b != 7);
    torn.domains[0].gpus.pop();
    assert_eq!(both(AllReduce, &torn, None, 8, 1).unwrap().1, None);
}

/// Lines of NCCL's log.
const SUPPORT: &str = "NVLS multicast support is available on dev 0";
const NO_SUPPORT: &str = "NVLS multicast support is not available on dev 0";
const CHANNELS: &str = "24 coll channels, 24 collnet channels, 16 nvls channels, 32 p2p channels, 32 p2p channels per peer";
const NO_CHANNELS: &str = "24 coll channels, 24 collnet channels, 0 nvls channels, 32 p2p channels, 32 p2p channels per peer";
const RING: &str = "AllReduce: 8589934592 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..23}";
const OFF: &str = "NCCL_NVLS_ENABLE set by environment to 0.";

/// What a log says comes before the topology, and a flag before the log.
#[test]
fn the_log_then_the_topology_decides_whether_switches_add_up() {
    use Origin::{Flag, Log, Topology};
    let node = spec("dgx-h100");
    let test = Test::all_reduce(8, 200.0);
    let with = |lines: &[&str], flag| {
        let lines = lines
            .iter()
            .map(|line| format!("gpu-0:4000:4010 [0] NCCL INFO {line}\n"));
        let text = test.head() + &lines.collect::<String>() + &test.table() + &test.foot();
        let given = Given {
            nvls: flag,
            ..Given::default()
        };
        let placed = place(run(&text), &given, Some(&node));
        let expected = placed.expected.unwrap();
        let nvls = expected.nvls.clone().unwrap().expected;
        let warned = placed
            .run
            .warnings
            .iter()
            .any(|one| one.contains("has no NVLS"));
        (expected.of_run() / 100_000_000, nvls.from, warned)
    };
    assert_eq!(with(&[], None), (4788, Topology, false));
    assert_eq!(with(&[SUPPORT, CHANNELS], None), (4788, Log, false));
    assert_eq!(with(&[NO_SUPPORT], None), (3708, Log, true));
    assert_eq!(
        with(&[SUPPORT, NO_CHANNELS], None),
        (3708, Log, true),
        "no channels"
    );
    assert_eq!(
        with(&[OFF, NO_CHANNELS], None),
        (3708, Log, false),
        "as somebody wants it"
    );
    assert_eq!(
        with(&[SUPPORT, CHANNELS, RING], None),
        (3708, Log, false),
        "NCCL chose rings"
    );
    assert_eq!(
        with(&[SUPPORT, NO_CHANNELS], Some(true)),
        (4788, Flag, false)
    );
    assert_eq!(with(&[SUPPORT, CHANNELS], Some(false)), (3708, Flag, false));
    assert_eq!(with(&[], Some(false)), (3708, Flag, false));
}
