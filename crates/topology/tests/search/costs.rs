//! The cost of a placement, with and without flows that share links, ports and uplinks.

use nvlink_topology::{
    Graph, NoPlacement, PathClass, Pattern, Request, Scope, bandwidth, place, search,
};

use super::{
    boards::{self, board, dgx1v, graph, switched},
    request,
};

/// Returns the bandwidth of an all-reduce over exactly these GPUs, in GB/s.
fn all_reduce(graph: &Graph, gpus: &[u32]) -> u64 {
    let held = graph.set(gpus).unwrap();
    let rated = search::rate(graph, held, held, Pattern::AllReduce).unwrap();
    rated.bottleneck_bytes_per_second.unwrap() / 1_000_000_000
}

#[test]
fn an_all_reduce_runs_on_as_many_rings_as_the_links_hold() {
    let pairs = (0..4).flat_map(|a| (a + 1..4).map(move |b| (a, b, 4)));
    let board_of_four = graph(&board(4, 1, &pairs.collect::<Vec<_>>()));
    // Twelve rings of one link of 20 GB/s, as behind switches.
    assert_eq!(all_reduce(&board_of_four, &[0, 1, 2, 3]), 240);
    assert_eq!(
        all_reduce(&board_of_four, &[0, 1, 2]),
        160,
        "in both directions, four links each"
    );
    assert_eq!(
        all_reduce(&board_of_four, &[0, 3]),
        80,
        "a pair has its own links only"
    );

    let cube = graph(&dgx1v());
    assert_eq!(all_reduce(&cube, &[0, 1, 2, 3]), 80, "4 rings");
    assert_eq!(all_reduce(&cube, &[1, 2, 5, 6]), 40, "2 rings");
    assert_eq!(all_reduce(&cube, &[0, 1, 2, 3, 4, 5, 6, 7]), 120, "6 rings");
    // 0-1 has one link, 1-5 two. The path from 5 to 0 leads back through 1.
    assert_eq!(all_reduce(&cube, &[0, 1, 5]), 20);
    // One link each of 1-2 would be enough for a ring, but no link joins 0 to 5 and 6.
    let worse = place(
        &cube,
        &request(4, cube.set(&[1, 2, 5, 6]).unwrap(), Pattern::AllReduce),
    );
    assert_eq!(worse.unwrap().quality.node, 0.5);
}

#[test]
fn transfers_over_one_socket_link_share_it() {
    let graph = graph(&board(8, 2, &[]));
    // A split of 3 + 1 sends three flows over the socket link; 2 + 2 would send four.
    let free = graph.set(&[0, 1, 2, 4, 5]).unwrap();
    let found = place(&graph, &request(4, free, Pattern::AllToAll)).unwrap();
    assert_eq!(found.gpus, [0, 1, 2, 4]);
    let sys = bandwidth::assumed(PathClass::Sys);
    assert_eq!(found.bottleneck_bytes_per_second, Some(sys));
    assert!(
        (found.cost * sys as f64 - 3.0 / 4.0).abs() < 1e-6,
        "{found:?}"
    );
}

#[test]
fn direct_links_run_in_parallel_and_flows_share_a_port() {
    let pairs = (0..4).flat_map(|a| (a + 1..4).map(move |b| (a, b, 4)));
    let mesh = graph(&board(4, 1, &pairs.collect::<Vec<_>>()));
    let found = place(&mesh, &request(4, mesh.all(), Pattern::AllToAll)).unwrap();
    assert!(
        (found.cost * 80e9 - 0.25).abs() < 1e-6,
        "each link carries one flow: {found:?}"
    );
    let switch = graph(&switched(4, 1));
    let found = place(&switch, &request(4, switch.all(), Pattern::AllToAll)).unwrap();
    assert!(
        (found.cost * 360e9 - 0.75).abs() < 1e-6,
        "a port carries three: {found:?}"
    );
}

#[test]
fn the_scope_nvlink_domain_keeps_every_flow_on_nvlink() {
    let graph = graph(&dgx1v());
    let ask = |gpus: &[u32], pattern| {
        let free = graph.set(gpus).unwrap();
        let scope = Scope::NvlinkDomain;
        place(
            &graph,
            &Request {
                scope,
                ..request(gpus.len(), free, pattern)
            },
        )
    };
    for pattern in [
        Pattern::AllReduce,
        Pattern::AllToAll,
        Pattern::Pipeline,
        Pattern::ParameterServer,
    ] {
        let refused = ask(&[0, 5], pattern).unwrap_err();
        assert_eq!(refused, NoPlacement::OffNvlink { asked: 2, pattern });
        // The path leads through 1, as in NCCL.
        let found = ask(&[0, 1, 5], pattern).unwrap();
        assert_eq!(
            found.bottleneck_bytes_per_second,
            Some(20_000_000_000),
            "{pattern}"
        );
        assert!(ask(&[0, 1, 2, 3, 4, 5, 6, 7], pattern).is_ok(), "{pattern}");
    }
    // 4 reaches 2 only through 0 or 6, and neither is free.
    assert!(ask(&[1, 2, 4], Pattern::AllToAll).is_err());
    assert!(ask(&[0, 5], Pattern::None).is_ok(), "no GPU communicates");
    let fabric = boards::graph(&switched(20, 2));
    let all = Request {
        scope: Scope::NvlinkDomain,
        ..request(18, fabric.all(), Pattern::AllToAll)
    };
    assert_eq!(place(&fabric, &all).unwrap().gpus.len(), 18);
}
