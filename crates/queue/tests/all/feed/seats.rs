//! The seats of members that a gang has lost.

use nvlink_planner::Why;
use nvlink_queue::placement::id;
use nvlink_topology::labels;
use serde_json::json;

use super::{NOW, Queue, of_gang, placed, pod, survivor};

#[test]
fn a_new_leader_knows_the_seat_of_a_member_that_was_lost_before() {
    let mut queue = Queue::new();
    queue.feed.pod(survivor());
    let mut other = pod("c", 1, 2);
    other["spec"]["priority"] = json!(7);
    queue.feed.pod(other);
    assert!(queue.released(NOW).is_empty(), "the seat is kept");
    let mut again = of_gang(pod("b", 2, 3), &placed(&[], 0), false);
    let annotations = again["metadata"]["annotations"].as_object_mut().unwrap();
    annotations.remove(labels::QUEUE_PLACEMENT);
    queue.feed.pod(again);
    let releases = queue.releases(NOW);
    assert_eq!(releases.len(), 1);
    assert_eq!(releases[0].why, Why::Rejoin);
    let seat = &releases[0].seats[0];
    assert_eq!((&*seat.pod, seat.rank), ("team/b", 1));
    assert_eq!(seat.gpus, [3, 2], "in the same order");
}

#[test]
fn the_seat_of_a_member_that_succeeded_is_free() {
    let mut queue = Queue::new();
    queue.feed.pod(survivor());
    let mut done = of_gang(pod("b", 2, 2), &placed(&[3, 2], 1), true);
    done["spec"]["nodeName"] = json!("n1");
    done["status"]["phase"] = json!("Succeeded");
    queue.feed.pod(done);
    queue.feed.pod(pod("c", 2, 3));
    assert_eq!(queue.released(NOW), ["team/c"]);
    // Also when it is deleted later.
    queue.feed.gone(&id("team", "b"));
    assert_eq!(queue.released(NOW), ["team/c"]);
}

#[test]
fn the_seat_of_a_member_is_kept_for_a_while_after_it_was_lost() {
    const HOUR: i64 = 3_600_000;
    let lost = |at: i64| {
        let mut queue = Queue::new();
        queue.feed.pod(survivor());
        let mut second = of_gang(pod("b", 2, 2), &placed(&[3, 2], 1), true);
        second["spec"]["nodeName"] = json!("n1");
        queue.feed.pod(second);
        let mut other = pod("c", 1, 3);
        other["spec"]["priority"] = json!(7);
        queue.feed.pod(other);
        assert!(queue.released(at).is_empty(), "all GPUs are held");
        queue.feed.gone(&id("team", "b"));
        assert!(queue.released(at).is_empty(), "the seat is kept");
        queue
    };
    let again = || {
        let mut again = of_gang(pod("b", 2, 4), &placed(&[], 0), false);
        let annotations = again["metadata"]["annotations"].as_object_mut().unwrap();
        annotations.remove(labels::QUEUE_PLACEMENT);
        again["metadata"]["uid"] = json!("another");
        again
    };
    let mut queue = lost(NOW + HOUR);
    queue.feed.pod(again());
    assert_eq!(queue.released(NOW + HOUR + 299_000), ["team/b"]);
    // Later it is behind the other one, which needs one of its GPUs.
    let mut queue = lost(NOW + HOUR);
    queue.feed.pod(again());
    assert_eq!(queue.released(NOW + HOUR + 300_000), ["team/c"]);
    // A jump of the clock is no time that has passed.
    let mut queue = lost(NOW + HOUR);
    queue.feed.pod(again());
    queue.feed.jumped(HOUR, NOW + HOUR);
    assert_eq!(queue.released(NOW + 2 * HOUR + 299_000), ["team/b"]);
}
