//! Placement over several nodes, through the public API.

use nvlink_topology::{
    Fabric, Graph, Interconnect, NoPlacement, NodeTopologySpec, Pattern, Scope,
    descriptor::Capacity,
    multi_node::{Gang, Node, place_gang},
    profile::profile,
};

use crate::boards::{graph, pairs, switched};

fn node<'a>(name: &'a str, graph: &'a Graph, interconnect: Interconnect) -> Node<'a> {
    Node {
        name,
        graph,
        free: graph.all(),
        interconnect,
        fabric: None,
        rack: None,
        zone: None,
        network_bytes_per_second: None,
        slow: false,
    }
}

fn gang(pods: usize, gpus: usize, scope: Scope) -> Gang {
    Gang {
        pods,
        gpus,
        pattern: Pattern::AllReduce,
        pod: scope.min(Scope::Node),
        scope,
        one_host: false,
        without_fabrics: false,
    }
}

#[test]
fn a_gang_goes_to_a_fabric_then_a_node_then_a_rack_then_a_zone() {
    let board = graph(&switched(4, 2));
    let fabric = Fabric::new("7b5c0000-0000-0000-0000-000000000001", 1).unwrap();
    let names = ["f1", "f2", "r1", "r2", "z1"];
    let mut nodes: Vec<_> = names
        .iter()
        .map(|name| node(name, &board, Interconnect::Nvswitch))
        .collect();
    for (at, node) in nodes.iter_mut().enumerate() {
        node.fabric = (at < 2).then_some(&fabric);
        node.rack = Some(["rack-1", "rack-1", "rack-2", "rack-2", "rack-3"][at]);
        node.zone = Some("zone-1");
    }
    let on = |gang: Gang| {
        place_gang(&nodes, &gang).map(|found| {
            let mut on: Vec<_> = found.pods.iter().map(|(node, _)| node.clone()).collect();
            on.dedup();
            (found.within, on.join(" "))
        })
    };
    let placed = |scope, nodes: &str| Ok((scope, nodes.to_owned()));
    let none = |scope, asked, most| Err(NoPlacement::Scope { scope, asked, most });
    let (domain, all) = (Scope::NvlinkDomain, "f1 f2 r1 r2 z1");
    for (asked, expected) in [
        (gang(2, 2, Scope::Zone), placed(domain, "f1")),
        (gang(2, 4, Scope::Zone), placed(domain, "f1 f2")),
        (gang(2, 4, domain), placed(domain, "f1 f2")),
        (gang(5, 4, Scope::Zone), placed(Scope::Zone, all)),
        (gang(6, 3, Scope::Cluster), none(Scope::Cluster, 18, 15)),
        (gang(3, 4, domain), none(domain, 12, 8)),
        (gang(3, 4, Scope::Rack), none(Scope::Rack, 12, 8)),
        (gang(2, 4, Scope::Node), none(Scope::Node, 8, 4)),
        (gang(0, 4, Scope::Node), Err(NoPlacement::NoGpus)),
    ] {
        assert_eq!(on(asked), expected, "{asked:?}");
    }

    // If the fabric has no room, the rack is next.
    nodes[0].free = board.set(&[0]).unwrap();
    let found = place_gang(&nodes, &gang(2, 4, Scope::Zone)).unwrap();
    assert_eq!(found.within, Scope::Rack);
    assert_eq!(found.pods[0].0, "r1");
}

