//! What the planner is told of resources, durations and lost members, and when.

use nvlink_planner::{Reason, Why};
use nvlink_topology::labels;
use nvlink_webhook::queue::feed::id;
use serde_json::{Value, json};

use super::{NOW, Queue, of_gang, placed, pod};

/// Returns a pod without devices on the node.
fn plain(name: &str, requests: Value) -> Value {
    json!({
        "metadata": {"namespace": "kube-system", "name": name, "uid": name},
        "spec": {
            "nodeName": "n1", "containers": [{"name": "c", "resources": {"requests": requests}}],
        },
        "status": {"phase": "Running"},
    })
}

/// Returns a pod that waits for a GPU and more.
fn asking(name: &str, version: u64, requests: Value) -> Value {
    let mut pod = pod(name, 1, version);
    pod["spec"]["containers"][0]["resources"]["requests"] = requests;
    pod
}

#[test]
fn a_job_waits_for_cpu_and_memory_that_other_pods_hold() {
    let mut queue = Queue::new();
    queue.node(json!({"nvidia.com/gpu": "4", "cpu": "8", "memory": "64Gi", "pods": "3"}));
    queue
        .feed
        .pod(plain("daemon", json!({"cpu": "500m", "memory": "1Gi"})));
    queue.feed.pod(plain("build", json!({"cpu": "4"})));
    queue.feed.pod(asking("a", 1, json!({"cpu": "4"})));
    queue.feed.pod(asking("b", 2, json!({"memory": "63Gi"})));
    assert_eq!(queue.released(NOW), ["team/b"]);
    let waiting = queue.planner.round(NOW).waiting;
    assert_eq!(waiting[0].reason, Reason::Resources { asked: 1 });

    // A pod that has ended holds nothing, nor does one that is gone.
    let mut ended = plain("build", json!({"cpu": "4"}));
    ended["status"]["phase"] = json!("Succeeded");
    queue.feed.pod(ended);
    assert_eq!(queue.released(NOW), ["team/a", "team/b"]);
    queue.feed.pod(plain("build", json!({"cpu": "4"})));
    assert_eq!(queue.released(NOW), ["team/b"]);
    queue.feed.gone(&id("kube-system", "build"));
    assert_eq!(queue.released(NOW), ["team/a", "team/b"]);

    // A released pod holds what it asks for, and a place among the node's three pods.
    queue.feed.expect(&id("team", "a"), placed(&[0], 0));
    let both = asking("c", 3, json!({"cpu": "3501m"}));
    queue.feed.pod(both);
    assert_eq!(queue.released(NOW), ["team/b"]);
    queue.feed.pod(asking("c", 4, json!({"cpu": "3500m"})));
    assert_eq!(queue.released(NOW), ["team/b"], "the node takes three pods");
    queue
        .feed
        .retain_pods(&["team/a", "team/b", "team/c"].map(Into::into).into());
    assert_eq!(queue.released(NOW), ["team/b", "team/c"]);
}

#[test]
fn resources_that_some_node_has_are_counted_on_all() {
    let mut queue = Queue::new();
    queue.feed.pod(asking("a", 1, json!({"rdma/hca": "1"})));
    assert_eq!(
        queue.released(NOW),
        ["team/a"],
        "somebody else hands them out"
    );
    queue.node(json!({"nvidia.com/gpu": "4", "rdma/hca": "0"}));
    assert!(queue.released(NOW).is_empty());
    queue.node(json!({"nvidia.com/gpu": "4", "rdma/hca": "2", "hugepages-2Mi": "1Gi"}));
    queue
        .feed
        .pod(plain("db", json!({"hugepages-2Mi": "512Mi"})));
    queue
        .feed
        .pod(asking("b", 2, json!({"hugepages-2Mi": "768Mi"})));
    queue.feed.pod(asking("c", 3, json!({"rdma/hca": "2"})));
    assert_eq!(queue.released(NOW), ["team/a"]);
    queue.feed.gone(&id("team", "a"));
    queue.feed.gone(&id("kube-system", "db"));
    assert_eq!(queue.released(NOW), ["team/b", "team/c"]);
}

/// Returns a pod of the Job `j` that waits for all GPUs.
fn of_job(name: &str, version: u64, annotations: Value) -> Value {
    let mut pod = pod(name, 4, version);
    let owner = json!({"apiVersion": "batch/v1", "kind": "Job", "name": "j", "controller": true});
    pod["metadata"]["ownerReferences"] = json!([owner]);
    pod["metadata"]["annotations"] = annotations;
    pod
}

