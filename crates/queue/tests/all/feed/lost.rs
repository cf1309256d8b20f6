//! Jumps of the clock, nodes that are lost, nodes that do not take a pod, and reports about pods that
//! ended.

use k8s_openapi::jiff::Timestamp;
use nvlink_cluster::kinds::NodeObject;
use nvlink_queue::{Placement, board::Board, feed::node::Node, placement::id};
use nvlink_topology::{Allocation, labels};
use serde_json::json;

use super::{NOW, Queue, placed, pod, survivor};

const HOUR: i64 = 3_600_000;

#[test]
fn a_jump_of_the_clock_is_no_time_in_the_queue() {
    for by in [HOUR, -HOUR] {
        let mut queue = Queue::new();
        queue.feed.pod(pod("a", 4, 1));
        queue
            .feed
            .expect(&id("team", "a"), placed(&[0, 1, 2, 3], 0));
        queue.feed.pod(pod("b", 4, 2));
        assert_eq!(queue.rejected(NOW), 0);
        // They may wait for an hour, of which half has passed.
        let half = NOW + HOUR / 2;
        queue.feed.jumped(by, half);
        assert_eq!(queue.rejected(half + by), 0);
        // The state of the pod changes, as it does all the time.
        queue.feed.pod(pod("b", 4, 3));
        assert_eq!(queue.rejected(NOW + HOUR + by - 1), 0);
        assert_eq!(queue.rejected(NOW + HOUR + by), 1);
    }
}

#[test]
fn a_later_leader_knows_how_long_pods_have_waited_though_the_clock_was_set() {
    for by in [24 * HOUR, -24 * HOUR] {
        let mut queue = Queue::new();
        queue.feed.pod(pod("b", 8, 1));
        let half = NOW + HOUR / 2;
        assert_eq!(queue.rejected(half), 0);
        queue.feed.jumped(by, half);
        queue.feed.flush(&mut queue.planner, half + by);
        let waiting = queue.planner.round(half + by).waiting;
        let mut board = Board::default();
        let mut shown = pod("b", 8, 1);
        for (jump, at) in [(0, half + by), (1_000, half + by + 31_000)] {
            if jump > 0 {
                queue.feed.jumped(jump, at - jump);
            }
            let tasks = board.look(&waiting, &queue.feed, false, at);
            let annotations = &tasks[0].patch["metadata"]["annotations"];
            let since = annotations[labels::QUEUE_SINCE].as_str().unwrap();
            let since: Timestamp = since.parse().unwrap();
            assert_eq!(since.as_millisecond(), NOW + by + jump);
            json_patch::merge(&mut shown["metadata"]["annotations"], annotations);
            board.posted(&id("team", "b"), true, at);
            queue.feed.pod(shown.clone());
            assert_eq!(board.look(&waiting, &queue.feed, false, at + 1_000), []);
        }

        let mut later = Queue::new();
        later.feed.pod(shown);
        assert_eq!(later.rejected(NOW + HOUR + by + 999), 0);
        assert_eq!(later.rejected(NOW + HOUR + by + 1_000), 1);
    }
}

#[test]
fn a_pause_ends_also_if_the_clock_is_set_back() {
    let mut queue = Queue::new();
    queue.feed.pod(pod("a", 4, 1));
    queue.feed.settle(&id("team", "a"), Some((NOW, "no")));
    let pause = queue.feed.resume(NOW).unwrap() - NOW;
    queue.feed.jumped(-3_600_000, NOW);
    let now = NOW - 3_600_000;
    assert_eq!(queue.feed.resume(now), Some(now + pause));
}

#[test]
fn a_pod_whose_node_is_lost_is_given_up_after_a_while() {
    let ready = |ready: &str| {
        let status = json!({
            "allocatable": {"nvidia.com/gpu": "4"},
            "conditions": [{"type": "Ready", "status": ready}],
        });
        Some(Node::of(&NodeObject {
            status,
            ..NodeObject::default()
        }))
    };
    let mut released = pod("a", 4, 1);
    released["spec"]["schedulingGates"] = json!([]);
    let text = serde_json::to_string(&placed(&[0, 1, 2, 3], 0)).unwrap();
    released["metadata"]["annotations"] = json!({ labels::QUEUE_PLACEMENT: text });
    let mut queue = Queue::new();
    queue.feed.pod(released.clone());
    assert!(queue.feed.lost(NOW).0.is_empty(), "its node is there");
    for (node, what) in [(None, "does not exist"), (ready("Unknown"), "not ready")] {
        queue.feed.node("n1", node.clone());
        let (lost, due) = queue.feed.lost(NOW);
        assert!(lost.is_empty(), "{what}: it may come back");
        let due = due.unwrap();
        // It comes back, and is lost again.
        queue.feed.node("n1", ready("True"));
        assert!(queue.feed.lost(due).0.is_empty());
        queue.feed.node("n1", node);
        assert_eq!(queue.feed.lost(due).0, []);
        let (lost, _) = queue.feed.lost(due + due - NOW);
        assert_eq!(lost[0].pod, id("team", "a"));
        assert!(lost[0].why.contains(what), "{lost:?}");
        queue.feed.node("n1", ready("True"));
        queue.feed.lost(due);
    }
    queue.feed.node("n1", None);
    queue.feed.lost(NOW);
    queue.feed.expect_leaving(&id("team", "a"));
    assert!(
        queue.feed.lost(NOW + 3_600_000).0.is_empty(),
        "it is being failed"
    );
    // The scheduler was faster.
    queue.feed.settle(&id("team", "a"), None);
    released["spec"]["nodeName"] = json!("n1");
    released["metadata"]["resourceVersion"] = json!("2");
    queue.feed.pod(released);
    assert!(queue.feed.lost(NOW + 3_600_000).0.is_empty());
}