#[test]
fn a_gang_uses_the_cheapest_then_the_fewest_nodes() {
    let (board, bridged) = (graph(&switched(8, 2)), graph(&pairs(4, 2)));
    let mut nodes = vec![
        node("a", &bridged, Interconnect::Nvlink),
        node("b", &board, Interconnect::Nvswitch),
        node("c", &board, Interconnect::Nvswitch),
        node("d", &board, Interconnect::Nvswitch),
    ];
    for node in &mut nodes {
        node.rack = Some("rack");
        node.network_bytes_per_second = Some(400_000_000_000);
    }
    nodes[3].network_bytes_per_second = None;
    let found = place_gang(&nodes, &gang(3, 4, Scope::Rack)).unwrap();
    let on: Vec<_> = found.pods.iter().map(|(node, _)| node.as_str()).collect();
    assert_eq!(
        on,
        ["b", "b", "c"],
        "d has a slow network, a has pairs only"
    );
    let pods = found
        .pods
        .iter()
        .flat_map(|(node, pod)| pod.gpus.iter().map(move |gpu| (node, gpu)));
    let distinct: std::collections::BTreeSet<_> = pods.clone().collect();
    assert_eq!(distinct.len(), pods.count(), "no GPU twice");
}

#[test]
fn pods_that_are_one_host_share_a_domain_of_their_node_and_others_none() {
    let bridged = graph(&pairs(4, 2));
    let nodes = [node("a", &bridged, Interconnect::Nvlink)];
    assert!(place_gang(&nodes, &gang(2, 1, Scope::NvlinkDomain)).is_err());
    let gang = |pods, gpus, scope| Gang {
        one_host: true,
        ..gang(pods, gpus, scope)
    };
    assert!(place_gang(&nodes, &gang(2, 1, Scope::NvlinkDomain)).is_ok());
    assert!(place_gang(&nodes, &gang(2, 2, Scope::NvlinkDomain)).is_err());
    assert!(place_gang(&nodes, &gang(2, 2, Scope::Node)).is_ok());
}

#[test]
fn a_gang_uses_slow_nodes_only_where_the_others_do_not_suffice() {
    let board = graph(&switched(8, 2));
    let names = ["a", "b", "c", "d"];
    let mut nodes = names.map(|name| node(name, &board, Interconnect::Nvswitch));
    for node in &mut nodes {
        node.rack = Some("rack");
    }
    nodes[0].slow = true;
    let on = |nodes: &[Node<'_>], pods, scope| {
        let found = place_gang(nodes, &gang(pods, 4, scope)).unwrap();
        let mut on: Vec<_> = found.pods.into_iter().map(|(node, _)| node).collect();
        on.dedup();
        on.join(" ")
    };
    assert_eq!(on(&nodes, 2, Scope::Node), "b", "each node is a group");
    assert_eq!(on(&nodes, 4, Scope::Rack), "b c");
    assert_eq!(on(&nodes, 8, Scope::Rack), "a b c d");
    for node in &mut nodes[1..] {
        node.free = board.set(&[0, 1, 2, 3]).unwrap();
    }
    assert_eq!(
        on(&nodes, 3, Scope::Rack),
        "b c d",
        "more nodes, none of them slow"
    );
}

/// Returns the document of a node of a machine that is built in.
fn machine(name: &str) -> NodeTopologySpec {
    profile(name).unwrap().node(name).unwrap().spec
}

/// A switch port of a GB200 is as fast as one of a B200, whichever tray the other GPU is in: an
/// all-to-all sends `(n-1)/n` of the payload through it.
#[test]
fn a_fabric_is_as_fast_as_one_node() {
    let (tray, board) = (machine("gb200-nvl72"), machine("hgx-b200"));
    let mut alone = tray.clone();
    alone.gpus.truncate(1);
    alone.domains.iter_mut().for_each(|one| one.gpus = vec![0]);
    alone.edges.clear();
    alone.paths.clear();
    alone.nics.clear();
    alone.complete("alone").unwrap();
    let [tray, alone, board] = [tray, alone, board].map(|spec| Graph::new(&spec).unwrap());
    let fabric = Fabric::new("7b5c0000-0000-0000-0000-000000000001", 1).unwrap();
    let cost = |graph: &Graph, pods: usize, gpus, pattern| {
        let names: Vec<String> = (0..pods).map(|at| at.to_string()).collect();
        let in_fabric = |name| Node {
            fabric: Some(&fabric),
            ..node(name, graph, Interconnect::Nvswitch)
        };
        let nodes: Vec<_> = names.iter().map(|name| in_fabric(name)).collect();
        let gang = Gang {
            pattern,
            ..gang(pods, gpus, Scope::Cluster)
        };
        place_gang(&nodes, &gang).unwrap().cost
    };
    for pattern in ["all-reduce", "all-to-all", "pipeline", "parameter-server"] {
        let pattern: Pattern = pattern.parse().unwrap();
        let one = cost(&board, 1, 8, pattern);
        for (graph, pods, gpus) in [(&tray, 2, 4), (&tray, 4, 2), (&alone, 8, 1)] {
            let several = cost(graph, pods, gpus, pattern);
            let told = format!("{pattern}: {pods} x {gpus} {several:e}, one node {one:e}");
            assert!((several / one - 1.0).abs() < 0.02, "{told}");
        }
    }
    let [eight, rack] = [2, 18].map(|pods| cost(&tray, pods, 4, Pattern::AllToAll));
    assert!((rack / eight - (71.0 / 72.0) / (7.0 / 8.0)).abs() < 1e-6);
}

