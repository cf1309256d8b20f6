//! What the leader tells the pods that have other GPUs than planned, and the gauges of all.

use std::sync::Arc;

use nvlink_cluster::gpus::Marks;
use nvlink_planner::Name;
use nvlink_queue::{
    outcome::Outcome,
    placement::id,
    review::{Quality, Review, Telling},
};
use nvlink_topology::{Allocation, NodeTopologySpec, labels};
use serde_json::{Value, json};

use super::{NOW, Queue, pod};

/// Reports who holds which GPUs of the node, which has two bridged pairs.
fn report(queue: &mut Queue, held: Vec<Allocation>) {
    report_of("n1", queue, held);
}

/// Reports the same of another node of this kind.
fn report_of(node: &str, queue: &mut Queue, held: Vec<Allocation>) {
    let gpus: Vec<_> = (0..4).map(|index| json!({ "index": index })).collect();
    let edge = |a: u32, b: u32| json!({"a": a, "b": b, "via": "direct", "links": 4, "bytesPerSecond": 50_000_000_000_u64});
    let spec = json!({
        "source": {"kind": "sim"}, "gpus": gpus, "edges": [edge(0, 1), edge(2, 3)],
    });
    let mut spec: NodeTopologySpec = serde_json::from_value(spec).unwrap();
    spec.complete(node).unwrap();
    let published = queue.hardwares.node(&spec, Marks::default(), Some(held));
    queue.feed.topology(node, Some(Arc::new(Ok(published))));
}

fn held(pod: &str, uid: Option<&str>, gpus: &[u32]) -> Allocation {
    Allocation {
        namespace: "team".to_owned(),
        pod: pod.to_owned(),
        pod_uid: uid.map(str::to_owned),
        container: "c".to_owned(),
        gpus: gpus.to_vec(),
        ..Allocation::default()
    }
}

/// Returns a pod on the node, which the queue put on GPUs 0 and 1.
fn placed(name: &str, version: u64) -> Value {
    let mut pod = pod(name, 2, version);
    pod["spec"]["schedulingGates"] = json!([]);
    pod["spec"]["nodeName"] = json!("n1");
    let plan = json!({
        "plan": "7-1", "at": "2026-08-01T10:00:00Z", "node": "n1", "gpus": [0, 1], "quality": 1.0,
    });
    pod["metadata"]["annotations"] = json!({labels::QUEUE_PLACEMENT: plan.to_string()});
    pod
}

/// Returns the qualities of the pods whose gauges change.
fn changes(review: &mut Review, queue: &mut Queue) -> Vec<(Name, Option<[Option<f64>; 2]>)> {
    let changes = review.look(&mut queue.feed).into_iter();
    let both = |quality: Quality| [Some(quality.planned), quality.actual];
    changes
        .map(|(pod, class, quality)| {
            assert_eq!(class, "line");
            (pod, quality.map(both))
        })
        .collect()
}

fn condition(telling: &Telling) -> &Value {
    &telling.patch["status"]["conditions"][0]
}

