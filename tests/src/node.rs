//! Nodes without machines: Node objects that the scheduler treats as real nodes.

use std::collections::BTreeMap;

use anyhow::Result;
use serde_json::{Value, json};

use crate::kubectl::Kubectl;

/// A GPU node to be created.
#[derive(Clone, Debug)]
pub struct Node {
    name: String,
    gpus: u32,
    cpus: u32,
    labels: BTreeMap<String, String>,
    taints: Vec<Value>,
}

impl Node {
    /// Creates a node with `gpus` GPUs and enough of everything else.
    #[must_use]
    pub fn new(name: impl Into<String>, gpus: u32) -> Self {
        Self {
            name: name.into(),
            gpus,
            cpus: 64,
            labels: BTreeMap::new(),
            taints: Vec::new(),
        }
    }

    /// Sets the number of CPUs.
    #[must_use]
    pub fn cpus(mut self, cpus: u32) -> Self {
        self.cpus = cpus;
        self
    }

    #[must_use]
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.labels.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Adds the taint `key=value:NoSchedule`.
    #[must_use]
    pub fn taint(mut self, key: &str, value: &str) -> Self {
        let taint = json!({"key": key, "value": value, "effect": "NoSchedule"});
        self.taints.push(taint);
        self
    }

    /// Keeps pods away that do not name this pool (see [`in_pool`]).
    #[must_use]
    pub fn pool(self, pool: &str) -> Self {
        self.taint("pool", pool).label("pool", pool)
    }

    fn object(&self) -> Value {
        let mut resources = json!({
            "cpu": self.cpus.to_string(),
            "memory": "512Gi",
            "pods": "110",
        });
        if self.gpus > 0 {
            resources["nvidia.com/gpu"] = json!(self.gpus.to_string());
        }
        let mut labels = self.labels.clone();
        labels.insert("kubernetes.io/hostname".to_owned(), self.name.clone());
        json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self.name, "labels": labels},
            "spec": {"taints": self.taints},
            "status": {
                "capacity": resources,
                "allocatable": resources,
                "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
            },
        })
    }
}

/// Creates the nodes in the cluster.
///
/// # Errors
/// When one is refused.
pub fn create(kubectl: &Kubectl, nodes: &[Node]) -> Result<()> {
    let items: Vec<Value> = nodes.iter().map(Node::object).collect();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    kubectl
        .run_with(&["create", "-f", "-"], &list.to_string())
        .map(drop)
}

/// Restricts a pod spec to the nodes of `pool`.
pub fn in_pool(spec: &mut Value, pool: &str) {
    spec["nodeSelector"] = json!({"pool": pool});
    spec["tolerations"] = json!([{"key": "pool", "value": pool, "effect": "NoSchedule"}]);
}
