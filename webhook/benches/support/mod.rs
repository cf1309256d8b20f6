//! The cluster and the pods of the benchmarks.

use nvlink_admission::view::View;
use nvlink_api::class::Class;
use nvlink_topology::labels;
use serde_json::{Value, json};

/// Returns a cluster with `nodes` nodes and `classes` classes; the last class claims the pod.
pub(crate) fn cluster(nodes: usize, classes: usize) -> View {
    let mut view = View::default();
    for index in 0..classes {
        let last = index + 1 == classes;
        let spec = json!({
            "nodeSelector": {"matchLabels": {"pool": format!("pool-{}", index % 10)}},
            "minBandwidth": "100GBps",
            "appliesTo": {"minGpus": if last { 2 } else { 64 }, "patterns": ["all-reduce"], "precedence": -(index as i32)}
        });
        let spec = serde_json::from_value(spec).expect("a class");
        view.set_class(
            &format!("class-{index:03}"),
            Class::new(&format!("class-{index:03}"), &spec).map_err(|e| e.to_string()),
        );
    }
    for index in 0..nodes {
        let labels = [
            (labels::DOMAIN_SIZE, [1, 2, 4, 8, 16][index % 5].to_string()),
            (labels::BANDWIDTH, [0, 56, 300, 450][index % 4].to_string()),
            ("pool", format!("pool-{}", index % 10)),
        ];
        view.set_node(
            &format!("node-{index}"),
            labels.map(|(key, value)| (key.to_owned(), value)).into(),
        );
    }
    view
}

/// Returns a pod as CI systems create them: helpers, volumes, many variables.
pub(crate) fn pod() -> Value {
    let env: Vec<_> = (0..60)
        .map(|n| json!({"name": format!("CI_VARIABLE_{n}"), "value": "some value of a build"}))
        .collect();
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "runner-abc-project-42-concurrent-0", "namespace": "ci",
            "labels": {"project.runner.gitlab.com/id": "42"},
            "annotations": {"job.runner.gitlab.com/id": "1"}
        },
        "spec": {
            "initContainers": [{"name": "init-permissions", "image": "helper", "env": env}],
            "containers": [
                {"name": "build", "image": "cuda", "env": env, "resources": {"limits": {"nvidia.com/gpu": "4"}}},
                {"name": "helper", "image": "helper", "env": env}
            ],
            "volumes": [{"name": "repo", "emptyDir": {}}, {"name": "scripts", "emptyDir": {}}]
        }
    })
}
