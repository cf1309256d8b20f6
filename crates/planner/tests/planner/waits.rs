//! What starts, what waits, and why, on examples.

use nvlink_planner::{
    Action, Availability, Class, Estimate, Job, NodeState, PodState, Reason, Release, Round,
    Settings, Why,
};
use nvlink_topology::{Pattern, Scope};

use crate::{
    cluster::{CLASS, With, bridges, dgx1v, job, name, pairs, switched},
    fed::Fed,
};

/// Returns a pod outside the queue that holds these GPUs until `end`.
pub(crate) fn pod(node: &str, gpus: &[u32], end: Option<i64>) -> PodState {
    PodState {
        node: node.into(),
        gpus: u32::try_from(gpus.len()).unwrap(),
        planned: gpus.to_vec(),
        bound: true,
        since: 0,
        end: end.map(Estimate::exact),
        job: None,
        class: None,
        project: "others".into(),
        priority: 0,
        resources: Vec::new(),
    }
}

/// Writes what a round says, one job a line.
pub(crate) fn told(round: &Round) -> String {
    let mut lines = Vec::new();
    for action in &round.actions {
        lines.push(match action {
            Action::Release(release) => released(release),
            Action::Reject(reject) => format!("{} rejected: {:?}", reject.job, reject.reason),
            Action::GiveBack(back) => format!(
                "{} lost {} of its seats, {} remain, until {}{}",
                back.job,
                back.vacant.len(),
                back.remaining.len(),
                back.until,
                if back.free { ", free" } else { "" }
            ),
        });
    }
    for waiting in &round.waiting {
        let eta = match waiting.eta {
            Some(eta) if eta.at_least => format!("from {}", eta.upper),
            Some(eta) if eta.mean == eta.upper => format!("at {}", eta.upper),
            Some(eta) => format!("at {} to {}", eta.mean, eta.upper),
            None => "some time".to_owned(),
        };
        lines.push(format!(
            "{} waits {}/{} {eta}: {:?}",
            waiting.job, waiting.position, waiting.class_position, waiting.reason
        ));
    }
    lines.join("\n")
}

fn released(release: &Release) -> String {
    let seats: Vec<String> = release
        .seats
        .iter()
        .map(|seat| format!("{}{:?}", seat.node.as_deref().unwrap_or("?"), seat.gpus))
        .collect();
    let why = match &release.why {
        Why::Turn => String::new(),
        why => format!(" {why:?}"),
    };
    format!("{} on {}{why}", release.job, seats.join(" "))
}

#[test]
fn whoever_can_start_starts_in_the_order_of_age() {
    let mut fed = Fed::default();
    fed.node("n", switched());
    fed.pod("p", pod("n", &[0, 1, 2, 3, 4, 5], Some(50_000)));
    fed.job("big", job(1, 8, 100));
    fed.job("long", job(2, 2, 60));
    fed.job("short", job(3, 2, 50));
    fed.job("later", job(4, 1, 10));
    let round = fed.round(0);
    assert_eq!(
        told(&round),
        "long on n[6, 7] Backfill { ahead: 1 }\n\
         big waits 1/1 at 60000: Insufficient { asked: 8, free: 2 }\n\
         short waits 2/2 at 160000: Behind { ahead: 0 }\n\
         later waits 3/3 at 50000: Behind { ahead: 0 }"
    );
    assert_eq!(round.wake, Some(50_000));
    assert_eq!(fed.fresh().round(0), round);
}

#[test]
fn the_reason_tells_full_from_fragmented_and_never() {
    let mut fed = Fed::default();
    fed.node("n", pairs());
    fed.pod("p", pod("n", &[0], Some(10_000)));
    fed.pod("q", pod("n", &[2], None));
    fed.job("pair", job(1, 2, 1));
    fed.job("four", job(2, 4, 1).scope(Scope::Node));
    fed.job("never", job(3, 4, 1));
    fed.job(
        "part",
        Job {
            complete: false,
            ..job(4, 1, 1)
        },
    );
    fed.job("one", job(5, 1, 20));
    assert_eq!(
        told(&fed.round(0)),
        "one on n[1] Backfill { ahead: 4 }\n\
         pair waits 1/1 at 20000: Fragmented { asked: 2, free: 2 }\n\
         four waits 2/2 some time: Insufficient { asked: 4, free: 2 }\n\
         never waits 3/3 some time: Never\n\
         part waits 4/4 some time: Incomplete"
    );
    let mut gone = pairs();
    gone.availability = Availability::Silent;
    fed.node("n", gone);
    let silent = fed.round(0).waiting;
    assert_eq!(silent[0].reason, Reason::Silent);
    assert_eq!(silent[2].reason, Reason::Never);
}

