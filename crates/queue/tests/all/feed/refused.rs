//! Pods that the API server lets nobody release: what they show, and when they fail.

use nvlink_queue::notice::{About, Notice, Obstacle};

use super::*;

const HOUR: i64 = 3_600_000;
const WHY: &str = "exceeded quota: claims, used: 4, limited: 4";

/// Returns the queue after the API server refused to release pod `a`; pod `b` is behind it.
fn refused() -> Queue {
    let mut queue = Queue::new();
    queue.feed.pod(pod("a", 3, 1));
    queue.feed.pod(pod("b", 3, 2));
    assert_eq!(queue.released(NOW), ["team/a"]);
    queue.feed.expect(&id("team", "a"), placed(&[0, 1, 2], 0));
    queue.feed.settle(&id("team", "a"), Some((NOW, WHY)));
    queue
}

#[test]
fn a_pod_that_cannot_be_released_says_why() {
    let mut queue = refused();
    assert_eq!(queue.released(NOW), ["team/b"], "nobody waits for it");
    let waiting = queue.planner.round(NOW).waiting.remove(0);
    let notice = Notice::new(&waiting, queue.feed.obstacle(&waiting.job));
    let member = queue.feed.member(&id("team", "a")).unwrap();
    let message = notice.message(About::from(member), NOW);
    assert_eq!(notice.word(), "Refused");
    assert_eq!(
        message,
        format!(
            "it had its turn, but the queue cannot start it and tries again: {WHY}; position 1 of class line; fails if it still waits at 11:00 UTC"
        )
    );
    // What happens next is another reason.
    let again = queue.feed.resume(NOW).unwrap();
    queue.feed.resume(again);
    queue.feed.expect(&id("team", "b"), placed(&[0, 1, 2], 0));
    assert!(queue.released(again).is_empty());
    let waiting = queue.planner.round(again).waiting.remove(0);
    assert_eq!(queue.feed.obstacle(&waiting.job), None);
    assert_eq!(waiting.reason, Reason::Insufficient { asked: 3, free: 1 });
}

#[test]
fn a_pod_that_cannot_be_released_fails_in_time() {
    let mut queue = refused();
    let a = id("team", "a");
    queue.feed.settle(&a, Some((NOW + HOUR, WHY)));
    assert_eq!(queue.rejected(NOW + HOUR), 1);
    // The API server refuses that, too: there is a pause before it is tried again.
    queue.feed.expect_leaving(&a);
    queue.feed.settle(&a, Some((NOW + HOUR, WHY)));
    assert_eq!(queue.rejected(NOW + HOUR), 0);
}

#[test]
fn a_pod_that_may_spread_waits_on() {
    let mut queue = refused();
    queue.class(Some(json!({
        "whenUnavailable": "Queue", "queueTimeout": "1h", "onQueueTimeout": "Spread",
    })));
    queue.feed.settle(&id("team", "a"), Some((NOW + HOUR, WHY)));
    assert_eq!(queue.rejected(NOW + HOUR), 0);
    let again = queue.feed.resume(NOW + HOUR).unwrap();
    queue.feed.resume(again);
    assert_eq!(queue.released(again), ["team/a"]);
}

#[test]
fn what_the_api_server_says_is_kept_in_brief() {
    let mut queue = refused();
    let said = format!(
        "Pod is invalid: {}\u{7}\n+ the whole pod",
        "x".repeat(1_000)
    );
    queue.feed.settle(&id("team", "a"), Some((NOW, &said)));
    queue.feed.flush(&mut queue.planner, NOW);
    let Some(Obstacle::Refused(why)) = queue.feed.obstacle(&"team/a".into()) else {
        panic!("no obstacle");
    };
    assert_eq!(why.chars().count(), 500);
    assert!(why.starts_with("Pod is invalid: xxx"));
}

#[test]
fn a_pod_that_cannot_follow_its_gang_fails_after_a_while() {
    let mut queue = Queue::new();
    let place = |rank: u32| Placement {
        others: Vec::new(),
        ..placed(&[rank], rank)
    };
    queue.feed.pod(of_gang(pod("a", 1, 1), &place(0), true));
    queue.feed.pod(of_gang(pod("b", 1, 2), &place(1), false));
    queue.feed.flush(&mut queue.planner, NOW);
    assert_eq!(queue.feed.committed().len(), 1, "it must follow");
    let (b, mut now) = (id("team", "b"), NOW);
    let mut refusals = 0;
    let lost = loop {
        let (lost, _) = queue.feed.lost(now);
        if let Some(lost) = lost.into_iter().find(|lost| lost.pod == b) {
            break lost;
        }
        refusals += 1;
        queue.feed.settle(&b, Some((now, WHY)));
        now = queue.feed.resume(now).unwrap();
    };
    assert!(refusals > 5 && now - NOW > 300_000, "{refusals} refusals");
    assert_eq!(lost.reason, "QueueNodeRefuses");
    assert!(lost.why.contains(WHY), "{}", lost.why);
    // That is refused, too: it is not tried again in a loop.
    queue.feed.expect_leaving(&b);
    queue.feed.settle(&b, Some((now, WHY)));
    let (lost, _) = queue.feed.lost(now);
    assert!(lost.iter().all(|lost| lost.pod != b), "{lost:?}");
}
