//! The NodeTopology object.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
    core::{ApiResource, GroupVersionKind},
};
use nvlink_topology::{API_VERSION, GROUP, KIND, NodeTopology, PLURAL, VERSION};
use serde_json::{Value, json};

use super::{MANAGER, PublishError, is_not_found, status};
use crate::placement::Keys;
use nvlink_history::marks::Record;

/// Annotation of the object: the XIDs by which GPUs are marked as broken, for the next
/// process of the exporter.
const XIDS: &str = "nvlink-domains.io/xids";

/// What [`apply`] did.
pub(super) enum Outcome {
    Written,
    Same,
    /// The cluster has no such kind.
    NoCrd,
}

pub(super) fn api(client: &Client) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk(GROUP, VERSION, KIND);
    let resource = ApiResource::from_gvk_with_plural(&kind, PLURAL);
    Api::all_with(client.clone(), &resource)
}

/// Reads the object; `None` if it or its kind does not exist.
pub(super) async fn get(
    client: &Client,
    name: &str,
) -> Result<Option<DynamicObject>, PublishError> {
    match api(client).get(name).await {
        Ok(object) => Ok(Some(object)),
        Err(error) if is_not_found(&error) => Ok(None),
        Err(error) => Err(PublishError::api("reading NodeTopology", name, error)),
    }
}

/// Applies the spec. If it has other GPUs than the present one, it first removes
/// the status, which refers to the old GPUs; the keeper of the status writes a new
/// one. The Node owns the object, so that it is deleted with the Node.
pub(super) async fn apply(
    client: &Client,
    node: &Node,
    topology: &NodeTopology,
    record: &Record,
) -> Result<Outcome, PublishError> {
    let name = node.name_any();
    let owner = json!({
        "apiVersion": "v1", "kind": "Node", "name": name, "uid": node.uid(),
    });
    let spec = json!(topology.spec);
    let present = get(client, &name).await?;
    let mut object = json!({
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": { "name": name, "ownerReferences": [&owner] },
        "spec": spec,
    });
    let xids = (!record.is_empty()).then(|| json!(record).to_string());
    if let Some(xids) = &xids {
        object["metadata"]["annotations"] = json!({ XIDS: xids });
    }
    if let Some(present) = present {
        let same = present.annotations().get(XIDS) == xids.as_ref();
        if same && says(&present, &spec, &owner) {
            return Ok(Outcome::Same);
        }
        let gpus = status::gpus(&present).unwrap_or_default();
        if Keys::of(&gpus) != Keys::of(&topology.spec.gpus) {
            let version = status::clear(client, &name, &present).await?;
            object["metadata"]["resourceVersion"] = json!(version);
        }
    }
    let params = PatchParams::apply(MANAGER).force();
    let api = api(client);
    match api.patch(&name, &params, &Patch::Apply(&object)).await {
        Ok(_) => Ok(Outcome::Written),
        // Applying creates a missing object, so it is the kind that is missing.
        Err(error) if is_not_found(&error) => Ok(Outcome::NoCrd),
        Err(error) => Err(PublishError::api("applying NodeTopology", &name, error)),
    }
}

/// Reads the record of an earlier process; it is empty if there is none, or if its version
/// cannot be parsed.
pub(super) async fn read_record(client: &Client, name: &str) -> Result<Record, PublishError> {
    let present = get(client, name).await?;
    let record = present.and_then(|present| {
        let text = present.annotations().get(XIDS)?;
        serde_json::from_str(text).ok()
    });
    Ok(record.unwrap_or_default())
}

/// Deletes the object; succeeds also if the object or its kind does not exist.
pub(super) async fn delete(client: &Client, name: &str) -> Result<(), PublishError> {
    match api(client).delete(name, &DeleteParams::default()).await {
        Ok(_) => Ok(()),
        Err(error) if is_not_found(&error) => Ok(()),
        Err(error) => Err(PublishError::api("deleting NodeTopology", name, error)),
    }
}

/// Returns the names of all objects; none if the kind does not exist.
pub(super) async fn names(client: &Client) -> Result<BTreeSet<String>, PublishError> {
    match api(client).list_metadata(&ListParams::default()).await {
        Ok(objects) => Ok(objects.iter().map(ResourceExt::name_any).collect()),
        Err(error) if is_not_found(&error) => Ok(BTreeSet::new()),
        Err(error) => Err(PublishError::api("listing NodeTopologies", "", error)),
    }
}

fn says(object: &DynamicObject, spec: &Value, owner: &Value) -> bool {
    let uid = owner["uid"].as_str();
    object.data.get("spec") == Some(spec)
        && object
            .owner_references()
            .iter()
            .any(|one| Some(one.uid.as_str()) == uid)
}