#[test]
fn the_deadline_of_a_job_limits_its_pods() {
    let mut queue = Queue::new();
    let known = json!({labels::EXPECTED_DURATION: "5m"});
    queue.feed.pod(of_job("known", 1, known));
    let wanted = queue.feed.wanted();
    assert!(wanted.is_empty(), "its author says how long it runs");
    queue.feed.pod(of_job("a", 2, json!({})));
    queue.feed.pod(of_job("b", 3, json!({})));
    let wanted = queue.feed.wanted();
    assert_eq!(wanted.len(), 1, "one read for both: {wanted:?}");
    let place = wanted.first().unwrap().clone();
    assert!(queue.feed.has(&place) && !queue.feed.needs(&place));
    let job = json!({"kind": "Job", "spec": {"activeDeadlineSeconds": 600}});
    queue.feed.object(place, Some(job));
    queue.feed.flush(&mut queue.planner, NOW);
    let duration = |pod| {
        let job = queue.planner.waiting(&id("team", pod)).unwrap();
        job.duration.map(|duration| duration.mean)
    };
    // The Job began no later than its first pod.
    let durations = ["known", "a", "b"].map(duration);
    assert_eq!(durations, [Some(300_000), Some(600_000), Some(600_000)]);
}

#[test]
fn a_new_leader_knows_the_deadline_of_a_job_that_runs() {
    let mut running = of_job("a", 4, json!({}));
    running["spec"]["schedulingGates"] = json!([]);
    running["spec"]["nodeName"] = json!("n1");
    running["status"] = json!({"phase": "Running", "startTime": "2026-08-01T10:01:00Z"});
    let mut queue = Queue::new();
    queue.feed.pod(running);
    queue.feed.pod(pod("next", 4, 5));
    let wanted = queue.feed.wanted();
    let place = wanted.first().unwrap().clone();
    let job = json!({
        "kind": "Job", "spec": {"activeDeadlineSeconds": 600},
        "status": {"startTime": "2026-08-01T10:00:30Z"},
    });
    queue.feed.object(place.clone(), Some(job));
    assert!(queue.released(NOW).is_empty());
    let eta = queue.planner.round(NOW).waiting[0].eta.unwrap();
    assert_eq!(eta.upper, NOW + 630_000);
    queue.feed.gone(&id("team", "a"));
    assert!(!queue.feed.has(&place));
    queue.feed.pod(of_job("c", 6, json!({})));
    assert_eq!(queue.feed.wanted(), wanted, "it was forgotten");
}

#[test]
fn only_what_concerns_the_queue_is_a_reason_for_a_round() {
    let mut queue = Queue::new();
    assert!(queue.feed.has_changed());
    queue.feed.pod(plain("web", json!({"cpu": "1"})));
    queue.released(NOW);
    assert!(!queue.feed.has_changed());
    let mut elsewhere = plain("web-2", json!({"cpu": "1"}));
    elsewhere["spec"]["nodeName"] = json!("without-gpus");
    queue.feed.pod(elsewhere);
    queue.feed.pod(plain("web", json!({"cpu": "1"})));
    queue.feed.gone(&id("team", "nobody"));
    assert!(!queue.feed.has_changed());
    queue.feed.gone(&id("kube-system", "web"));
    assert!(queue.feed.has_changed());
}

#[test]
fn the_queue_has_nothing_to_do_without_classes_that_queue_and_pods_that_wait() {
    let mut queue = Queue::new();
    assert!(!queue.feed.is_idle(), "a class queues");
    queue.class(Some(json!({})));
    assert!(queue.feed.is_idle());
    queue.feed.pod(pod("a", 1, 1));
    assert!(!queue.feed.is_idle(), "it must be let go");
    let mut free = pod("a", 1, 2);
    free["spec"]["schedulingGates"] = json!([]);
    queue.feed.pod(free);
    assert!(queue.feed.is_idle());
}

/// Returns the first pod of a gang of two that runs, and recorded the seat of the second one.
fn survivor() -> Value {
    let mut place = placed(&[0, 1], 0);
    let second = json!([{"pod": "b", "rank": 1, "node": "n1", "gpus": [3, 2]}]);
    place.others = serde_json::from_value(second).unwrap();
    let mut survivor = of_gang(pod("a", 2, 1), &place, true);
    survivor["spec"]["nodeName"] = json!("n1");
    survivor
}

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
