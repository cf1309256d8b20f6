//! The labels and annotations of a Node.

use nvlink_topology::{
    Fault, Nic, NodeTopology, NodeTopologySpec, SourceKind,
    labels::{self, alias_labels, node_annotations, node_labels},
};

use crate::{gpu, h100, spec};

#[test]
fn labels_and_annotations_of_a_switch_node() {
    let node = NodeTopology::new("n1", h100(8));
    let labels = node_labels(&node);
    let labels: Vec<_> = labels
        .iter()
        .map(|(key, value)| (*key, value.as_str()))
        .collect();
    assert_eq!(
        labels,
        [
            ("nvlink-domains.io/bandwidth", "450"),
            ("nvlink-domains.io/domain", "n1.0"),
            ("nvlink-domains.io/domain-size", "8"),
            ("nvlink-domains.io/healthy-domain-size", "8"),
            ("nvlink-domains.io/interconnect", "nvswitch"),
        ]
    );
    let annotations = node_annotations(&node);
    assert_eq!(
        annotations[labels::TOPOLOGY],
        "nvlink-domain:0:gpus=0,1,2,3,4,5,6,7"
    );
    assert_eq!(annotations[labels::CAPACITY], "domain0=450GBps");
    let aliases = alias_labels(&node);
    assert_eq!(aliases["topology.k8s.io/nvlink-domain"], "n1.0");
    assert_eq!(aliases["nvidia.com/nvswitch.present"], "true");
    assert_eq!(aliases["node.k8s.io/gpu-count"], "8");
    assert_eq!(aliases.len(), 9);
}

#[test]
fn labels_of_a_node_without_nvlink() {
    let mut spec = spec((0..4).map(|i| gpu(i, "NVIDIA L40S", 0, &[])).collect());
    spec.complete("n1").unwrap();
    let labels = node_labels(&NodeTopology::new("n1", spec));
    assert_eq!(labels[labels::DOMAIN_SIZE], "1");
    assert_eq!(labels[labels::INTERCONNECT], "pcie");
    assert_eq!(labels[labels::BANDWIDTH], "0");
    assert!(!labels.contains_key(labels::DOMAIN));
}

#[test]
fn unknown_nvlink_is_not_published() {
    let mut spec = spec((0..4).map(|i| gpu(i, "NVIDIA H200", 0, &[])).collect());
    for gpu in &mut spec.gpus {
        gpu.links = None;
    }
    spec.source.kind = SourceKind::Sysfs;
    spec.complete("n1").unwrap();
    let mut node = NodeTopology::new("n1", spec);
    assert_eq!(node.spec.interconnect(), None);
    assert_eq!(node.spec.largest_domain(), None);
    assert!(node_labels(&node).is_empty());
    assert!(node_annotations(&node).is_empty());
    let aliases = alias_labels(&node);
    assert_eq!(
        aliases.keys().collect::<Vec<_>>(),
        [&"node.k8s.io/gpu-count"]
    );
    let json = serde_json::to_value(&node).unwrap();
    assert!(json["spec"].get("edges").is_none() && json["spec"].get("domains").is_none());
    assert_eq!(json["spec"]["paths"].as_array().unwrap().len(), 6);
    assert_eq!(serde_json::from_value::<NodeTopology>(json).unwrap(), node);
    // The network is known and is published.
    node.spec.nics.push(Nic {
        name: "mlx5_0".to_owned(),
        bytes_per_second: Some(50_000_000_000),
        ..Nic::default()
    });
    let annotations: Vec<_> = node_annotations(&node).into_iter().collect();
    assert_eq!(
        annotations,
        [(labels::CAPACITY, "inter-node=12GBps".to_owned())],
        "each of the four GPUs' share"
    );
}

#[test]
fn inter_node_is_the_share_of_the_slowest_gpu() {
    let nic = |gpus: &[u32], rate: Option<u64>| Nic {
        name: "mlx5_0".to_owned(),
        bytes_per_second: rate,
        gpus: gpus.to_vec(),
        ..Nic::default()
    };
    let inter_node = |nics: Vec<Nic>| {
        let mut spec = spec(vec![gpu(0, "x", 0, &[]), gpu(1, "x", 0, &[])]);
        spec.nics = nics;
        nvlink_topology::descriptor::Capacity::of(&spec).inter_node
    };
    let own = || vec![nic(&[0], Some(50)), nic(&[1], Some(40))];
    assert_eq!(inter_node(vec![]), None);
    assert_eq!(inter_node(own()), Some(40));
    let storage = nic(&[0, 1], Some(25));
    assert_eq!(inter_node([own(), vec![storage]].concat()), Some(40));
    let unplugged = nic(&[0, 1], None);
    assert_eq!(inter_node([own(), vec![unplugged]].concat()), Some(40));
    let pair = || nic(&[0, 1], Some(25));
    assert_eq!(
        inter_node(vec![pair(), pair()]),
        Some(24),
        "half of each, in whole bytes"
    );
    assert_eq!(inter_node(vec![nic(&[0], Some(50))]), Some(25), "all share");
    assert_eq!(inter_node(vec![nic(&[], None)]), None);
    assert_eq!(inter_node(vec![nic(&[0], None), nic(&[1], Some(9))]), None);
}

#[test]
fn broken_gpus_count_for_the_size_of_a_domain_and_not_for_its_healthy_size() {
    let sizes = |spec: &NodeTopologySpec| {
        let labels = node_labels(&NodeTopology::new("n", spec.clone()));
        let size = |name: &str| labels[name].parse::<usize>().unwrap();
        (size(labels::DOMAIN_SIZE), size(labels::HEALTHY_DOMAIN_SIZE))
    };
    let mut board = h100(8);
    assert_eq!(sizes(&board), (8, 8));
    board.gpus[3].faults = vec![Fault::Xid(74)];
    assert_eq!(sizes(&board), (8, 7));
    board
        .gpus
        .iter_mut()
        .for_each(|gpu| gpu.faults = vec![Fault::Fabric]);
    assert_eq!(sizes(&board), (8, 0));
    let mut cards = spec(vec![gpu(0, "x", 0, &[]), gpu(1, "x", 0, &[])]);
    assert_eq!(sizes(&cards), (1, 1));
    cards.gpus[0].faults = vec![Fault::Xid(79)];
    assert_eq!(sizes(&cards), (1, 1));
    cards.gpus[1].faults = vec![Fault::Xid(79)];
    assert_eq!(sizes(&cards), (1, 0));
}

#[test]
fn a_document_without_marks_is_healthy_and_unknown_marks_are_kept() {
    let mut document = serde_json::to_value(NodeTopology::new("n", h100(2))).unwrap();
    assert!(document["spec"]["gpus"][0].get("faults").is_none());
    assert!(document["spec"].get("lost").is_none());
    let read = |document: &serde_json::Value| -> NodeTopology {
        serde_json::from_value(document.clone()).unwrap()
    };
    assert_eq!(read(&document).spec.broken_gpus().count(), 0);
    document["spec"]["gpus"][1]["faults"] = serde_json::json!(["row-remap", "xid-74"]);
    document["spec"]["lost"] = serde_json::json!([{"index": 7, "uuid": "GPU-7"}]);
    let later = read(&document);
    assert_eq!(later.spec.broken_gpus().collect::<Vec<_>>(), [1]);
    assert_eq!(serde_json::to_value(&later).unwrap(), document);
}
