//! An API server that is too slow to answer access reviews.

use std::{fs, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::PostParams};
use nvlink_tests::{FaultyApi, Webhook, wait_until};
use serde_json::json;
use tokio::task::JoinSet;

use crate::{
    pods::{decision, gpu_pod},
    shared::{control_plane, create_class, each_webhook, registration},
};

/// The number of pods that are created at once; half of them name a class.
const PODS: usize = 500;
/// The limit for the webhook's memory in KiB: what it reserves for reviews, and the rest
/// of the process.
const MEMORY: u64 = 384 << 10;
const SOON: Duration = Duration::from_secs(60);
const NAMESPACE: &str = "overload";

/// Returns the peak memory of a process, in KiB.
fn peak(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.unwrap().split_whitespace().next().unwrap();
    kib.parse().unwrap()
}

/// Starts a webhook that uses the slow API server, and registers it for the pods of the
/// namespace only.
fn registered(slow: &FaultyApi) -> Webhook {
    let webhook = Webhook::start(&slow.kubeconfig).unwrap();
    let mut own = registration(&webhook).unwrap();
    own["metadata"]["name"] = json!(NAMESPACE);
    each_webhook(&mut own, |entry| {
        entry["namespaceSelector"] =
            json!({"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}});
    });
    control_plane().kubectl().apply(&own.to_string()).unwrap();
    webhook
}

fn pod(index: usize) -> Pod {
    let mut pod = gpu_pod(&format!("pod-{index}"), 1);
    if index.is_multiple_of(2) {
        pod["metadata"]["annotations"] = json!({"nvlink-domains.io/class": NAMESPACE});
    }
    serde_json::from_value(pod).unwrap()
}

/// Creates the pod like a controller: it retries if the API server is overloaded.
async fn create(pods: Api<Pod>, index: usize) -> (usize, Result<(), String>) {
    let created = loop {
        match pods.create(&PostParams::default(), &pod(index)).await {
            Ok(_) => break Ok(()),
            Err(kube::Error::Api(status)) if status.code == 429 => {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            Err(error) => break Err(error.to_string()),
        }
    };
    (index, created)
}

/// Returns the number of requests with this outcome.
fn count(webhook: &Webhook, outcome: &str) -> String {
    let metrics = webhook.replica.metrics().unwrap();
    let mut lines = metrics.lines();
    let start = format!("nvlink_webhook_admission_requests_total{{outcome=\"{outcome}\"}} ");
    lines
        .find_map(|line| line.strip_prefix(&start))
        .unwrap()
        .to_owned()
}

#[test]
fn a_slow_api_server_refuses_nobody() {
    create_class(NAMESPACE, &json!({"access": {"mode": "Restricted"}}));
    // The API server does not call the shared webhook of all tests in this namespace.
    let kubectl = control_plane()
        .namespace(NAMESPACE, &json!({"webhook": "off"}), &json!({}))
        .unwrap();
    let slow = FaultyApi::start(control_plane()).unwrap();
    let webhook = registered(&slow);
    let mut named = gpu_pod("named", 1);
    named["metadata"]["annotations"] = json!({"nvlink-domains.io/class": NAMESPACE});
    // Uses a user who is denied, because a granted right would be cached for some seconds.
    let stranger = "system:serviceaccount:kube-system:replicaset-controller";
    let stranger = control_plane().kubectl_as(stranger).unwrap();
    let stranger = stranger.in_namespace(NAMESPACE);
    wait_until("the webhook to be called", SOON, || {
        let dry_run = ["create", "--dry-run=server", "-f", "-"];
        let refusal = stranger.refused(&dry_run, &named.to_string())?;
        Ok(refusal.contains("is restricted").then_some(()))
    })
    .unwrap();

    slow.set_late(true);
    let (before, denied) = (slow.asked(), count(&webhook, "denied"));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let answers: Vec<_> = runtime.block_on(async {
        let client = control_plane().client().await.unwrap();
        let pods: Api<Pod> = Api::namespaced(client, NAMESPACE);
        let all: JoinSet<_> = (0..PODS).map(|index| create(pods.clone(), index)).collect();
        all.join_all().await
    });
    assert!(slow.asked() > before, "the webhook sent access reviews");
    for (index, answer) in answers {
        match answer {
            Ok(()) => assert_eq!(index % 2, 1, "pod {index} names a class and was admitted"),
            Err(why) => {
                assert_eq!(index % 2, 0, "pod {index} names no class: {why}");
                assert!(why.contains("failed calling webhook"), "{why}");
                assert!(!why.contains("denied the request"), "{why}");
            }
        }
    }
    assert_eq!(count(&webhook, "denied"), denied);
    assert_eq!(count(&webhook, "invalid"), "0");
    assert_ne!(count(&webhook, "overloaded"), "0");
    let peak = peak(webhook.replica.process.id());
    assert!(peak < MEMORY, "{peak} KiB");

    // Everything works again once the API server answers.
    slow.set_late(false);
    let stored = kubectl.create(&named).unwrap();
    assert_eq!(decision(&stored).unwrap()["class"], NAMESPACE);
}
