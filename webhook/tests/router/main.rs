//! The admission endpoint, with valid and with malformed input.

#![allow(clippy::unwrap_used, clippy::too_many_lines)]

#[path = "../../../crates/admission/tests/all/fixture/mod.rs"]
mod fixture;
mod overload;

use std::sync::Arc;

use axum::{
    body::{Body, to_bytes},
    http::{Request, StatusCode},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use fixture::{admission, pod, review};
use nvlink_api::class::Class;
use nvlink_runtime::supervise::{Supervisor, Weight};
use nvlink_topology::labels;
use nvlink_webhook::{
    admission::server::{PATH, Webhook, admission_router},
    health::{Health, Readiness, admin_router},
    metrics::Metrics,
};
use overload::{is_allowed, poster};
use serde_json::{Value, json};
use tower::ServiceExt;

const UID: &str = "705ab4f5-6393-11e8-b7cc-42010a800002";

/// Sends a body and returns the `response` of the answer, after checks that hold for every answer.
async fn send(body: impl Into<Body>) -> Value {
    let webhook = Webhook {
        admission: admission(&[]),
        metrics: Arc::default(),
        recent: Default::default(),
    };
    let request = Request::post(PATH).body(body.into()).unwrap();
    let response = admission_router(Arc::new(webhook))
        .oneshot(request)
        .await
        .unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    let mut review: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(
        (&review["apiVersion"], &review["kind"]),
        (&json!("admission.k8s.io/v1"), &json!("AdmissionReview"))
    );
    let response = review["response"].take();
    assert!(response["allowed"].is_boolean() && response["uid"].is_string());
    response
}

async fn refused(body: impl Into<Body>, uid: &str, reason: &str) {
    let response = send(body).await;
    assert_eq!(response["allowed"], false, "{response}");
    assert_eq!(response["uid"], uid, "{response}");
    let message = response["status"]["message"].as_str().unwrap();
    assert!(
        message.contains(reason),
        "{message} should contain {reason}"
    );
}

fn changed(pointer: &str, value: Value) -> String {
    let mut review = review(&pod(2, json!({})));
    *review.pointer_mut(pointer).unwrap() = value;
    review.to_string()
}

#[tokio::test]
async fn a_pod_is_patched() {
    let pod = pod(2, json!({labels::CLASS: "any"}));
    let response = send(review(&pod).to_string()).await;
    assert_eq!(
        (&response["allowed"], &response["uid"]),
        (&json!(true), &json!(UID))
    );
    assert_eq!(response["patchType"], "JSONPatch");
    let patch = STANDARD
        .decode(response["patch"].as_str().unwrap())
        .unwrap();
    let patch: json_patch::Patch = serde_json::from_slice(&patch).unwrap();
    let mut patched = pod;
    json_patch::patch(&mut patched, &patch).unwrap();
    assert_eq!(patched["metadata"]["labels"][labels::PROJECT], "ci");
    assert!(
        response["warnings"][0]
            .as_str()
            .unwrap()
            .starts_with("nvlink-domains: class \"any\"")
    );

    let again = send(review(&patched).to_string()).await;
    assert_eq!(
        (&again["allowed"], again.get("patch")),
        (&json!(true), None)
    );
}

#[tokio::test]
async fn a_forged_decision_is_removed_even_if_the_real_one_has_no_room() {
    let mut pod = pod(2, json!({labels::CLASS: "any"}));
    pod["metadata"]["labels"] = json!({labels::CLASS: "any"});
    pod["metadata"]["annotations"]["a"] = json!("x".repeat((256 << 10) - 300));
    pod["metadata"]["annotations"][labels::DECISION] = json!("{\"class\":\"restricted\"}");
    for _ in 0..2 {
        let response = send(review(&pod).to_string()).await;
        assert_eq!(response["allowed"], true, "{response}");
        assert!(response["warnings"].to_string().contains("was not written"));
        if let Some(patch) = response["patch"].as_str() {
            let patch = STANDARD.decode(patch).unwrap();
            let patch: json_patch::Patch = serde_json::from_slice(&patch).unwrap();
            json_patch::patch(&mut pod, &patch).unwrap();
        }
        assert_eq!(pod["metadata"]["annotations"].get(labels::DECISION), None);
    }
}

#[tokio::test]
async fn a_plain_pod_is_admitted() {
    let response = send(review(&pod(0, json!({}))).to_string()).await;
    assert_eq!(response, json!({"uid": UID, "allowed": true}));
}

#[tokio::test]
async fn a_pod_that_targets_a_restricted_class_without_naming_it_sees_no_gpu() {
    let metrics = Arc::new(Metrics::default());
    let webhook = Webhook {
        admission: admission(&["restricted"]),
        metrics: Arc::clone(&metrics),
        recent: Default::default(),
    };
    let mut pod = pod(0, json!({}));
    pod["spec"]["tolerations"] = json!([{"key": labels::CLASS, "value": "restricted"}]);
    let mut sidecar = pod["spec"]["containers"][0].clone();
    sidecar["name"] = json!("told");
    sidecar["env"] = json!([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}]);
    pod["spec"]["initContainers"] = json!([sidecar]);
    let answer = webhook.answer(review(&pod).to_string().as_bytes()).await;
    let review: Value = serde_json::from_slice(&answer.to_review().unwrap()).unwrap();
    let patch = STANDARD
        .decode(review["response"]["patch"].as_str().unwrap())
        .unwrap();
    let patch: Value = serde_json::from_slice(&patch).unwrap();
    let void = json!([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]);
    assert_eq!(
        patch,
        json!([{"op": "add", "path": "/spec/containers/0/env", "value": void}])
    );
    let said = review["response"]["warnings"][0].as_str().unwrap();
    assert!(
        said.contains("is set in main: ") && said.contains("restricted class \"restricted\""),
        "{said}"
    );
    assert!(metrics.render().unwrap().contains("outcome=\"mutated\"} 1"));
}

