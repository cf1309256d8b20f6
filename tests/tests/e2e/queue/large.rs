//! Pods near the limit of what the API server stores.

use nvlink_tests::wait_until;
use serde_json::{Value, json};

use super::cluster::{Cluster, GATE, SOON, job};

/// The most bytes that etcd stores by default.
const STORED: usize = 1_572_864;

/// Returns a job of eight GPUs with arguments of `bytes` bytes.
fn large(name: &str, bytes: usize) -> Value {
    let mut pod = job(name, 8);
    pod["spec"]["containers"][0]["args"] = json!(["x".repeat(bytes)]);
    pod
}

/// Makes the largest pod that the API server stores, as the webhook of an earlier version would have.
fn make_largest(cluster: &Cluster) {
    let all = cluster.plane.kubectl();
    let registration = ["mutatingwebhookconfiguration", "nvlink-domains.io"];
    all.run(&[&["delete"], &registration[..]].concat()).unwrap();
    wait_until("the webhook to be called no more", SOON, || {
        let pod = crate::shared::dry_run(&cluster.team, &job("probe", 1))?;
        Ok((!super::cluster::waits(&pod)).then_some(()))
    })
    .unwrap();
    let made = (0..100).find_map(|step| {
        let mut pod = large("largest", STORED - 64 * step);
        pod["metadata"]["labels"]["nvlink-domains.io/class"] = json!("line");
        pod["metadata"]["annotations"] = json!({"nvlink-domains.io/class": "line"});
        pod["spec"]["schedulingGates"] = json!([{"name": GATE}]);
        cluster.team.create(&pod).ok()
    });
    assert!(made.is_some(), "no size was accepted");
    let webhook = cluster.webhook.as_ref().unwrap();
    webhook.register(all).unwrap();
    cluster.settle_class();
}

#[test]
fn a_pod_that_is_too_large_to_be_written_keeps_no_gpus() {
    let cluster = Cluster::start(&["n1"], json!({}));
    // With room for what the queue writes, or not at all.
    let refused = cluster
        .team
        .create(&large("larger", 1_100_000))
        .unwrap_err();
    assert!(
        format!("{refused:#}").contains("rule size: "),
        "{refused:#}"
    );
    cluster.team.create(&large("fits", 1_000_000)).unwrap();
    cluster.bound("fits");
    cluster.end("fits");

    make_largest(&cluster);
    let log = || cluster.webhook.as_ref().unwrap().replica.process.log();
    wait_until("the release to be refused", SOON, || {
        let log = log();
        anyhow::ensure!(log.contains("request is too large"), "{log}");
        Ok(Some(()))
    })
    .unwrap();
    cluster.create("small", 8);
    cluster.bound("small");
}
