//! What happens to jobs that have waited too long.

use nvlink_planner::{Action, Class, Deadline, Job, OnTimeout};
use nvlink_topology::Scope;

use crate::{
    cluster::{CLASS, With, job, pairs, switched},
    fed::Fed,
    waits::{pod, told},
};

/// Returns a job whose deadline is after nine seconds.
fn until(then: OnTimeout, job: Job) -> Job {
    Job {
        deadline: Some(Deadline { at: 9_000, then }),
        ..job
    }
}

#[test]
fn a_deadline_rejects_or_spreads() {
    let mut fed = Fed::default();
    fed.node("n", pairs());
    fed.pod("p", pod("n", &[0, 2], Some(50_000)));
    fed.job("reject", until(OnTimeout::Reject, job(1, 2, 10)));
    fed.job("spread", until(OnTimeout::Spread, job(1, 2, 10)));
    let early = fed.round(8_999);
    assert!(early.actions.is_empty());
    assert_eq!(early.wake, Some(9_000));
    let late = fed.round(9_000);
    let told = told(&late);
    assert!(told.starts_with("reject rejected: Fragmented"), "{told}");
    assert!(
        told.contains("spread on n[1, 3] Spread { best_cost: "),
        "{told}"
    );
    assert!(late.waiting.is_empty());
    let Action::Release(spread) = &late.actions[1] else {
        panic!("{told}")
    };
    assert!(spread.quality < 1.0 && spread.scope == Scope::Node);
}

#[test]
fn a_deadline_waits_for_a_place_that_is_free_in_a_moment() {
    let mut fed = Fed::default();
    fed.node("n", switched());
    fed.pod("leaves", pod("n", &[0, 1, 2, 3, 4, 5, 6, 7], Some(20_000)));
    fed.job("next", until(OnTimeout::Reject, job(1, 8, 10)));
    let round = fed.round(9_000);
    assert!(round.actions.is_empty(), "{}", told(&round));
    assert_eq!(round.waiting.len(), 1);
    assert_eq!(round.wake, Some(20_000));
    // It is free earlier.
    let mut early = fed.fresh();
    early.pod(&"leaves".into(), None);
    let released = told(&early.round(19_000));
    assert!(released.starts_with("next on n"), "{released}");
    // It is not free after all.
    fed.pod("leaves", pod("n", &[0, 1, 2, 3, 4, 5, 6, 7], Some(50_000)));
    let round = told(&fed.round(29_000));
    assert!(round.starts_with("next rejected: "), "{round}");
    // Nothing is about to be free.
    let mut far = Fed::default();
    far.node("n", switched());
    far.pod("stays", pod("n", &[0, 1, 2, 3, 4, 5, 6, 7], Some(30_000)));
    far.job("next", until(OnTimeout::Reject, job(1, 8, 10)));
    let round = told(&far.round(9_000));
    assert!(round.starts_with("next rejected: "), "{round}");
}

/// A pod without a place would get the next GPUs that are free from the scheduler, before the
/// jobs ahead of it.
#[test]
fn a_spread_pod_without_room_waits_in_its_place_and_needs_no_domain_any_more() {
    let mut fed = Fed::default();
    fed.node("n", pairs());
    fed.pod("p", pod("n", &[0], Some(50_000)));
    fed.pod("q", pod("n", &[2], Some(60_000)));
    fed.pod("r", pod("n", &[1, 3], Some(90_000)));
    fed.job("ahead", job(1, 1, 10));
    fed.job("spread", until(OnTimeout::Spread, job(2, 2, 10)));
    fed.job("behind", job(3, 1, 10));
    // In one domain it could start at 90,000 at the earliest.
    assert_eq!(
        told(&fed.round(9_000)),
        "ahead waits 1/1 at 50000: Insufficient { asked: 1, free: 0 }\n\
         spread waits 2/2 at 60000: Insufficient { asked: 2, free: 0 }\n\
         behind waits 3/3 at 70000: Insufficient { asked: 1, free: 0 }"
    );
    fed.pod("p", None);
    fed.pod("q", None);
    let round = fed.round(10_000);
    assert_eq!(fed.fresh().round(10_000), round);
    assert_eq!(
        told(&round),
        "ahead on n[0]\n\
         behind on n[2] Backfill { ahead: 1 }\n\
         spread waits 1/1 at 20000: Behind { ahead: 0 }"
    );
}

