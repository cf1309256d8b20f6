//! The scheduler extender: calls as kube-scheduler's types make them, what it knows of
//! nodes and pods, and malformed calls.
//!
//! `names.json` and `nodes.json` are `ExtenderArgs` of `k8s.io/kube-scheduler` 0.36, as
//! Go's encoding/json writes them.

#![allow(clippy::unwrap_used)]

mod boards;
mod property;

use std::sync::Arc;

use nvlink_cluster::informer::Extent;

use axum::{
    body::{Body, Bytes, to_bytes},
    http::{Request, StatusCode},
};
use boards::{bind, extender, pairs, pod, set, switched};
use nvlink_topology::labels;
use nvlink_webhook::{
    extender::{
        Extender,
        server::{FILTER, MAX_BODY, PRIORITIZE, router},
    },
    metrics::Metrics,
};
use serde_json::{Value, json};
use tower::ServiceExt;

const NAMES: &str = include_str!("names.json");
const NODES: &str = include_str!("nodes.json");

/// Returns four nodes, of which the extender knows three.
fn nodes() -> Extender {
    let extender = extender();
    set(&extender, "whole", &switched(), Some(&[]), &[]);
    set(&extender, "fragment", &switched(), Some(&[0, 2, 3, 7]), &[]);
    set(&extender, "split", &pairs(), Some(&[]), &[]);
    // The pods of the nodes where nothing is held.
    for node in ["whole", "split"] {
        let name = ("ci".to_owned(), format!("on-{node}"));
        extender.mirror.remove_pod(&name);
    }
    extender.mirror.all_nodes(|_| true);
    extender.mirror.all_pods(|_| true, Extent::Whole);
    extender
}