/// Returns a pod that was released to the node, and what the scheduler says about it.
fn released(says: &str) -> serde_json::Value {
    let mut released = pod("a", 4, 1);
    released["spec"]["schedulingGates"] = json!([]);
    let text = serde_json::to_string(&placed(&[0, 1, 2, 3], 0)).unwrap();
    released["metadata"]["annotations"] = json!({ labels::QUEUE_PLACEMENT: text });
    if !says.is_empty() {
        released["status"]["conditions"] = json!([{
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": says,
        }]);
    }
    released
}

#[test]
fn each_cause_has_a_grace_period_of_its_own() {
    const SECOND: i64 = 1_000;
    let node = |ready: &str| {
        let status = json!({
            "allocatable": {"nvidia.com/gpu": "4"},
            "conditions": [{"type": "Ready", "status": ready}],
        });
        Some(Node::of(&NodeObject {
            status,
            ..NodeObject::default()
        }))
    };
    // The node is not ready for a while, then deleted and perhaps registered again.
    let mut queue = Queue::new();
    queue.feed.pod(released(""));
    queue.feed.node("n1", node("Unknown"));
    queue.feed.lost(NOW);
    queue.feed.node("n1", None);
    let deleted = NOW + 100 * SECOND;
    assert_eq!(
        queue.feed.lost(deleted),
        (vec![], Some(deleted + 30 * SECOND))
    );
    let (lost, _) = queue.feed.lost(deleted + 30 * SECOND);
    assert_eq!(lost[0].reason, "QueueNodeLost");

    // The node comes back, and the scheduler has not tried again yet.
    let mut queue = Queue::new();
    queue.feed.pod(released("0/9 nodes are available"));
    queue.feed.node("n1", node("Unknown"));
    queue.feed.lost(NOW);
    queue.feed.node("n1", node("True"));
    let back = NOW + 290 * SECOND;
    assert_eq!(queue.feed.lost(back), (vec![], Some(back + 300 * SECOND)));
    let (lost, _) = queue.feed.lost(back + 300 * SECOND);
    assert_eq!(lost[0].reason, "QueueNodeRefuses");
}

#[test]
fn a_jump_of_the_clock_moves_no_placement_that_came_after_it() {
    const HOUR: i64 = 3_600_000;
    for by in [HOUR, -HOUR] {
        for before in [true, false] {
            let mut queue = Queue::new();
            queue.feed.pod(pod("a", 2, 1));
            let (jump, after) = (NOW + 60_000, NOW + 60_000 + by);
            let placed_at = if before { jump } else { after };
            let mut survivor = survivor();
            let annotations = &mut survivor["metadata"]["annotations"];
            let text = annotations[labels::QUEUE_PLACEMENT].as_str().unwrap();
            let mut place: Placement = serde_json::from_str(text).unwrap();
            place.at = Timestamp::from_millisecond(placed_at).unwrap();
            annotations[labels::QUEUE_PLACEMENT] = serde_json::to_string(&place).unwrap().into();
            survivor["metadata"]["resourceVersion"] = json!("2");
            if before {
                queue.feed.pod(survivor);
                queue.feed.jumped(by, jump);
            } else {
                queue.feed.jumped(by, jump);
                queue.feed.pod(survivor);
            }
            let mut other = pod("c", 1, 3);
            other["spec"]["priority"] = json!(7);
            queue.feed.pod(other);
            // The seat of the lost member is kept for five minutes.
            let kept = queue.released(after + 299_000);
            assert!(kept.is_empty(), "{by} {before}: {kept:?}");
            let released = queue.released(after + 301_000);
            assert_eq!(released, ["team/c"], "{by} {before}");
        }
    }
}

