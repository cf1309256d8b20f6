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
fn start(fed: &mut Fed, now: i64) -> String {
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
    let waits = "small waits 1/1 at 100000 to 130000: Full { asked: 8, free: 0 }".to_owned();
    assert_eq!(told(Scope::Cluster, false), [large.to_owned(), waits]);
    assert_eq!(told(Scope::Node, false), [never("large"), small.to_owned()]);
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
         gang waits 1/1 at 50000: Full { asked: 8, free: 2 }\n\
         longer waits 2/2 at 20000: Full { asked: 2, free: 1 }"
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
        format!("{report}\nother waits 1/1 at 300000: Full {{ asked: 1, free: 0 }}")
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

/// Returns the pods that come back to a gang, each with its GPUs and rank.
fn back(fed: &Fed, members: &[(&str, u32, Option<u32>)]) -> Job {
    let member = |&(pod, gpus, rank): &(&str, u32, Option<u32>)| Member {
        pod: pod.into(),
        gpus,
        rank,
        role: None,
        resources: Vec::new(),
    };
    Job {
        members: members.iter().map(member).collect(),
        ..fed.jobs[&name("gang")].clone()
    }
}

/// Returns a gang of two pods with two GPUs each, of which one is lost. Its project may hold
/// four.
fn lost_one() -> Fed {
    let mut fed = Fed::default();
    let most = Class {
        max_gpus_per_project: Some(4),
        ..Class::default()
    };
    fed.class(CLASS, most);
    fed.node("n", switched());
    fed.node("m", switched());
    fed.job("gang", job(1, 0, 100).of(2, 2));
    assert_eq!(start(&mut fed, 0), "gang on m[0, 1] m[2, 3]");
    fed.pod("gang-01", None);
    fed
}

#[test]
fn as_many_members_rejoin_as_seats_are_vacant_and_the_others_are_under_the_quota() {
    let mut fed = lost_one();
    let names: Vec<String> = (0..20).map(|at| format!("new{at:02}")).collect();
    let members: Vec<_> = names.iter().map(|name| (&**name, 2, None)).collect();
    let many = back(&fed, &members);
    fed.set_job("gang", Some(many));
    assert_eq!(start(&mut fed, 1), "gang on m[2, 3] Rejoin");
    assert_eq!(fed.pods.len(), 2);
    assert_eq!(
        start(&mut fed, 1),
        "gang waits 1/1 some time: Quota { held: 4, most: 4 }"
    );
}

#[test]
fn a_member_does_not_rejoin_with_more_gpus_than_its_seat_had() {
    let mut fed = lost_one();
    let larger = back(&fed, &[("gang-01", 4, Some(1))]);
    fed.set_job("gang", Some(larger));
    let told = start(&mut fed, 1);
    assert!(
        told.ends_with("gang waits 1/1 at 1 to 100000: Quota { held: 2, most: 4 }"),
        "{told}"
    );
    // Of two, the one that fits takes the seat, whatever their names and ranks.
    let both = back(&fed, &[("a", 4, Some(1)), ("b", 2, None)]);
    fed.set_job("gang", Some(both));
    assert_eq!(start(&mut fed, 1), "gang on m[2, 3] Rejoin");
    assert!(fed.pods.contains_key(&name("b")));
}

/// Who is no true member waits for its turn like everybody.
#[test]
fn surplus_members_do_not_overtake() {
    let mut fed = lost_one();
    fed.class(CLASS, Class::default());
    let two = back(&fed, &[("new0", 2, None), ("new1", 2, None)]);
    fed.set_job("gang", Some(Job { created: 9, ..two }));
    fed.pod("p", pod("n", &[0, 1, 2, 3, 4, 5, 6], Some(50_000)));
    fed.job("first", job(2, 4, 100));
    fed.job("second", job(3, 4, 100));
    // Its seats are free for others again once it sits there.
    assert_eq!(
        start(&mut fed, 10).lines().next(),
        Some("gang on m[2, 3] Rejoin")
    );
    let told = start(&mut fed, 10);
    assert_eq!(
        told,
        "first on m[4, 5, 6, 7]\n\
         second waits 1/1 at 50000: Behind { ahead: 0 }\n\
         gang waits 2/2 at 50000: Behind { ahead: 0 }"
    );
}

/// One small pod of a gang stays alive. What its author creates much later, under the name of the
/// other one, is under order and quota like everybody.
#[test]
fn after_a_while_a_member_that_comes_back_has_no_privilege() {
    const HOLD: i64 = 300_000;
    let quota = |most| Class {
        max_gpus_per_project: Some(most),
        ..Class::default()
    };
    let mut fed = lost_one();
    fed.class(CLASS, quota(3));
    let again = back(&fed, &[("gang-01", 2, Some(1))]);
    fed.set_job(
        "gang",
        Some(Job {
            created: 9,
            ..again.clone()
        }),
    );
    let told_at = |fed: &mut Fed, now| told(&fed.round(now));
    let rejoins = "gang on m[2, 3] Rejoin";
    assert!(told_at(&mut fed, HOLD - 1).starts_with(rejoins));
    let told = told_at(&mut fed, HOLD);
    assert!(told.ends_with("Quota { held: 2, most: 3 }"), "{told}");

    // Within the quota it waits for its turn.
    fed.class(CLASS, quota(8));
    fed.pod("p", pod("n", &[0, 1, 2, 3, 4, 5], None));
    fed.job("first", job(2, 6, 100));
    let told = told_at(&mut fed, HOLD);
    assert!(told.starts_with("first on m[2, 3, 4, 5, 6, 7]"), "{told}");
    assert!(!told.contains(rejoins), "{told}");
    // Nobody is ahead: it starts near the rest of its gang.
    fed.set_job("first", None);
    let told = told_at(&mut fed, HOLD);
    assert_eq!(told, rejoins);

    // It lost the member again, a while later: the seat is kept again.
    fed.job("first", job(2, 6, 100));
    let lost = Job {
        released: HOLD,
        created: 9,
        ..again
    };
    fed.set_job("gang", Some(lost));
    let told = told_at(&mut fed, 2 * HOLD - 1);
    assert!(told.starts_with(rejoins), "{told}");
}

/// It waits as long as others for a place that is kept for it.
#[test]
fn a_member_that_comes_back_late_is_not_passed_for_ever() {
    const HOUR: i64 = 3_600_000;
    let mut fed = lost_one();
    fed.class(CLASS, Class::default());
    fed.node("n", None);
    let again = back(&fed, &[("gang-01", 2, Some(1))]);
    fed.set_job(
        "gang",
        Some(Job {
            created: 9,
            ..again
        }),
    );
    fed.pod("p", pod("m", &[2], Some(100 * HOUR)));
    fed.pod("q", pod("m", &[4, 5, 6, 7], None));
    let small = |created| job(created, 1, 100);
    fed.job("small", small(10));
    assert!(told(&fed.round(HOUR)).starts_with("small on m[3] Backfill"));
    let told = told(&fed.round(49 * HOUR));
    assert!(!told.contains("small on"), "{told}");
}