async fn post(extender: &Extender, path: &str, body: impl Into<Body>) -> (StatusCode, String) {
    let router = router(extender.clone(), Arc::default());
    let request = Request::post(path).body(body.into()).unwrap();
    let response = router.oneshot(request).await.unwrap();
    let status = response.status();
    let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

async fn asked(extender: &Extender, path: &str, body: impl Into<Body>) -> Value {
    let (status, body) = post(extender, path, body).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    serde_json::from_str(&body).unwrap()
}

/// Returns why the extender drops nodes for a pod, by node.
async fn failed(extender: &Extender, pod: Value, nodes: &[&str]) -> Value {
    let args = json!({"Pod": pod, "NodeNames": nodes}).to_string();
    let answer = asked(extender, FILTER, args).await;
    let failed = answer.get("FailedAndUnresolvableNodes");
    failed.cloned().unwrap_or_else(|| json!({}))
}

/// Returns the scores of nodes for a pod, in their order.
async fn scores(extender: &Extender, pod: Value, nodes: &[&str]) -> Vec<u64> {
    let args = json!({"Pod": pod, "NodeNames": nodes}).to_string();
    let answer = asked(extender, PRIORITIZE, args).await;
    let scores = answer.as_array().unwrap().iter();
    scores.map(|one| one["Score"].as_u64().unwrap()).collect()
}

#[tokio::test]
async fn a_call_with_names() {
    let reason = "no NVLink domain has 4 GPUs (at most 2)";
    assert_eq!(
        asked(&nodes(), FILTER, NAMES).await,
        json!({
            "NodeNames": ["whole", "fragment", "stranger"],
            "FailedAndUnresolvableNodes": {"split": reason},
        })
    );
    assert_eq!(
        asked(&nodes(), PRIORITIZE, NAMES).await,
        json!([
            {"Host": "whole", "Score": 9}, {"Host": "fragment", "Score": 10},
            {"Host": "split", "Score": 0}, {"Host": "stranger", "Score": 0},
        ])
    );
}

#[tokio::test]
async fn a_call_with_nodes_gets_the_same_nodes_back() {
    let call: Value = serde_json::from_str(NODES).unwrap();
    let answer = asked(&nodes(), FILTER, NODES).await;
    let mut expected = call["Nodes"]["items"].as_array().unwrap().clone();
    expected.remove(2);
    assert_eq!(answer["Nodes"]["items"], json!(expected));
    assert!(answer.get("NodeNames").is_none());
    let names = asked(&nodes(), PRIORITIZE, NAMES).await;
    assert_eq!(asked(&nodes(), PRIORITIZE, NODES).await, names);
}

#[tokio::test]
async fn pods_without_a_class_or_gpus_are_left_to_the_scheduler() {
    let extender = nodes();
    let mut unlabelled = pod("any", 4);
    unlabelled["metadata"] = json!({"name": "p", "creationTimestamp": null});
    for pod in [unlabelled, pod("gone", 4), pod("any", 0)] {
        assert_eq!(failed(&extender, pod.clone(), &["split"]).await, json!({}));
        assert_eq!(scores(&extender, pod, &["whole", "split"]).await, [0, 0]);
    }
}

#[tokio::test]
async fn a_bound_pod_counts_before_it_is_reported() {
    let extender = nodes();
    let four = || pod("any", 4);
    let both = ["whole", "fragment"];
    bind(&extender, "new", "fragment", 2);
    let reason = |most| format!("no NVLink domain has 4 free GPUs (at most {most})");
    assert_eq!(
        failed(&extender, four(), &both).await,
        json!({"fragment": reason(2)})
    );
    bind(&extender, "new", "whole", 2);
    assert_eq!(failed(&extender, four(), &both).await, json!({}));
    bind(&extender, "more", "whole", 3);
    assert_eq!(
        failed(&extender, four(), &both).await,
        json!({"whole": reason(3)})
    );
}

#[tokio::test]
async fn a_gone_pod_counts_no_more_although_it_is_reported() {
    let extender = nodes();
    let eight = || pod("any", 8);
    let reason = "no NVLink domain has 8 free GPUs (at most 4)";
    let expected = json!({"fragment": reason});
    assert_eq!(failed(&extender, eight(), &["fragment"]).await, expected);
    let gone = ("ci".to_owned(), "on-fragment".to_owned());
    extender.mirror.remove_pod(&gone);
    assert_eq!(failed(&extender, eight(), &["fragment"]).await, json!({}));
}

#[tokio::test]
async fn broken_gpus_come_last_or_not_at_all() {
    let extender = nodes();
    let nodes = ["sound", "worn"];
    set(&extender, "sound", &switched(), Some(&[0]), &[]);
    set(&extender, "worn", &switched(), Some(&[0]), &[1, 2, 3, 4]);
    assert_eq!(scores(&extender, pod("any", 4), &nodes).await, [10, 1]);
    assert_eq!(scores(&extender, pod("any", 2), &nodes).await, [10, 10]);
    let reason = "no NVLink domain has 4 free healthy GPUs (at most 3)";
    let dropped = failed(&extender, pod("avoiding", 4), &nodes).await;
    assert_eq!(dropped, json!({"worn": reason}));
    set(
        &extender,
        "worn",
        &switched(),
        Some(&[0, 5, 6, 7]),
        &[1, 2, 3, 4],
    );
    let dropped = failed(&extender, pod("avoiding", 1), &nodes).await;
    assert_eq!(
        dropped,
        json!({"worn": "only 0 of its free GPUs are healthy"})
    );
}

#[tokio::test]
async fn what_is_not_known_passes_with_the_lowest_score() {
    let extender = nodes();
    // No allocations are reported, or the document cannot be read.
    set(&extender, "silent", &switched(), None, &[]);
    set(&extender, "silent-pairs", &pairs(), None, &[]);
    let reason = Err("spec.gpus: missing field `index`".to_owned());
    extender.mirror.set_node("odd", Arc::new(reason));
    let nodes = ["silent", "silent-pairs", "odd", "whole"];
    let reason = "no NVLink domain has 4 GPUs (at most 2)";
    let dropped = failed(&extender, pod("any", 4), &nodes).await;
    assert_eq!(dropped, json!({"silent-pairs": reason}));
    assert_eq!(
        scores(&extender, pod("any", 4), &nodes).await,
        [0, 0, 0, 10]
    );
}

#[tokio::test]
async fn without_a_demanded_domain_no_node_is_dropped_and_nvlink_is_preferred() {
    let extender = nodes();
    let nodes = ["whole", "split"];
    assert_eq!(failed(&extender, pod("node", 4), &nodes).await, json!({}));
    let given = scores(&extender, pod("node", 4), &nodes).await;
    assert!(given[0] == 10 && (1..=3).contains(&given[1]), "{given:?}");
    // A single GPU goes where it takes no part of a large domain.
    assert_eq!(scores(&extender, pod("any", 1), &nodes).await, [9, 10]);
}

#[tokio::test]
async fn a_gang_prefers_room_for_its_other_pods() {
    let extender = nodes();
    let mut member = pod("any", 4);
    assert_eq!(
        scores(&extender, member.clone(), &["whole", "fragment"]).await,
        [9, 10]
    );
    member["metadata"]["labels"][labels::GANG] = json!("g");
    assert_eq!(
        scores(&extender, member, &["whole", "fragment"]).await,
        [10, 9]
    );
}

#[tokio::test]
async fn a_malformed_call_gets_a_reason() {
    let extender = nodes();
    let class = json!({"labels": {labels::CLASS: "any"}});
    let half = json!([{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "500m"}}}]);
    for (call, reason) in [
        (String::new(), "EOF"),
        ("{".to_owned(), "EOF"),
        ("[1]".to_owned(), "Pod is not an object"),
        ("7".to_owned(), "not the ExtenderArgs of kube-scheduler"),
        (format!("{NAMES}x"), "trailing characters"),
        ("[".repeat(100_000), "recursion limit"),
        (
            json!({"Pod": 7, "NodeNames": []}).to_string(),
            "Pod is not an object",
        ),
        (
            json!({"Pod": {}}).to_string(),
            "neither NodeNames nor Nodes",
        ),
        (
            json!({"Pod": {}, "NodeNames": [1]}).to_string(),
            "NodeNames[0]",
        ),
        (
            json!({"Pod": {}, "Nodes": {"items": [{}]}}).to_string(),
            "Nodes.items[0] has no name",
        ),
        (
            json!({"Pod": {"metadata": {"labels": 7}}, "NodeNames": []}).to_string(),
            "Pod.metadata.labels",
        ),
        (
            json!({"Pod": {"metadata": class, "spec": {"containers": half}}, "NodeNames": []})
                .to_string(),
            "not a whole number",
        ),
    ] {
        let answer = asked(&extender, FILTER, call.clone()).await;
        let error = answer["Error"].as_str().unwrap();
        assert!(error.contains(reason), "{error} should contain {reason}");
        assert!(answer.get("NodeNames").is_none(), "{answer}");
        let (status, error) = post(&extender, PRIORITIZE, call).await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert!(error.contains(reason), "{error} should contain {reason}");
    }
}