#[test]
fn a_pod_is_compared_when_its_own_gpus_are_known_and_told_once() {
    let (mut queue, mut review) = (Queue::new(), Review::default());
    let (a, uid) = (id("team", "a"), "uid of a");
    queue.feed.pod(placed("a", 5));
    let planned = Some([Some(1.0), None]);
    assert_eq!(changes(&mut review, &mut queue), [(a.clone(), planned)]);
    // Of an earlier pod, of nobody knows which, and of a part.
    for reported in [
        held("a", Some("earlier"), &[2, 3]),
        held("a", None, &[2, 3]),
        held("a", Some(uid), &[2]),
    ] {
        report(&mut queue, vec![reported]);
        assert_eq!(changes(&mut review, &mut queue), [(a.clone(), planned)]);
        assert_eq!(review.tell(NOW), []);
    }
    report(&mut queue, vec![held("a", Some(uid), &[1, 2])]);
    let now = changes(&mut review, &mut queue);
    let quality = now[0].1.unwrap()[1].unwrap();
    assert!((0.05..0.7).contains(&quality), "{quality}");
    let tellings = review.tell(NOW);
    assert_eq!(tellings.len(), 1);
    let (reason, kind, note) = tellings[0].event.as_ref().unwrap();
    assert_eq!((*reason, *kind), ("PlacedOnOtherGpus", "Warning"));
    let begins = "the pod has GPUs 1,2 of node n1, and the queue had planned GPUs 0,1: its communication takes ";
    assert!(note.starts_with(begins), "{note}");
    assert_eq!(condition(&tellings[0])["message"], json!(note));
    assert_eq!(tellings[0].patch["metadata"]["resourceVersion"], "5");
    assert_eq!(review.tell(NOW), [], "it is being told");

    // Somebody else has changed the pod: it is told again, of the new version.
    assert_eq!(review.ended(&a, uid, false, NOW), None);
    assert_eq!(review.tell(NOW), []);
    queue.feed.pod(placed("a", 6));
    changes(&mut review, &mut queue);
    let again = review.next().unwrap_or(NOW + 1_000);
    let tellings = review.tell(again);
    assert_eq!(tellings[0].patch["metadata"]["resourceVersion"], "6");
    let told = review.ended(&a, uid, true, again).unwrap();
    assert_eq!(
        (told.class.as_str(), told.outcome),
        ("line", Outcome::OtherGpus)
    );

    let mut shown = placed("a", 7);
    shown["status"]["conditions"] = json!([condition(&tellings[0])]);
    let later = (Queue::new(), Review::default());
    for (mut queue, review) in [(queue, review), later] {
        queue.feed.pod(shown.clone());
        report(&mut queue, vec![held("a", Some(uid), &[1, 2])]);
        assert_silent(queue, review, quality);
    }
}

/// Asserts that what the watch shows is not told again, by the same leader or by the next one.
fn assert_silent(mut queue: Queue, mut review: Review, quality: f64) {
    let a = id("team", "a");
    let known = Some([Some(1.0), Some(quality)]);
    assert_eq!(changes(&mut review, &mut queue), [(a.clone(), known)]);
    assert_eq!(review.tell(NOW + 3_600_000), []);
    queue.feed.gone(&a);
    assert_eq!(changes(&mut review, &mut queue), [(a, None)]);
}

#[test]
fn a_plan_that_was_met_makes_no_event_and_stays_met() {
    let (mut queue, mut review) = (Queue::new(), Review::default());
    let (a, uid) = (id("team", "a"), "uid of a");
    report(&mut queue, vec![held("a", Some(uid), &[0, 1])]);
    queue.feed.pod(placed("a", 5));
    let met = Some([Some(1.0), Some(1.0)]);
    assert_eq!(changes(&mut review, &mut queue), [(a.clone(), met)]);
    let tellings = review.tell(NOW);
    assert_eq!(tellings[0].event, None);
    assert_eq!(condition(&tellings[0])["status"], "True");
    let told = review.ended(&a, uid, true, NOW).unwrap();
    assert_eq!(told.outcome, Outcome::AsPlanned);
    // A GPU of the node is lost, and the indices of others change: the pod has the same GPUs.
    let mut shown = placed("a", 6);
    shown["status"]["conditions"] = json!([condition(&tellings[0])]);
    queue.feed.pod(shown);
    report(&mut queue, vec![held("a", Some(uid), &[1, 2])]);
    assert_eq!(changes(&mut review, &mut queue), [(a, met)]);
    assert_eq!(review.tell(NOW), []);
}

