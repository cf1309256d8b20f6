//! `status` and `explain`, from the objects of a cluster to what people and programs read.

mod cluster;
mod free;
mod odd;
mod pods;

use k8s_openapi::jiff::Timestamp;
use kubectl_nvlink::status::{
    Explained, Kind, Objects, Query, State, Status, Unknown, explain, status,
};
use serde_json::{Value, json};

use cluster::{NOW, busy, class, node, pod, switched, waiting, with};

fn now() -> Timestamp {
    NOW.parse().unwrap()
}

/// Returns the report on `objects`.
pub(crate) fn report(objects: &Objects, query: &Query) -> Status {
    status(&State::new(objects, now()), query)
}

/// Returns the explanation of a pod.
pub(crate) fn explained(objects: &Objects, namespace: &str, name: &str) -> Explained {
    try_explain(objects, namespace, name).unwrap()
}

pub(crate) fn try_explain(
    objects: &Objects,
    namespace: &str,
    name: &str,
) -> Result<Explained, Unknown> {
    let mut state = State::new(objects, now());
    explain(&mut state, namespace, name)
}

/// Compares a text with a golden file, and checks that it fits 80 columns.
#[track_caller]
pub(crate) fn check(name: &str, text: &str) {
    for line in text.lines() {
        let width = line.chars().count();
        assert!(width <= 80, "{width} columns: {line}");
    }
    crate::fixture::check_golden(&format!("status/{name}"), text);
}

fn json(value: &impl serde::Serialize) -> Value {
    serde_json::to_value(value).unwrap()
}

#[test]
fn a_busy_cluster_as_tables() {
    let all = report(&busy(), &Query::default());
    check("busy.txt", &all.text(Some(80)));
    crate::fixture::check_golden("status/busy-wide.txt", &all.text(None));
    let pretty = serde_json::to_string_pretty(&all).unwrap() + "\n";
    crate::fixture::check_golden("status/busy.json", &pretty);
}

#[test]
fn a_queue_without_a_leader_is_named() {
    let notes = |leases: &[(&str, &str)]| {
        let leases = leases.iter().map(|&(namespace, renewed)| {
            json!({
                "metadata": {"name": "nvlink-webhook", "namespace": namespace},
                "spec": {"leaseDurationSeconds": 15, "renewTime": renewed}
            })
        });
        let objects = Objects {
            leases: Kind::of(leases),
            ..busy()
        };
        let waits = explained(&objects, "ml", "train");
        assert!(waits.help.is_some(), "the plan is made all the same");
        assert_eq!(report(&objects, &Query::default()).notes, waits.notes);
        waits.notes
    };
    let old = ("a", "2026-08-01T09:00:00.000000Z");
    assert_eq!(
        notes(&[old]),
        [
            "the queue has had no leader since 09:00:15 UTC on 2026-08-01 by this machine's clock: it starts no job and fails none until a replica of nvlink-webhook-controller runs"
        ]
    );
    for leases in [&[old, ("b", NOW)][..], &[("a", "yesterday")], &[]] {
        assert!(notes(leases).is_empty(), "{leases:?}");
    }
}

#[test]
fn a_namespace_and_a_class_narrow_the_tables() {
    let query = Query {
        namespace: Some("research".to_owned()),
        class: Some("high".to_owned()),
        limit: 0,
    };
    let one = report(&busy(), &query);
    check("narrow.txt", &one.text(Some(80)));
    let queue = one.queue.unwrap();
    // The position counts the jobs of the class in all namespaces.
    assert_eq!(queue.len(), 1);
    assert_eq!(queue[0].position, Some(4));
    let unknown = Query {
        class: Some("gone".to_owned()),
        ..Query::default()
    };
    let notes = report(&busy(), &unknown).notes;
    assert_eq!(
        notes,
        ["class gone does not exist: kubectl get domainclasses"]
    );
}

#[test]
fn the_position_is_the_one_in_the_class_as_pods_show_it() {
    let mut objects = busy();
    let low = class("low", "nvswitch", json!({}));
    objects.classes.objects.extend(Kind::of([low]).objects);
    let late = waiting(pod("ml", "late", "low", 8, "2026-08-01T09:52:00Z"));
    objects.pods.objects.extend(Kind::of([late]).objects);
    let queue = report(&objects, &Query::default()).queue.unwrap();
    let rows = queue.iter().map(|row| {
        (
            row.pod.as_str(),
            row.class.as_str(),
            row.position.unwrap_or_default(),
        )
    });
    assert_eq!(
        rows.collect::<Vec<_>>(),
        [
            ("train", "high", 1),
            ("small", "high", 2),
            ("ring-0", "high", 3),
            ("late", "low", 1),
            ("llm", "high", 4),
        ]
    );
    let late = explained(&objects, "ml", "late");
    assert_eq!(late.position, Some(1));
    assert_eq!(late.summary, "waits in the queue of class low: position 1");
}

