//! Boards, classes and pods for the tests of the extender.

use std::sync::Arc;

use nvlink_admission::view::{SharedView, View};
use nvlink_api::class::Class;
use nvlink_cluster::{
    gpus::{Hardwares, Marks},
    mirror::{Mirror, Pod, pod::Stage},
};
use nvlink_topology::{Allocation, NodeTopologySpec, labels};
use nvlink_webhook::extender::Extender;
use serde_json::{Value, json};

/// Returns a board of `gpus` GPUs that `edges` connect.
pub(crate) fn board(gpus: u32, edges: &[(u32, u32)], via: &str) -> NodeTopologySpec {
    let gpus: Vec<_> = (0..gpus)
        .map(|index| json!({ "index": index, "links": [] }))
        .collect();
    let edge = |&(a, b): &(u32, u32)| json!({"a": a, "b": b, "via": via, "links": 4, "bytesPerSecond": 80_000_000_000_u64});
    let edges: Vec<_> = edges.iter().map(edge).collect();
    let spec = json!({"source": {"kind": "sim"}, "gpus": gpus, "edges": edges});
    let mut spec: NodeTopologySpec = serde_json::from_value(spec).unwrap();
    spec.complete("n").unwrap();
    spec
}

/// Returns eight GPUs behind a switch.
pub(crate) fn switched() -> NodeTopologySpec {
    let edges: Vec<_> = (0..8).flat_map(|b| (0..b).map(move |a| (a, b))).collect();
    board(8, &edges, "switch")
}

/// Returns four bridged pairs.
pub(crate) fn pairs() -> NodeTopologySpec {
    board(8, &[(0, 1), (2, 3), (4, 5), (6, 7)], "direct")
}

/// Returns an extender with the classes `any`, `node` and `avoiding`, and no nodes.
pub(crate) fn extender() -> Extender {
    let mut view = View::default();
    for (name, spec) in [
        ("any", json!({})),
        ("node", json!({"placement": {"scope": "node"}})),
        ("avoiding", json!({"placement": {"brokenGpus": "Avoid"}})),
    ] {
        let spec = serde_json::from_value(spec).unwrap();
        let class = Class::new(name, &spec).map_err(|error| error.to_string());
        view.set_class(name, class);
    }
    let mirror = Mirror::default();
    Extender {
        mirror,
        view: SharedView::new(view),
    }
}

/// Sets a node, of which the GPUs `held` are held by a pod that runs, and those in `broken`
/// are marked as broken.
pub(crate) fn set(
    extender: &Extender,
    node: &str,
    spec: &NodeTopologySpec,
    held: Option<&[u32]>,
    broken: &[u32],
) {
    let held = held.map(|gpus| match gpus {
        [] => Vec::new(),
        gpus => vec![Allocation {
            namespace: "ci".to_owned(),
            pod: format!("on-{node}"),
            container: "main".to_owned(),
            gpus: gpus.to_vec(),
            ..Allocation::default()
        }],
    });
    let marked = broken
        .iter()
        .map(|index| json!({"index": index, "faults": ["xid-74"]}));
    let marks: Marks = serde_json::from_value(json!({"gpus": marked.collect::<Value>()})).unwrap();
    let published = Hardwares::default().node(spec, marks, held);
    extender.mirror.set_node(node, Arc::new(Ok(published)));
    bind(extender, &format!("on-{node}"), node, 1);
}

/// Binds a pod of `gpus` GPUs to a node.
pub(crate) fn bind(extender: &Extender, name: &str, node: &str, gpus: u32) {
    let pod = Pod {
        gpus,
        stage: Stage::Bound(node.to_owned()),
        ..Pod::default()
    };
    let name = ("ci".to_owned(), name.to_owned());
    extender.mirror.set_pod(name, pod);
}

/// Returns a pod of `class` that requests `gpus` GPUs.
pub(crate) fn pod(class: &str, gpus: usize) -> Value {
    json!({
        "metadata": {"name": "p", "namespace": "ci", "labels": {labels::CLASS: class}},
        "spec": {"containers": [{
            "name": "main", "resources": {"limits": {"nvidia.com/gpu": gpus.to_string()}},
        }]},
    })
}