#[test]
fn a_spread_pod_that_no_node_can_hold_is_rejected() {
    let mut fed = Fed::default();
    fed.node("n", pairs());
    fed.job("spread", until(OnTimeout::Spread, job(1, 5, 10)));
    assert_eq!(told(&fed.round(9_000)), "spread rejected: Never");
}

/// It starts once it may spread, so nobody has to change it.
#[test]
fn a_job_that_can_start_only_spread_is_not_impossible() {
    let mut fed = Fed::default();
    fed.node("n", pairs());
    fed.job("spread", until(OnTimeout::Spread, job(1, 4, 10)));
    fed.job("large", until(OnTimeout::Spread, job(2, 5, 10)));
    fed.job("fails", until(OnTimeout::Reject, job(3, 4, 10)));
    assert_eq!(
        told(&fed.round(1_000)),
        "spread waits 1/1 some time: Spreads\n\
         large waits 2/2 some time: Never\n\
         fails waits 3/3 some time: Never"
    );
    let round = told(&fed.round(9_000));
    assert!(
        round.starts_with("spread on n[0, 1, 2, 3] Spread"),
        "{round}"
    );
}

/// Nothing that a gang took before it turned out that not all its pods have room is kept.
#[test]
fn a_gang_is_spread_whole_or_rejected() {
    let spread = |held: &[u32]| {
        let mut fed = Fed::default();
        let most = Class {
            max_gpus_per_project: Some(5),
            ..Class::default()
        };
        fed.class(CLASS, most);
        for node in ["a", "b"] {
            let mut state = pairs();
            state.resources = vec![1];
            fed.node(node, state);
        }
        fed.pod("p", pod("b", held, Some(50_000)));
        let mut gang = job(1, 0, 10).of(2, 2);
        gang.gang_scope = Scope::Node;
        for member in &mut gang.members {
            // So the two pods do not share a node.
            member.resources = vec![1];
        }
        fed.job("gang", until(OnTimeout::Spread, gang));
        let other = Job {
            pattern: nvlink_topology::Pattern::None,
            ..job(2, 4, 10).scope(Scope::Node)
        };
        fed.job("other", other);
        told(&fed.round(9_000))
    };
    assert_eq!(
        spread(&[0, 1, 2]),
        "gang rejected: Spreads\nother on a[0, 1, 2, 3]"
    );
    let whole = spread(&[0, 1]);
    assert!(
        whole.starts_with("gang on a[0, 1] b[2, 3] Spread"),
        "{whole}"
    );
    assert!(whole.contains("\nother waits"), "{whole}");
}

/// What is spread is not given to a job that overtakes in the same round.
#[test]
fn gpus_of_a_spread_job_are_taken() {
    let mut fed = Fed::default();
    fed.node("n", switched());
    fed.node("m", pairs());
    fed.pod("p", pod("n", &[0, 1, 2, 3], Some(50_000)));
    fed.pod("q", pod("m", &[0, 2], Some(50_000)));
    fed.job("big", job(1, 8, 100));
    let mut spread = until(OnTimeout::Spread, job(2, 2, 10));
    spread.within = vec!["few".into()];
    let mut few = pairs();
    few.sets.push("few".into());
    fed.node("m", few);
    fed.job("spread", spread);
    fed.job("short", job(3, 4, 10));
    fed.job("one", job(4, 1, 10));
    let told = told(&fed.round(9_000));
    assert!(told.contains("spread on m[1, 3] Spread"), "{told}");
    assert!(told.contains("short on n[4, 5, 6, 7]"), "{told}");
    assert!(told.contains("one waits"), "{told}");
}

#[test]
fn a_deadline_does_not_lift_the_quota() {
    let mut fed = Fed::default();
    let most = Class {
        max_gpus_per_project: Some(4),
        ..Class::default()
    };
    fed.class(CLASS, most);
    fed.node("n", switched());
    fed.node("m", switched());
    let mut own = pod("n", &[0, 1, 2], Some(50_000));
    own.class = Some(CLASS.into());
    own.project = "project".into();
    fed.pod("p", own);
    fed.job("pod", until(OnTimeout::Spread, job(1, 2, 10)));
    fed.job("gang", until(OnTimeout::Spread, job(2, 0, 10).of(2, 4)));
    fed.job("one", until(OnTimeout::Spread, job(3, 1, 10)));
    assert_eq!(
        told(&fed.round(9_000)),
        "pod rejected: Quota { held: 3, most: 4 }\n\
         gang rejected: Quota { held: 3, most: 4 }\n\
         one on n[3]"
    );
}