#[tokio::test]
async fn a_refusal_has_the_commands() {
    let body = review(&pod(2, json!({labels::CLASS: "restricted"}))).to_string();
    refused(body, UID, "kubectl create rolebinding").await;
}

#[tokio::test]
async fn a_restricted_class_that_cannot_be_used_is_guarded() {
    let spec = json!({
        "access": {"mode": "Restricted"}, "minBandwidth": "fast",
        "nodeSelector": {"matchLabels": {"pool": "odd"}},
    });
    let mut unreadable = spec.clone();
    unreadable["access"]["mode"] = json!("Audit");
    let tolerating = json!({"tolerations": [{"key": labels::CLASS, "value": "odd"}]});
    for spec in [spec, unreadable] {
        let answer = async |change: &Value, allowed: &[&str]| {
            let admission = admission(allowed);
            let class = Class::read("odd", &spec);
            admission.view.write().set_read_class("odd", class);
            let webhook = Webhook {
                admission,
                metrics: Arc::default(),
                recent: Default::default(),
            };
            let mut pod = pod(1, json!({}));
            let change = change.as_object().unwrap().clone();
            pod["spec"].as_object_mut().unwrap().extend(change);
            webhook.answer(review(&pod).to_string().as_bytes()).await
        };
        for change in [&tolerating, &json!({"nodeSelector": {"pool": "odd"}})] {
            let (code, message) = answer(change, &[]).await.refused.unwrap();
            assert!(code == 403 && message.contains("\"odd\""), "{message}");
            assert_eq!(answer(change, &["odd"]).await.refused, None);
        }
    }
}

#[tokio::test]
async fn malformed_reviews_are_answered() {
    refused("", "", "not valid JSON").await;
    refused("{", "", "not valid JSON").await;
    refused("\u{0}\u{1}binary", "", "not valid JSON").await;
    refused(vec![0xff, 0xfe, 0x00], "", "not valid JSON").await;
    refused("[]", "", "not \"AdmissionReview\"").await;
    refused("null", "", "not \"AdmissionReview\"").await;
    refused("{}", "", "not \"AdmissionReview\"").await;
    let cut =
        format!("{{\"kind\":\"AdmissionReview\",\"request\":{{\"uid\":\"{UID}\",\"object\":{{");
    refused(cut, UID, "not valid JSON").await;
    refused(
        changed("/apiVersion", json!("admission.k8s.io/v1beta1")),
        UID,
        "v1beta1",
    )
    .await;
    refused(changed("/apiVersion", json!(7)), UID, "apiVersion").await;
    refused(
        changed("/kind", json!("Pod")),
        UID,
        "not \"AdmissionReview\"",
    )
    .await;
    refused(changed("/request", json!(null)), "", "no request").await;
    refused(changed("/request/uid", json!("")), "", "uid is missing").await;
    refused(changed("/request/object", json!(null)), UID, "no pod").await;
    refused(changed("/request/object", json!("pod")), UID, "no pod").await;
    refused(
        changed("/request/kind/kind", json!("Node")),
        UID,
        "\"Node\"",
    )
    .await;
    refused(
        changed("/request/kind", json!(null)),
        UID,
        "not about a Pod",
    )
    .await;
    refused(changed("/request/namespace", json!("")), UID, "namespace").await;
}

#[tokio::test]
async fn unhandled_operations_are_admitted() {
    for (pointer, value) in [
        ("/request/operation", "DELETE"),
        ("/request/operation", "CONNECT"),
    ] {
        let response = send(changed(pointer, json!(value))).await;
        assert_eq!(response["allowed"], true);
        assert!(response["warnings"][0].as_str().unwrap().contains(value));
    }
}

