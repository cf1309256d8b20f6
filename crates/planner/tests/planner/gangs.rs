//! Gangs: whole, close together, in ring order, and what happens when members die.

use nvlink_planner::{Action, Class, Job, Member, NodeState, Why};
use nvlink_topology::{Fabric, Scope};

use crate::{
    cluster::{CLASS, With, bridges, job, name, pairs, switched},
    fed::Fed,
    waits::{pod, told},
};

fn in_rack(node: NodeState, rack: &str) -> NodeState {
    NodeState {
        rack: Some(rack.into()),
        zone: Some("zone".into()),
        ..node
    }
}

/// Starts what the round says, and returns it as text.
pub(crate) fn start(fed: &mut Fed, now: i64) -> String {
    let round = fed.round(now);
    for action in &round.actions {
        if let Action::Release(release) = action {
            fed.released(release, now);
        }
    }
    assert_eq!(fed.fresh().round(now).waiting, fed.round(now).waiting);
    told(&round)
}

#[test]
fn a_gang_shares_nodes_in_the_order_of_its_ranks() {
    let mut fed = Fed::default();
    fed.node("a", in_rack(switched(), "r1"));
    fed.node("b", in_rack(switched(), "r2"));
    fed.node("c", in_rack(switched(), "r2"));
    fed.job("gang", job(1, 0, 10).of(6, 2).scope(Scope::Zone));
    // One rack before two; as few nodes as possible.
    assert_eq!(
        start(&mut fed, 0),
        "gang on b[0, 1] b[2, 3] b[4, 5] b[6, 7] c[0, 1] c[2, 3]"
    );
}

/// Returns where a gang of whole nodes starts, in the order of its ranks, of twelve nodes without some:
/// two nodes in each rack, two racks below each leaf switch.
fn below_leaves(without: &[u8], pods: u32) -> Vec<String> {
    let mut fed = Fed::default();
    for at in (0..12).filter(|at| !without.contains(at)) {
        let state = NodeState {
            network: vec![Some(format!("leaf-{}", at / 4).into())],
            ..in_rack(switched(), &format!("r{}", at / 2))
        };
        fed.node(&at.to_string(), state);
    }
    fed.job("gang", job(1, 0, 10).of(pods, 8).scope(Scope::Zone));
    let told = start(&mut fed, 0);
    nodes(&told)
}

/// Returns the nodes on which a gang of whole nodes starts.
fn nodes(told: &str) -> Vec<String> {
    let words = told.split_whitespace();
    let nodes = words.filter_map(|word| word.split_once("[0,"));
    nodes.map(|(node, _)| node.to_owned()).collect()
}

#[test]
fn a_gang_gets_the_nodes_that_are_nearest_to_each_other() {
    assert_eq!(below_leaves(&[], 4), ["0", "1", "2", "3"]);
    // The one leaf with room for all of them.
    assert_eq!(below_leaves(&[0, 5], 4), ["8", "9", "10", "11"]);
    // All of one leaf, and a whole rack of another.
    assert_eq!(below_leaves(&[0, 5, 8], 5), ["1", "2", "3", "10", "11"]);
    // One rack before parts of two.
    assert_eq!(below_leaves(&[0, 2], 2), ["4", "5"]);
}

#[test]
fn a_gang_leaves_the_largest_racks_whole() {
    let mut fed = Fed::default();
    for (node, rack) in [
        ("a", "r1"),
        ("b", "r1"),
        ("c", "r1"),
        ("d", "r2"),
        ("e", "r2"),
    ] {
        fed.node(node, in_rack(switched(), rack));
    }
    fed.job("gang", job(1, 0, 10).of(2, 8));
    assert_eq!(nodes(&start(&mut fed, 0)), ["d", "e"]);
}

#[test]
fn a_gang_stays_within_a_fabric_if_its_scope_is_a_domain() {
    let fabric = |clique| {
        Some(Fabric {
            cluster_uuid: "f00d".to_owned(),
            clique,
        })
    };
    let mut fed = Fed::default();
    for (node, clique) in [("a", 1), ("b", 2), ("c", 2)] {
        let state = NodeState {
            fabric: fabric(clique),
            ..in_rack(switched(), "r")
        };
        fed.node(node, state);
    }
    let gang = |created, pods| {
        let gang = job(created, 0, 10).of(pods, 4);
        gang.scope(Scope::NvlinkDomain)
    };
    fed.job("gang", gang(1, 4));
    fed.job("large", gang(2, 5));
    let told = start(&mut fed, 0);
    assert_eq!(
        told,
        "gang on b[0, 1, 2, 3] b[4, 5, 6, 7] c[0, 1, 2, 3] c[4, 5, 6, 7]\n\
         large waits 1/1 some time: NeverTogether { pods: 5 }"
    );
}