/// Returns a pod of a gang of two on GPU `gpu` of the node.
fn member(name: &str, gpu: u32) -> Value {
    let mut pod = pod(name, 1, 5);
    pod["spec"]["schedulingGates"] = json!([]);
    pod["spec"]["nodeName"] = json!("n1");
    let plan = json!({
        "plan": "7-1", "at": "2026-08-01T10:00:00Z", "gang": "gang pair", "node": "n1", "gpus": [gpu],
        "rank": gpu, "cost": 1e-8, "quality": 1.0,
    });
    pod["metadata"]["annotations"] = json!({
        labels::GANG: "pair", labels::GANG_SIZE: "2", labels::QUEUE_PLACEMENT: plan.to_string(),
    });
    pod
}

/// Puts two pods of a gang, planned on the bridged GPUs 0 and 1, and reports what they have.
fn pair(shared_host: bool, gpus: [u32; 2]) -> (Queue, Review) {
    let (mut queue, review) = (Queue::new(), Review::default());
    queue.class(Some(json!({
        "whenUnavailable": "Queue", "queueTimeout": "1h", "sharedHost": shared_host
    })));
    queue.feed.pod(member("a", 0));
    queue.feed.pod(member("b", 1));
    let held = |name: &str, gpu| held(name, Some(&format!("uid of {name}")), &[gpu]);
    report(&mut queue, vec![held("a", gpus[0]), held("b", gpus[1])]);
    (queue, review)
}

#[test]
fn pods_of_one_host_are_judged_by_what_reaches_across_them() {
    let outcomes = |shared_host, gpus| {
        let (mut queue, mut review) = pair(shared_host, gpus);
        let actual = changes(&mut review, &mut queue).into_iter();
        let actual: Vec<Option<f64>> = actual.map(|(_, both)| both.unwrap()[1]).collect();
        let tellings = review.tell(NOW);
        let reasons: Vec<_> = tellings
            .iter()
            .map(|one| condition(one)["reason"].as_str().unwrap().to_owned())
            .collect();
        let message = condition(&tellings[0])["message"]
            .as_str()
            .unwrap()
            .to_owned();
        (actual, reasons, message)
    };
    // Across the bridges: both pods have one GPU each, and the pair has no NVLink.
    let (qualities, reasons, message) = outcomes(true, [1, 2]);
    assert_eq!(reasons, ["OtherGpus"; 2]);
    assert!(
        qualities.iter().all(|it| it.unwrap() < 0.7),
        "{qualities:?}"
    );
    assert!(
        message.contains("its gang's communication takes "),
        "{message}"
    );
    // The other bridge, and the planned one the other way round.
    for gpus in [[2, 3], [1, 0]] {
        let (qualities, reasons, _) = outcomes(true, gpus);
        assert_eq!(reasons, ["Equivalent"; 2]);
        assert_eq!(qualities, [Some(1.0); 2]);
    }
    // NCCL takes them for two hosts: the network is as slow for any GPU.
    let (qualities, reasons, _) = outcomes(false, [1, 2]);
    assert_eq!(reasons, ["Equivalent"; 2]);
    assert_eq!(qualities, [Some(1.0); 2]);
}

#[test]
fn a_pod_that_has_what_was_planned_is_not_blamed_for_its_gang() {
    let (mut queue, mut review) = pair(true, [0, 2]);
    let known = known(changes(&mut review, &mut queue));
    assert_eq!(known[0], Some(1.0), "a has the planned GPU");
    assert!(known[1].unwrap() < 0.7, "{known:?}");
    let tellings = review.tell(NOW).into_iter();
    let reasons: Vec<Value> = tellings
        .map(|one| condition(&one)["reason"].clone())
        .collect();
    assert_eq!(reasons, ["AsPlanned", "OtherGpus"]);
}

#[test]
fn how_a_pod_on_another_node_reaches_its_gang_is_not_known() {
    let (mut queue, mut review) = pair(true, [0, 1]);
    let mut away = member("b", 1);
    away["spec"]["nodeName"] = json!("n2");
    queue.feed.pod(away);
    let there = held("b", Some("uid of b"), &[1]);
    report_of("n2", &mut queue, vec![there]);
    changes(&mut review, &mut queue);
    let tellings = review.tell(NOW);
    let told = condition(&tellings[1]);
    assert_eq!(told["reason"], "OtherNode");
    let message = told["message"].as_str().unwrap();
    let unknown = "how much slower it communicates is not known";
    assert!(message.contains(unknown), "{message}");
}

