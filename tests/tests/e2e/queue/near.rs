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
