use serde_json::json;

use super::{
    object::{condition, object},
    *,
};

const MINUTE: Millis = 60_000;

const HERE: &str = "nvlink-domains";

fn some() -> Placeholders {
    Placeholders::new(Some(HERE.to_owned()))
}

/// Returns a job of the class `pool` with these pods, whose names are their UIDs.
fn want(uids: &[&str], most: u32) -> Want {
    let pods = uids.iter().map(|uid| (id("team", uid), (*uid).to_owned()));
    Want {
        job: uids[0].into(),
        class: "pool".to_owned(),
        most,
        pods: pods.collect(),
    }
}

/// Returns the placeholder of a pod as the API server has it, created at 0; autoscalers may see it.
fn placeholder(uid: &str, seen: bool) -> Value {
    let pod = json!({"metadata": {"namespace": "team", "name": uid, "uid": uid}});
    let mut pod = object(&pod, "pool", HERE);
    let created = json!("1970-01-01T00:00:00Z");
    if seen {
        pod["status"] = condition(Some(&created))["status"].clone();
    }
    pod["metadata"]["creationTimestamp"] = created;
    pod
}

/// Returns what is created and deleted, as `+UID` and `-UID`.
fn planned(all: &mut Placeholders, wants: &[Want], now: Millis) -> Vec<String> {
    let sign = |change: &Change| match change {
        Change::Create { uid, .. } => format!("+{uid}"),
        Change::Delete { uid } => format!("-{uid}"),
    };
    all.plan(wants, now).iter().map(sign).collect()
}

/// Answers a creation.
fn created(all: &mut Placeholders, uid: &str) {
    let pod = placeholder(uid, true);
    assert_eq!(all.answered(uid, Answer::There(pod.into()), 0), None);
}

#[test]
fn each_waiting_pod_gets_one_in_the_order_of_the_queue_up_to_the_most_of_the_class() {
    let mut all = some();
    let wants = [want(&["a"], 3), want(&["b", "c"], 3), want(&["d"], 3)];
    assert_eq!(planned(&mut all, &wants, 0), ["+a", "+b", "+c"]);
    // Nothing is requested twice, whether or not the request is answered.
    assert!(planned(&mut all, &wants, 1).is_empty());
    for uid in ["a", "b", "c"] {
        created(&mut all, uid);
    }
    assert!(planned(&mut all, &wants, 2).is_empty());
    assert_eq!(all.asking(&wants), ["a".into(), "b".into()].into());
    assert_eq!(all.by_class(), [("pool", 3)].into());
}

#[test]
fn a_gang_gets_all_or_none_and_nobody_passes_it_but_a_larger_one_than_the_class_allows() {
    let mut all = some();
    let wants = [want(&["a"], 2), want(&["b", "c"], 2), want(&["d"], 2)];
    assert_eq!(planned(&mut all, &wants, 0), ["+a"]);
    let wants = [want(&["e", "f", "g"], 2), want(&["h"], 2)];
    assert_eq!(planned(&mut some(), &wants, 0), ["+h"]);
}

#[test]
fn one_goes_with_the_wait_of_its_pod_and_is_not_made_anew_while_it_goes() {
    let mut all = some();
    let wants = [want(&["a"], 1)];
    assert_eq!(planned(&mut all, &wants, 0), ["+a"]);
    // The job starts before the request is answered.
    assert!(planned(&mut all, &[], 1).is_empty());
    created(&mut all, "a");
    assert_eq!(planned(&mut all, &[], 2), ["-a"]);
    assert_eq!(all.answered("a", Answer::Gone, 2), None);
    assert!(planned(&mut all, &wants, 3).is_empty());
    assert!(all.asking(&wants).is_empty());
    all.gone(&id(HERE, &name("a")));
    assert_eq!(planned(&mut all, &wants, 4), ["+a"]);
}

#[test]
fn one_that_does_not_help_is_made_anew_only_after_a_rest() {
    let mut all = some();
    let wants = [want(&["a"], 1)];
    assert_eq!(planned(&mut all, &wants, 0), ["+a"]);
    created(&mut all, "a");
    let late = 15 * MINUTE;
    assert!(planned(&mut all, &wants, late - 1).is_empty());
    assert_eq!(all.next(late - 1), Some(late));
    assert_eq!(planned(&mut all, &wants, late), ["-a"]);
    all.answered("a", Answer::Gone, late);
    all.gone(&id(HERE, &name("a")));
    assert!(planned(&mut all, &wants, late + 14 * MINUTE).is_empty());
    assert_eq!(all.next(late + 14 * MINUTE), Some(late + 15 * MINUTE));
    assert_eq!(planned(&mut all, &wants, late + 15 * MINUTE), ["+a"]);
}

