//! Pods that do not wait in the queue.

use kubectl_nvlink::status::{Kind, Objects, Query, State, explain_owner};
use nvlink_topology::labels;
use serde_json::{Value, json};

use super::{
    check,
    cluster::{NOW, busy, class, held, pod, running, switched, waiting, with},
    explained, report, try_explain,
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

#[test]
fn a_pod_that_waits_for_its_channel_says_what_must_give_it() {
    let placement = json!({
        "plan": "1-1", "at": "2026-08-01T09:30:00Z", "node": "dgx-1", "gpus": [0],
        "computeDomain": "nvlink-domains-train-1",
    });
    let mut bound = running(
        pod("ml", "p", "train", 1, "2026-08-01T09:30:00Z"),
        "dgx-1",
        "2026-08-01T09:30:00Z",
    );
    bound["status"] = json!({"phase": "Pending"});
    let (text, state) = said(with(bound, "queue-placement", &placement.to_string()));
    assert_eq!(state, "bound");
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        line.contains("kubectl get computedomain nvlink-domains-train-1 -n ml -o yaml shows"),
        "{text}"
    );
}

#[test]
fn a_pod_whose_nvlinks_are_idle_is_told_since_when() {
    let mut objects = busy();
    for (key, object) in &mut objects.pods.objects {
        if key.1 == "nightly" {
            object["metadata"]["uid"] = json!("uid-1");
        }
    }
    let mut told = |held: &[Value]| {
        let published = Kind::of([switched("dgx-2", held)]);
        objects.topologies.objects.extend(published.objects);
        explained(&objects, "batch", "nightly").text(Some(80))
    };
    let idle = |container: &str, gpus: &[u32], uid: &str, since: Option<&str>| {
        let mut one = held("batch", "nightly", gpus);
        one["container"] = json!(container);
        one["podUid"] = json!(uid);
        if let Some(since) = since {
            one["idleSince"] = json!(since);
        }
        one
    };
    let since = Some("2026-08-01T07:20:00Z");
    let one = || idle("main", &[0, 1, 2, 3], "uid-1", since);
    let side = || idle("side", &[4], "uid-1", None);
    check("explain-idle.txt", &told(&[one(), side()]));
    for other in [
        vec![one(), idle("busy", &[4, 5], "uid-1", None)],
        vec![idle("main", &[0, 1, 2, 3], "uid-0", since)],
        vec![idle("main", &[0, 1, 2, 3], "uid-1", Some("yesterday"))],
    ] {
        let text = told(&other);
        assert!(!text.contains("idle"), "{text}");
    }
}

