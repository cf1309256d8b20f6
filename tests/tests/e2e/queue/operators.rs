//! Jobs of Prow and of Kubeflow's training operator, whose pods the real controllers make.

use nvlink_tests::{Operator, wait_until};
use serde_json::{Value, json};

use super::cluster::{Cluster, SOON, placement, waits};
use crate::pods::gpu_pod;

const CLASS: &str = "nvlink-domains.io/class";

/// Returns the specification of a pod with so many GPUs.
fn spec(gpus: u32) -> Value {
    let mut spec = gpu_pod("unnamed", gpus)["spec"].clone();
    spec["restartPolicy"] = json!("Never");
    spec
}

/// Returns a ProwJob as `mkpj` and the trigger plugins make it.
fn prow_job(name: &str, class: &str, gpus: u32) -> Value {
    json!({
        "apiVersion": "prow.k8s.io/v1", "kind": "ProwJob",
        "metadata": {
            "name": name, "annotations": {CLASS: class, "prow.k8s.io/job": name},
            "labels": {"created-by-prow": "true", "prow.k8s.io/job": name, "prow.k8s.io/type": "periodic"},
        },
        "spec": {
            "type": "periodic", "job": name, "agent": "kubernetes", "cluster": "default", "namespace": "team",
            "report": false, "pod_spec": spec(gpus),
        },
        "status": {"state": "triggered", "startTime": "2026-11-27T12:00:00Z", "build_id": "7"},
    })
}

/// Waits until the text of the pod's conditions has this part.
fn says(cluster: &Cluster, pod: &str, part: &str) {
    wait_until("the pod to say so", SOON, || {
        let said = cluster.team.get(&["pod", pod])?["status"]["conditions"].to_string();
        anyhow::ensure!(said.contains(part), "{part:?} is not in {said}");
        Ok(Some(()))
    })
    .unwrap();
}

#[test]
fn a_prow_job_is_placed_waits_is_refused_and_ends_by_its_time_limit() {
    let cluster = Cluster::start(&["n1"], json!({}));
    let all = cluster.plane.kubectl();
    let prow = cluster
        .plane
        .namespace("prow", &json!({}), &json!({}))
        .unwrap();
    let _plank = Operator::prow(all, cluster.plane.kubeconfig(), "prow", "team").unwrap();
    let status =
        |job: &str| -> anyhow::Result<Value> { Ok(prow.get(&["prowjob", job])?["status"].clone()) };
    let state = |job: &str, state: &str| {
        wait_until(&format!("ProwJob {job} to be {state}"), SOON, || {
            let status = status(job)?;
            anyhow::ensure!(status["state"] == state, "{status}");
            Ok(Some(status["description"].to_string()))
        })
        .unwrap()
    };

    prow.create(&prow_job("first", "line", 8)).unwrap();
    cluster.bound("first");
    prow.create(&prow_job("second", "line", 8)).unwrap();
    // The class has no time limit: Prow's default of five minutes counts.
    says(&cluster, "second", "fails if it still waits at ");
    state("second", "pending");
    cluster.end("first");
    state("first", "success");
    cluster.bound("second");

    // A refusal is final, and the text is the description of the job.
    prow.create(&prow_job("refused", "absent", 8)).unwrap();
    let why = state("refused", "error");
    assert!(
        why.contains("Pod can not be created") && why.contains("absent"),
        "{why}"
    );

    cluster.set_class(json!({"queueTimeout": "10s"}));
    cluster.settle_class();
    prow.create(&prow_job("late", "line", 8)).unwrap();
    // Why, its pod says in an Event, which Prow's page of the job shows.
    assert_eq!(state("late", "failure"), r#""Job failed.""#);
    let events = cluster
        .team
        .get(&["events", "--field-selector=involvedObject.name=late"])
        .unwrap();
    let events = events["items"].as_array().unwrap();
    let warned = events
        .iter()
        .any(|event| event["type"] == "Warning" && event["reason"] == "QueueTimeout");
    assert!(warned, "{events:#?}");
}

/// Returns the template of a replica.
fn replica(replicas: u32, container: &str, gpus: u32) -> Value {
    let mut spec = spec(gpus);
    spec["containers"][0]["name"] = json!(container);
    let metadata = json!({"annotations": {CLASS: "line"}});
    json!({
        "replicas": replicas, "restartPolicy": "Never", "template": {"metadata": metadata, "spec": spec},
    })
}

fn training_job(kind: &str, name: &str, replicas: &str, of: Value) -> Value {
    json!({
        "apiVersion": "kubeflow.org/v1", "kind": kind, "metadata": {"name": name},
        "spec": {replicas: of, "runPolicy": {"cleanPodPolicy": "None"}},
    })
}

#[test]
fn jobs_of_the_training_operator_start_with_all_their_pods() {
    let cluster = Cluster::start(&["n1", "n2"], json!({}));
    let all = cluster.plane.kubectl();
    let operator = Operator::training(all, cluster.plane.kubeconfig()).unwrap();
    let exist = |pods: &[&str]| {
        let missing = |error: anyhow::Error| anyhow::anyhow!("{error:#}\n{}", operator.log());
        wait_until("the pods of the job", SOON, || {
            let found: anyhow::Result<Vec<Value>> = pods
                .iter()
                .map(|pod| cluster.team.get(&["pod", pod]))
                .collect();
            Ok(Some(found.map_err(missing)?))
        })
        .unwrap()
    };
    // Only one of the two nodes is free, so none of the pods of a gang over both starts.
    cluster.create("filler", 8);
    let filled = cluster.bound("filler")["spec"]["nodeName"].clone();
    let pytorch = json!({"Master": replica(1, "pytorch", 8), "Worker": replica(1, "pytorch", 8)});
    let job = training_job("PyTorchJob", "torch", "pytorchReplicaSpecs", pytorch);
    cluster.team.create(&job).unwrap();
    let gang = ["torch-master-0", "torch-worker-0"];
    exist(&gang);
    says(&cluster, gang[1], "position 1");
    assert!(gang.iter().all(|pod| waits(&cluster.pod(pod))));
    cluster.end("filler");
    let bound = gang.map(|pod| cluster.bound(pod));
    let nodes = bound.each_ref().map(|pod| pod["spec"]["nodeName"].clone());
    assert!(nodes[0] != nodes[1] && nodes.contains(&filled), "{nodes:?}");
    // The rendezvous of PyTorch counts the master as rank 0.
    let ranks = bound
        .each_ref()
        .map(|pod| placement(pod).unwrap()["rank"].clone());
    assert_eq!(ranks, [json!(0), json!(1)]);

    // The launcher of an MPIJob has no GPUs, and needs no place.
    let mpi = json!({"Launcher": replica(1, "mpi", 0), "Worker": replica(2, "mpi", 8)});
    let job = training_job("MPIJob", "mpi", "mpiReplicaSpecs", mpi);
    cluster.team.create(&job).unwrap();
    let workers = ["mpi-worker-0", "mpi-worker-1"];
    exist(&workers);
    says(&cluster, workers[1], "position 1");
    gang.iter().for_each(|pod| cluster.end(pod));
    workers.iter().for_each(|pod| drop(cluster.bound(pod)));
    exist(&["mpi-launcher"]);
    assert!(!waits(&cluster.pod("mpi-launcher")));
}
