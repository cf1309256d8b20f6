//! Pods that do not wait in the queue.

use kubectl_nvlink::status::{Kind, Objects};
use nvlink_topology::labels;
use serde_json::{Value, json};

use super::{
    check,
    cluster::{NOW, busy, class, pod, running, waiting, with},
    explained, try_explain,
};

/// Returns the busy cluster with one more pod.
fn and(pod: Value) -> Objects {
    let mut objects = busy();
    objects.pods.objects.extend(Kind::of([pod]).objects);
    objects
}

fn said(pod: Value) -> (String, &'static str) {
    let explained = explained(&and(pod), "ml", "p");
    (explained.text(Some(80)), explained.state)
}

#[test]
fn a_pod_that_runs_is_where_it_is_for_a_reason() {
    let placement = json!({
        "plan": "1-1", "at": "2026-08-01T09:30:00Z", "node": "dgx-1",
        "gpus": [0, 1, 3, 2, 4, 5, 7, 6], "domain": "dgx-1.0", "rank": 0, "cost": 1e-11,
        "quality": 1.0, "scope": "nvlink-domain", "why": "it was its turn",
    });
    let mut objects = busy();
    for (key, object) in &mut objects.pods.objects {
        if key.1 == "big" {
            *object = with(object.clone(), "queue-placement", &placement.to_string());
        }
    }
    let big = explained(&objects, "ml", "big");
    check("explain-running.txt", &big.text(Some(80)));
    assert_eq!(big.placement, Some(placement));
}

