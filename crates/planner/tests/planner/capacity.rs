//! Which GPUs are free, from what the API and the exporter say.

use nvlink_planner::{Class, Held, Job, NodeState};
use nvlink_topology::{BrokenGpus, Scope};

use crate::{
    cluster::{CLASS, With, job, pairs, switched},
    fed::Fed,
    waits::{pod, told},
};

fn held(pod: Option<&str>, gpus: &[u32]) -> Held {
    Held {
        pod: pod.map(Into::into),
        gpus: gpus.to_vec(),
    }
}

/// Returns on which GPUs a job of `gpus` GPUs starts.
fn start(fed: &mut Fed, gpus: u32) -> String {
    fed.job("job", job(1, gpus, 10).scope(Scope::Node));
    told(&fed.round(0))
}

#[test]
fn the_report_wins_over_the_plan_and_the_api_over_the_report() {
    let mut fed = Fed::default();
    let reported = NodeState {
        held: vec![
            held(Some("moved"), &[2, 3]),
            held(Some("gone"), &[4, 5]),
            held(None, &[7]),
        ],
        ..switched()
    };
    fed.node("n", reported);
    fed.pod("moved", pod("n", &[0, 1], Some(99_000)));
    // Its GPU went to `moved`, so it holds another one, and nobody knows which.
    fed.pod("displaced", pod("n", &[3], Some(99_000)));
    fed.pod("released", pod("n", &[6], Some(99_000)));
    // 2 3 moved, 7 outside, 6 released, 0 displaced: 1 4 5 are free.
    assert_eq!(start(&mut fed, 3), "job on n[1, 4, 5]");
}

#[test]
fn gpus_that_are_out_and_held_count_once() {
    let mut fed = Fed::default();
    let reported = NodeState {
        held: vec![held(Some("pod"), &[0, 1]), held(None, &[1, 2])],
        ..switched()
    };
    fed.node("n", reported);
    fed.pod("pod", pod("n", &[0, 1], Some(99_000)));
    assert_eq!(start(&mut fed, 5), "job on n[3, 4, 5, 6, 7]");
}

#[test]
fn the_scheduler_s_count_limits_what_the_report_leaves() {
    let mut fed = Fed::default();
    let fewer = NodeState {
        capacity: 3,
        ..switched()
    };
    fed.node("n", fewer);
    let mut unknown = pod("n", &[], Some(5_000));
    unknown.gpus = 1;
    fed.pod("p", unknown);
    assert_eq!(
        start(&mut fed, 3),
        "job waits 1/1 at 5000: Insufficient { asked: 3, free: 2 }"
    );
    assert_eq!(start(&mut fed, 2), "job on n[1, 2]");
}

#[test]
fn a_node_without_a_description_has_a_count_and_no_domain() {
    let mut fed = Fed::default();
    let bare = NodeState {
        graph: None,
        capacity: 4,
        ..pairs()
    };
    fed.node("n", bare);
    assert_eq!(start(&mut fed, 3), "job on n[]");
    fed.job("job", job(1, 2, 10));
    assert_eq!(told(&fed.round(0)), "job waits 1/1 some time: Never");
    fed.job("job", job(1, 5, 10).scope(Scope::Node));
    assert_eq!(told(&fed.round(0)), "job waits 1/1 some time: Never");
}

#[test]
fn broken_gpus_are_left_out_or_come_last() {
    let mut fed = Fed::default();
    let broken = NodeState {
        broken: vec![0],
        ..pairs()
    };
    fed.node("n", broken);
    fed.class(CLASS, Class::default());
    assert_eq!(start(&mut fed, 1), "job on n[1]");
    assert_eq!(start(&mut fed, 2), "job on n[2, 3]");
    assert_eq!(start(&mut fed, 4), "job on n[0, 1, 2, 3]");
    let avoid = Class {
        broken: BrokenGpus::Avoid,
        ..Class::default()
    };
    fed.class(CLASS, avoid);
    assert_eq!(told(&fed.round(0)), "job waits 1/1 some time: Never");
}