/// Pods of one node that is in a fabric reach each other through it, whatever their scope is, and no
/// pods do where NCCL may not use it.
#[test]
fn a_fabric_joins_the_pods_of_one_of_its_nodes_unless_nccl_may_not_use_it() {
    let board = graph(&switched(8, 18));
    let fabric = Fabric::new("7b5c0000-0000-0000-0000-000000000001", 1).unwrap();
    let nodes = ["a", "b"].map(|name| Node {
        fabric: Some(&fabric),
        ..node(name, &board, Interconnect::Nvswitch)
    });
    let placed = |pods, scope, without_fabrics| {
        let gang = Gang {
            without_fabrics,
            ..gang(pods, 4, scope)
        };
        place_gang(&nodes, &gang).map(|found| (found.within, found.cost))
    };
    let near = |cost: f64, expected: f64| (cost / expected - 1.0).abs() < 1e-6;
    let network = |pods: f64| 2.0 * (4.0 * pods - 1.0) / (4.0 * pods) / 1.25e9;
    let (within, inside) = placed(2, Scope::Node, false).unwrap();
    assert_eq!(within, Scope::Node);
    assert!(near(
        inside,
        placed(2, Scope::NvlinkDomain, false).unwrap().1
    ));
    let (within, outside) = placed(2, Scope::Cluster, true).unwrap();
    assert_eq!(within, Scope::Node);
    assert!(near(outside, network(2.0)), "{outside:e}");
    let (within, outside) = placed(4, Scope::Cluster, true).unwrap();
    assert_eq!(within, Scope::Cluster);
    assert!(near(outside, network(4.0)), "{outside:e}");
    assert!(placed(2, Scope::NvlinkDomain, true).is_err());
}

/// Two pods of one board share no network card: each has those near its GPUs, four of eight.
#[test]
fn pods_of_one_node_reach_each_other_over_the_network() {
    let spec = machine("dgx-h100");
    let network = Capacity::of(&spec).inter_node;
    assert_eq!(network, Some(50_000_000_000), "400 Gbit/s per GPU");
    let graph = Graph::new(&spec).unwrap();
    let nodes = ["a", "b"].map(|name| Node {
        network_bytes_per_second: network,
        rack: Some("rack"),
        ..node(name, &graph, Interconnect::Nvswitch)
    });
    let cost = |pods, gpus, one_host| {
        let gang = Gang {
            one_host,
            ..gang(pods, gpus, Scope::Rack)
        };
        place_gang(&nodes, &gang).unwrap().cost
    };
    let near = |cost: f64, expected: f64| {
        assert!(
            (cost / expected - 1.0).abs() < 1e-6,
            "{cost:e}, {expected:e}"
        );
    };
    near(cost(2, 4, false), 2.0 * 7.0 / 8.0 / 200e9);
    near(cost(2, 8, false), cost(1, 8, false));
    near(cost(2, 4, true), cost(1, 8, false));
}