#[test]
fn a_gang_that_is_too_large_for_all_nodes_is_not_told_to_label_them() {
    let mut fed = Fed::default();
    fed.node("a", switched());
    let gang = Job {
        gang_scope: Scope::Rack,
        ..job(1, 0, 10)
    };
    fed.job("gang", gang.of(2, 8));
    let never = "gang waits 1/1 some time: NeverTogether { pods: 2 }";
    assert_eq!(start(&mut fed, 0), never);
}

/// Nodes without labels, as a cluster has them on its first day.
#[test]
fn a_gang_spans_nodes_that_share_no_rack_and_no_zone_unless_it_must_not() {
    let told = |scope, one_host| {
        let mut fed = Fed::default();
        let class = Class {
            one_host,
            ..Class::default()
        };
        fed.class(CLASS, class);
        fed.node("a", switched());
        fed.node("b", switched());
        let gang = Job {
            gang_scope: scope,
            ..job(1, 0, 10)
        };
        let of = |pods, gpus| gang.clone().of(pods, gpus);
        fed.job("large", of(2, 8));
        let large = start(&mut fed, 0);
        fed.set_job("large", None);
        fed.job("small", of(2, 4));
        [large, start(&mut fed, 100_000)]
    };
    let large = "large on a[0, 1, 2, 3, 4, 5, 6, 7] b[0, 1, 2, 3, 4, 5, 6, 7]";
    let small = "small on a[0, 1, 2, 3] a[4, 5, 6, 7]";
    let never = |gang| format!("{gang} waits 1/1 some time: NeverTogether {{ pods: 2 }}");
    let waits =
        "small waits 1/1 at 100000 to 130000: Insufficient { asked: 8, free: 0 }".to_owned();
    assert_eq!(told(Scope::Cluster, false), [large.to_owned(), waits]);
    assert_eq!(told(Scope::Node, false), [never("large"), small.to_owned()]);
    for scope in [Scope::Rack, Scope::Zone] {
        let [large, _] = told(scope, false);
        assert_eq!(
            large, "large waits 1/1 some time: Unlabelled",
            "no node has a label"
        );
    }
    assert_eq!(
        told(Scope::NvlinkDomain, false),
        [never("large"), never("small")],
        "pods of one node are two hosts"
    );
    assert_eq!(
        told(Scope::NvlinkDomain, true),
        [never("large"), small.to_owned()]
    );
}

#[test]
fn each_pod_of_a_gang_is_in_one_domain_and_the_gang_in_several() {
    for scope in [Scope::Cluster, Scope::Node] {
        let mut fed = Fed::default();
        fed.node("n", bridges());
        let gang = Job {
            gang_scope: scope,
            ..job(1, 0, 10)
        };
        fed.job("gang", gang.of(4, 2));
        let told = start(&mut fed, 0);
        assert_eq!(told, "gang on n[0, 1] n[2, 3] n[4, 5] n[6, 7]", "{scope:?}");
    }
}

/// Pods of one node reach each other over its network cards, those of a fabric over NVLink.
#[test]
fn a_gang_prefers_a_fabric_to_one_node_and_its_quality_says_what_it_got() {
    let fabric = Fabric {
        cluster_uuid: "f00d".to_owned(),
        clique: 1,
    };
    let told = |held: u32| {
        let mut fed = Fed::default();
        fed.node("a", switched());
        for node in ["b", "c"] {
            let state = NodeState {
                fabric: Some(fabric.clone()),
                ..switched()
            };
            fed.node(node, state);
            let gpus: Vec<u32> = (0..held).collect();
            fed.pod(&format!("p{node}"), pod(node, &gpus, Some(50_000)));
        }
        fed.job("gang", job(1, 0, 10).of(2, 4));
        let round = fed.round(0);
        let Action::Release(release) = &round.actions[0] else {
            panic!("{}", told(&round))
        };
        (told(&round), release.scope, release.quality)
    };
    let (on, scope, quality) = told(4);
    assert_eq!(on, "gang on b[4, 5, 6, 7] c[4, 5, 6, 7]");
    assert_eq!((scope, quality), (Scope::NvlinkDomain, 1.0));
    let (on, scope, quality) = told(5);
    assert_eq!(on, "gang on a[0, 1, 2, 3] a[4, 5, 6, 7]");
    assert_eq!(scope, Scope::Node);
    assert!(quality < 0.1, "Ethernet instead of NVLink: {quality}");
}

