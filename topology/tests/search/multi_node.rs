//! Placement over several nodes, through the public API.

use nvlink_topology::{
    Fabric, Graph, Interconnect, NoPlacement, Pattern, Scope,
    multi_node::{Gang, Node, place_gang, place_on_best},
};

use proptest::prelude::*;

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
fn a_small_job_goes_where_it_does_least_harm() {
    let (board, bridged, bare) = (
        graph(&switched(8, 2)),
        graph(&pairs(4, 2)),
        graph(&pairs(1, 1)),
    );
    let nodes = [
        node("a-switch", &board, Interconnect::Nvswitch),
        node("b-pairs", &bridged, Interconnect::Nvlink),
        node("c-bare", &bare, Interconnect::Pcie),
    ];
    let on = |gpus| {
        place_on_best(&nodes, gpus, Pattern::AllReduce, Scope::Node)
            .unwrap()
            .0
            .name
    };
    assert_eq!(on(1), "c-bare", "one GPU needs no NVLink");
    assert_eq!(on(2), "a-switch", "18 links cost less than 4");
    assert_eq!(on(8), "a-switch");

    // It prefers a fragment to a whole domain, then the fuller node.
    let mut nodes = [
        node("a-whole", &bridged, Interconnect::Nvlink),
        node("b-fragment", &bridged, Interconnect::Nvlink),
    ];
    nodes[1].free = bridged.set(&[0, 1, 3]).unwrap();
    let (chosen, found) = place_on_best(&nodes, 1, Pattern::AllReduce, Scope::Node).unwrap();
    assert_eq!((chosen.name, &found.gpus[..]), ("b-fragment", &[3][..]));
}

#[test]
fn the_error_is_of_the_node_nearest_to_a_placement() {
    let bridged = graph(&pairs(4, 2));
    let nodes = [node("a", &bridged, Interconnect::Nvlink)];
    let reason = place_on_best(&nodes, 4, Pattern::AllReduce, Scope::NvlinkDomain).unwrap_err();
    assert_eq!(
        reason,
        NoPlacement::Scope {
            scope: Scope::NvlinkDomain,
            asked: 4,
            most: 2
        }
    );
    let reason = place_on_best(&[], 4, Pattern::AllReduce, Scope::Node).unwrap_err();
    assert_eq!(reason, NoPlacement::TooMany { asked: 4, have: 0 });
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
fn a_slow_node_comes_after_those_of_equal_cost() {
    let (board, bridged) = (graph(&switched(8, 2)), graph(&pairs(4, 2)));
    let mut nodes = [
        node("a", &board, Interconnect::Nvswitch),
        node("b", &board, Interconnect::Nvswitch),
        node("c", &bridged, Interconnect::Nvlink),
    ];
    nodes[0].slow = true;
    nodes[1].free = board.set(&[0, 1, 2, 3]).unwrap();
    let on = |nodes: &[Node<'_>], gpus| {
        let found = place_on_best(nodes, gpus, Pattern::AllReduce, Scope::Node);
        found.unwrap().0.name.to_owned()
    };
    assert_eq!(on(&nodes, 4), "b");
    assert_eq!(on(&nodes, 8), "a", "no other node can hold it");
    nodes[1].slow = true;
    assert_eq!(on(&nodes, 4), "b", "among slow ones, the one of least harm");
    assert_eq!(on(&nodes, 1), "c");
    (nodes[1].slow, nodes[2].slow) = (false, true);
    assert_eq!(on(&nodes, 1), "b", "cost is equal, and c is slow");
    assert_eq!(on(&nodes, 2), "b", "c costs more");
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

proptest! {
    /// Marks of slow nodes never raise the cost, and a slow node is chosen only if all of least
    /// cost are slow.
    #[test]
    fn slowness_decides_only_between_equal_costs(
        kinds in proptest::collection::vec((0_usize..3, 1_usize..9, any::<bool>()), 1..6),
        gpus in 1_usize..5,
    ) {
        let boards = [graph(&switched(8, 2)), graph(&pairs(4, 2)), graph(&pairs(8, 1))];
        let names: Vec<String> = (0..kinds.len()).map(|n| format!("n{n}")).collect();
        let mut nodes: Vec<Node<'_>> = names.iter().zip(&kinds).map(|(name, &(board, free, slow))| {
            let board = &boards[board];
            let free: Vec<u32> = (0..8).take(free.min(board.len())).collect();
            Node {
                free: board.set(&free).unwrap(),
                slow,
                ..node(name, board, Interconnect::Nvlink)
            }
        }).collect();
        let best = |nodes: &[Node<'_>]| {
            let found = place_on_best(nodes, gpus, Pattern::AllReduce, Scope::Node).ok()?;
            Some((found.1.cost, found.1.total_cost, found.0.slow))
        };
        let marked = best(&nodes);
        let healthy: Vec<_> = nodes.iter().filter(|node| !node.slow).cloned().collect();
        let among_healthy = best(&healthy);
        nodes.iter_mut().for_each(|node| node.slow = false);
        let unmarked = best(&nodes);
        let cost = |found: Option<(f64, f64, bool)>| found.map(|(cost, total, _)| (cost, total));
        prop_assert_eq!(cost(marked), cost(unmarked));
        if marked.is_some_and(|(.., slow)| slow) {
            prop_assert_ne!(cost(among_healthy), cost(marked));
        }
    }
}