/// Returns the actual qualities of the pods whose gauges change.
fn known(changes: Vec<(Name, Option<[Option<f64>; 2]>)>) -> Vec<Option<f64>> {
    let actual = changes.into_iter().filter_map(|(_, both)| Some(both?[1]));
    actual.collect()
}

#[test]
fn a_pod_of_one_host_waits_for_the_reports_of_the_others() {
    let (mut queue, mut review) = pair(true, [1, 2]);
    report(&mut queue, vec![held("a", Some("uid of a"), &[1])]);
    let none = [None; 2];
    assert_eq!(known(changes(&mut review, &mut queue)), none);
    assert_eq!(review.tell(NOW), []);
    // One that is not bound yet is waited for, too.
    let mut unbound = member("b", 1);
    unbound["spec"]["nodeName"] = Value::Null;
    queue.feed.pod(unbound);
    changes(&mut review, &mut queue);
    assert_eq!(review.tell(NOW), []);
    queue.feed.pod(member("b", 1));
    changes(&mut review, &mut queue);
    let both = [("a", 1), ("b", 2)];
    let both = both.map(|(name, gpu)| held(name, Some(&format!("uid of {name}")), &[gpu]));
    report(&mut queue, both.to_vec());
    assert!(
        known(changes(&mut review, &mut queue))
            .iter()
            .all(Option::is_some)
    );
    assert_eq!(review.tell(NOW).len(), 2);
}

#[test]
fn a_pod_of_one_host_waits_for_no_pod_that_is_gone() {
    let (mut queue, mut review) = pair(true, [1, 2]);
    report(&mut queue, vec![held("a", Some("uid of a"), &[1])]);
    changes(&mut review, &mut queue);
    assert_eq!(review.tell(NOW), []);
    queue.feed.gone(&id("team", "b"));
    changes(&mut review, &mut queue);
    assert_eq!(review.tell(NOW).len(), 1);
}

#[test]
fn pods_without_a_plan_and_pods_that_end_are_left_alone() {
    let (mut queue, mut review) = (Queue::new(), Review::default());
    let mut unqueued = placed("a", 1);
    unqueued["metadata"]["annotations"] = json!({});
    queue.feed.pod(unqueued);
    let mut ends = placed("b", 2);
    ends["metadata"]["deletionTimestamp"] = json!("2026-08-01T10:00:30Z");
    queue.feed.pod(ends);
    report(
        &mut queue,
        vec![
            held("a", Some("uid of a"), &[2, 3]),
            held("b", Some("uid of b"), &[0, 2]),
        ],
    );
    let changes = changes(&mut review, &mut queue);
    assert_eq!(changes.len(), 1, "{changes:?}");
    assert_eq!(changes[0].0, id("team", "b"));
    assert_eq!(review.tell(NOW), [], "nobody needs to know any more");
}

#[test]
fn a_leader_that_finds_many_pods_writes_few_at_a_time() {
    let (mut queue, mut review) = (Queue::new(), Review::default());
    let names: Vec<String> = (0..50).map(|n| format!("p{n:02}")).collect();
    for (name, version) in names.iter().zip(1..) {
        queue.feed.pod(placed(name, version));
    }
    let of = |name: &String| held(name, Some(&format!("uid of {name}")), &[0, 1]);
    report(&mut queue, names.iter().map(of).collect());
    changes(&mut review, &mut queue);
    let mut told = 0;
    while told < names.len() {
        let tellings = review.tell(NOW);
        assert!((1..=20).contains(&tellings.len()), "{}", tellings.len());
        for one in &tellings {
            assert!(review.ended(&one.pod, &one.uid, true, NOW).is_some());
            told += 1;
        }
    }
    assert_eq!(review.tell(NOW), []);
}
