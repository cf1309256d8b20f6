//! What PersistentVolumeClaims, PersistentVolumes and StorageClasses say about the nodes on which a pod
//! can run. Pure. The rules are those of the scheduler's plugin VolumeBinding (Kubernetes 1.36).

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{
        core::v1::{PersistentVolume, PersistentVolumeClaim},
        storage,
    },
    apimachinery::pkg::api::resource::Quantity,
};
use nvlink_api::quantity;
use serde_json::{Value, json};

use crate::gpus::{Name, id};

/// The node for which the scheduler has chosen to make a volume.
const SELECTED: &str = "volume.kubernetes.io/selected-node";
/// The provisioner of classes whose volumes somebody makes by hand.
const BY_HAND: &str = "kubernetes.io/no-provisioner";

/// What a volume is, or has to be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Shape {
    bytes: u64,
    modes: Vec<String>,
    block: bool,
}

impl Shape {
    fn of(size: Option<&Quantity>, modes: Option<&Vec<String>>, mode: Option<&String>) -> Self {
        let bytes = size.and_then(|size| quantity::scaled(&json!(size.0), 0));
        Self {
            bytes: bytes.unwrap_or_default(),
            modes: modes.cloned().unwrap_or_default(),
            block: mode.is_some_and(|mode| mode == "Block"),
        }
    }

    fn covers(&self, wanted: &Self) -> bool {
        let mut modes = wanted.modes.iter();
        self.bytes >= wanted.bytes
            && self.block == wanted.block
            && modes.all(|mode| self.modes.contains(mode))
    }
}

/// A PersistentVolumeClaim.
#[derive(Clone, Debug, PartialEq)]
pub struct VolumeClaim {
    /// The name of its volume, once it has one.
    pub volume: Option<String>,
    /// The name of its StorageClass; empty: none.
    pub class: String,
    /// The node for which its volume is being made.
    pub node: Option<String>,
    wanted: Shape,
    /// Selects volumes by their labels.
    pub selector: Option<Value>,
}

impl VolumeClaim {
    /// Reads a claim.
    #[must_use]
    pub fn of(claim: &PersistentVolumeClaim) -> Self {
        let spec = claim.spec.clone().unwrap_or_default();
        let requests = spec.resources.and_then(|resources| resources.requests);
        let size = requests.as_ref().and_then(|all| all.get("storage"));
        let annotations = claim.metadata.annotations.as_ref();
        Self {
            wanted: Shape::of(size, spec.access_modes.as_ref(), spec.volume_mode.as_ref()),
            volume: spec.volume_name.filter(|name| !name.is_empty()),
            class: spec.storage_class_name.unwrap_or_default(),
            node: annotations.and_then(|all| all.get(SELECTED)).cloned(),
            selector: spec.selector.map(|selector| json!(selector)),
        }
    }
}

/// A PersistentVolume.
#[derive(Clone, Debug, PartialEq)]
pub struct Volume {
    /// The nodes that reach it, as terms of a node selector; `None`: all.
    pub terms: Option<Vec<Value>>,
    /// The name of its StorageClass; empty: none.
    pub class: String,
    /// The claim that has it, or for which it is reserved, as [`id`] joins it.
    pub claim: Option<Name>,
    pub labels: BTreeMap<String, String>,
    available: bool,
    shape: Shape,
}

impl Volume {
    /// Reads a volume.
    #[must_use]
    pub fn of(volume: &PersistentVolume) -> Self {
        let spec = volume.spec.clone().unwrap_or_default();
        let phase = volume.status.as_ref().and_then(|it| it.phase.as_deref());
        let size = spec.capacity.as_ref().and_then(|all| all.get("storage"));
        let required = spec.node_affinity.and_then(|affinity| affinity.required);
        let terms = required.map(|required| required.node_selector_terms);
        let claim = spec.claim_ref.and_then(|claim| {
            let (namespace, name) = (claim.namespace?, claim.name?);
            Some(id(&namespace, &name))
        });
        Self {
            shape: Shape::of(size, spec.access_modes.as_ref(), spec.volume_mode.as_ref()),
            terms: terms.map(|terms| terms.iter().map(|term| json!(term)).collect()),
            class: spec.storage_class_name.unwrap_or_default(),
            claim,
            labels: volume.metadata.labels.clone().unwrap_or_default(),
            available: phase == Some("Available") && volume.metadata.deletion_timestamp.is_none(),
        }
    }

    /// Reports whether the scheduler may bind it to the claim `id`, but for the selector of that.
    #[must_use]
    pub fn suits(&self, id: &Name, claim: &VolumeClaim) -> bool {
        let reserved = self.claim.as_ref();
        self.class == claim.class
            && self.shape.covers(&claim.wanted)
            && reserved.map_or(self.available, |reserved| reserved == id)
    }
}

/// A StorageClass.
#[derive(Clone, Debug, PartialEq)]
pub struct StorageClass {
    /// A claim is bound only when a pod uses it.
    pub waits: bool,
    /// Volumes are made for claims.
    pub makes: bool,
    /// The nodes for which they are made, as terms of a node selector; `None`: all.
    pub terms: Option<Vec<Value>>,
}

impl StorageClass {
    /// Reads a class.
    #[must_use]
    pub fn of(class: &storage::v1::StorageClass) -> Self {
        let term = |term: &k8s_openapi::api::core::v1::TopologySelectorTerm| {
            let all = term.match_label_expressions.iter().flatten();
            let all = all
                .map(|one| json!({"key": one.key, "operator": "In", "values": one.values}))
                .collect::<Vec<_>>();
            json!({"matchExpressions": all})
        };
        let terms = class.allowed_topologies.iter().flatten();
        let terms: Vec<Value> = terms.map(term).collect();
        Self {
            waits: class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"),
            makes: class.provisioner != BY_HAND,
            terms: (!terms.is_empty()).then_some(terms),
        }
    }
}
