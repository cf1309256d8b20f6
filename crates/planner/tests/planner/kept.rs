//! Places that are kept for jobs that others have passed for too long.

use nvlink_planner::{Class, Job, Millis, PodState, Reason, Settings};

use crate::{
    cluster::{job, name, pairs, switched},
    fed::Fed,
    waits::{pod, told},
    world::World,
};

const MINUTE: Millis = 60_000;
const HOUR: Millis = 60 * MINUTE;

/// Returns a pod that holds these GPUs since `since`.
fn since(node: &str, gpus: &[u32], since: Millis) -> PodState {
    PodState {
        since,
        ..pod(node, gpus, None)
    }
}

/// A job of eight GPUs waits from the beginning, and a job of one arrives at `now`: reports
/// whether it passes.
fn passes(mut fed: Fed, now: Millis) -> bool {
    fed.job("big", job(0, 8, 100));
    fed.job("small", job(now, 1, 10));
    let round = fed.round(now);
    assert_eq!(fed.fresh().round(now), round);
    !round.actions.is_empty()
}

/// Returns a node of which two pods hold six GPUs since these times. Nobody knows how long the pods of
/// the class run.
fn node(first: Millis, second: Millis) -> Fed {
    let mut fed = Fed::default();
    fed.node("n", switched());
    fed.pod("p", since("n", &[0, 1, 2], first));
    fed.pod("q", since("n", &[3, 4, 5], second));
    fed
}

/// Returns the node, with a class of which the pods run for so long.
fn running(usual_run: Millis) -> Fed {
    let mut fed = node(1, 2);
    let class = Class {
        usual_run: Some(usual_run),
        ..Class::default()
    };
    fed.class("class", class);
    fed
}

#[test]
fn a_job_is_passed_for_20_times_as_long_as_the_pods_of_its_class_run() {
    assert!(passes(running(2 * MINUTE), 40 * MINUTE - 1));
    assert!(!passes(running(2 * MINUTE), 40 * MINUTE));
    let mut fed = running(2 * MINUTE);
    fed.job("big", job(0, 8, 100));
    assert_eq!(fed.round(35 * MINUTE).wake, Some(40 * MINUTE));
}

#[test]
fn a_job_is_passed_for_ten_minutes_at_least_and_two_days_at_most() {
    assert!(passes(running(1), 10 * MINUTE - 1));
    assert!(!passes(running(1), 10 * MINUTE));
    for long in [24 * HOUR, Millis::MAX] {
        assert!(passes(running(long), 48 * HOUR - 1));
        assert!(!passes(running(long), 48 * HOUR));
    }
    assert!(passes(node(1, 2), 48 * HOUR - 1));
    assert!(!passes(node(1, 2), 48 * HOUR));
}

/// As pods end, those that run longest are left. The place stays kept.
#[test]
fn a_kept_place_is_kept_until_it_is_free() {
    let mut fed = running(1);
    fed.job("big", job(0, 8, 100));
    fed.job("small", job(0, 1, 10));
    assert!(fed.round(10 * MINUTE).actions.is_empty());
    fed.pod("p", None);
    assert!(fed.round(11 * MINUTE).actions.is_empty());
    fed.pod("q", None);
    assert!(told(&fed.round(12 * MINUTE)).starts_with("big on n["));
}

/// What users say of run times moves nothing: a job that says that it ends at once does not
/// start on a place that is kept.
#[test]
fn a_kept_place_is_for_nobody_else_whatever_they_say() {
    let mut fed = running(1);
    fed.node("o", switched());
    fed.pod("r", since("o", &[0], -HOUR));
    fed.job("big", job(0, 8, 100));
    for at in 0..9 {
        fed.job(&format!("small{at}"), job(1 + at, 1, 0));
    }
    let round = fed.round(10 * MINUTE);
    let told = told(&round);
    assert_eq!(round.actions.len(), 7, "{told}");
    assert!(!told.contains("on n["), "{told}");
    let explained = fed.explain("big", 10 * MINUTE).unwrap();
    assert_eq!(explained.seats[0].node.as_deref(), Some("n"));
    let holders: Vec<&str> = explained.holders.iter().map(|one| &*one.pod).collect();
    assert_eq!(holders, ["p", "q"]);
    // Nobody knows when these end.
    assert_eq!(explained.waiting.eta, None);
}

