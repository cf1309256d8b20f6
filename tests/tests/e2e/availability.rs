//! Pods while the API server cannot reach the webhook.

use nvlink_tests::port;
use serde_json::json;

use crate::{
    pods::{decision, gpu_pod},
    shared::{control_plane, create_class, each_webhook, registration, webhook},
};

#[test]
fn without_the_webhook_only_pods_that_name_a_class_are_refused() {
    create_class("unreachable", &json!({}));
    let nowhere = format!("https://127.0.0.1:{}/", port::free().unwrap());
    let mut dead = registration(webhook()).unwrap();
    dead["metadata"]["name"] = json!("unreachable");
    each_webhook(&mut dead, |entry| {
        entry["clientConfig"]["url"] = json!(nowhere);
        entry["namespaceSelector"] =
            json!({"matchLabels": {"kubernetes.io/metadata.name": "unreachable"}});
    });
    control_plane().kubectl().apply(&dead.to_string()).unwrap();
    let kubectl = control_plane()
        .namespace("unreachable", &json!({}), &json!({}))
        .unwrap();

    let mut named = gpu_pod("named", 2);
    named["metadata"]["annotations"] = json!({"nvlink-domains.io/class": "unreachable"});
    let refusal = kubectl
        .refused(&["create", "-f", "-"], &named.to_string())
        .unwrap();
    assert!(refusal.contains("failed calling webhook"), "{refusal}");

    let passed = kubectl.create(&gpu_pod("other", 2)).unwrap();
    assert_eq!(decision(&passed), None);
}