#[test]
fn explain_says_why_a_job_waits_and_what_would_help() {
    let objects = busy();
    let train = explained(&objects, "ml", "train");
    check("explain-train.txt", &train.text(Some(80)));
    let pretty = serde_json::to_string_pretty(&train).unwrap() + "\n";
    crate::fixture::check_golden("status/explain-train.json", &pretty);
}

/// Another class is offered to those who may use it, and a restricted one to nobody else.
#[test]
fn explain_offers_classes_that_one_may_use() {
    let mut objects = busy();
    // The first of them takes the two GPUs that are free.
    let two = ["one", "two"].map(|name| waiting(pod("ml", name, "high", 2, NOW)));
    objects.pods.objects.extend(Kind::of(two).objects);
    let classes = |objects: &Objects| {
        let help = explained(objects, "ml", "two").help.unwrap();
        let classes = help.into_iter().filter(|one| one.change == "class");
        classes.map(|one| one.to).collect::<Vec<_>>()
    };
    assert_eq!(classes(&objects), ["pairs"]);
    objects.usable.insert("vip".to_owned());
    assert_eq!(classes(&objects), ["pairs", "vip"]);
}

#[test]
fn explain_names_the_gang_and_what_is_missing() {
    let gang = explained(&busy(), "ml", "ring-0");
    check("explain-gang.txt", &gang.text(Some(80)));
    assert_eq!(json(&gang)["gang"]["pods"], 1);
}

/// The webhook's flags name the labels; `explain` finds them in the status of classes.
#[test]
fn racks_are_those_of_the_webhook() {
    let mut objects = busy();
    let pods = ["rack-0", "rack-1"].map(|name| {
        let pod = waiting(pod("ml", name, "high", 8, NOW));
        let pod = with(pod, "gang", "rack");
        with(with(pod, "gang-size", "2"), "gang-scope", "rack")
    });
    objects.pods.objects.extend(Kind::of(pods).objects);
    for node in objects.nodes.objects.values_mut() {
        node["metadata"]["labels"]["example.com/rack"] = json!("r1");
    }
    let reason = |objects: &Objects| explained(objects, "ml", "rack-0").text(None);
    let unlabelled = "no node of its class has the label that names its rack";
    assert!(
        reason(&objects).contains(unlabelled),
        "{}",
        reason(&objects)
    );
    for class in objects.classes.objects.values_mut() {
        class["status"]["scopeLabels"] = json!({"rack": "example.com/rack", "zone": "z"});
    }
    assert!(
        !reason(&objects).contains(unlabelled),
        "{}",
        reason(&objects)
    );
}

#[test]
fn a_gang_is_expected_on_nodes_below_one_switch() {
    let leaves = [("a", "leaf-1"), ("b", "leaf-2"), ("c", "leaf-2")];
    let nodes = leaves.map(|(name, leaf)| {
        let mut node = node(name, "nvswitch");
        node["metadata"]["labels"]["example.com/leaf"] = json!(leaf);
        node
    });
    let pods = ["ring-0", "ring-1"].map(|name| {
        let pod = waiting(pod("ml", name, "high", 8, NOW));
        with(with(pod, "gang", "ring"), "gang-size", "2")
    });
    let mut class = class("high", "nvswitch", json!({}));
    class["status"]["scopeLabels"] =
        json!({"rack": "r", "network": ["example.com/leaf"], "zone": "z"});
    let objects = Objects {
        classes: Kind::of([class]),
        nodes: Kind::of(nodes),
        topologies: Kind::of(leaves.map(|(name, _)| switched(name, &[]))),
        pods: Kind::of(pods),
        ..Objects::default()
    };
    let text = explained(&objects, "ml", "ring-0").text(None);
    assert!(text.contains("Its GPUs on b, c are free"), "{text}");
}

