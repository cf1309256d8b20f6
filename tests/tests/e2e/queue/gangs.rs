//! Gangs start whole or not at all, also if the leader dies in between.

use nvlink_tests::wait_until;
use serde_json::{Value, json};

use super::cluster::{Cluster, SOON, job, placement, waits};

const PODS: [&str; 2] = ["train-0", "train-1"];

fn cluster() -> Cluster {
    Cluster::start(&["n1", "n2"], json!({"scope": "zone"}))
}

/// Returns a pod of a gang of two pods, each of which needs a whole node.
fn member(name: &str) -> Value {
    let mut pod = job(name, 8);
    pod["metadata"]["annotations"] = json!({
        "nvlink-domains.io/gang": "train", "nvlink-domains.io/gang-size": "2",
    });
    pod
}

/// Waits until both pods are bound, to two nodes, and returns their plans.
fn started(cluster: &Cluster) -> Vec<Value> {
    let pods = PODS.map(|name| cluster.bound(name));
    assert_ne!(pods[0]["spec"]["nodeName"], pods[1]["spec"]["nodeName"]);
    let plans = pods.iter().map(|pod| placement(pod).unwrap());
    plans.map(|placement| placement["plan"].clone()).collect()
}

/// Ends the gang that fills the cluster.
fn make_room(cluster: &Cluster) {
    for holder in ["holds-1", "holds-2"] {
        cluster.end(holder);
    }
}

fn fill(cluster: &Cluster) {
    for holder in ["holds-1", "holds-2"] {
        cluster.create(holder, 8);
        cluster.bound(holder);
    }
}

#[test]
fn a_gang_starts_whole_once_there_is_room_for_all() {
    let cluster = cluster();
    cluster.team.create(&member(PODS[0])).unwrap();
    // Half a gang reserves nothing.
    fill(&cluster);
    assert!(waits(&cluster.pod(PODS[0])));
    cluster.team.create(&member(PODS[1])).unwrap();
    cluster.end("holds-1");
    assert!(
        PODS.iter().all(|name| waits(&cluster.pod(name))),
        "one node is free"
    );
    cluster.end("holds-2");
    let plans = started(&cluster);
    assert_eq!(plans[0], plans[1]);
}

/// Kills the leader after so many writes of a kind while it starts a gang, and returns whether a
/// pod was released by then.
fn dies_after(cluster: &mut Cluster, writes: &str) -> bool {
    fill(cluster);
    cluster.restart_to_die_after(writes);
    for name in PODS {
        cluster.team.create(&member(name)).unwrap();
    }
    make_room(cluster);
    let webhook = cluster.webhook.as_ref().unwrap();
    wait_until("the leader to die", SOON, || {
        Ok(webhook.replica.metrics().err())
    })
    .unwrap();
    let released = PODS.iter().any(|name| !waits(&cluster.pod(name)));
    cluster.restart();
    released
}

#[test]
fn a_gang_of_which_one_pod_was_released_is_completed_by_the_next_leader() {
    let mut cluster = cluster();
    assert!(dies_after(&mut cluster, "release=1"));
    let plans = started(&cluster);
    assert_eq!(plans[0], plans[1], "the first leader's plan");
}

#[test]
fn a_gang_that_was_only_prepared_is_planned_again() {
    let mut cluster = cluster();
    assert!(!dies_after(&mut cluster, "prepare=1"));
    let plans = started(&cluster);
    assert_eq!(plans[0], plans[1]);
}
