//! The queue's feed: objects of a cluster go in, and the planner's rounds show what it was told.

mod channels;
mod dra;
mod gangs;
mod lost;
mod near;
mod nics;
mod outcomes;
mod refused;
mod resources;
mod seats;
mod spares;
mod steady;
mod successors;
mod volumes;

use std::sync::Arc;

use nvlink_admission::decide::Settings;
use nvlink_api::class::Class;
use nvlink_cluster::{
    gpus::{Hardwares, Marks},
    kinds::NodeObject,
};
use nvlink_planner::{Action, Planner, Reason, Release};
use nvlink_queue::{
    Placement,
    feed::{Feed, node::Node},
    notice::Obstacle,
    placement::id,
};
use nvlink_topology::{Allocation, NodeTopologySpec, labels};
use resources::plain;
use serde_json::{Value, json};

const NOW: i64 = 1_785_578_400_000;

/// A feed with a planner.
struct Queue {
    feed: Feed,
    planner: Planner,
    hardwares: Hardwares,
}

impl Queue {
    /// Returns the queue of a class, with one node of four GPUs in one domain.
    fn new() -> Self {
        let mut this = Self {
            feed: Feed::new(Settings::default()),
            planner: Planner::default(),
            hardwares: Hardwares::default(),
        };
        this.class(Some(
            json!({"whenUnavailable": "Queue", "queueTimeout": "1h"}),
        ));
        this.node(json!({"nvidia.com/gpu": "4"}));
        this.report(None);
        this
    }

    /// Sets what the node can hand out.
    fn node(&mut self, allocatable: Value) {
        let status = json!({
            "allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}],
        });
        let node = Node::of(&NodeObject {
            status,
            ..NodeObject::default()
        });
        self.feed.node("n1", Some(node));
    }

    fn class(&mut self, placement: Option<Value>) {
        let class = placement.map(|placement| {
            let spec = json!({ "placement": placement });
            let class = Class::new("line", &serde_json::from_value(spec).unwrap());
            Ok(Arc::new(class.unwrap()))
        });
        self.feed.class("line", class);
    }

    /// Reports who holds which GPUs of the node.
    fn report(&mut self, held: Option<Vec<Allocation>>) {
        self.publish(450_000_000_000, held);
    }

    /// Reports the same of a node whose links have this bandwidth.
    fn publish(&mut self, bytes_per_second: u64, held: Option<Vec<Allocation>>) {
        let gpus: Vec<_> = (0..4)
            .map(|index| json!({"index": index, "uuid": format!("GPU-{index}")}))
            .collect();
        let edge = |a: u32, b: u32| json!({"a": a, "b": b, "via": "switch", "links": 18, "bytesPerSecond": bytes_per_second});
        let edges: Vec<_> = (0..4)
            .flat_map(|a| (a + 1..4).map(move |b| edge(a, b)))
            .collect();
        let spec = json!({"source": {"kind": "sim"}, "gpus": gpus, "edges": edges});
        let mut spec: NodeTopologySpec = serde_json::from_value(spec).unwrap();
        spec.complete("n1").unwrap();
        let published = self.hardwares.node(&spec, Marks::default(), held);
        self.feed.topology("n1", Some(Arc::new(Ok(published))));
    }

    /// Returns what the planner releases now.
    fn releases(&mut self, now: i64) -> Vec<Release> {
        self.feed.flush(&mut self.planner, now);
        let actions = self.planner.round(now).actions.into_iter();
        let release = |action| match action {
            Action::Release(release) => Some(release),
            _ => None,
        };
        actions.filter_map(release).collect()
    }

    /// Returns how many jobs the planner rejects now.
    fn rejected(&mut self, now: i64) -> usize {
        self.feed.flush(&mut self.planner, now);
        let actions = self.planner.round(now).actions.into_iter();
        let rejects = actions.filter(|action| matches!(action, Action::Reject(_)));
        rejects.count()
    }

    /// Returns the names of the pods that the planner releases now.
    fn released(&mut self, now: i64) -> Vec<String> {
        let releases = self.releases(now);
        let seats = releases.iter().flat_map(|release| &release.seats);
        seats.map(|seat| seat.pod.to_string()).collect()
    }
}

/// Returns a pod of the class that waits.
fn pod(name: &str, gpus: u32, version: u64) -> Value {
    let limits = json!({"nvidia.com/gpu": gpus});
    json!({
        "metadata": {
            "namespace": "team", "name": name, "uid": format!("uid of {name}"),
            "resourceVersion": version.to_string(),
            "creationTimestamp": "2026-08-01T10:00:00Z",
            "labels": {labels::CLASS: "line"}, "annotations": {},
        },
        "spec": {
            "schedulingGates": [{"name": labels::QUEUE_GATE}],
            "containers": [{"name": "c", "resources": {"limits": limits}}],
        },
        "status": {"phase": "Pending"},
    })
}