#[test]
fn one_place_is_kept_at_a_time_on_the_same_nodes() {
    let mut fed = running(1);
    let usual_run = Some(1);
    let class = Class {
        usual_run,
        ..Class::default()
    };
    fed.class("other", class);
    let mut other = switched();
    other.sets = vec!["other".into()];
    fed.node("o", other);
    fed.pod("r", since("o", &[0], 1));
    fed.node("b", pairs());
    fed.pod("s", since("b", &[0], 1));
    fed.job("big", job(0, 8, 100));
    fed.job("four", job(0, 4, 100));
    let elsewhere = Job {
        class: "other".into(),
        ..job(0, 8, 100)
    };
    fed.job("elsewhere", elsewhere);
    let now = 10 * MINUTE;
    let small = |class: &str, gpus| Job {
        class: class.into(),
        ..job(now, gpus, 10)
    };
    fed.job("small", small("class", 1));
    fed.job("other", small("other", 1));
    let round = fed.round(now);
    // There is one place ahead of it on the nodes of its class.
    let other = round.waiting.iter().find(|one| &*one.job == "other");
    assert_eq!(
        other.map(|one| &one.reason),
        Some(&Reason::Behind { ahead: 1 })
    );
    // On b, where a job of four GPUs in one domain has no place anyway.
    let told = told(&round);
    assert!(told.starts_with("small on b["), "{told}");
    assert_eq!(round.actions.len(), 1, "{told}");
}

/// The place is where the pods have run shortest, and stays there: after two days, those that
/// start elsewhere are taken never to end.
#[test]
fn a_kept_place_stays_where_it_is() {
    let mut fed = Fed::default();
    for name in ["a", "b"] {
        fed.node(name, switched());
    }
    fed.pod("long", since("a", &[0], 1));
    fed.pod("short", since("b", &[0], 47 * HOUR));
    fed.job("big", job(0, 8, 100));
    let place = |fed: &mut Fed, now| {
        let explained = fed.explain("big", now).unwrap();
        explained.seats[0].node.clone().unwrap()
    };
    assert_eq!(&*place(&mut fed, 48 * HOUR), "b");
    fed.pod("long", None);
    fed.pod("new", since("a", &[0], 49 * HOUR));
    assert_eq!(&*place(&mut fed, 50 * HOUR), "b");
}

/// Two users start jobs of four GPUs that claim ten seconds, each under a new name, and each runs
/// a little longer; the next one comes when one of them ends. A job of all eight GPUs is first in
/// the order, and starts once it has waited for ten minutes.
#[test]
fn small_jobs_that_take_turns_do_not_pass_a_large_one_for_ever() {
    const RUNS: Millis = 11_000;
    let mut world = World::new(Settings::default());
    world.fed.node("n", switched());
    // What the pods of the class do, and not what they claim.
    let usual_run = Some(RUNS);
    let class = Class {
        usual_run,
        ..Class::default()
    };
    world.fed.class("class", class);
    let mut ends = [(0, "small-00"), (RUNS / 2, "small-01")].map(|(at, id)| (at, name(id)));
    let (mut number, mut passed) = (2, 0);
    while !world.started.contains_key("large") {
        ends.sort_unstable();
        world.now = ends[0].0;
        world.end(&name(format!("{}-00", ends[0].1)));
        let id = format!("small-{number:02}");
        world.fed.job(&id, job(world.now, 4, 10));
        if number == 3 {
            world.fed.job("large", job(world.now, 8, 100));
        }
        world.step();
        passed += usize::from(number > 3 && world.started.contains_key(&*id));
        ends[0] = (world.now + RUNS, name(id));
        number += 1;
        assert!(world.now < HOUR, "it was passed by {passed} jobs");
    }
    let waited = world.now - RUNS / 2;
    assert!(waited < 10 * MINUTE + 2 * RUNS, "{waited} ms");
    // Two at a time, in ten minutes.
    assert!(passed < 120, "{passed} jobs");
}
