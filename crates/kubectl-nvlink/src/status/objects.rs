//! Objects of the cluster, as far as whoever asks may read them.

use std::collections::{BTreeMap, BTreeSet};

use nvlink_runtime::watch::Key;
use serde_json::Value;

use nvlink_queue::Object;

/// The objects that a report is made from.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    /// DomainClasses.
    pub classes: Kind,
    /// NodeTopologies.
    pub topologies: Kind,
    /// Nodes.
    pub nodes: Kind,
    /// ResourceSlices.
    pub slices: Kind,
    /// ResourceClaims.
    pub claims: Kind,
    /// DeviceClasses.
    pub device_classes: Kind,
    /// The Leases of the leader, by their default name; none if they may not be read.
    pub leases: Kind,
    /// Pods.
    pub pods: Kind,
    /// The only namespace whose pods could be read; `None`: those of all namespaces.
    pub namespace: Option<String>,
    /// The objects that say how many pods a job has, by namespace.
    pub owners: BTreeMap<(String, Object), Value>,
    /// The restricted classes that whoever asks may use in the namespace of the pod.
    pub usable: BTreeSet<String>,
}

/// The objects of one kind.
#[derive(Clone, Debug, Default)]
pub struct Kind {
    /// By namespace (empty for cluster-scoped objects) and name.
    pub objects: BTreeMap<Key, Value>,
    /// Why they could not be read.
    pub hidden: Option<String>,
}

impl Objects {
    /// Reports whether all pods of the cluster could be read.
    pub(super) fn has_all_pods(&self) -> bool {
        self.pods.known().is_some() && self.namespace.is_none()
    }
}

impl Kind {
    /// Returns objects that could be read.
    #[must_use]
    pub fn of(objects: impl IntoIterator<Item = Value>) -> Self {
        let keyed = objects.into_iter().map(|object| (key(&object), object));
        Self {
            objects: keyed.collect(),
            hidden: None,
        }
    }

    /// Returns a kind that could not be read, and why.
    #[must_use]
    pub fn hidden(why: impl Into<String>) -> Self {
        Self {
            objects: BTreeMap::new(),
            hidden: Some(why.into()),
        }
    }

    /// Returns the objects, if they could be read.
    pub(super) fn known(&self) -> Option<&BTreeMap<Key, Value>> {
        self.hidden.is_none().then_some(&self.objects)
    }
}

/// Returns the key of an object.
pub(super) fn key(object: &Value) -> Key {
    let field = |name: &str| {
        let text = object
            .get("metadata")
            .and_then(|all| all.get(name)?.as_str());
        text.unwrap_or_default().to_owned()
    };
    (field("namespace"), field("name"))
}