#[test]
fn one_node_and_one_job_that_starts_now() {
    let objects = Objects {
        classes: Kind::of([class("high", "nvswitch", json!({}))]),
        nodes: Kind::of([node("dgx-1", "nvswitch")]),
        topologies: Kind::of([switched("dgx-1", &[])]),
        pods: Kind::of([waiting(pod("ml", "train", "high", 8, NOW))]),
        ..Objects::default()
    };
    let text = report(&objects, &Query::default()).text(Some(80));
    check("one-node.txt", &text);
    check(
        "explain-starting.txt",
        &explained(&objects, "ml", "train").text(Some(80)),
    );
    let why =
        "it had its turn, but the queue cannot start it and tries again: exceeded quota: claims";
    let pods = objects.pods.objects.values().cloned();
    let refused = pods.map(|mut pod| {
        pod["metadata"]["annotations"] = json!({});
        with(pod, "queue-reason", &format!("Refused: {why}"))
    });
    let objects = Objects {
        pods: Kind::of(refused),
        ..objects.clone()
    };
    let text = report(&objects, &Query::default()).text(Some(80));
    assert!(text.contains("Refused"), "{text}");
    check(
        "explain-refused.txt",
        &explained(&objects, "ml", "train").text(Some(80)),
    );
}

#[test]
fn an_empty_cluster_and_one_without_classes() {
    let query = Query {
        namespace: Some("ml".to_owned()),
        ..Query::default()
    };
    check(
        "empty.txt",
        &report(&Objects::default(), &query).text(Some(80)),
    );
    let objects = Objects {
        classes: Kind::default(),
        ..busy()
    };
    let text = report(&objects, &Query::default()).text(Some(80));
    assert!(text.starts_with("There is no class.\n"), "{text}");
}

#[test]
fn ten_thousand_jobs_are_limited() {
    let mut objects = busy();
    let many = (0..10_000).map(|n| {
        waiting(pod(
            "load",
            &format!("job-{n:05}"),
            "high",
            2,
            "2026-08-01T09:59:00Z",
        ))
    });
    objects.pods.objects.extend(Kind::of(many).objects);
    let query = Query {
        limit: 3,
        ..Query::default()
    };
    let few = report(&objects, &query);
    let text = few.text(Some(80));
    let rows = few.queue.as_ref().unwrap();
    assert_eq!((rows.len(), few.more_jobs), (3, 10_001));
    assert!(
        text.contains("and 10001 more jobs: --limit 0 shows all\n"),
        "{text}"
    );
    assert!(text.contains("and 3 more domains"), "{text}");
    let all = report(&objects, &Query::default());
    assert_eq!(all.queue.unwrap().len(), 10_004);
    assert_eq!(few.classes.unwrap()[0].waiting, Some(10_004));
}

/// Who may only read pods of a namespace gets what the leader wrote.
#[test]
fn with_the_rights_of_a_namespace() {
    let told = |pod: Value, position: &str, eta: &str| {
        let pod = with(pod, "queue-position", position);
        let pod = with(
            pod,
            "queue-reason",
            "Insufficient: at most 2 of 8 GPUs are free",
        );
        with(pod, "queue-eta", eta)
    };
    let first = waiting(pod("ml", "train", "high", 8, "2026-08-01T09:40:00Z"));
    let second = waiting(pod("ml", "small", "high", 4, "2026-08-01T09:45:00Z"));
    let objects = Objects {
        classes: Kind::hidden("you may not list domainclasses"),
        topologies: Kind::hidden("you may not list nodetopologies"),
        nodes: Kind::hidden("you may not list nodes"),
        pods: Kind::of([
            waiting(pod("ml", "new", "high", 4, NOW)),
            told(second, "3", "2026-08-01T11:00:00Z"),
            told(first, "2", "2026-08-01T10:30:00Z"),
        ]),
        namespace: Some("ml".to_owned()),
        ..Objects::default()
    };
    let query = Query {
        namespace: Some("ml".to_owned()),
        ..Query::default()
    };
    let few = report(&objects, &query);
    check("namespace.txt", &few.text(Some(80)));
    assert!(json(&few).get("domains").is_none());
    check(
        "explain-namespace.txt",
        &explained(&objects, "ml", "train").text(Some(80)),
    );
    let nothing = Objects {
        pods: Kind::hidden("you may not list pods in namespace ml"),
        ..objects
    };
    let hidden = try_explain(&nothing, "ml", "train").unwrap_err();
    assert_eq!(hidden.to_string(), "you may not list pods in namespace ml");
    let none = report(&nothing, &query);
    assert!(none.queue.is_none() && none.classes.is_none());
}