#[test]
fn a_pod_that_the_scheduler_does_not_bind_is_given_up_after_a_while() {
    let mut released = pod("a", 4, 1);
    released["spec"]["schedulingGates"] = json!([]);
    let text = serde_json::to_string(&placed(&[0, 1, 2, 3], 0)).unwrap();
    released["metadata"]["annotations"] = json!({ labels::QUEUE_PLACEMENT: text });
    let says = "0/9 nodes are available: 1 node(s) had volume node affinity conflict";
    released["status"]["conditions"] = json!([{
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": says,
    }]);
    let mut queue = Queue::new();
    queue.feed.pod(released.clone());
    let (lost, due) = queue.feed.lost(NOW);
    assert!(lost.is_empty(), "another pod may still end there");
    let lost = queue.feed.lost(due.unwrap()).0;
    assert_eq!(lost[0].reason, "QueueNodeRefuses");
    assert!(lost[0].why.contains(says), "{lost:?}");
}

#[test]
fn a_pod_about_which_no_scheduler_says_anything_is_given_up_after_a_while() {
    const MINUTE: i64 = 60_000;
    let mut typo = released("");
    typo["spec"]["schedulerName"] = json!("defualt-scheduler");
    let mut queue = Queue::new();
    queue.feed.pod(typo.clone());
    assert_eq!(
        queue.feed.lost(NOW),
        (vec![], Some(NOW + 5 * MINUTE)),
        "the scheduler may have much to do"
    );
    let (lost, _) = queue.feed.lost(NOW + 5 * MINUTE);
    assert_eq!(lost[0].reason, "QueueNodeRefuses");
    assert!(lost[0].why.contains("\"defualt-scheduler\""), "{lost:?}");

    // The time begins anew when the scheduler says something.
    let mut says = released("0/9 nodes are available");
    says["metadata"]["resourceVersion"] = json!("2");
    queue.feed.pod(says);
    assert!(queue.feed.lost(NOW + 5 * MINUTE).0.is_empty());

    // A volume may have to be made first.
    typo["metadata"]["resourceVersion"] = json!("3");
    typo["spec"]["volumes"] =
        json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
    queue.feed.pod(typo);
    let began = NOW + 6 * MINUTE;
    assert_eq!(queue.feed.lost(began).1, Some(began + 15 * MINUTE));
    assert_eq!(queue.feed.lost(began + 15 * MINUTE).0.len(), 1);
}

#[test]
fn the_queue_does_not_rest_while_a_released_pod_may_need_it() {
    let mut queue = Queue::new();
    queue.class(Some(json!({})));
    let mut released = pod("a", 4, 1);
    released["spec"]["schedulingGates"] = json!([]);
    let text = serde_json::to_string(&placed(&[0, 1, 2, 3], 0)).unwrap();
    released["metadata"]["annotations"] = json!({ labels::QUEUE_PLACEMENT: text });
    queue.feed.pod(released.clone());
    assert!(!queue.feed.is_idle(), "its node may be lost");
    released["spec"]["nodeName"] = json!("n1");
    released["metadata"]["resourceVersion"] = json!("2");
    queue.feed.pod(released);
    assert!(queue.feed.is_idle());
}

#[test]
fn a_pod_that_ended_leaves_no_report_to_its_namesake() {
    let held = |uid: Option<&str>| {
        let allocation = Allocation {
            namespace: "team".to_owned(),
            pod: "a".to_owned(),
            pod_uid: uid.map(str::to_owned),
            gpus: vec![2, 3],
            ..Allocation::default()
        };
        Some(vec![allocation])
    };
    let mut ended = pod("a", 2, 1);
    ended["spec"]["schedulingGates"] = json!([]);
    ended["spec"]["nodeName"] = json!("n1");
    ended["status"]["phase"] = json!("Succeeded");
    let mut namesake = pod("a", 2, 2);
    namesake["metadata"]["uid"] = json!("namesake");
    let mut next = pod("b", 2, 3);
    next["metadata"]["creationTimestamp"] = json!("2026-08-01T10:00:01Z");
    let cases = [(true, true), (true, false), (false, false)];
    let uids = [Some("uid of a"), None];
    for ((known, gone), uid) in cases
        .into_iter()
        .flat_map(|case| uids.map(|uid| (case, uid)))
    {
        let mut queue = Queue::new();
        if known {
            queue.feed.pod(ended.clone());
        }
        // The kubelet still lists it.
        queue.report(held(uid));
        queue.released(NOW);
        if gone {
            queue.feed.gone(&id("team", "a"));
            queue.released(NOW);
        }
        queue.feed.pod(namesake.clone());
        queue.feed.expect(&id("team", "a"), placed(&[0, 1], 0));
        queue.feed.pod(next.clone());
        let releases = queue.releases(NOW);
        let gpus: Vec<_> = releases.iter().map(|one| &one.seats[0].gpus).collect();
        assert_eq!(gpus, [&[2, 3]], "{known} {gone} {uid:?}");
    }
}
