//! The ResourceClaim of a pod whose class has the mapping `Claim`: what the pod says about it, and
//! the object that the queue creates when it has chosen the GPUs. Pure.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::resource::v1::{
        CELDeviceSelector, DeviceClaim, DeviceConstraint, DeviceRequest, DeviceSelector,
        DeviceToleration, ExactDeviceRequest, ResourceClaim, ResourceClaimSpec,
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::ResourceExt;
use nvlink_admission::decide::claim::{hcas, key, nics, ports, ranks_of, request};
use nvlink_api::{crd::GPU_DRIVER, pod};
use nvlink_topology::labels;
use serde_json::{Value, json};

use nvlink_cluster::gpus::nic_slice::ROOT;

use super::{
    Placement,
    placement::{Nic, Nics},
};

/// What a pod says about the claim of the queue by which it gets its GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// The name of the claim.
    pub name: String,
    /// The ranks of the containers with GPUs.
    containers: Vec<Vec<u32>>,
    /// Its containers ask for NICs, too.
    pub nics: bool,
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
            nics: containers.iter().any(|one| one.nics().next().is_some()),
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
            if let Some(nics) = placement.nics.as_ref().filter(|_| self.nics) {
                let own = nics.of_ranks(ranks);
                all.insert(format!("{}{key}", labels::QUEUE_HCAS), hcas(&own));
                all.insert(format!("{}{key}", labels::QUEUE_HCA_PORTS), ports(&own));
            }
        }
        all
    }
}

impl Nics {
    /// Returns the RDMA devices of the NICs of some ranks, each once.
    fn of_ranks(&self, ranks: &[u32]) -> Vec<&str> {
        let at = |rank: &u32| self.of_gpus.get(usize::try_from(*rank).ok()?);
        let nics = ranks.iter().filter_map(at).flatten();
        nics.map(|nic| &*nic.rdma).collect()
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
/// one GPU meets, and one for the NICs of each, at the same PCIe root. The leader makes it in its term of
/// number `term`.
#[must_use]
pub fn object(
    pod: &Value,
    named: &Named,
    placement: &Placement,
    asks: &Asks,
    term: i32,
) -> ResourceClaim {
    let uuids = (0..).zip(&placement.uuids);
    let mut requests: Vec<_> = uuids.map(|(rank, uuid)| asked(rank, uuid, asks)).collect();
    let mut constraints = Vec::new();
    if let Some(nics) = placement.nics.as_ref().filter(|_| named.nics) {
        for (rank, own) in (0..).zip(&nics.of_gpus) {
            requests.push(asked_nics(rank, own, nics));
            constraints.push(DeviceConstraint {
                requests: Some(vec![request(rank), self::nics(rank)]),
                match_attribute: Some(ROOT.to_owned()),
                ..DeviceConstraint::default()
            });
        }
    }
    let spec = ResourceClaimSpec {
        devices: Some(DeviceClaim {
            requests: Some(requests),
            constraints: (!constraints.is_empty()).then_some(constraints),
            ..DeviceClaim::default()
        }),
    };
    made_for(pod, &named.name, spec, term)
}

/// Returns the request for the NICs of the GPU of a rank.
fn asked_nics(rank: u32, own: &[Nic], nics: &Nics) -> DeviceRequest {
    DeviceRequest {
        name: self::nics(rank),
        exactly: Some(ExactDeviceRequest {
            device_class_name: nics.device_class.clone(),
            selectors: Some(vec![selector(expression_of_nics(own, nics))]),
            count: i64::try_from(own.len()).ok(),
            ..ExactDeviceRequest::default()
        }),
        ..DeviceRequest::default()
    }
}

/// Returns the CEL expression that these NICs meet.
fn expression_of_nics(own: &[Nic], nics: &Nics) -> String {
    let (domain, name) = &nics.attribute;
    let addresses: Vec<&str> = own.iter().map(|nic| &*nic.at).collect();
    let (driver, addresses) = (json!(nics.driver), json!(addresses));
    format!(
        "device.driver == {driver} && device.attributes[{domain:?}].?{name}.orValue(\"\") in {addresses}"
    )
}

fn selector(expression: String) -> DeviceSelector {
    let cel = Some(CELDeviceSelector { expression });
    DeviceSelector { cel }
}

/// Returns the claim `name` of `pod` that requests `spec`.
///
/// The pod is its controller. So Kubernetes deletes the claim, and frees its devices, when the pod has
/// ended or is deleted.
#[must_use]
pub fn made_for(pod: &Value, name: &str, spec: ResourceClaimSpec, term: i32) -> ResourceClaim {
    let text = |key: &str| pod::text(pod, &["metadata", key]).to_owned();
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        name: text("name"),
        uid: text("uid"),
        controller: Some(true),
        block_owner_deletion: None,
    };
    let class = pod::metadata(pod, "labels", labels::CLASS).and_then(Value::as_str);
    let class = class.map(|class| (labels::CLASS.to_owned(), class.to_owned()));
    let term = (labels::QUEUE_TERM.to_owned(), term.to_string());
    ResourceClaim {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(text("namespace")),
            owner_references: Some(vec![owner]),
            labels: Some(class.into_iter().collect()),
            annotations: Some([term].into()),
            ..ObjectMeta::default()
        },
        spec,
        status: None,
    }
}