/// Returns a board whose GPUs are in partitions of eight, four and two, and alone.
fn divided() -> NodeState {
    let fours = [vec![0, 1, 4, 5], vec![2, 3, 6, 7]];
    let twos = [vec![0, 4], vec![1, 5], vec![2, 6], vec![3, 7]];
    let ones = (0..8).map(|gpu| vec![gpu]);
    let all = fours.into_iter().chain(twos).chain(ones);
    NodeState {
        partitions: Some(all.chain([(0..8).collect()]).collect()),
        ..switched()
    }
}

#[test]
fn a_pod_gets_exactly_one_partition_and_splits_no_larger_one_without_need() {
    for (held_now, gpus, expected) in [
        (&[][..], 2, "job on n[0, 4]"),
        (&[], 4, "job on n[0, 1, 4, 5]"),
        (&[], 8, "job on n[0, 1, 2, 3, 4, 5, 6, 7]"),
        (&[], 3, "job waits 1/1 some time: Never"),
        // The partitions of 0 and 4 are held: those of the other four GPUs stay whole.
        (&[0], 1, "job on n[4]"),
        (&[0], 2, "job on n[1, 5]"),
        (&[0], 4, "job on n[2, 3, 6, 7]"),
        // Four GPUs are free, in two partitions of two.
        (
            &[0, 2, 4, 6],
            4,
            "job waits 1/1 at 99000: Fragmented { asked: 4, free: 4 }",
        ),
    ] {
        let mut fed = Fed::default();
        fed.node("n", divided());
        for gpu in held_now {
            let pod = pod("n", &[*gpu], Some(99_000));
            fed.pod(&format!("p{gpu}"), pod);
        }
        assert_eq!(start(&mut fed, gpus), expected, "{held_now:?}");
    }
}

#[test]
fn pods_of_a_gang_share_no_node_with_partitions() {
    let mut fed = Fed::default();
    let in_zone = || NodeState {
        zone: Some("z".into()),
        ..divided()
    };
    fed.node("a", in_zone());
    let gang = || job(1, 1, 10).of(2, 4).scope(Scope::Zone);
    fed.job("gang", gang());
    assert_eq!(
        told(&fed.round(0)),
        "gang waits 1/1 some time: NeverTogether { pods: 2 }"
    );
    fed.node("b", in_zone());
    assert_eq!(told(&fed.round(0)), "gang on a[0, 1, 4, 5] b[0, 1, 4, 5]");
    fed.job("gang", gang().scope(Scope::Node));
    assert_eq!(
        told(&fed.round(0)),
        "gang waits 1/1 some time: NeverTogether { pods: 2 }"
    );
    fed.node("c", switched());
    assert_eq!(told(&fed.round(0)), "gang on c[0, 1, 2, 3] c[4, 5, 6, 7]");
}

#[test]
fn a_slow_node_comes_last() {
    let mut fed = Fed::default();
    let slow = NodeState { slow: 1, ..pairs() };
    fed.node("a", slow);
    fed.node("b", pairs());
    fed.job("one", job(1, 2, 10));
    fed.job("two", job(2, 2, 10));
    fed.job("three", job(3, 2, 10));
    assert_eq!(
        told(&fed.round(0)),
        "one on b[0, 1]\ntwo on b[2, 3]\nthree on a[0, 1]"
    );
}

#[test]
fn an_overdue_pod_moves_the_estimate_and_a_clock_set_back_moves_it_again() {
    let mut fed = Fed::default();
    fed.node("n", pairs());
    fed.pod("p", pod("n", &[0, 1, 2, 3], Some(10_000)));
    fed.job("job", Job { ..job(1, 2, 10) });
    for (now, eta) in [
        (0, "at 10000"),
        (10_000, "at 10000 to 70000"),
        (3_600_000, "at 3600000 to 3850000"),
        (5_000, "at 10000"),
    ] {
        let round = fed.round(now);
        assert!(told(&round).contains(eta), "{now}: {}", told(&round));
        assert_eq!(fed.fresh().round(now), round);
    }
}
