//! Jobs that waited as long as they may are rejected in their order, each with its reason, and
//! never early.

use std::{thread, time::Duration};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use nvlink_tests::wait_until;
use serde_json::{Value, json};

use super::cluster::{Cluster, SOON, waits};

const TIMEOUT: Duration = Duration::from_secs(8);

/// Waits until the job is rejected, and returns its message.
fn rejected(cluster: &Cluster, name: &str) -> String {
    let failed = wait_until(&format!("{name} to be rejected"), SOON, || {
        let pod = cluster.team.get(&["pod", name, "--show-managed-fields"])?;
        Ok((pod["status"]["phase"] == "Failed").then_some(pod))
    });
    let pod = failed.unwrap();
    assert_eq!(
        pod["status"]["reason"], "QueueTimeout",
        "{:#}",
        pod["status"]
    );
    assert!(waits(&pod), "it never had a place");
    let shown = cluster.team.run(&["get", "pod", name]).unwrap();
    assert!(shown.contains(" QueueTimeout "), "{shown}");
    let owners = pod["metadata"]["managedFields"].as_array().unwrap();
    let wrote = owners.iter().find(|one| {
        one["subresource"] == "status" && one["fieldsV1"]["f:status"]["f:reason"].is_object()
    });
    let at: Timestamp = time(&wrote.unwrap()["time"]);
    let created = time(&pod["metadata"]["creationTimestamp"]);
    let waited = at.duration_since(created);
    assert!(
        waited >= SignedDuration::try_from(TIMEOUT).unwrap(),
        "{name} waited {waited:?}"
    );
    pod["status"]["message"].as_str().unwrap().to_owned()
}

fn time(text: &Value) -> Timestamp {
    text.as_str().unwrap().parse().unwrap()
}

#[test]
fn jobs_are_rejected_in_their_order_each_with_its_reason() {
    let timeout = format!("{}s", TIMEOUT.as_secs());
    let cluster = Cluster::start(&["n1"], json!({"queueTimeout": timeout}));
    cluster.create("holds", 4);
    cluster.bound("holds");
    // Pods are as old as the second in which they were created.
    let second = || thread::sleep(Duration::from_millis(1_100));
    cluster.create("large", 8);
    second();
    // A job that does not fit blocks nobody.
    cluster.create("fits", 4);
    assert_eq!(cluster.bound("fits")["spec"]["nodeName"], "n1");
    cluster.create("last", 4);

    let why = rejected(&cluster, "large");
    assert!(
        why.contains("it needs 8 GPUs in one NVLink domain, and none is free"),
        "{why}"
    );
    let why = rejected(&cluster, "last");
    assert!(
        why.contains("it needs 4 GPUs in one NVLink domain, and none is free"),
        "{why}"
    );
    // A leader that is late rejects both in the same second, which the times of objects do not tell apart.
    let log = cluster.webhook.as_ref().unwrap().replica.process.log();
    let rejects = log
        .lines()
        .filter(|line| line.contains("failing a pod that waited too long"));
    let pods: Vec<bool> = rejects.map(|line| line.contains("team/large")).collect();
    assert_eq!(pods, [true, false], "{log}");
}