fn asked(rank: u32, uuid: &str, asks: &Asks) -> DeviceRequest {
    let broken = DeviceToleration {
        key: Some(labels::BROKEN.to_owned()),
        operator: Some("Exists".to_owned()),
        ..DeviceToleration::default()
    };
    DeviceRequest {
        name: request(rank),
        exactly: Some(ExactDeviceRequest {
            device_class_name: asks.device_class.clone(),
            selectors: Some(vec![selector(expression(uuid))]),
            tolerations: asks.broken.then(|| vec![broken]),
            ..ExactDeviceRequest::default()
        }),
        ..DeviceRequest::default()
    }
}

/// Returns the CEL expression that one GPU meets. In CEL, as in JSON, the special characters of a
/// text are escaped. A device need not have a UUID: without the question mark, one that has none,
/// such as a MIG device that does not exist yet, would be an error for the scheduler.
fn expression(uuid: &str) -> String {
    let uuid = json!(uuid);
    format!("device.attributes[{GPU_DRIVER:?}].?uuid.orValue(\"\") == {uuid}")
}

/// Reports whether the expressions of a claim are those for the devices of a placement, in their order.
#[must_use]
pub fn is_for(expressions: &[String], placement: &Placement) -> bool {
    let gpus = placement.uuids.iter().map(|uuid| expression(uuid));
    let nics = placement.nics.iter().flat_map(|nics| {
        let own = nics.of_gpus.iter();
        own.map(|own| expression_of_nics(own, nics))
    });
    gpus.chain(nics).eq(expressions.iter().cloned())
}

/// Reports whether a claim of the API server asks for the same as `wanted`, as far as the queue
/// writes it: API servers add defaults.
#[must_use]
pub fn asks_for(found: &ResourceClaim, wanted: &ResourceClaim) -> bool {
    written(found).eq(written(wanted))
        && parameters(found).eq(parameters(wanted))
        && constraints(found).eq(constraints(wanted))
}

/// Returns the constraints of a claim.
fn constraints(claim: &ResourceClaim) -> impl Iterator<Item = &DeviceConstraint> {
    let devices = claim.spec.devices.iter();
    devices.flat_map(|devices| devices.constraints.iter().flatten())
}

/// Returns what the drivers of a claim are told, such as the ComputeDomain of a channel.
fn parameters(claim: &ResourceClaim) -> impl Iterator<Item = (&str, &Value)> {
    let devices = claim.spec.devices.iter();
    let all = devices.flat_map(|devices| devices.config.iter().flatten());
    let all = all.filter_map(|one| one.opaque.as_ref());
    all.map(|one| (&*one.driver, &one.parameters.0))
}

/// What the queue writes into a request.
#[derive(PartialEq)]
struct Written<'c> {
    name: &'c str,
    device_class: Option<&'c str>,
    selectors: &'c [DeviceSelector],
    tolerates: bool,
    count: i64,
}

fn written(claim: &ResourceClaim) -> impl Iterator<Item = Written<'_>> {
    let devices = claim.spec.devices.iter();
    let requests = devices.flat_map(|devices| devices.requests.iter().flatten());
    requests.map(|one| {
        let exactly = one.exactly.as_ref();
        let selectors = exactly.and_then(|one| one.selectors.as_deref());
        let tolerations = exactly.and_then(|one| one.tolerations.as_deref());
        Written {
            name: &one.name,
            device_class: exactly.map(|one| &*one.device_class_name),
            selectors: selectors.unwrap_or_default(),
            tolerates: tolerations.is_some_and(|all| !all.is_empty()),
            count: exactly.and_then(|one| one.count).unwrap_or(1),
        }
    })
}

/// Reports whether the leader of a later term than `term` made the claim.
#[must_use]
pub fn is_later(claim: &ResourceClaim, term: i32) -> bool {
    let made = claim.annotations().get(labels::QUEUE_TERM);
    made.and_then(|made| made.parse::<i32>().ok())
        .is_some_and(|made| made > term)
}

/// Returns the UID of the pod that is the claim's controller.
#[must_use]
pub fn owner(claim: &ResourceClaim) -> Option<&str> {
    let mut owners = claim.owner_references().iter();
    let owner = owners.find(|owner| owner.controller == Some(true))?;
    Some(&owner.uid)
}
