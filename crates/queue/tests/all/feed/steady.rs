//! Nodes whose graphs change again and again.

use nvlink_planner::Reason;

use super::{NOW, Queue, pod};

const MINUTE: i64 = 60_000;

/// Lets a node of the queue publish five new graphs within five minutes.
fn shaken() -> Queue {
    let mut queue = Queue::new();
    assert!(queue.released(NOW).is_empty());
    for change in 1..=5 {
        queue.publish(100_000_000_000 + change, None);
        let now = NOW + i64::try_from(change).unwrap() * MINUTE;
        assert!(queue.released(now).is_empty());
    }
    queue.feed.pod(pod("a", 2, 1));
    queue
}

#[test]
fn nothing_starts_on_a_node_whose_graph_changes_again_and_again() {
    let mut queue = shaken();
    let now = NOW + 6 * MINUTE;
    assert!(queue.released(now).is_empty());
    let waiting = queue.planner.round(now).waiting;
    assert_eq!(waiting[0].reason, Reason::Silent);
    assert_eq!(queue.feed.unsteady()["line"], ["n1"]);

    // Ten minutes after the first of the last five changes it has settled.
    let due = queue.feed.calm(now).unwrap();
    assert_eq!(due, NOW + 11 * MINUTE);
    assert_eq!(queue.feed.calm(due), None);
    assert_eq!(queue.released(due), ["team/a"]);
    assert!(queue.feed.unsteady().is_empty());
}

#[test]
fn it_stays_so_while_the_graph_changes() {
    let mut queue = shaken();
    for change in 6..20 {
        queue.publish(100_000_000_000 + change, None);
        let now = NOW + i64::try_from(change).unwrap() * MINUTE;
        queue.feed.calm(now);
        assert!(queue.released(now).is_empty(), "after {change} changes");
    }
}

#[test]
fn reports_of_who_holds_what_are_no_changes_of_the_graph() {
    let mut queue = Queue::new();
    queue.feed.pod(pod("a", 2, 1));
    for second in 0..60 {
        queue.report(Some(Vec::new()));
        assert_eq!(queue.released(NOW + second * 1_000), ["team/a"]);
    }
    // A few changes are those of a machine.
    for change in 1..=4 {
        queue.publish(100_000_000_000 + change, None);
        assert_eq!(queue.released(NOW + MINUTE), ["team/a"]);
    }
}

#[test]
fn a_jump_of_the_clock_neither_settles_a_node_nor_shakes_it() {
    for by in [-60 * MINUTE, 60 * MINUTE] {
        let mut queue = shaken();
        assert!(queue.released(NOW + 6 * MINUTE).is_empty());
        queue.feed.jumped(by, NOW + 6 * MINUTE);
        let now = NOW + 6 * MINUTE + by;
        assert_eq!(queue.feed.calm(now), Some(NOW + 11 * MINUTE + by));
        assert!(queue.released(now).is_empty());
    }
}
