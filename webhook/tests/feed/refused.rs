//! Pods that the API server lets nobody release: what they show, and when they fail.

use nvlink_webhook::queue::notice::{About, Notice};

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
            "it had its turn, but the queue cannot start it and tries again: {WHY}; position 1 of class line"
        )
    );
    // What happens next is another reason.
    let again = queue.feed.resume(NOW).unwrap();
    queue.feed.resume(again);
    queue.feed.expect(&id("team", "b"), placed(&[0, 1, 2], 0));
    assert!(queue.released(again).is_empty());
    let waiting = queue.planner.round(again).waiting.remove(0);
    assert_eq!(queue.feed.obstacle(&waiting.job), None);
    assert_eq!(waiting.reason, Reason::Full { asked: 3, free: 1 });
}

#[test]
fn a_pod_that_cannot_be_released_fails_in_time() {
    let mut queue = refused();
    let rejected = |queue: &mut Queue, now| {
        queue.feed.flush(&mut queue.planner, now);
        let actions = queue.planner.round(now).actions.into_iter();
        let pods = actions.filter_map(|action| match action {
            Action::Reject(reject) => Some(reject.pods),
            _ => None,
        });
        pods.flatten().filter(|pod| &**pod == "team/a").count()
    };
    let a = id("team", "a");
    queue.feed.settle(&a, Some((NOW + HOUR, WHY)));
    assert_eq!(rejected(&mut queue, NOW + HOUR), 1);
    // The API server refuses that, too: there is a pause before it is tried again.
    queue.feed.expect_leaving(&a);
    queue.feed.settle(&a, Some((NOW + HOUR, WHY)));
    assert_eq!(rejected(&mut queue, NOW + HOUR), 0);
}
