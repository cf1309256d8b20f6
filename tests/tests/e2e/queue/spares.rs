//! Spare nodes of a rack: new pods leave them free for those that take the place of lost ones.

use nvlink_tests::wait_until;
use serde_json::{Value, json};

use super::cluster::{Cluster, SOON, job, waits};

/// Trays of one rack.
const RACK: [(&str, &str); 3] = [
    ("a1", "sim:gb200-nvl72"),
    ("a2", "sim:gb200-nvl72"),
    ("a3", "sim:gb200-nvl72"),
];
const CLIQUE: &str = "6f1f4e35-9c0b-4d52-8a67-2b0c7e91d3a8.1";

/// Creates a pod of a gang of two, with all GPUs of a tray.
fn create(cluster: &Cluster, name: &str) {
    let mut pod = job(name, 4);
    pod["metadata"]["annotations"] = json!({
        "nvlink-domains.io/gang": "train", "nvlink-domains.io/gang-size": "2",
    });
    cluster.team.create(&pod).unwrap();
}

fn node(pod: &Value) -> &str {
    pod["spec"]["nodeName"].as_str().unwrap()
}

#[test]
fn the_spare_of_a_rack_is_for_a_pod_whose_node_is_lost_and_the_rack_has_a_size() {
    let cluster = Cluster::of(&RACK, json!({"spareNodes": 1}));
    let names = ["train-0", "train-1"];
    names.iter().for_each(|name| create(&cluster, name));
    let mut pods = names.map(|name| cluster.bound(name));
    pods.sort_by(|a, b| node(a).cmp(node(b)));
    assert_eq!(pods.each_ref().map(node), ["a1", "a2"]);
    cluster.create("alone", 4);
    wait_until("the reason", SOON, || {
        let pod = cluster.pod("alone");
        let reason = &pod["metadata"]["annotations"]["nvlink-domains.io/queue-reason"];
        let reason = reason.as_str().unwrap_or_default();
        anyhow::ensure!(reason.contains("leaves spare nodes"), "{reason}");
        Ok(Some(()))
    })
    .unwrap();

    let lost = pods[1]["metadata"]["name"].as_str().unwrap();
    cluster.plane.kubectl().run(&["cordon", "a2"]).unwrap();
    let now = ["--force", "--grace-period=0"];
    cluster
        .team
        .run(&[&["delete", "pod", lost], &now[..]].concat())
        .unwrap();
    create(&cluster, lost);
    assert_eq!(node(&cluster.bound(lost)), "a3");
    assert!(waits(&cluster.pod("alone")));

    let tray = |node| {
        cluster
            .plane
            .kubectl()
            .get(&["nodetopology", node])
            .unwrap()["spec"]["tray"]["index"]
            .clone()
    };
    assert_eq!(RACK.map(|(node, _)| tray(node)), [0, 1, 2]);

    // An administrator says how many GPUs the rack has, for the alert.
    let label = "nvlink-domains.io/fabric-gpus=72";
    cluster
        .plane
        .kubectl()
        .run(&["label", "node", "a1", label])
        .unwrap();
    let series = format!("nvlink_webhook_fabric_expected_gpus{{domain=\"{CLIQUE}\"}} 72");
    wait_until("the metric", SOON, || {
        let metrics = cluster.webhook.as_ref().unwrap().replica.metrics()?;
        Ok(metrics.contains(&series).then_some(()))
    })
    .unwrap();
}