#[test]
fn a_job_is_explained_by_a_pod_that_waits() {
    let mut objects = busy();
    let pods = ["a", "b", "c"].map(|name| {
        let mut pod = pod("ml", &format!("sweep-{name}"), "high", 1, NOW);
        let owner = json!({"apiVersion": "batch/v1", "kind": "Job", "name": "sweep", "uid": "u"});
        pod["metadata"]["ownerReferences"] = json!([owner]);
        match name {
            "b" => waiting(pod),
            _ => running(pod, "dgx-2", NOW),
        }
    });
    objects.pods.objects.extend(Kind::of(pods).objects);
    let explained = |objects: &Objects, namespace: &str, kind: &str, name: &str| {
        let mut state = State::new(objects, NOW.parse().unwrap());
        let explained = explain_owner(&mut state, namespace, kind, name);
        explained
            .map(|one| one.pod)
            .map_err(|error| error.to_string())
    };
    assert_eq!(
        explained(&objects, "ml", "job", "sweep").unwrap(),
        "sweep-b"
    );
    for (namespace, kind, name) in [
        ("ml", "job", "swee"),
        ("ml", "jobset", "sweep"),
        ("ci", "job", "sweep"),
    ] {
        assert_eq!(
            explained(&objects, namespace, kind, name).unwrap_err(),
            format!(
                "{kind} {name} does not exist, or has no pods with GPUs: kubectl get pods -n {namespace}"
            )
        );
    }
    objects.pods = Kind::hidden("you may not list pods");
    assert_eq!(
        explained(&objects, "ml", "job", "sweep").unwrap_err(),
        "you may not list pods"
    );
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

/// Returns pods of other queues: one waits in each place, and one runs.
fn of_other_queues() -> [Value; 6] {
    let one = |name: &str| pod("ml", name, "high", 2, "2026-08-01T09:50:00Z");
    let gated = |mut pod: Value, gate: &str| {
        pod["spec"]["schedulingGates"] = json!([{ "name": gate }]);
        pod
    };
    let of_kueue = |name: &str| {
        let mut pod = one(name);
        pod["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = json!("gpus");
        pod
    };
    let placed_by = |name: &str, scheduler: &str| {
        let mut pod = one(name);
        pod["spec"]["schedulerName"] = json!(scheduler);
        pod
    };
    let mut kai = placed_by("by-kai", "kai-scheduler");
    kai["metadata"]["labels"]["kai.scheduler/queue"] = json!("team");
    let mut plain = gated(one("gated"), "example.com/quota");
    plain["metadata"]["labels"] = json!({});
    [
        gated(of_kueue("by-kueue"), "kueue.x-k8s.io/admission"),
        placed_by("by-volcano", "volcano"),
        kai,
        plain,
        of_kueue("admitted"),
        running(of_kueue("runs"), "dgx-2", NOW),
    ]
}

#[test]
fn pods_of_other_queues_count_where_they_run_and_are_listed_where_they_wait() {
    let mut objects = busy();
    objects
        .pods
        .objects
        .extend(Kind::of(of_other_queues()).objects);
    let all = report(&objects, &Query::default());
    check("elsewhere.txt", &all.text(Some(80)));
    assert_eq!(all.classes.unwrap()[0].free, Some(0), "one runs");
    let few = Query {
        class: Some("high".to_owned()),
        limit: 1,
        ..Query::default()
    };
    let few = report(&objects, &few);
    assert_eq!((few.elsewhere.len(), few.more_elsewhere), (1, 2));
    for (name, place) in [
        ("by-kueue", "waits in Kueue's queue gpus, created 10m ago"),
        ("by-volcano", "waits in Volcano's queue, created 10m ago"),
        ("by-kai", "waits in KAI's queue team, created 10m ago"),
        ("gated", "waits for the scheduling gate example.com/quota, "),
        ("admitted", "waits for the scheduler, created 10m ago"),
    ] {
        let summary = explained(&objects, "ml", name).summary;
        assert!(summary.starts_with(place), "{summary}");
    }
}

#[test]
fn a_gate_of_others_beside_the_queues_is_named() {
    let mut pod = waiting(pod("ml", "p", "high", 4, NOW));
    let gates = [labels::QUEUE_GATE, "example.com/quota"].map(|name| json!({ "name": name }));
    pod["spec"]["schedulingGates"] = json!(gates);
    let objects = and(pod);
    let why = "pod ml/p has the scheduling gate example.com/quota, which the queue does not remove: whoever added it must";
    assert_eq!(explained(&objects, "ml", "p").messages, [why]);
    let rows = report(&objects, &Query::default()).queue.unwrap();
    let row = rows.iter().find(|row| row.pod == "p").unwrap();
    assert_eq!((&*row.reason, &*row.message), ("Incomplete", why));
}

#[test]
fn pods_whose_class_cannot_be_used_are_in_the_queue() {
    let mut objects = and(waiting(pod("ml", "p", "odd", 4, NOW)));
    let mut odd = class("odd", "nvswitch", json!({}));
    odd["spec"]["placement"] = json!({"whenUnavailable": "Queue", "queueTimeout": 150});
    objects.classes.objects.extend(Kind::of([odd]).objects);
    let rows = report(&objects, &Query::default()).queue.unwrap();
    let row = rows.last().unwrap();
    assert_eq!((&*row.pod, &*row.reason), ("p", "Unaccepted"));
    let why = "its class odd cannot be used, so it waits until that is corrected: its spec cannot be parsed";
    assert!(row.message.starts_with(why), "{}", row.message);
    let explained = explained(&objects, "ml", "p");
    assert_eq!(explained.reason.as_deref(), Some("Unaccepted"));
    assert_eq!(explained.messages, std::slice::from_ref(&row.message));
}
