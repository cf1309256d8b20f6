//! By which node labels scopes are judged, in the status of a `DomainClass`.

// The derive macro generates public types inside functions.
#![allow(unreachable_pub)]

use kube::KubeSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Keys of the node labels that stand for scopes wider than a node.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ScopeLabels {
    /// The label that names the rack of a node.
    pub rack: String,
    /// The labels that name parts of the network between rack and zone, such as leaf and spine switches;
    /// nearest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub network: Vec<String>,
    /// The label that names the zone of a node.
    pub zone: String,
}

impl ScopeLabels {
    /// Returns the labels that the status of a class has; `None` where no webhook wrote it yet.
    #[must_use]
    pub fn of(class: &Value) -> Option<Self> {
        Self::deserialize(class.pointer("/status/scopeLabels")?).ok()
    }
}

impl Default for ScopeLabels {
    fn default() -> Self {
        Self {
            rack: "topology.kubernetes.io/rack".to_owned(),
            network: Vec::new(),
            zone: "topology.kubernetes.io/zone".to_owned(),
        }
    }
}