fn placed(gpus: &[u32], rank: u32) -> Placement {
    let placement = json!({
        "plan": "7-1", "at": "2026-08-01T10:00:00Z", "node": "n1", "gpus": gpus, "rank": rank
    });
    serde_json::from_value(placement).unwrap()
}

/// Returns the pod of a gang of two, prepared or, without its gate, released.
fn of_gang(mut pod: Value, placement: &Placement, released: bool) -> Value {
    pod["metadata"]["annotations"] = json!({
        labels::GANG: "g", labels::GANG_SIZE: "2",
        labels::QUEUE_PLACEMENT: serde_json::to_string(placement).unwrap(),
    });
    if released {
        pod["spec"]["schedulingGates"] = json!([]);
    }
    pod
}

#[test]
fn what_is_being_written_counts_until_it_failed() {
    let mut queue = Queue::new();
    queue.feed.pod(pod("a", 3, 1));
    queue.feed.pod(pod("b", 3, 2));
    assert_eq!(queue.released(NOW), ["team/a"]);
    let a = id("team", "a");
    queue.feed.expect(&a, placed(&[0, 1, 2], 0));
    assert!(queue.released(NOW).is_empty(), "its GPUs are taken");

    // The API server refuses the write: the next job comes first until the pause is over.
    queue.feed.settle(&a, Some((NOW, "no")));
    assert_eq!(queue.released(NOW), ["team/b"]);
    let again = queue.feed.resume(NOW).unwrap();
    assert!(again > NOW);
    assert_eq!(queue.feed.resume(again), None);
    assert_eq!(queue.released(again), ["team/a"]);
}

/// From then on, pods pass a job no longer than 20 times as long as they run.
#[test]
fn the_runs_of_pods_that_ended_say_how_long_a_job_is_passed() {
    let held = |name: &str| {
        let mut held = pod(name, 1, 1);
        held["metadata"]["creationTimestamp"] = json!("2026-08-01T09:00:00Z");
        held["spec"]["schedulingGates"] = json!([]);
        held["spec"]["nodeName"] = json!("n1");
        held
    };
    let mut ended = held("ended");
    let finished = json!({"terminated": {
        "exitCode": 0, "startedAt": "2026-08-01T09:00:00Z", "finishedAt": "2026-08-01T09:01:00Z",
    }});
    ended["status"] = json!({
        "phase": "Succeeded", "startTime": "2026-08-01T09:00:00Z",
        "containerStatuses": [{"name": "c", "state": finished}],
    });
    let passed = |known: bool, minutes: i64| {
        let mut queue = Queue::new();
        queue.feed.pod(held("runs"));
        queue.feed.pod(pod("large", 4, 2));
        queue.released(NOW);
        if known {
            queue.feed.pod(ended.clone());
        }
        let mut small = pod("small", 1, 3);
        small["metadata"]["creationTimestamp"] = json!("2026-08-01T10:00:01Z");
        queue.feed.pod(small);
        queue.released(NOW + minutes * 60_000) == ["team/small"]
    };
    assert!(passed(true, 21) && !passed(true, 22), "20 times 64 seconds");
    assert!(passed(false, 22));
}

#[test]
fn a_watch_that_lags_behind_takes_nothing_back() {
    let mut queue = Queue::new();
    let mut released = pod("a", 4, 5);
    released["spec"]["schedulingGates"] = json!([]);
    let text = serde_json::to_string(&placed(&[0, 1, 2, 3], 0)).unwrap();
    released["metadata"]["annotations"] = json!({ labels::QUEUE_PLACEMENT: text });
    queue.feed.pod(released);
    queue.feed.pod(pod("a", 4, 4));
    queue.feed.pod(pod("b", 1, 6));
    assert!(queue.released(NOW).is_empty());
    // Another pod of the same name is not the same pod.
    let mut other = pod("a", 1, 3);
    other["metadata"]["uid"] = json!("another");
    queue.feed.pod(other);
    assert_eq!(queue.released(NOW), ["team/a", "team/b"]);
    queue.feed.gone(&id("team", "a"));
    assert_eq!(queue.released(NOW), ["team/b"]);
}

#[test]
fn a_gang_follows_its_first_pod_and_nobody_follows_a_mere_plan() {
    let places = [placed(&[0, 1], 0), placed(&[2, 3], 1)];
    for started in [true, false] {
        let mut queue = Queue::new();
        queue.feed.pod(of_gang(pod("a", 2, 1), &places[0], started));
        queue.feed.pod(of_gang(pod("b", 2, 2), &places[1], false));
        let mut later = pod("c", 1, 3);
        later["metadata"]["creationTimestamp"] = json!("2026-08-01T10:00:01Z");
        queue.feed.pod(later);
        let released = queue.released(NOW);
        let committed = queue.feed.committed();
        if started {
            assert_eq!(committed, [(id("team", "b"), places[1].clone())]);
            assert!(released.is_empty(), "all GPUs are taken: {released:?}");
        } else {
            assert_eq!(committed, []);
            assert_eq!(released, ["team/a", "team/b"], "they are planned again");
        }
    }
}