#[test]
fn a_quota_holds_back_only_its_project() {
    let mut fed = Fed::default();
    fed.node("n", switched());
    let most = Class {
        max_gpus_per_project: Some(4),
        ..Class::default()
    };
    fed.class(CLASS, most);
    let of = |project: &str, at, gpus| Job {
        project: project.into(),
        ..job(at, gpus, 10)
    };
    fed.job("a1", of("a", 1, 3));
    fed.job("a2", of("a", 2, 2));
    fed.job("a3", of("a", 3, 1));
    fed.job("a4", of("a", 4, 5));
    fed.job("b1", of("b", 5, 4));
    let round = fed.round(0);
    assert_eq!(
        told(&round),
        "a1 on n[0, 1, 2]\n\
         a3 on n[3] Backfill { ahead: 1 }\n\
         b1 on n[4, 5, 6, 7] Backfill { ahead: 2 }\n\
         a2 waits 1/1 at 10000: Quota { held: 0, most: 4 }\n\
         a4 waits 2/2 some time: Quota { held: 0, most: 4 }"
    );
}

#[test]
fn fair_share_gives_turns_to_projects_of_equal_priority() {
    let mut fed = Fed::new(Settings {
        fair_share: true,
        shares: [("c".into(), 2)].into(),
        ..Settings::default()
    });
    fed.node("n", pairs());
    fed.pod("p", pod("n", &[0, 1, 2, 3], Some(1_000)));
    for (at, project) in (0..).zip(["a", "a", "a", "b", "b", "c", "c", "c"]) {
        let one = Job {
            project: project.into(),
            ..job(at, 1, 10)
        };
        fed.job(&format!("{project}{at}"), one);
    }
    let urgent = Job {
        priority: 1,
        ..job(9, 1, 10)
    };
    fed.job("urgent", urgent);
    let round = fed.round(0);
    let order: Vec<&str> = round.waiting.iter().map(|one| &*one.job).collect();
    assert_eq!(order.join(" "), "urgent a0 b3 c5 c6 a1 b4 c7 a2");
}

#[test]
fn a_class_weighs_waiting_against_a_worse_placement() {
    // GPU 0 and 3 share two links; 0 and 1 share one. 3 is taken for a while.
    let start = |factor, ends: i64| {
        let mut fed = Fed::default();
        fed.node("n", dgx1v());
        let class = Class {
            waiting_factor: factor,
            ..Class::default()
        };
        fed.class(CLASS, class);
        fed.pod("p", pod("n", &[2, 3, 4, 5, 6, 7], Some(ends)));
        fed.job("pair", job(1, 2, 1_000));
        fed.round(0)
    };
    // At half the bandwidth, a fifth of 1,000 s takes 200 s more.
    let told_of = |factor, ends| told(&start(factor, ends));
    assert_eq!(told_of(None, 100_000), "pair on n[0, 1]");
    assert_eq!(
        told_of(Some(1.0), 100_000),
        "pair waits 1/1 at 100000: Better { longer: 200000 }"
    );
    let worse = told_of(Some(1.0), 300_000);
    assert!(worse.contains("wait: 300000, longer: 200000"), "{worse}");
    assert!(told_of(Some(3.0), 100_000).starts_with("pair on n[0, 1] Worse"));
}

#[test]
fn small_jobs_use_fragments_and_nodes_without_switches() {
    let mut fed = Fed::default();
    fed.node("a", switched());
    fed.node("b", switched());
    fed.node("c", pairs());
    fed.pod("p", pod("b", &[0], Some(1_000_000)));
    fed.job("one", job(1, 1, 10));
    fed.job("four", job(2, 4, 10));
    fed.job("eight", job(3, 8, 10));
    assert_eq!(
        told(&fed.round(0)),
        "one on c[0]\nfour on b[4, 5, 6, 7]\neight on a[0, 1, 2, 3, 4, 5, 6, 7]"
    );
}

