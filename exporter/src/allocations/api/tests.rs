use futures::stream;
use serde_json::json;

use super::*;

fn pod(name: &str, decision: &str, phase: &str) -> PodObject {
    serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "ci", "uid": format!("uid-{name}"), "annotations": {labels::DECISION: decision}},
        "spec": {"containers": []}, "status": {"phase": phase, "podIP": "10.0.0.1"},
    }))
    .unwrap()
}

fn pods(cluster: &Cluster) -> Pods {
    let benchmarks = Benchmarks {
        namespace: "ci".to_owned(),
        inbox: Inbox::default(),
    };
    Pods {
        cluster: cluster.clone(),
        benchmarks,
    }
}

#[tokio::test]
async fn labels_that_no_api_server_accepts_are_ignored() {
    let labelled = |name: &str, class: &str, project: &str| {
        let mut pod = pod(name, "{}", "Running");
        pod.metadata.labels = Some(
            [(labels::CLASS, class), (labels::PROJECT, project)]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
        );
        watcher::Event::Apply(pod)
    };
    let (longest, long) = ("a".repeat(63), "a".repeat(64));
    let events = [
        labelled("good", "fast", "gitlab.42"),
        labelled("long", &longest, &long),
        labelled("odd", "a\"} 1\nup 0", "-a"),
    ];
    let cluster = Cluster::default();
    watch::reflect(stream::iter(events.map(Ok)), pods(&cluster)).await;
    let facts = cluster.read();
    let of = |name: &str| facts.labels(&("ci".to_owned(), name.to_owned()));
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(of("good"), (some("fast"), some("gitlab.42")));
    assert_eq!(of("long"), (Some(longest), None));
    assert_eq!(of("odd"), (None, None));
    assert_eq!(of("unknown"), (None, None));
}

#[tokio::test]
async fn pods_have_the_gang_of_the_queue_else_of_the_decision() {
    let with = |name: &str, decision: &str, queued: &str| {
        let mut pod = pod(name, decision, "Running");
        let annotations = pod.metadata.annotations.as_mut().unwrap();
        annotations.insert(labels::QUEUE_PLACEMENT.to_owned(), queued.to_owned());
        watcher::Event::Apply(pod)
    };
    let named = |gang: &str| format!("{{\"gang\": {gang:?}, \"plan\": \"7\"}}");
    let events = [
        with("queued", &named("a"), &named("JobSet a/workers")),
        with("alone", "{}", &named("")),
        with("decided", &named("a"), "{"),
        with("hostile", "{}", &named("a\"} 1\nup 0")),
        with("endless", "{}", &named(&"a".repeat(201))),
    ];
    let cluster = Cluster::default();
    watch::reflect(stream::iter(events.map(Ok)), pods(&cluster)).await;
    let facts = cluster.read();
    let of = |name: &str| facts.gang(&("ci".to_owned(), name.to_owned()));
    assert_eq!(of("queued").as_deref(), Some("JobSet a/workers"));
    assert_eq!(of("decided").as_deref(), Some("gang a"));
    for none in ["alone", "hostile", "endless", "unknown"] {
        assert_eq!(of(none), None, "{none}");
    }
}

#[tokio::test]
async fn a_pod_is_ready_by_its_condition() {
    let with = |name: &str, conditions: serde_json::Value| {
        let mut pod = pod(name, "{}", "Running");
        let conditions = serde_json::from_value(conditions).unwrap();
        pod.status.as_mut().unwrap().conditions = conditions;
        watcher::Event::Apply(pod)
    };
    let condition = |kind: &str, status: &str| json!({"type": kind, "status": status});
    let scheduled = condition("PodScheduled", "True");
    let events = [
        with("up", json!([scheduled, condition("Ready", "True")])),
        with("down", json!([scheduled, condition("Ready", "False")])),
        with("new", json!([])),
    ];
    let cluster = Cluster::default();
    watch::reflect(stream::iter(events.map(Ok)), pods(&cluster)).await;
    let facts = cluster.read();
    let of = |name: &str| facts.is_ready(&("ci".to_owned(), name.to_owned()));
    let all = ["up", "down", "new", "unknown"].map(of);
    assert_eq!(all, [Some(true), Some(false), Some(false), None]);
}

