//! Pools that an autoscaler resizes: the queue requests nodes with placeholder pods, and a real Karpenter
//! makes them.

use nvlink_tests::{Operator, wait_until};
use serde_json::{Value, json};

use super::cluster::{Cluster, NAMESPACE, SOON, job, placement};

/// Returns the pods of the namespace of the webhook.
fn placeholders(cluster: &Cluster) -> anyhow::Result<Vec<Value>> {
    let pods = cluster.plane.kubectl().get(&["pods", "-n", NAMESPACE])?;
    Ok(pods["items"].as_array().cloned().unwrap_or_default())
}

/// Waits until there are so many placeholder pods, and returns them.
fn number(cluster: &Cluster, number: usize) -> Vec<Value> {
    wait_until(&format!("{number} placeholder pods"), SOON, || {
        let pods = placeholders(cluster)?;
        anyhow::ensure!(pods.len() == number, "{pods:#?}");
        Ok(Some(pods))
    })
    .unwrap()
}

/// Waits until a pod shows this word and this part of a sentence.
fn shows(cluster: &Cluster, pod: &str, word: &str, part: &str) {
    wait_until("the pod to say so", SOON, || {
        let pod = cluster.team.get(&["pod", pod])?;
        let conditions = pod["status"]["conditions"].as_array();
        let ours = conditions.into_iter().flatten();
        let mut ours = ours.filter(|one| one["type"] == "nvlink-domains.io/Queued");
        let said = ours.next().cloned().unwrap_or_default();
        let text = said["message"].as_str().unwrap_or_default();
        anyhow::ensure!(said["reason"] == word && text.contains(part), "{said:#}");
        Ok(Some(()))
    })
    .unwrap();
}

/// Waits until Karpenter has made a node besides `known`, and plays its kubelet, which says that it is ready.
fn new_node(cluster: &Cluster, known: &[String], karpenter: &Operator) -> String {
    let all = cluster.plane.kubectl();
    let found = wait_until("Karpenter to make a node", SOON, || {
        let nodes = all.get(&["nodes"])?;
        let nodes = nodes["items"].as_array().cloned().unwrap_or_default();
        let mut names = nodes
            .iter()
            .filter_map(|node| node["metadata"]["name"].as_str());
        Ok(names
            .find(|name| !known.iter().any(|one| one == name))
            .map(str::to_owned))
    });
    let name = found.unwrap_or_else(|error| panic!("{error:#}\n{}", karpenter.log()));
    let ready = json!({"status": {"conditions": [{
        "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "",
        "lastHeartbeatTime": "2026-11-27T00:00:00Z", "lastTransitionTime": "2026-11-27T00:00:00Z",
    }]}});
    let patch = [
        "patch",
        "node",
        &name,
        "--subresource=status",
        "--type=merge",
        "-p",
    ];
    all.run(&[&patch[..], &[&ready.to_string()]].concat())
        .unwrap();
    name
}

/// Checks that the leader's account may create no other pods in its namespace.
fn creates_nothing_else(cluster: &Cluster) {
    let all = cluster.plane.kubectl();
    let other = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "nvlink-placeholder-x", "namespace": NAMESPACE},
        "spec": {"containers": [{"name": "c", "image": "i", "command": ["sh"]}]},
    });
    let account = format!("--as=system:serviceaccount:{NAMESPACE}:nvlink-webhook-controller");
    for (name, part) in [
        ("nvlink-placeholder-x", "which do not run"),
        ("x", "may only create and delete placeholder pods"),
    ] {
        let mut other = other.clone();
        other["metadata"]["name"] = json!(name);
        let create = ["create", "-f", "-", &account];
        let refused = all
            .run_with(&create, &other.to_string())
            .unwrap_err()
            .to_string();
        assert!(
            refused.contains("rule own") && refused.contains(part),
            "{refused}"
        );
    }
}

/// A pool without nodes gets the one node that a job needs.
fn grows_from_zero(cluster: &mut Cluster, labels: &Value, karpenter: &Operator) {
    // At zero, no node could run it, and that is nobody's mistake.
    let mut first = job("first", 8);
    first["spec"]["nodeSelector"] = labels.clone();
    cluster.team.create(&first).unwrap();
    shows(
        cluster,
        "first",
        "Growing",
        "the nodes that its class has now cannot run it",
    );
    shows(
        cluster,
        "first",
        "Growing",
        "the queue requests nodes for it with placeholder pods",
    );
    let pods = number(cluster, 1);
    let spec = &pods[0]["spec"];
    assert_eq!(&spec["nodeSelector"], labels);
    assert_eq!(
        spec["containers"][0]["resources"]["limits"]["nvidia.com/gpu"],
        "8"
    );
    assert_eq!(spec["schedulerName"], "nvlink-placeholder");
    assert_eq!(
        pods[0]["metadata"]["annotations"]["nvlink-domains.io/placeholder-for"],
        "team/first"
    );

    let node = new_node(cluster, &[], karpenter);
    cluster.describe(&node);
    let bound = cluster.bound("first");
    assert_eq!(placement(&bound).unwrap()["node"], json!(node));
    number(cluster, 0);
    let nodes = cluster.plane.kubectl().get(&["nodes"]).unwrap();
    assert_eq!(nodes["items"].as_array().map(Vec::len), Some(1));
    creates_nothing_else(cluster);
}

/// So many nodes are requested as the class allows, for the first jobs that still wait.
fn asks_for_the_first(cluster: &Cluster) {
    // Both jobs wait for a node. The class allows one for each of two.
    for name in ["job-2", "job-3", "job-4"] {
        cluster.create(name, 8);
    }
    shows(
        cluster,
        "job-2",
        "Insufficient",
        "the queue requests nodes for it",
    );
    number(cluster, 2);
    shows(cluster, "job-4", "Insufficient", "position 3");
    // What nobody waits for any more is taken back, and the next job asks.
    cluster.team.run(&["delete", "pod", "job-2"]).unwrap();
    wait_until(
        "the fourth job to have the place of the second",
        SOON,
        || {
            let pods = placeholders(cluster)?;
            let mut whose: Vec<_> = pods
                .iter()
                .map(|pod| {
                    pod["metadata"]["annotations"]["nvlink-domains.io/placeholder-for"].clone()
                })
                .collect();
            whose.sort_by_key(Value::to_string);
            anyhow::ensure!(whose == ["team/job-3", "team/job-4"], "{whose:?}");
            Ok(Some(()))
        },
    )
    .unwrap();
    // A place that comes free is taken without a node.
    cluster.end("first");
    cluster.bound("job-3");
    number(cluster, 1);
}

#[test]
fn a_pool_without_nodes_grows_for_jobs_that_wait_and_the_queue_takes_back_what_it_does_not_need() {
    let mut cluster = Cluster::growing(json!({"maxPlaceholderPods": 2}));
    let labels = json!({"pool": "h100"});
    let all = cluster.plane.kubectl();
    let karpenter = Operator::karpenter(all, cluster.plane.kubeconfig(), 8, &labels).unwrap();

    grows_from_zero(&mut cluster, &labels, &karpenter);
    asks_for_the_first(&cluster);

    // A class that grows no more takes back all.
    cluster.set_class(json!({}));
    number(&cluster, 0);
}
