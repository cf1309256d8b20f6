//! The real scheduler, with and without the webhook.

use std::collections::BTreeMap;

use nvlink_tests::{Exporter, Kubectl, Node, node, wait_until};
use serde_json::{Value, json};

use crate::{
    pods::{gpu_pod, is_bound, is_unschedulable, wait_for_pods},
    shared::{control_plane, create_class, namespace_with_class, namespace_without_webhook},
};

const POOL: &str = "pairs";
const GPUS: u32 = 8;
const PAIRED_NODES: u32 = 5;
const PODS: u32 = PAIRED_NODES * GPUS / 2;

/// Starts nodes with as many paired GPUs as the pods need, and nodes with as many GPUs
/// without NVLink. The latter have more CPUs: the scheduler spreads pods by free CPU and
/// memory, and knows nothing of the graph.
fn start_nodes() -> Vec<Exporter> {
    let kinds = [
        ("paired", "sim:a100-pcie-pairs", 64),
        ("unbridged", "sim:l40s", 256),
    ];
    let (mut nodes, mut names) = (Vec::new(), Vec::new());
    for (kind, source, cpus) in kinds {
        for number in 0..PAIRED_NODES {
            let name = format!("{kind}-{number}");
            nodes.push(Node::new(&name, GPUS).cpus(cpus).pool(POOL));
            names.push((name, source));
        }
    }
    let kubectl = control_plane().kubectl();
    node::create(kubectl, &nodes).unwrap();
    let start = |(name, source): &(String, &str)| {
        Exporter::publishing(control_plane().kubeconfig(), name, &["--source", source]).unwrap()
    };
    let exporters = names.iter().map(start).collect();
    wait_until(
        "all nodes to be labelled",
        std::time::Duration::from_secs(30),
        || {
            let nodes =
                kubectl.get(&["nodes", "-l", "pool=pairs,nvlink-domains.io/domain-size"])?;
            Ok((nodes["items"].as_array().map(Vec::len) == Some(names.len())).then_some(()))
        },
    )
    .unwrap();
    exporters
}

fn create_pods(kubectl: &Kubectl, first: u32, count: u32) {
    let pods: Vec<Value> = (first..first + count)
        .map(|number| {
            let mut pod = gpu_pod(&format!("job-{number}"), 2);
            pod["metadata"]["labels"] = json!({"jobs": "yes"});
            pod["spec"]["containers"][0]["resources"]["limits"]["cpu"] = json!("4");
            node::in_pool(&mut pod["spec"], POOL);
            pod
        })
        .collect();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": pods});
    kubectl
        .run_with(&["create", "-f", "-"], &list.to_string())
        .unwrap();
}

/// Counts the pods by the kind of node to which they are bound.
fn by_kind(pods: &[Value]) -> BTreeMap<&str, u32> {
    let mut kinds = BTreeMap::new();
    for pod in pods {
        let node = pod["spec"]["nodeName"].as_str().unwrap_or("none-0");
        *kinds
            .entry(node.rsplit_once('-').map_or(node, |(kind, _)| kind))
            .or_default() += 1;
    }
    kinds
}

#[test]
fn only_with_the_webhook_jobs_of_two_gpus_run_on_nvlink_pairs() {
    let _exporters = start_nodes();
    let all = PODS as usize;

    let without = namespace_without_webhook("scheduling-without");
    create_pods(&without, 0, PODS);
    let kinds = wait_for_pods(&without, "jobs=yes", all, is_bound);
    let kinds = by_kind(&kinds);
    println!("without the webhook: {kinds:?}");
    assert!(
        kinds.get("unbridged").is_some_and(|&count| count > 0),
        "{kinds:?}"
    );
    without
        .run(&["delete", "pods", "--all", "--force", "--grace-period=0"])
        .unwrap();

    create_class("pairs", &json!({}));
    let with = namespace_with_class("scheduling-with", "pairs");
    create_pods(&with, 0, PODS);
    let pods = wait_for_pods(&with, "jobs=yes", all, is_bound);
    let kinds = by_kind(&pods);
    println!("with the webhook: {kinds:?}");
    assert_eq!(kinds, BTreeMap::from([("paired", PODS)]));

    // The paired nodes are full: the next pod waits, although GPUs without NVLink are free.
    create_pods(&with, PODS, 1);
    let pods = wait_for_pods(&with, "jobs=yes", 1, is_unschedulable);
    assert_eq!(
        by_kind(&pods),
        BTreeMap::from([("none", 1), ("paired", PODS)])
    );
}
