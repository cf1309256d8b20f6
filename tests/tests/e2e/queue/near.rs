//! Tekton's affinity assistant on a real scheduler: the pods of a TaskRun with a workspace go to the node
//! of a pod that Tekton places first.

use nvlink_tests::wait_until;
use serde_json::{Value, json};

use super::cluster::{Cluster, SOON, job};
use crate::pods::gpu_pod;

const INSTANCE: &str = "app.kubernetes.io/instance";

/// Returns the pod of a TaskRun, as Tekton 1.15 writes it
/// (pkg/internal/affinityassistant/transformer.go).
fn task(name: &str, assistant: &str) -> Value {
    let mut pod = job(name, 2);
    pod["metadata"]["labels"]["tekton.dev/taskRun"] = json!(name);
    let term = json!({
        "labelSelector": {"matchLabels": {
            INSTANCE: assistant, "app.kubernetes.io/component": "affinity-assistant",
        }},
        "topologyKey": "kubernetes.io/hostname",
    });
    pod["spec"]["affinity"] =
        json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}});
    pod
}

#[test]
fn the_pods_of_a_workspace_go_to_the_node_of_its_assistant() {
    let cluster = Cluster::start(&["n1", "n2", "n3"], json!({}));
    for (name, node) in [("pipeline-a", "n2"), ("pipeline-b", "n3")] {
        let waits = format!("{name}-task");
        cluster.team.create(&task(&waits, name)).unwrap();
        wait_until("the pod to say what it waits for", SOON, || {
            let pod = cluster.team.get(&["pod", &waits])?;
            let said = pod["status"]["conditions"].to_string();
            let part = format!("{INSTANCE}={name} (required pod affinity)");
            anyhow::ensure!(said.contains(&part), "{said}");
            Ok(Some(()))
        })
        .unwrap();
        let mut assistant = gpu_pod(&format!("{name}-0"), 0);
        assistant["metadata"]["labels"] =
            json!({INSTANCE: name, "app.kubernetes.io/component": "affinity-assistant"});
        assistant["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": node});
        cluster.team.create(&assistant).unwrap();
        assert_eq!(cluster.bound(&waits)["spec"]["nodeName"], node);
    }
}

/// A Job as Kueue 0.19 admits it into a queue with a topology that the template does not request: it writes
/// the annotation, and the gate until it has chosen the nodes.
fn placed_by_kueue() -> Value {
    let gates = json!([{"name": "kueue.x-k8s.io/topology"}]);
    let mut pod = gpu_pod("unnamed", 4);
    pod["metadata"] = json!({
        "labels": {"kueue.x-k8s.io/podset": "main"},
        "annotations": {
            "nvlink-domains.io/class": "shared", "nvlink-domains.io/gang": "train",
            "kueue.x-k8s.io/podset-unconstrained-topology": "true",
        },
    });
    pod["spec"]["schedulingGates"] = gates;
    pod["spec"]["restartPolicy"] = json!("Never");
    json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"},
        "spec": {
            "completions": 2, "parallelism": 2, "completionMode": "Indexed",
            "template": {"metadata": pod["metadata"], "spec": pod["spec"]},
        },
    })
}

#[test]
fn an_event_says_once_for_each_job_that_nothing_keeps_its_pods_together() {
    let cluster = Cluster::start(&["n1", "n2"], json!({}));
    let class = json!({
        "apiVersion": "nvlink-domains.io/v1alpha1", "kind": "DomainClass", "metadata": {"name": "shared"},
        "spec": {"scheduler": {"integration": "Kueue"}, "placement": {"gangScope": "nvlink-domain"}},
    });
    cluster.plane.kubectl().create(&class).unwrap();
    cluster.team.create(&placed_by_kueue()).unwrap();
    let events = || {
        let events = cluster.team.get(&["events"])?;
        let events = events["items"].as_array().into_iter().flatten();
        let apart = events.filter(|event| event["reason"] == "NotKeptTogether");
        anyhow::Ok(apart.cloned().collect::<Vec<_>>())
    };
    let first = wait_until("the Event of the job", SOON, || Ok(events()?.pop())).unwrap();
    assert_eq!(first["type"], "Warning");
    let said = first["message"].as_str().unwrap();
    let template = "annotate the pod template of the job with kueue.x-k8s.io/podset-required-topology: nvlink-domains.io/domain";
    assert!(said.ends_with(template), "{said}");
    wait_until("both pods", SOON, || {
        let pods = cluster.team.get(&["pods"])?;
        Ok((pods["items"].as_array().map(Vec::len) == Some(2)).then_some(()))
    })
    .unwrap();
    // The pods differ, so a second Event would have another name.
    cluster.create("later", 1);
    cluster.bound("later");
    assert_eq!(events().unwrap().len(), 1);
}