#[tokio::test]
async fn pods_have_patterns_and_may_have_ended() {
    use watcher::Event::{Apply, Delete, Init, InitApply, InitDone};
    let good = r#"{"class":"fast","pattern":"tp=4,pp=2","why":"…"}"#;
    let cluster = Cluster::default();
    let events = [
        Init,
        InitApply(pod("gone", good, "Running")),
        InitApply(pod("a", good, "Running")),
        InitDone,
        Apply(pod("b", good, "Running")),
        Delete(pod("b", good, "Running")),
        Init,
        InitApply(pod("a", good, "Running")),
        InitApply(pod("bad", r#"{"pattern":"quantum"}"#, "Pending")),
        InitApply(pod("worse", "{", "Failed")),
        InitApply(pod("worst", r#"{"pattern":4}"#, "Succeeded")),
        InitDone,
    ];
    watch::reflect(stream::iter(events.map(Ok)), pods(&cluster)).await;
    let facts = cluster.read();
    let of = |name: &str| ("ci".to_owned(), name.to_owned());
    assert_eq!(facts.pattern(&of("a")), "tp=4,pp=2".parse().ok());
    assert_eq!(facts.uid(&of("a")).as_deref(), Some("uid-a"));
    assert_eq!(facts.uid(&of("gone")), None);
    for none in ["gone", "b", "bad", "worse", "worst"] {
        assert_eq!(facts.pattern(&of(none)), None, "{none}");
    }
    assert!(facts.has_ended(&of("worse")) && facts.has_ended(&of("worst")));
    assert!(!facts.has_ended(&of("a")) && !facts.has_ended(&of("gone")));
    assert_eq!(facts.pods.len(), 4);
}

#[tokio::test]
async fn a_pod_that_comes_back_under_the_name_of_an_ended_one_has_not_ended() {
    let cluster = Cluster::default();
    let events =
        ["Failed", "Running"].map(|phase| Ok(watcher::Event::Apply(pod(phase, "{}", phase))));
    watch::reflect(stream::iter(events), pods(&cluster)).await;
    let mut facts = cluster.read();
    let of = |name: &str| ("ci".to_owned(), name.to_owned());
    // The kubelet lists an ended pod for a while.
    facts.forget_ended(|name| *name == of("Failed"));
    assert!(facts.has_ended(&of("Failed")));
    facts.forget_ended(|_| false);
    assert!(!facts.has_ended(&of("Failed")));
    assert_eq!(
        facts.uid(&of("Failed")),
        None,
        "nor has it the UID of the ended one"
    );
    assert!(facts.uid(&of("Running")).is_some());
}

#[tokio::test]
async fn only_labelled_pods_of_the_own_namespace_pass_on_their_messages() {
    let ended = |namespace: &str, uid: &str, label: &str, terminated: serde_json::Value| {
        let pod: PodObject = serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": uid, "namespace": namespace, "uid": uid, "labels": {labels::BENCHMARK: label}},
            "spec": {"containers": []}, "status": {"containerStatuses": [
                {"name": "ingest", "state": {"terminated": terminated}},
                {"name": "other", "state": {"running": {}}}, {"name": "new"}]},
        }))
        .unwrap();
        watcher::Event::Apply(pod)
    };
    let good = || json!({"message": "text", "finishedAt": "2026-08-01T10:11:12Z", "exitCode": 1});
    let events = [
        ended("own", "good", "true", good()),
        ended("own", "good", "true", good()),
        ended("own", "unlabelled", "false", good()),
        ended("foreign", "forged", "true", good()),
        ended(
            "own",
            "silent",
            "true",
            json!({"finishedAt": "2026-08-01T10:11:12Z"}),
        ),
        ended("own", "timeless", "true", json!({"message": "text"})),
    ];
    let inbox = Inbox::default();
    let pods = Pods {
        cluster: Cluster::default(),
        benchmarks: Benchmarks {
            namespace: "own".to_owned(),
            inbox: inbox.clone(),
        },
    };
    watch::reflect(stream::iter(events.map(Ok)), pods).await;
    let message = Message {
        at: 1_785_579_072,
        text: "text".to_owned(),
    };
    assert_eq!(inbox.take(), [("good/ingest".to_owned(), message)].into());
}