#[test]
fn one_without_a_condition_is_left_by_a_process_that_has_ended() {
    let mut all = some();
    let wants = [want(&["a"], 1)];
    all.set(&placeholder("a", false));
    assert!(planned(&mut all, &wants, SILENCE - 1).is_empty());
    assert_eq!(all.next(0), Some(SILENCE));
    assert_eq!(planned(&mut all, &wants, SILENCE), ["-a"]);
    all.answered("a", Answer::Gone, SILENCE);
    all.gone(&id(HERE, &name("a")));
    assert_eq!(planned(&mut all, &wants, SILENCE), ["+a"]);
}

#[test]
fn a_failed_request_is_made_again_after_a_pause() {
    let mut all = some();
    let wants = [want(&["a"], 1)];
    assert_eq!(planned(&mut all, &wants, 0), ["+a"]);
    let failed = all.answered("a", Answer::Failed("forbidden".to_owned()), 0);
    assert_eq!(failed.as_deref(), Some("forbidden"));
    assert!(planned(&mut all, &wants, AGAIN - 1).is_empty());
    // Before the same pod, others may ask.
    let both = [want(&["a"], 1), want(&["b"], 1)];
    assert_eq!(planned(&mut all, &both, AGAIN), ["+b"]);
    all.answered("b", Answer::Failed("forbidden".to_owned()), AGAIN);
    assert_eq!(planned(&mut all, &wants, MINUTE), ["+a"]);
}

#[test]
fn a_clock_that_is_set_makes_nothing_older() {
    let mut all = some();
    let wants = [want(&["a"], 1)];
    assert_eq!(planned(&mut all, &wants, 0), ["+a"]);
    created(&mut all, "a");
    all.jumped(60 * MINUTE);
    assert!(planned(&mut all, &wants, 60 * MINUTE).is_empty());
    assert_eq!(planned(&mut all, &wants, 75 * MINUTE), ["-a"]);
}

#[test]
fn only_pods_of_its_name_in_its_namespace_are_placeholders() {
    let mut all = some();
    for (field, value) in [("namespace", "team"), ("name", "a"), ("labels", "")] {
        let mut pod = placeholder("a", true);
        pod["metadata"][field] = json!(value);
        assert!(!all.set(&pod), "{field}");
    }
    let pod = placeholder("a", true);
    assert!(!Placeholders::default().set(&pod), "there are none");
    assert!(all.set(&pod));
    all.gone(&id("team", &name("a")));
    assert_eq!(all.by_class(), [("pool", 1)].into());
    all.retain(&[id("team", &name("a"))].into());
    assert!(all.by_class().is_empty());
}

/// Returns a waiting pod with these terms of its required node affinity.
fn waiting(terms: &Value) -> Value {
    json!({
        "metadata": {"namespace": "team", "name": "train-0", "uid": "u"},
        "spec": {
            "schedulingGates": [{"name": labels::QUEUE_GATE}],
            "nodeSelector": {"pool": "a100"},
            "tolerations": [{"key": "nvlink-domains.io/class", "value": "pool"}],
            "schedulerName": "default-scheduler",
            "serviceAccountName": "trainer",
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": terms
            }}},
            "containers": [
                {"name": "a", "image": "train", "resources": {
                    "requests": {"cpu": "1500m", "memory": "1Gi"}, "limits": {"nvidia.com/gpu": "4"}}},
                {"name": "b", "image": "log", "resources": {"requests": {"cpu": "1"}}}
            ]
        }
    })
}

#[test]
fn a_placeholder_requests_what_its_pod_requests_and_no_label_of_the_exporter() {
    let term = |expressions: Value| json!({"matchExpressions": expressions});
    let exporter =
        json!({"key": "nvlink-domains.io/domain-size", "operator": "Gt", "values": ["3"]});
    let zone = json!({"key": "zone", "operator": "In", "values": ["a"]});
    let made = object(
        &waiting(&json!([term(json!([exporter, zone]))])),
        "pool",
        HERE,
    );
    let found = &made["spec"];
    let gpus = json!({"nvidia.com/gpu": "4"});
    assert_eq!(
        found["containers"][0]["resources"],
        json!({
            "requests": {"cpu": "2500m", "memory": "1073741824", "nvidia.com/gpu": "4"}, "limits": gpus,
        })
    );
    assert_eq!(found["nodeSelector"], json!({"pool": "a100"}));
    assert_eq!(found["tolerations"][0]["value"], "pool");
    let required =
        "/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
    assert_eq!(found.pointer(required), Some(&json!([term(json!([zone]))])));
    assert!(found.get("schedulingGates").is_none());
    assert_ne!(found["schedulerName"], "default-scheduler");
    assert!(found.get("serviceAccountName").is_none());
    assert_eq!(
        made["metadata"]["annotations"][labels::PLACEHOLDER_FOR],
        "team/train-0"
    );
    // An alternative without a condition is none.
    let made = object(
        &waiting(&json!([term(json!([exporter])), term(json!([zone]))])),
        "pool",
        HERE,
    );
    assert!(made["spec"].get("affinity").is_none());
}
