//! What the exporter writes to the cluster, and when it writes nothing.

use std::{collections::BTreeMap, time::Duration};

use nvlink_tests::{Exporter, Node, node, wait_until};
use serde_json::Value;

use crate::shared::control_plane;

const SOON: Duration = Duration::from_secs(30);

/// Creates a node and starts an exporter for it.
fn publishing(name: &str, source: &str, flags: &[&str]) -> Exporter {
    let control_plane = control_plane();
    node::create(control_plane.kubectl(), &[Node::new(name, 8).pool(name)]).unwrap();
    let arguments = [&["--source", source], flags].concat();
    Exporter::publishing(control_plane.kubeconfig(), name, &arguments).unwrap()
}

/// Waits until the node has the exporter's labels, and returns it.
fn labelled(name: &str) -> Value {
    wait_until("the node to be labelled", SOON, || {
        let node = control_plane().kubectl().get(&["node", name])?;
        let labelled = node["metadata"]["labels"]["nvlink-domains.io/domain-size"].is_string();
        Ok(labelled.then_some(node))
    })
    .unwrap()
}

fn strings(map: &Value) -> BTreeMap<String, String> {
    serde_json::from_value(map.clone()).unwrap_or_default()
}

fn topology(name: &str) -> Value {
    wait_until("the NodeTopology", SOON, || {
        control_plane()
            .kubectl()
            .get(&["nodetopology", name])
            .map(Some)
    })
    .unwrap()
}

#[test]
fn the_labels_of_a_node_report_how_its_gpus_are_connected() {
    let cases = [
        ("publish-dgx", "sim:dgx-h100", "8", "nvswitch"),
        ("publish-pairs", "sim:a100-pcie-pairs", "2", "nvlink"),
        ("publish-l40s", "sim:l40s", "1", "pcie"),
    ];
    for (name, source, size, interconnect) in cases {
        let _exporter = publishing(name, source, &[]);
        let node = labelled(name);
        let labels = strings(&node["metadata"]["labels"]);
        assert_eq!(labels["nvlink-domains.io/domain-size"], size, "{source}");
        assert_eq!(
            labels["nvlink-domains.io/interconnect"], interconnect,
            "{source}"
        );
        let whole = labels.contains_key("nvlink-domains.io/domain");
        assert_eq!(
            whole,
            source == "sim:dgx-h100",
            "only a domain of the whole node has the label: {source}"
        );
        assert!(
            labels["nvlink-domains.io/bandwidth"].parse::<u32>().is_ok(),
            "{labels:?}"
        );

        let annotations = strings(&node["metadata"]["annotations"]);
        let descriptor = &annotations["nvlink-domains.io/topology"];
        assert_eq!(
            descriptor.contains("nvlink-domain:0:gpus=0,1"),
            size != "1",
            "{descriptor}"
        );
        assert!(
            annotations.contains_key("nvlink-domains.io/capacity"),
            "{annotations:?}"
        );

        let spec = &topology(name)["spec"];
        assert_eq!(spec["source"]["kind"], "sim");
        assert_eq!(
            spec["edges"]
                .as_array()
                .is_some_and(|edges| !edges.is_empty()),
            size != "1"
        );
    }
}

#[test]
fn the_node_topology_equals_the_one_that_the_exporter_serves() {
    let exporter = publishing("publish-same", "sim:dgx-h100", &[]);
    labelled("publish-same");
    let served = nvlink_tests::http::text(&exporter.url("/api/v1/topology")).unwrap();
    let served: Value = serde_json::from_str(&served).unwrap();
    assert_eq!(topology("publish-same")["spec"], served["spec"]);
}

#[test]
fn the_columns_of_a_topology_show_the_main_fields() {
    let _exporter = publishing("publish-columns", "sim:a100-pcie-pairs", &[]);
    topology("publish-columns");
    let table = control_plane()
        .kubectl()
        .run(&["get", "nodetopology", "publish-columns"])
        .unwrap();
    for part in ["SOURCE", "MODEL", "FROM", "sim", "A100", "a100-pcie-pairs"] {
        assert!(table.contains(part), "{table}");
    }
}

#[test]
fn nothing_is_written_while_nothing_changes() {
    let exporter = publishing("publish-quiet", "sim:dgx-h100", &[]);
    let version = |object: &Value| object["metadata"]["resourceVersion"].clone();
    let (node, graph) = (labelled("publish-quiet"), topology("publish-quiet"));
    // Counters move and the exporter collects, but the graph does not change.
    let before = exporter.metrics().unwrap();
    wait_until("the counters to move several times", SOON, || {
        let mut seen = vec![before.clone()];
        while seen.len() < 4 {
            let now = exporter.metrics()?;
            if seen.last() != Some(&now) {
                seen.push(now);
            } else {
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        Ok(Some(()))
    })
    .unwrap();
    assert_eq!(version(&labelled("publish-quiet")), version(&node));
    assert_eq!(version(&topology("publish-quiet")), version(&graph));
}

#[test]
fn alias_labels_are_written_only_on_request() {
    let alias = "gpu.topology/nvlink-domain-size";
    let without = publishing("publish-plain", "sim:dgx-h100", &[]);
    let with = publishing("publish-alias", "sim:dgx-h100", &["--alias-labels"]);
    // The aliases are a separate write, after that of the labels.
    let labels = wait_until("the aliases", SOON, || {
        let labels = strings(&labelled("publish-alias")["metadata"]["labels"]);
        Ok(labels.contains_key(alias).then_some(labels))
    })
    .unwrap();
    assert_eq!(labels[alias], "8");
    assert_eq!(
        labels.get("topology.k8s.io/nvlink-domain"),
        labels.get("nvlink-domains.io/domain")
    );
    // The object is written last.
    topology("publish-plain");
    assert!(!strings(&labelled("publish-plain")["metadata"]["labels"]).contains_key(alias));
    drop((with, without));
}

#[test]
fn labels_of_other_owners_are_kept() {
    let name = "publish-others";
    node::create(
        control_plane().kubectl(),
        &[Node::new(name, 8).pool(name).label("rack", "r7")],
    )
    .unwrap();
    let arguments = ["--source", "sim:dgx-h100"];
    let _exporter = Exporter::publishing(control_plane().kubeconfig(), name, &arguments).unwrap();
    let labels = strings(&labelled(name)["metadata"]["labels"]);
    assert_eq!(labels["rack"], "r7");
    assert_eq!(labels["kubernetes.io/hostname"], name);
}
