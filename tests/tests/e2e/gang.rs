//! Jobs of several pods on a fabric that spans nodes.

use std::{collections::BTreeSet, fs, time::Duration};

use nvlink_tests::{Exporter, Node, node, programs, wait_until, workdir};
use serde_json::{Value, json};

use crate::{
    pods::{decision, gpu_pod, is_bound, wait_for_pods},
    shared::{control_plane, create_class, namespace_with_class},
};

const POOL: &str = "fabric";
const FABRICS: [&str; 2] = [
    "11111111-1111-4111-8111-111111111111",
    "22222222-2222-4222-8222-222222222222",
];
const NODES_EACH: u32 = 2;

/// Returns a compute tray of the simulation, moved into another fabric.
fn tray(cluster_uuid: &str) -> String {
    let arguments = [
        "topology",
        "--source",
        "sim:gb200-nvl72",
        "--output",
        "json",
    ];
    let text = programs::run(programs::EXPORTER, &arguments, "").unwrap();
    let tray: Value = serde_json::from_str(&text).unwrap();
    let fabric = &tray["spec"]["domains"][0]["fabric"]["clusterUuid"];
    let original = fabric
        .as_str()
        .expect("a domain that spans nodes")
        .to_owned();
    text.replace(&original, cluster_uuid)
}

fn gpus_of_a_tray() -> u32 {
    let tray: Value = serde_json::from_str(&tray(FABRICS[0])).unwrap();
    u32::try_from(tray["spec"]["gpus"].as_array().unwrap().len()).unwrap()
}

/// Starts two fabrics of two nodes each. The names of the nodes do not reveal the fabric.
fn start_nodes() -> Vec<Exporter> {
    let directory = workdir::fresh("fabrics").unwrap();
    let mut exporters = Vec::new();
    for number in 0..NODES_EACH * 2 {
        let name = format!("tray-{number}");
        let fabric = FABRICS[number as usize % 2];
        let file = directory.join(format!("{name}.json"));
        fs::write(&file, tray(fabric)).unwrap();
        let created = Node::new(&name, gpus_of_a_tray()).pool(POOL);
        node::create(control_plane().kubectl(), &[created]).unwrap();
        let source = format!("file:{}", file.display());
        let arguments = ["--source", source.as_str()];
        exporters
            .push(Exporter::publishing(control_plane().kubeconfig(), &name, &arguments).unwrap());
    }
    wait_until(
        "all trays to name their domain",
        Duration::from_secs(30),
        || {
            let nodes = control_plane().kubectl().get(&[
                "nodes",
                "-l",
                "pool=fabric,nvlink-domains.io/domain",
            ])?;
            Ok((nodes["items"].as_array().map(Vec::len) == Some(exporters.len())).then_some(()))
        },
    )
    .unwrap();
    exporters
}

fn domain_of_node(name: &str) -> String {
    let node = control_plane().kubectl().get(&["node", name]).unwrap();
    node["metadata"]["labels"]["nvlink-domains.io/domain"]
        .as_str()
        .unwrap()
        .to_owned()
}

#[test]
fn a_gang_is_placed_in_one_fabric_domain() {
    let _exporters = start_nodes();
    let domains: BTreeSet<String> = (0..4)
        .map(|number| domain_of_node(&format!("tray-{number}")))
        .collect();
    assert_eq!(domains.len(), 2, "two fabrics: {domains:?}");
    create_class("fabric", &json!({}));
    let kubectl = namespace_with_class("gang", "fabric");
    for gang in ["red", "blue"] {
        for rank in 0..NODES_EACH {
            let mut pod = gpu_pod(&format!("{gang}-{rank}"), gpus_of_a_tray());
            pod["metadata"]["labels"] = json!({"gang": gang});
            pod["metadata"]["annotations"] = json!({
                "nvlink-domains.io/gang": gang,
                "nvlink-domains.io/gang-size": NODES_EACH.to_string(),
                "nvlink-domains.io/gang-scope": "nvlink-domain",
            });
            node::in_pool(&mut pod["spec"], POOL);
            let pod = kubectl.create(&pod).unwrap();
            assert_eq!(decision(&pod).unwrap()["gang"], gang);
        }
    }
    for gang in ["red", "blue"] {
        let pods = wait_for_pods(
            &kubectl,
            &format!("gang={gang}"),
            NODES_EACH as usize,
            is_bound,
        );
        let nodes: BTreeSet<&str> = pods
            .iter()
            .filter_map(|pod| pod["spec"]["nodeName"].as_str())
            .collect();
        assert_eq!(nodes.len(), NODES_EACH as usize, "a tray each: {nodes:?}");
        let domains: BTreeSet<String> = nodes.iter().map(|name| domain_of_node(name)).collect();
        assert_eq!(domains.len(), 1, "{gang} is spread over {domains:?}");
    }
}
