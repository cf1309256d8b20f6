//! Gangs start whole or not at all, also if the leader dies in between.

use nvlink_tests::wait_until;
use serde_json::{Value, json};

use super::cluster::{Cluster, SOON, job, placement, waits};
use crate::pods::{gpu_pod, spec};

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
    let placements = pods.iter().map(|pod| placement(pod).unwrap());
    let plans = placements.map(|placement| {
        // The exporter reads it, for a label of its metrics.
        assert_eq!(placement["gang"], "gang train");
        placement["plan"].clone()
    });
    plans.collect()
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

/// Installs the kind PyTorchJob, of which the queue reads the number of pods, and creates one. Its
/// operator is not here.
fn create_pytorch_job(cluster: &Cluster) -> Value {
    let all = cluster.plane.kubectl();
    let any = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "pytorchjobs.kubeflow.org"},
        "spec": {
            "group": "kubeflow.org", "scope": "Namespaced",
            "names": {"kind": "PyTorchJob", "plural": "pytorchjobs"},
            "versions": [{
                "name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": any},
            }],
        },
    });
    all.create(&crd).unwrap();
    let established = [
        "crd/pytorchjobs.kubeflow.org",
        "--for=condition=Established",
    ];
    all.run(&[&["wait"], &established[..]].concat()).unwrap();
    let replicas = json!({"replicas": 1, "template": {"spec": spec(8)}});
    let job = json!({
        "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "ddp"},
        "spec": {"pytorchReplicaSpecs": {"Master": replicas, "Worker": replicas}},
    });
    wait_until("the API server to serve PyTorchJobs", SOON, || {
        Ok(cluster.team.create(&job).ok())
    })
    .unwrap()
}

/// Returns a pod as Kubeflow's training operator 1.9 creates it
/// (`pkg/controller.v1/common/pod.go`, `pkg/controller.v1/pytorch/envvar.go`): the master first.
fn replica(owner: &Value, kind: &str, rank: u32) -> Value {
    let (name, uid) = (&owner["metadata"]["name"], &owner["metadata"]["uid"]);
    let mut pod = gpu_pod(&format!("ddp-{kind}-0"), 8);
    pod["metadata"]["labels"] = json!({
        "training.kubeflow.org/operator-name": "pytorchjob-controller",
        "training.kubeflow.org/job-name": name,
        "training.kubeflow.org/replica-type": kind,
        "training.kubeflow.org/replica-index": "0",
    });
    pod["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": name, "uid": uid,
        "controller": true, "blockOwnerDeletion": true,
    }]);
    pod["spec"]["containers"][0]["env"] = json!([
        {"name": "MASTER_ADDR", "value": "ddp-master-0"}, {"name": "MASTER_PORT", "value": "23456"},
        {"name": "WORLD_SIZE", "value": "2"}, {"name": "RANK", "value": rank.to_string()},
        {"name": "PET_NNODES", "value": "2"},
    ]);
    pod
}

/// Returns how the README's class places its pods. `Cluster` adds the queue, as the README's patch
/// does.
fn placement_of_the_readme() -> Value {
    let readme = include_str!("../../../../README.md");
    let (_, class) = readme.split_once("kind: DomainClass\n").unwrap();
    let (class, _) = class.split_once("\nEND\n").unwrap();
    let class: Value = serde_saphyr::from_str(class).unwrap();
    let queues = r#"{"spec": {"placement": {"whenUnavailable": "Queue"}}}"#;
    assert!(readme.contains(queues));
    class["spec"]["placement"].clone()
}

/// The class of the README, with its queue, on two nodes without labels for racks and zones.
#[test]
fn a_job_of_two_whole_nodes_runs_in_the_class_of_the_readme() {
    let cluster = Cluster::start(&["n1", "n2"], placement_of_the_readme());
    let all = cluster.plane.kubectl();
    all.run(&["label", "nodes", "--all", "topology.kubernetes.io/zone-"])
        .unwrap();
    cluster.create("holds-1", 8);
    cluster.bound("holds-1");
    let owner = create_pytorch_job(&cluster);
    let pods = [("master", 0), ("worker", 1)].map(|(kind, rank)| {
        let pod = cluster.team.create(&replica(&owner, kind, rank)).unwrap();
        pod["metadata"]["name"].as_str().unwrap().to_owned()
    });
    wait_until("both pods to show that they wait", SOON, || {
        let reason = |name: &String| {
            let reason = &cluster.pod(name)["metadata"]["annotations"];
            reason["nvlink-domains.io/queue-reason"].as_str() == Some(FULL)
        };
        Ok(pods.iter().all(reason).then_some(()))
    })
    .unwrap();
    cluster.end("holds-1");
    let bound = pods.each_ref().map(|name| cluster.bound(name));
    assert_ne!(bound[0]["spec"]["nodeName"], bound[1]["spec"]["nodeName"]);
    let placed = bound.each_ref().map(|pod| placement(pod).unwrap());
    assert_eq!(placed[0]["plan"], placed[1]["plan"]);
    assert_eq!(placed[0]["scope"], "cluster");
    let running = json!({"status": {"phase": "Running"}}).to_string();
    for name in &pods {
        let status = ["--subresource=status", "--type=merge", "-p", &running];
        let patch = [&["patch", "pod", name], &status[..]].concat();
        cluster.team.run(&patch).unwrap();
    }
    // A gang that must share a domain over which its pods reach each other finds none, and says so.
    for name in ["apart-0", "apart-1"] {
        let mut pod = job(name, 4);
        pod["metadata"]["annotations"] = json!({
            "nvlink-domains.io/gang": "apart", "nvlink-domains.io/gang-size": "2",
            "nvlink-domains.io/gang-scope": "nvlink-domain",
        });
        cluster.team.create(&pod).unwrap();
    }
    wait_until("a gang to show that it never starts", SOON, || {
        let reason = &cluster.pod("apart-0")["metadata"]["annotations"];
        let reason = reason["nvlink-domains.io/queue-reason"].as_str();
        Ok(reason.filter(|reason| *reason == NEVER).map(drop))
    })
    .unwrap();
}

const FULL: &str = "Insufficient: it needs 16 GPUs for all of its pods, and at most 8 are free";
const NEVER: &str = "Impossible: each of its 2 pods could run, but no NVLink domain over which pods \
    reach each other can run all of them, not even when empty: use fewer pods, another \
    class, or another nvlink-domains.io/gang-scope";