#[tokio::test]
async fn a_large_call_is_refused_and_says_how_to_make_it_smaller() {
    let large = " ".repeat(MAX_BODY + 1);
    let stream = futures::stream::iter([Ok::<_, std::io::Error>(large.clone())]);
    for body in [Body::from(large), Body::from_stream(stream)] {
        let (status, reason) = post(&nodes(), FILTER, body).await;
        assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
        assert!(reason.contains("nodeCacheCapable"), "{reason}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_does_not_arrive_ends_and_is_counted() {
    let metrics = Arc::<Metrics>::default();
    let router = router(nodes(), Arc::clone(&metrics));
    let endless = futures::stream::pending::<Result<Bytes, std::io::Error>>();
    let calls = [
        Body::from_stream(endless),
        Body::from(NAMES),
        Body::from("{"),
    ];
    let expected = [503, 200, 200];
    for (body, expected) in calls.into_iter().zip(expected) {
        let request = Request::post(FILTER).body(body).unwrap();
        let response = router.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status().as_u16(), expected);
    }
    let page = metrics.render().unwrap();
    for outcome in ["overloaded", "answered", "invalid"] {
        let series = format!(
            "nvlink_webhook_extender_requests_total{{verb=\"filter\",outcome=\"{outcome}\"}} 1\n"
        );
        assert!(page.contains(&series), "{page}");
    }
    assert!(page.contains("nvlink_webhook_extender_duration_seconds_count{verb=\"filter\"} 3"));
}
