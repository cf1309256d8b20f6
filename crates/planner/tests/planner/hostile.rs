//! A node whose searches take longer than a round may take: it keeps nothing else from starting.

use std::sync::Arc;

use nvlink_planner::{Action, Availability, Millis, NodeState, Round};
use nvlink_topology::{Graph, Pattern};

use crate::{
    boards::disorder,
    cluster::{job, switched},
    fed::Fed,
    waits::pod,
};

/// Returns a node of 128 GPUs without any order.
fn hostile() -> NodeState {
    NodeState {
        graph: Some(Arc::new(Graph::new(&disorder(128)).unwrap())),
        capacity: 128,
        availability: Availability::Ready,
        sets: vec!["hostile".into()],
        ..switched()
    }
}

/// Sixteen kinds of large jobs for a node of 128 GPUs whose pods end one after the other, and a
/// job of one GPU for another node.
fn attacked() -> Fed {
    let mut fed = Fed::default();
    fed.node("a-hostile", hostile());
    fed.node("b", switched());
    for gpu in 0..64 {
        let end = Some(10_000 * i64::from(gpu + 1));
        fed.pod(&format!("p{gpu:02}"), pod("a-hostile", &[gpu], end));
    }
    let patterns = ["tp=8,dp=2", "tp=4,dp=4", "tp=4,dp=2,pp=2", "tp=2,dp=8"];
    for kind in 0..16 {
        let mut large = job(kind, 16 + u32::try_from(kind).unwrap() / 4 * 16, 100);
        large.class = "hostile".into();
        large.pattern = match kind {
            0..4 => patterns[usize::try_from(kind).unwrap()].parse().unwrap(),
            4..8 => Pattern::AllReduce,
            8..12 => Pattern::AllToAll,
            _ => Pattern::Pipeline,
        };
        fed.job(&format!("large-{kind:02}"), large);
    }
    fed.job("small", job(100, 1, 10));
    fed
}

fn started(round: &Round) -> Vec<&str> {
    let jobs = round.actions.iter().map(|action| match action {
        Action::Release(release) => &*release.job,
        _ => "",
    });
    jobs.collect()
}

#[test]
fn a_round_ends_before_all_is_searched_and_the_next_goes_on() {
    let mut fed = attacked();
    let mut now: Millis = 1_000;
    let first = fed.round(now);
    assert!(started(&first).contains(&"small"), "{first:?}");
    assert_eq!(first.wake, Some(now + 1_000), "it is not done");
    assert!(!fed.is_settled(now + 1_000));
    let began = started(&first).len();
    let mut most = began;
    for _ in 0..8 {
        now += 1_000;
        most = most.max(started(&fed.round(now)).len());
    }
    assert!(most > began, "the rounds make progress");
    assert!(
        first
            .waiting
            .iter()
            .all(|one| one.reason != nvlink_planner::Reason::Never),
        "nobody says that these jobs can never run: {first:?}"
    );
}

#[test]
fn graphs_of_real_machines_are_searched_in_one_round() {
    let mut fed = attacked();
    fed.node("a-hostile", None);
    let round = fed.round(1_000);
    assert_eq!(started(&round), ["small"]);
    assert!(fed.is_settled(1_000_000));
}
