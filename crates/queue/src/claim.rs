//! The ResourceClaim of a pod whose class has the mapping `Claim`: what the pod says about it, and
//! the object that the queue creates when it has chosen the GPUs. Pure.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use nvlink_admission::decide::claim::{key, ranks_of, request};
use nvlink_api::{crd::GPU_DRIVER, pod};
use nvlink_cluster::gpus::API_VERSION;
use nvlink_topology::labels;
use serde_json::{Value, json};

use super::Placement;

/// What a pod says about the claim of the queue by which it gets its GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// The name of the claim.
    pub name: String,
    /// The ranks of the containers with GPUs.
    containers: Vec<Vec<u32>>,
}

impl Named {
    /// Reads `pod`; `None` if it names no claim of the queue.
    #[must_use]
    pub fn of(pod: &Value) -> Option<Self> {
        let text = |entry: &Value, key: &str| Some(entry.get(key)?.as_str()?.to_owned());
        let mut entries = pod::list(pod, &["spec", "resourceClaims"]);
        let ours = entries.find(|entry| text(entry, "name").as_deref() == Some(labels::CLAIM))?;
        let containers = pod::containers(pod);
        let ranks = containers.iter().map(ranks_of);
        Some(Self {
            name: text(ours, "resourceClaimName")?,
            containers: ranks.filter(|ranks| !ranks.is_empty()).collect(),
        })
    }

    /// Returns the annotations of a pod that gets these GPUs, in rank order, by the variables that
    /// its containers read from them.
    #[must_use]
    pub fn annotations(&self, placement: &Placement) -> BTreeMap<String, String> {
        let mut all = BTreeMap::new();
        for ranks in &self.containers {
            let at = |rank: &u32| {
                let at = usize::try_from(*rank).ok()?;
                Some((*placement.gpus.get(at)?, placement.uuids.get(at)?.as_str()))
            };
            let own: Vec<(u32, &str)> = ranks.iter().filter_map(at).collect();
            // The indices of a node's GPUs are in the order of their PCI addresses.
            let before = |gpu: u32| own.iter().filter(|(other, _)| *other < gpu).count();
            let order: Vec<String> = own
                .iter()
                .map(|(gpu, _)| before(*gpu).to_string())
                .collect();
            let uuids: Vec<&str> = own.iter().map(|(_, uuid)| *uuid).collect();
            let key = key(ranks);
            all.insert(format!("{}{key}", labels::QUEUE_ORDER), order.join(","));
            all.insert(format!("{}{key}", labels::QUEUE_GPUS), uuids.join(","));
        }
        all
    }
}

/// How a claim requests GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asks {
    /// The DeviceClass of whole GPUs.
    pub device_class: String,
    /// It is for GPUs that are marked as broken, which the class takes last: their exporter may
    /// taint them.
    pub broken: bool,
}

/// Returns the claim of `pod` for the GPUs of its placement: one request for each rank, which only
/// one GPU meets. The leader makes it in its term of number `term`.
///
/// The pod is its controller. So Kubernetes deletes the claim with the pod, and frees its GPUs when
/// the pod has ended.
#[must_use]
pub fn object(pod: &Value, named: &Named, uuids: &[String], asks: &Asks, term: i32) -> Value {
    let text = |key: &str| {
        let text = pod::at(pod, &["metadata", key]).and_then(Value::as_str);
        text.unwrap_or_default().to_owned()
    };
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        name: text("name"),
        uid: text("uid"),
        controller: Some(true),
        block_owner_deletion: None,
    };
    let requests = (0..).zip(uuids).map(|(rank, uuid)| {
        let mut exactly = json!({
            "deviceClassName": asks.device_class,
            "selectors": [{"cel": {"expression": expression(uuid)}}],
        });
        if asks.broken {
            exactly["tolerations"] = json!([{"key": labels::BROKEN, "operator": "Exists"}]);
        }
        json!({"name": request(rank), "exactly": exactly})
    });
    json!({
        "apiVersion": API_VERSION,
        "kind": "ResourceClaim",
        "metadata": {
            "name": named.name,
            "namespace": text("namespace"),
            "ownerReferences": [owner],
            "labels": {labels::CLASS: pod::metadata(pod, "labels", labels::CLASS)},
            "annotations": {labels::QUEUE_TERM: term.to_string()},
        },
        "spec": {"devices": {"requests": requests.collect::<Vec<_>>()}},
    })
}

/// Returns the CEL expression that one GPU meets. In CEL, as in JSON, the special characters of a
/// text are escaped. A device need not have a UUID: without the question mark, one that has none,
/// such as a MIG device that does not exist yet, would be an error for the scheduler.
fn expression(uuid: &str) -> String {
    let uuid = json!(uuid);
    format!("device.attributes[{GPU_DRIVER:?}].?uuid.orValue(\"\") == {uuid}")
}

/// Reports whether the expressions of a claim are those for these GPUs, in this order.
#[must_use]
pub fn is_for(expressions: &[String], uuids: &[String]) -> bool {
    let wanted = uuids.iter().map(|uuid| expression(uuid));
    wanted.eq(expressions.iter().cloned())
}

/// Reports whether a claim of the API server asks for the same as `wanted`.
#[must_use]
pub fn asks_for(found: &Value, wanted: &Value) -> bool {
    asked(found) == asked(wanted)
}

/// What the queue writes into a request.
#[derive(PartialEq)]
struct Asked<'c> {
    name: Option<&'c Value>,
    device_class: Option<&'c Value>,
    tolerates: bool,
    expressions: Vec<&'c Value>,
}

fn asked(claim: &Value) -> Vec<Asked<'_>> {
    let requests = pod::list(claim, &["spec", "devices", "requests"]);
    let asked = requests.map(|one| {
        let selectors = pod::list(one, &["exactly", "selectors"]);
        Asked {
            name: one.get("name"),
            device_class: pod::at(one, &["exactly", "deviceClassName"]),
            tolerates: pod::list(one, &["exactly", "tolerations"]).next().is_some(),
            expressions: selectors
                .filter_map(|one| pod::at(one, &["cel", "expression"]))
                .collect(),
        }
    });
    asked.collect()
}

/// Reports whether the leader of a later term than `term` made the claim.
#[must_use]
pub fn is_later(claim: &Value, term: i32) -> bool {
    let made = pod::metadata(claim, "annotations", labels::QUEUE_TERM).and_then(Value::as_str);
    made.and_then(|made| made.parse::<i32>().ok())
        .is_some_and(|made| made > term)
}

/// Returns the UID of the pod that is the claim's controller.
#[must_use]
pub fn owner(claim: &Value) -> Option<&str> {
    let mut owners = pod::list(claim, &["metadata", "ownerReferences"]);
    let controller = |one: &&Value| one.get("controller") == Some(&Value::Bool(true));
    owners.find(controller)?.get("uid")?.as_str()
}
