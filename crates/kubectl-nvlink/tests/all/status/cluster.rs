//! A cluster for the tests of `status` and `explain`, as the API server returns its objects.

use kubectl_nvlink::status::{Kind, Objects};
use nvlink_topology::{API_VERSION, KIND, NodeTopologySpec, labels};
use serde_json::{Value, json};

/// When the cluster is read.
pub(crate) const NOW: &str = "2026-08-01T10:00:00Z";

/// Returns a class that queues, on the nodes of a pool.
pub(crate) fn class(name: &str, pool: &str, more: Value) -> Value {
    let mut class = json!({
        "metadata": {"name": name},
        "spec": {
            "nodeSelector": {"matchLabels": {"pool": pool}},
            "placement": {"whenUnavailable": "Queue", "queueTimeout": "45m"},
        },
    });
    if let Value::Object(more) = more {
        for (key, value) in more {
            class["spec"][key] = value;
        }
    }
    class
}

/// Returns a node of eight GPUs in the pool.
pub(crate) fn node(name: &str, pool: &str) -> Value {
    json!({
        "metadata": {"name": name, "labels": {"pool": pool, labels::BANDWIDTH: "450"}},
        "status": {
            "allocatable": {"nvidia.com/gpu": "8"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    })
}

/// Returns a pod that holds GPUs, as its node's exporter reports it.
pub(crate) fn held(namespace: &str, pod: &str, gpus: &[u32]) -> Value {
    json!({"namespace": namespace, "pod": pod, "container": "main", "gpus": gpus})
}

/// Returns what a node with these edges between eight GPUs publishes.
pub(crate) fn topology(
    name: &str,
    edges: &[(u32, u32)],
    via: &str,
    allocations: &[Value],
) -> Value {
    let gpus: Vec<_> = (0..8)
        .map(|index| json!({"index": index, "links": []}))
        .collect();
    let edge = |&(a, b): &(u32, u32)| json!({"a": a, "b": b, "via": via, "links": 4, "bytesPerSecond": 80_000_000_000_u64});
    let edges: Vec<_> = edges.iter().map(edge).collect();
    let spec = json!({"source": {"kind": "sim"}, "gpus": gpus, "edges": edges});
    let mut spec: NodeTopologySpec = serde_json::from_value(spec).unwrap();
    spec.complete(name).unwrap();
    json!({
        "apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name},
        "spec": spec, "status": {"allocations": allocations},
    })
}

/// Returns what a node publishes whose GPUs are behind a switch: one domain.
pub(crate) fn switched(name: &str, allocations: &[Value]) -> Value {
    let edges: Vec<_> = (0..8).flat_map(|b| (0..b).map(move |a| (a, b))).collect();
    topology(name, &edges, "switch", allocations)
}

/// Returns what a node publishes whose GPUs are bridged in pairs: four domains.
pub(crate) fn pairs(name: &str, allocations: &[Value]) -> Value {
    let edges = [(0, 1), (2, 3), (4, 5), (6, 7)];
    topology(name, &edges, "direct", allocations)
}

/// Returns a pod of a class that was created at `created` and asks for `gpus` GPUs.
pub(crate) fn pod(namespace: &str, name: &str, class: &str, gpus: u32, created: &str) -> Value {
    let decision = json!({
        "class": class, "by": "annotation", "gpus": gpus, "scope": "nvlink-domain",
        "pattern": "all-reduce", "why": "the pod names the class",
    });
    json!({
        "metadata": {
            "namespace": namespace, "name": name, "uid": format!("uid-{name}"),
            "creationTimestamp": created,
            "labels": {labels::CLASS: class, labels::PROJECT: format!("gitlab.{namespace}")},
            "annotations": {labels::DECISION: decision.to_string()},
        },
        "spec": {"containers": [{
            "name": "main", "resources": {"limits": {"nvidia.com/gpu": gpus.to_string()}},
        }]},
        "status": {"phase": "Pending"},
    })
}

/// Lets a pod wait in the queue.
pub(crate) fn waiting(mut pod: Value) -> Value {
    pod["spec"]["schedulingGates"] = json!([{"name": labels::QUEUE_GATE}]);
    pod
}

/// Lets a pod run on a node since `since`.
pub(crate) fn running(mut pod: Value, node: &str, since: &str) -> Value {
    pod["spec"]["nodeName"] = json!(node);
    pod["status"] = json!({"phase": "Running", "startTime": since});
    pod
}

/// Sets an annotation.
pub(crate) fn with(mut pod: Value, key: &str, value: &str) -> Value {
    pod["metadata"]["annotations"][format!("nvlink-domains.io/{key}")] = json!(value);
    pod
}

/// Returns a full cluster: three classes, two nodes with switches, one with pairs, jobs that run
/// and jobs that wait.
pub(crate) fn busy() -> Objects {
    let restricted = json!({"access": {"mode": "Restricted"}});
    let mut low = running(
        pod("batch", "nightly", "high", 6, "2026-08-01T07:00:00Z"),
        "dgx-2",
        "2026-08-01T07:00:10Z",
    );
    low["spec"]["priority"] = json!(-10);
    low["spec"]["activeDeadlineSeconds"] = json!(14_400);
    let big = running(
        pod("ml", "big", "high", 8, "2026-08-01T09:30:00Z"),
        "dgx-1",
        "2026-08-01T09:30:00Z",
    );
    let mut gang = waiting(pod("ml", "ring-0", "high", 8, "2026-08-01T09:50:00Z"));
    gang["metadata"]["annotations"] = json!({});
    for (key, value) in [("gang", "ring"), ("gang-size", "2"), ("scope", "zone")] {
        gang = with(gang, key, value);
    }
    Objects {
        classes: Kind::of([
            class("high", "nvswitch", json!({})),
            class("pairs", "bridged", json!({"placement": {}})),
            class("vip", "bridged", restricted),
        ]),
        nodes: Kind::of([
            node("dgx-1", "nvswitch"),
            node("dgx-2", "nvswitch"),
            node("a100-1", "bridged"),
        ]),
        topologies: Kind::of([
            switched("dgx-1", &[held("ml", "big", &[0, 1, 2, 3, 4, 5, 6, 7])]),
            switched("dgx-2", &[held("batch", "nightly", &[0, 1, 2, 3, 4, 5])]),
            pairs("a100-1", &[]),
        ]),
        pods: Kind::of([
            low,
            with(big, "expected-duration", "1h"),
            waiting(pod("ml", "train", "high", 8, "2026-08-01T09:40:00Z")),
            waiting(pod("ml", "small", "high", 4, "2026-08-01T09:45:00Z")),
            gang,
            waiting(pod("research", "llm", "high", 4, "2026-08-01T09:55:00Z")),
        ]),
        ..Objects::default()
    }
}