#[tokio::test]
async fn deep_and_large_bodies_are_answered() {
    let deep = format!(
        "{{\"kind\":\"AdmissionReview\",\"request\":{{\"uid\":\"{UID}\",\"object\":{{\"spec\":{}",
        "[".repeat(100_000)
    );
    refused(deep, UID, "recursion limit").await;
    let large = changed(
        "/request/object/metadata/annotations",
        json!({"a": "x".repeat(20 << 20)}),
    );
    refused(large, "", "larger than 7 MiB").await;
    let head =
        format!("{{\"kind\":\"AdmissionReview\",\"request\":{{\"uid\":\"{UID}\",\"object\":\"");
    refused(head + &"x".repeat(20 << 20), UID, "larger than 7 MiB").await;
    let fits = changed(
        "/request/object/metadata/annotations",
        json!({"a": "x".repeat(1 << 20)}),
    );
    assert_eq!(send(fits).await["allowed"], true);
}

#[tokio::test]
async fn more_values_than_any_pod_has_are_refused() {
    let post = poster(admission(&[]), &Arc::default());
    for (value, most) in [
        (r#"{"":0},"#, 200_000),
        ("[[[[0]]]],", 200_000),
        ("0,", 900_000),
    ] {
        let values = |count: usize| {
            let list = value.repeat(count);
            let review = changed("/request/object/metadata/annotations", json!({"a": "@"}));
            let list = format!("[{}]", list.trim_end_matches(','));
            post("", review.replace("\"@\"", &list).into())
        };
        let answer = values(most).await.unwrap();
        let body = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        let answer: Value = serde_json::from_slice(&body).unwrap();
        let message = answer["response"]["status"]["message"].as_str().unwrap();
        assert!(message.contains("so many values"), "{value}: {message}");
        // A tenth of it is accepted. The content of a string does not count as values.
        assert!(is_allowed(values(most / 10).await).await, "{value}");
    }
    let containers = json!(vec![json!({"name": "c"}); 1001]);
    refused(
        changed("/request/object/spec/containers", containers),
        UID,
        "1001 containers",
    )
    .await;
    let text = json!({"a": r#"{"":0},"#.repeat(300_000)});
    let review = changed("/request/object/metadata/annotations", text);
    assert!(is_allowed(post("", review.into()).await).await);
}

#[tokio::test]
async fn probes_and_metrics() {
    let metrics = Arc::new(Metrics::default());
    let readiness = Readiness::new(Arc::clone(&metrics));
    let webhook = Webhook {
        admission: admission(&[]),
        metrics,
        recent: Default::default(),
    };
    for class in ["any", "no", "restricted"] {
        let review = review(&pod(2, json!({labels::CLASS: class}))).to_string();
        webhook.answer(review.as_bytes()).await;
    }
    webhook.answer(b"{").await;
    let health = Health {
        readiness: readiness.clone(),
        supervisor: Supervisor::default(),
        leadership: Arc::default(),
    };
    let get = async |path: &str| {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = admin_router(health.clone()).oneshot(request).await.unwrap();
        let status = response.status();
        let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        (status, String::from_utf8(body.into()).unwrap())
    };
    assert_eq!(get("/livez").await, (StatusCode::OK, "ok\n".to_owned()));
    assert_eq!(get("/readyz").await.0, StatusCode::SERVICE_UNAVAILABLE);
    readiness.set(true);
    assert_eq!(get("/readyz").await.0, StatusCode::OK);
    let (status, page) = get("/metrics").await;
    assert_eq!(status, StatusCode::OK);
    for line in [
        "nvlink_webhook_admission_requests_total{outcome=\"mutated\"} 1",
        "nvlink_webhook_admission_requests_total{outcome=\"denied\"} 2",
        "nvlink_webhook_admission_requests_total{outcome=\"invalid\"} 1",
        "nvlink_webhook_admission_requests_total{outcome=\"untouched\"} 0",
        // A class that exists becomes a label value; text from users does not.
        "nvlink_webhook_denials_total{class=\"\",rule=\"unknown-class\"} 1",
        "nvlink_webhook_denials_total{class=\"restricted\",rule=\"not-authorized\"} 1",
        "nvlink_webhook_admission_duration_seconds_count 4",
        "nvlink_webhook_ready 1",
        "nvlink_webhook_leader 0",
        "nvlink_webhook_registration_failures_total 0",
        "nvlink_webhook_log_lines_dropped_total 0",
        "nvlink_webhook_certificate_reloads_total{result=\"success\"} 0",
        "# EOF",
    ] {
        assert!(
            page.lines().any(|found| found == line),
            "no {line} in\n{page}"
        );
    }
    let registered = |page: &str| {
        let mut lines = page.lines();
        lines.any(|line| line.starts_with("nvlink_webhook_registered "))
    };
    assert!(!registered(&page), "nothing is registered: {page}");
    let supervisor = &health.supervisor;
    supervisor.keep("registrar", Weight::Vital, std::future::pending::<()>);
    supervisor.require("server", async { Err::<(), _>("out of sockets") });
    supervisor.failed().await;
    let obstacle = "server failed: out of sockets\n".to_owned();
    let dead = (StatusCode::SERVICE_UNAVAILABLE, obstacle);
    assert_eq!(get("/livez").await, dead);
    let line = "nvlink_webhook_part_restarts_total{part=\"registrar\"} 0";
    let page = get("/metrics").await.1;
    assert!(page.lines().any(|found| found == line), "{page}");
}