#[test]
fn a_gang_follows_its_first_pod_whatever_the_watches_show_first() {
    let places = [placed(&[0, 1], 0), placed(&[2, 3], 1)];
    let mut queue = Queue::new();
    queue.class(None);
    let mut first = of_gang(pod("a", 2, 1), &places[0], true);
    first["spec"]["nodeName"] = json!("n1");
    queue.feed.pod(first);
    queue.feed.pod(of_gang(pod("b", 2, 2), &places[1], false));
    queue.class(Some(json!({"whenUnavailable": "Queue"})));
    assert!(queue.released(NOW).is_empty());
    assert_eq!(
        queue.feed.committed(),
        [(id("team", "b"), places[1].clone())]
    );
}

#[test]
fn a_report_about_an_earlier_pod_of_the_same_name_does_not_count() {
    let mut queue = Queue::new();
    let mut running = pod("a", 1, 1);
    running["spec"]["schedulingGates"] = json!([]);
    running["spec"]["nodeName"] = json!("n1");
    queue.feed.pod(running);
    queue.feed.pod(pod("b", 3, 2));
    let held = |uid: &str| {
        let allocation = Allocation {
            namespace: "team".to_owned(),
            pod: "a".to_owned(),
            pod_uid: Some(uid.to_owned()),
            gpus: vec![2, 3],
            ..Allocation::default()
        };
        Some(vec![allocation])
    };
    queue.report(held("uid of a"));
    assert!(queue.released(NOW).is_empty());
    queue.report(held("earlier"));
    assert_eq!(queue.released(NOW), ["team/b"]);
}

#[test]
fn pods_leave_when_their_class_no_longer_queues() {
    let mut queue = Queue::new();
    queue.feed.pod(pod("a", 8, 1));
    assert!(queue.released(NOW).is_empty());
    assert_eq!(queue.feed.leavers(NOW), (vec![], None));
    queue.class(None);
    let (leavers, due) = queue.feed.leavers(NOW);
    assert!(leavers.is_empty(), "the class may come back");
    let due = due.unwrap();
    let (leavers, _) = queue.feed.leavers(due);
    assert_eq!(leavers[0].pod, id("team", "a"));
    assert!(leavers[0].why.contains("does not exist"), "{leavers:?}");

    queue.class(Some(json!({"whenUnavailable": "Queue"})));
    assert_eq!(queue.feed.leavers(due), (vec![], None));
    queue.class(Some(json!({})));
    let (leavers, _) = queue.feed.leavers(NOW);
    assert!(leavers[0].why.contains("does not queue any more"));
    queue.feed.expect_leaving(&id("team", "a"));
    assert_eq!(queue.feed.leavers(NOW), (vec![], None));
}

#[test]
fn a_pod_with_a_gate_of_somebody_else_holds_nothing_back() {
    let mut queue = Queue::new();
    let mut gated = pod("a", 4, 1);
    gated["spec"]["schedulingGates"] =
        json!([{"name": "example.com/x"}, {"name": labels::QUEUE_GATE}]);
    queue.feed.pod(gated);
    queue.feed.pod(pod("b", 4, 2));
    assert_eq!(queue.released(NOW), ["team/b"]);
    let gate = Obstacle::Gated("team/a".into(), "example.com/x".into());
    assert_eq!(queue.feed.obstacle(&id("team", "a")), Some(&gate));
    queue.feed.pod(pod("a", 4, 3));
    assert_eq!(queue.released(NOW), ["team/a"]);
    assert_eq!(queue.feed.obstacle(&id("team", "a")), None);
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

/// Returns a pod that claims ten seconds.
fn claims(name: &str, version: u64) -> Value {
    let mut pod = pod(name, 1, version);
    pod["metadata"]["annotations"][labels::EXPECTED_DURATION] = json!("10s");
    pod
}

#[test]
fn a_claim_is_worth_what_those_of_its_project_were_also_under_another_name() {
    let mut queue = Queue::new();
    let expected = |queue: &mut Queue, name: &str| {
        queue.released(NOW);
        let job = queue.planner.waiting(&id("team", name)).unwrap();
        job.duration.unwrap().mean
    };
    queue.feed.pod(claims("first", 1));
    assert_eq!(expected(&mut queue, "first"), 10_000);
    for (number, phase) in ["Succeeded", "Failed", "Succeeded"].into_iter().enumerate() {
        let mut ended = claims(&format!("run{number}"), 2);
        ended["spec"]["schedulingGates"] = json!([]);
        ended["spec"]["nodeName"] = json!("n1");
        let state = json!({"terminated": {"finishedAt": "2026-08-01T10:00:25Z"}});
        ended["status"] = json!({
            "phase": phase, "startTime": "2026-08-01T10:00:00Z",
            "containerStatuses": [{"name": "c", "state": state}],
        });
        queue.feed.pod(ended);
    }
    queue.feed.pod(claims("another", 3));
    assert_eq!(expected(&mut queue, "another"), 25_000);
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