/// A pair of GPUs is nearly as fast over a bridge of twelve links, and leaves the switches to larger
/// jobs; without a whole bridge it does not go over PCIe. A class that weighs waiting wants the best
/// there is.
#[test]
fn jobs_that_are_nearly_as_fast_leave_the_switches_to_others_unless_their_class_wants_the_best() {
    let start = |held: &[u32], factor, gpus| {
        let mut fed = Fed::default();
        fed.node("a", switched());
        fed.node("b", bridges());
        let class = Class {
            waiting_factor: factor,
            ..Class::default()
        };
        fed.class(CLASS, class);
        fed.pod("p", pod("b", held, Some(1_000_000)));
        fed.job("job", job(1, gpus, 1_000));
        told(&fed.round(0))
    };
    assert_eq!(start(&[0], None, 2), "job on b[2, 3]");
    assert_eq!(start(&[0, 2, 4, 6], None, 2), "job on a[0, 1]");
    assert_eq!(start(&[0], Some(1.0), 2), "job on a[0, 1]");
    assert_eq!(start(&[0], Some(1.0), 1), "job on b[1]");
    assert_eq!(start(&[0], None, 3), "job on a[0, 1, 2]");
}

/// Four GPUs of a DGX-1 are free, and three bridged pairs, which are six times as fast: what is left
/// of the DGX-1 is for the job that needs it.
#[test]
fn no_job_takes_a_placement_several_times_as_slow_to_spare_a_node() {
    let mut fed = Fed::default();
    fed.node("dgx-1", dgx1v());
    fed.pod("half", pod("dgx-1", &[0, 1, 2, 3], Some(1_000_000)));
    fed.node("q", bridges());
    fed.pod("pair", pod("q", &[0, 1], Some(1_000_000)));
    fed.job("two", job(1, 2, 1_000));
    assert_eq!(told(&fed.round(0)), "two on q[2, 3]");
    fed.job("three", job(2, 3, 1_000));
    assert_eq!(
        told(&fed.round(0)),
        "two on q[2, 3]\nthree on dgx-1[4, 5, 6]"
    );
    // The bridge spares the switches, and the DGX-1 does not.
    fed.node("r", switched());
    assert_eq!(told(&fed.round(0)), "two on q[2, 3]\nthree on r[0, 1, 2]");
}

/// A slow node comes after its siblings, and before nodes that are slower still.
#[test]
fn a_slow_node_is_faster_than_a_node_of_slower_links() {
    let mut fed = Fed::default();
    let slow = NodeState {
        slow: 1,
        ..switched()
    };
    fed.node("a", pairs());
    fed.node("b", slow);
    fed.job("two", job(1, 2, 1_000));
    assert_eq!(told(&fed.round(0)), "two on b[0, 1]");
    fed.node("c", switched());
    assert_eq!(told(&fed.round(0)), "two on c[0, 1]");
}

/// Jobs that start in the same round make room for one another, on places that are as fast. A class
/// that weighs waiting has weighed one place, so its jobs stay there.
#[test]
fn a_job_whose_class_weighs_waiting_keeps_its_place_when_another_could_use_it() {
    let start = |factor| {
        let mut fed = Fed::default();
        for (name, mut node) in [("a", switched()), ("b", bridges())] {
            node.sets.push("weighs".into());
            fed.node(name, node);
        }
        let weighs = Class {
            waiting_factor: factor,
            ..Class::default()
        };
        fed.class("weighs", weighs);
        let pair = Job {
            class: "weighs".into(),
            ..job(1, 2, 1_000)
        };
        fed.job("pair", pair);
        fed.job("whole", job(2, 8, 1_000));
        told(&fed.round(0))
    };
    assert_eq!(
        start(None),
        "pair on b[0, 1]\nwhole on a[0, 1, 2, 3, 4, 5, 6, 7]"
    );
    assert_eq!(
        start(Some(1.0)),
        "pair on a[0, 1]\n\
         whole waits 1/1 at 1000000: Behind { ahead: 0 }"
    );
}

