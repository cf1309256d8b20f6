//! Volumes that only one node reaches, on a real scheduler and volume binder: a pod is released to the node
//! where its volume is, or is left.

use nvlink_tests::wait_until;
use serde_json::{Value, json};

use super::cluster::{Cluster, SOON, job};

const CLASS: &str = "local";

/// Returns a volume on a disk of a node, as a static provisioner makes it.
fn volume(name: &str, node: &str) -> Value {
    let here = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [node]});
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": CLASS,
            "local": {"path": "/mnt"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
        },
    })
}

/// Creates a claim, and a pod with it that waits.
fn create(cluster: &Cluster, name: &str, class: &str) {
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": class,
            "resources": {"requests": {"storage": "1Gi"}},
        },
    });
    cluster.team.create(&claim).unwrap();
    let mut pod = job(name, 2);
    pod["spec"]["volumes"] =
        json!([{"name": "data", "persistentVolumeClaim": {"claimName": name}}]);
    cluster.team.create(&pod).unwrap();
}

/// Waits until a pod says that its claim has no volume.
fn lacks(cluster: &Cluster, name: &str) {
    wait_until("the pod to say what it waits for", SOON, || {
        let pod = cluster.team.get(&["pod", name])?;
        let said = pod["status"]["conditions"].to_string();
        let part =
            format!("PersistentVolumeClaim team/{name} of pod team/{name} has no volume yet");
        anyhow::ensure!(said.contains(&part), "{said}");
        Ok(Some(()))
    })
    .unwrap();
}

#[test]
fn a_pod_is_released_to_the_node_of_its_volume() {
    let cluster = Cluster::start(&["n1", "n2", "n3"], json!({}));
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": CLASS},
        "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer",
    });
    cluster.plane.kubectl().create(&class).unwrap();
    // No volume is left for the second until there is one.
    cluster
        .plane
        .kubectl()
        .create(&volume("pv-a", "n3"))
        .unwrap();
    create(&cluster, "a", CLASS);
    assert_eq!(cluster.bound("a")["spec"]["nodeName"], "n3");
    create(&cluster, "b", CLASS);
    lacks(&cluster, "b");
    cluster
        .plane
        .kubectl()
        .create(&volume("pv-b", "n2"))
        .unwrap();
    assert_eq!(cluster.bound("b")["spec"]["nodeName"], "n2");

    // A claim without a class that waits must be bound by somebody first.
    create(&cluster, "c", "");
    lacks(&cluster, "c");
    let mut by_hand = volume("pv-c", "n1");
    by_hand["spec"]["storageClassName"] = json!("");
    cluster.plane.kubectl().create(&by_hand).unwrap();
    assert_eq!(cluster.bound("c")["spec"]["nodeName"], "n1");
}