/// Where NCCL may not use a fabric, it brings pods no closer, on one node as on several.
#[test]
fn a_fabric_that_nccl_may_not_use_counts_as_the_network() {
    let fabric = Fabric {
        cluster_uuid: "f00d".to_owned(),
        clique: 1,
    };
    let told = |scope, without_fabrics, pods| {
        let mut fed = Fed::default();
        let class = Class {
            without_fabrics,
            ..Class::default()
        };
        fed.class(CLASS, class);
        for node in ["a", "b"] {
            let state = NodeState {
                fabric: Some(fabric.clone()),
                ..switched()
            };
            fed.node(node, state);
        }
        let gang = Job {
            gang_scope: scope,
            ..job(1, 0, 10)
        };
        fed.job("gang", gang.of(pods, 4));
        let round = fed.round(0);
        let Some(Action::Release(release)) = round.actions.first() else {
            return Err(told(&round));
        };
        Ok((release.scope, release.cost, release.quality))
    };
    for pods in [2, 4] {
        let (scope, fast, quality) = told(Scope::Cluster, false, pods).unwrap();
        assert_eq!(scope, Scope::NvlinkDomain);
        assert!(quality > 0.999, "{quality}");
        let (scope, slow, quality) = told(Scope::Cluster, true, pods).unwrap();
        let expected = if pods == 2 {
            Scope::Node
        } else {
            Scope::Cluster
        };
        assert_eq!(scope, expected);
        assert!(quality > 0.999, "nothing is better: {quality}");
        assert!(slow > fast * 50.0, "Ethernet: {slow:e}, NVLink: {fast:e}");
        assert!(told(Scope::NvlinkDomain, false, pods).is_ok());
        let never = told(Scope::NvlinkDomain, true, pods).unwrap_err();
        assert!(never.contains("NeverTogether"), "{never}");
    }
}

#[test]
fn a_gang_waits_whole_for_the_earliest_rack() {
    let mut fed = Fed::default();
    for (node, rack, until) in [
        ("a", "r1", 20),
        ("b", "r1", 90),
        ("c", "r2", 50),
        ("d", "r2", 40),
    ] {
        fed.node(node, in_rack(pairs(), rack));
        fed.pod(
            &format!("p{node}"),
            pod(node, &[0, 1, 2], Some(until * 1_000)),
        );
    }
    fed.job("gang", job(1, 0, 30).of(8, 1).scope(Scope::Rack));
    fed.job("short", job(2, 1, 50));
    fed.job("long", job(3, 1, 100));
    fed.job("longer", job(4, 2, 100).scope(Scope::Node));
    assert_eq!(
        start(&mut fed, 0),
        "short on a[3] Backfill { ahead: 1 }\n\
         long on b[3] Backfill { ahead: 1 }\n\
         gang waits 1/1 at 50000: Insufficient { asked: 8, free: 2 }\n\
         longer waits 2/2 at 20000: Insufficient { asked: 2, free: 1 }"
    );
}

#[test]
fn unlike_members_share_a_node() {
    let mut fed = Fed::default();
    fed.node("n", switched());
    let member = |pod: &str, gpus, role: &str, rank| Member {
        pod: pod.into(),
        gpus,
        rank: Some(rank),
        role: Some(role.into()),
        resources: Vec::new(),
    };
    let serving = Job {
        members: vec![
            member("router", 1, "a-router", 0),
            member("decode1", 2, "b-decode", 1),
            member("decode0", 2, "b-decode", 0),
            member("prefill", 3, "c-prefill", 0),
        ],
        ..job(1, 0, 10).scope(Scope::Node)
    };
    fed.job("serving", serving);
    assert_eq!(
        start(&mut fed, 0),
        "serving on n[0] n[1, 2] n[3, 4] n[5, 6, 7]"
    );
}