/// Returns what `explain` says of one of two pods of a gang of class `high`, with `more` in the
/// spec of the class.
fn of_a_gang(more: Value, gpus: u32, pattern: &str, waits: bool) -> String {
    let mut objects = busy();
    let pods = ["p", "q"].map(|name| {
        let mut pod = pod("ml", name, "high", gpus, NOW);
        for (key, value) in [("gang", "pair"), ("gang-size", "2"), ("pattern", pattern)] {
            pod = with(pod, key, value);
        }
        let decision = &mut pod["metadata"]["annotations"][labels::DECISION];
        *decision = json!(decision.as_str().unwrap().replace("all-reduce", pattern));
        match waits {
            true => waiting(pod),
            false => running(pod, "dgx-2", NOW),
        }
    });
    objects.pods.objects.extend(Kind::of(pods).objects);
    let classes = Kind::of([class("high", "nvswitch", more)]);
    objects.classes.objects.extend(classes.objects);
    let text = explained(&objects, "ml", "p").text(Some(80));
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn pods_of_a_gang_are_separate_hosts_wherever_they_are() {
    let halves = "2 pods of 4 GPUs do not reach each other over NVLink, also on one node; one pod of 8 GPUs does (docs/gangs.md)";
    let placement = json!({"whenUnavailable": "Queue"});
    let shared = json!({"placement": {"whenUnavailable": "Queue", "sharedHost": true}});
    let queues = json!({"placement": placement});
    for waits in [true, false] {
        let said = of_a_gang(queues.clone(), 4, "all-reduce", waits);
        assert_eq!(said.matches(halves).count(), 1, "{said}");
        for said in [
            of_a_gang(queues.clone(), 4, "none", waits),
            of_a_gang(queues.clone(), 8, "all-reduce", waits),
            of_a_gang(shared.clone(), 4, "all-reduce", waits),
        ] {
            assert!(!said.contains("do not reach"), "{said}");
        }
    }
}

#[test]
fn a_pod_across_domains_is_told_what_it_costs() {
    let mut objects = and(running(pod("ml", "p", "pairs", 2, NOW), "a100-1", NOW));
    let node = objects
        .topologies
        .objects
        .get_mut(&(String::new(), "a100-1".to_owned()));
    node.unwrap()["status"]["allocations"] =
        json!([{"namespace": "ml", "pod": "p", "container": "main", "gpus": [1, 2]}]);
    let text = explained(&objects, "ml", "p").text(None);
    assert!(
        text.contains("It holds GPUs 1,2, in 2 domains, so a part of its traffic leaves NVLink."),
        "{text}"
    );
    assert!(
        text.contains("% of the best that 2 GPUs have on this node"),
        "{text}"
    );
}

#[test]
fn a_pod_with_other_gpus_than_planned_says_so() {
    let placement = json!({
        "plan": "1-1", "at": "2026-08-01T09:30:00Z", "node": "a100-1", "gpus": [0, 1],
        "quality": 1.0, "why": "it was its turn",
    });
    let pod = with(
        pod("ml", "p", "pairs", 2, NOW),
        "queue-placement",
        &placement.to_string(),
    );
    let mut pod = running(pod, "a100-1", NOW);
    pod["status"]["conditions"] = json!([{
        "type": labels::PLACED, "status": "False", "reason": "OtherGpus",
        "message": "the pod has GPUs 1,2 of node a100-1, and the queue had planned GPUs 0,1: its communication takes 9.0 times as long; other pods have GPU 0 of the plan",
    }]);
    let mut objects = and(pod);
    let of = |name: &str| (String::new(), name.to_owned());
    let class = objects.classes.objects.get_mut(&of("pairs")).unwrap();
    class["spec"]["devices"] = json!({"mapping": "Preferred"});
    let node = objects.topologies.objects.get_mut(&of("a100-1")).unwrap();
    node["status"]["allocations"] =
        json!([{"namespace": "ml", "pod": "p", "container": "main", "gpus": [1, 2]}]);
    let told = explained(&objects, "ml", "p");
    check("explain-otherwise.txt", &told.text(Some(80)));
}

#[test]
fn a_pod_that_others_hold_back_says_who() {
    let mut gated = pod("ml", "p", "high", 4, NOW);
    gated["spec"]["schedulingGates"] = json!([{"name": "example.com/quota"}]);
    let (text, state) = said(gated);
    assert_eq!(state, "gated");
    check("explain-gated.txt", &text);

    let mut pending = pod("ml", "p", "pairs", 4, NOW);
    pending["status"]["conditions"] = json!([{
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
    }]);
    let (text, state) = said(pending);
    assert_eq!(state, "released");
    check("explain-unschedulable.txt", &text);
}

#[test]
fn a_pod_without_class_or_gpus_is_in_no_queue() {
    let mut plain = pod("ml", "p", "high", 4, NOW);
    plain["metadata"]["labels"] = json!({});
    plain["metadata"]["annotations"] = json!({});
    let (text, _) = said(plain.clone());
    assert!(text.contains("It has no class"), "{text}");
    plain["spec"]["containers"] = json!([{"name": "main"}]);
    let (text, _) = said(plain);
    assert!(
        text.contains("It requests no GPU, so it is in no queue."),
        "{text}"
    );
}

#[test]
fn a_pod_that_was_rejected_says_why() {
    let mut rejected = pod("ml", "p", "high", 4, NOW);
    rejected["status"] = json!({
        "phase": "Failed", "reason": "QueueTimeout", "message": "it waited 150s",
    });
    let (text, state) = said(rejected);
    assert_eq!(state, "ended");
    assert!(text.contains("QueueTimeout: it waited 150s."), "{text}");
}

#[test]
fn a_pod_that_waits_for_others_too_says_so() {
    let mut both = pod("ml", "p", "high", 4, NOW);
    both["spec"]["schedulingGates"] =
        json!([{"name": "example.com/quota"}, {"name": labels::QUEUE_GATE}]);
    let (text, state) = said(both);
    assert_eq!(state, "waiting");
    assert!(text.contains("scheduling gate example.com/quota"), "{text}");
}

#[test]
fn a_pod_that_does_not_exist_is_an_error() {
    let error = try_explain(&busy(), "ml", "absent").unwrap_err();
    assert_eq!(
        error.to_string(),
        "pod absent does not exist: kubectl get pods -n ml"
    );
}
