//! Placement over several nodes, through the public API.

use nvlink_topology::{
    Fabric, Graph, Interconnect, NoPlacement, Pattern, Scope,
    multi_node::{Gang, Node, place_gang},
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
        scope,
    }
}

#[test]
fn a_gang_goes_to_a_node_then_a_fabric_then_a_rack_then_a_zone() {
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
    let expect = |scope, nodes: &str| Ok((scope, nodes.to_owned()));
    assert_eq!(on(gang(2, 2, Scope::Zone)), expect(Scope::Node, "f1"));
    assert_eq!(
        on(gang(2, 4, Scope::Zone)),
        expect(Scope::NvlinkDomain, "f1 f2")
    );
    assert_eq!(
        on(gang(2, 4, Scope::NvlinkDomain)),
        expect(Scope::NvlinkDomain, "f1 f2")
    );
    assert_eq!(
        on(gang(5, 4, Scope::Zone)),
        expect(Scope::Zone, "f1 f2 r1 r2 z1")
    );
    let none = |scope, asked, most| Err(NoPlacement::Scope { scope, asked, most });
    assert_eq!(
        on(gang(3, 4, Scope::NvlinkDomain)),
        none(Scope::NvlinkDomain, 12, 8)
    );
    assert_eq!(on(gang(3, 4, Scope::Rack)), none(Scope::Rack, 12, 8));
    assert_eq!(on(gang(2, 4, Scope::Node)), none(Scope::Node, 8, 4));
    assert_eq!(on(gang(0, 4, Scope::Node)), Err(NoPlacement::NoGpus));

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
fn a_gang_of_one_domain_does_not_spread_over_a_nodes_pairs() {
    let bridged = graph(&pairs(4, 2));
    let nodes = [node("a", &bridged, Interconnect::Nvlink)];
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