#[test]
fn jobs_beyond_the_depth_get_a_lower_bound() {
    let mut fed = Fed::new(Settings {
        depth: 1,
        ..Settings::default()
    });
    fed.node("n", switched());
    let mut other = pairs();
    other.sets = vec!["other".into()];
    fed.node("o", other);
    fed.pod("p", pod("n", &[0, 1, 2, 3, 4, 5], Some(50_000)));
    fed.job("first", job(1, 8, 100));
    fed.job("second", job(2, 4, 10));
    fed.job("third", job(3, 1, 10));
    let elsewhere = Job {
        class: "other".into(),
        ..job(4, 1, 10)
    };
    fed.job("elsewhere", elsewhere);
    assert_eq!(
        told(&fed.round(0)),
        "third on n[6] Backfill { ahead: 2 }\n\
         elsewhere on o[0] Backfill { ahead: 2 }\n\
         first waits 1/1 at 50000: Insufficient { asked: 8, free: 2 }\n\
         second waits 2/2 from 150000: Insufficient { asked: 4, free: 2 }"
    );
}

#[test]
fn other_resources_count() {
    let mut fed = Fed::default();
    let mut node = switched();
    node.resources = vec![10];
    fed.node("n", node);
    let mut other = pod("n", &[0], Some(5_000));
    other.resources = vec![8];
    fed.pod("p", other);
    let mut hungry = job(1, 1, 10);
    hungry.members[0].resources = vec![3];
    fed.job("hungry", hungry);
    let mut never = job(2, 1, 10);
    never.members[0].resources = vec![11];
    fed.job("never", never);
    fed.job("modest", job(3, 1, 10));
    assert_eq!(
        told(&fed.round(0)),
        "modest on n[1] Backfill { ahead: 2 }\n\
         hungry waits 1/1 at 5000: Resources { asked: 1 }\n\
         never waits 2/2 some time: Never"
    );
}

#[test]
fn nobody_waits_on_free_gpus_for_pods_without_gpus_that_may_never_end() {
    let mut fed = Fed::default();
    let mut node = switched();
    node.resources = vec![10];
    fed.node("n", node);
    let daemon = PodState {
        gpus: 0,
        resources: vec![8],
        ..pod("n", &[], None)
    };
    fed.pod("daemon", daemon);
    let mut hungry = job(1, 8, 10);
    hungry.members[0].resources = vec![3];
    fed.job("hungry", hungry);
    let mut never = job(2, 8, 10);
    never.members[0].resources = vec![11];
    fed.job("never", never);
    fed.job("whole", job(3, 8, 1_000_000));
    assert_eq!(
        told(&fed.round(0)),
        "whole on n[0, 1, 2, 3, 4, 5, 6, 7] Backfill { ahead: 2 }\n\
         hungry waits 1/1 some time: Resources { asked: 8 }\n\
         never waits 2/2 some time: Never"
    );
}

#[test]
fn an_explanation_names_holders_and_those_before() {
    let mut fed = Fed::default();
    fed.node("n", switched());
    let mut low = pod("n", &[0, 1, 2, 3], Some(50_000));
    low.priority = -1;
    fed.pod("low", low);
    fed.pod("long", pod("n", &[4, 5, 6, 7], Some(900_000)));
    fed.job("first", job(1, 4, 10));
    let unlike = Job {
        pattern: Pattern::None,
        ..job(2, 4, 10)
    };
    fed.job("second", unlike);
    let explained = fed.explain("second", 0).unwrap();
    assert_eq!(explained.waiting.eta.unwrap().upper, 60_000);
    assert_eq!(explained.seats[0].gpus, [0, 1, 2, 3]);
    assert_eq!(explained.before, [name("first")]);
    let holders: Vec<_> = explained
        .holders
        .iter()
        .map(|holder| (&*holder.pod, holder.lower_priority))
        .collect();
    assert_eq!(holders, [("low", true)]);
    assert_eq!(fed.explain("nobody", 0), None);
}