#[test]
fn a_lost_member_keeps_its_seat_for_a_while_and_gets_it_back() {
    let mut fed = Fed::default();
    fed.node("n", switched());
    let gang = Job {
        duration: None,
        ..job(1, 0, 0).of(4, 2)
    };
    fed.job("gang", gang);
    assert_eq!(
        start(&mut fed, 0),
        "gang on n[0, 1] n[2, 3] n[4, 5] n[6, 7]"
    );
    fed.pod("gang-02", None);
    // It is older, but the seat is the gang's.
    fed.job("other", job(0, 1, 10));
    let report = "gang lost 1 of its seats, 3 remain, until 300000";
    assert_eq!(
        start(&mut fed, 299_999),
        format!("{report}\nother waits 1/1 at 300000: Insufficient {{ asked: 1, free: 0 }}")
    );
    // It comes back under another name, with the rank of the lost one.
    let mut back = fed.jobs[&name("gang")].clone();
    back.members = vec![Member {
        pod: "gang-again".into(),
        gpus: 2,
        rank: Some(2),
        role: None,
        resources: Vec::new(),
    }];
    fed.set_job("gang", Some(back.clone()));
    let round = fed.round(299_999);
    let Action::Release(release) = &round.actions[0] else {
        panic!("{}", told(&round))
    };
    assert_eq!((&release.why, release.seats[0].rank), (&Why::Rejoin, 2));
    assert_eq!(told(&round).lines().next(), Some("gang on n[4, 5] Rejoin"));
    // Without it, the seat is free for others after its time.
    back.members.clear();
    fed.set_job("gang", Some(back));
    assert_eq!(
        start(&mut fed, 300_000),
        format!("{report}, free\nother on n[4]")
    );
}

/// Nobody knows when the rest of the gang ends, because it waits for its member. So a job that
/// waits for the node must not keep the member out.
#[test]
fn a_member_that_comes_back_is_before_older_jobs() {
    let mut fed = Fed::default();
    fed.node("n", switched());
    let gang = Job {
        duration: None,
        ..job(1, 0, 0).of(3, 2)
    };
    fed.job("gang", gang);
    assert_eq!(start(&mut fed, 0), "gang on n[0, 1] n[2, 3] n[4, 5]");
    fed.job("other", job(2, 8, 10));
    fed.pod("gang-01", None);
    let mut back = fed.jobs[&name("gang")].clone();
    back.created = 3;
    back.members = vec![Member {
        pod: "gang-01".into(),
        gpus: 2,
        rank: Some(1),
        role: None,
        resources: Vec::new(),
    }];
    fed.set_job("gang", Some(back));
    let said = start(&mut fed, 4);
    assert!(said.starts_with("gang on n[2, 3] Rejoin"), "{said}");
}

#[test]
fn a_gang_that_lost_all_members_is_free_to_start_anew() {
    let mut fed = Fed::default();
    fed.node("n", pairs());
    fed.job("gang", job(1, 0, 10).of(2, 1));
    assert_eq!(start(&mut fed, 0), "gang on n[0] n[1]");
    fed.pod("gang-00", None);
    fed.pod("gang-01", None);
    fed.job("other", job(2, 4, 10).scope(Scope::Node));
    assert_eq!(start(&mut fed, 1), "other on n[0, 1, 2, 3]");
}

/// The pods ask for 2^32 + 8 GPUs together. A sum that wraps would be 8.
#[test]
fn a_gang_of_more_gpus_than_a_number_holds_can_never_start() {
    let huge = || job(1, 0, 10).of(2, 2_147_483_652);
    for scope in [Scope::NvlinkDomain, Scope::Node, Scope::Rack] {
        let mut fed = Fed::default();
        fed.node("a", in_rack(switched(), "r"));
        fed.node("b", in_rack(switched(), "r"));
        fed.job("huge", huge().scope(scope));
        fed.job("small", job(2, 8, 10));
        assert_eq!(
            start(&mut fed, 0),
            "small on a[0, 1, 2, 3, 4, 5, 6, 7] Backfill { ahead: 1 }\n\
             huge waits 1/1 some time: Never",
            "{scope:?}"
        );
    }
}
