//! Labels and annotations of the Node.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use nvlink_runtime::client;
use nvlink_topology::{NodeTopology, labels};
use serde_json::{Value, json};

use super::{ALIAS_MANAGER, MANAGER, PublishError, is_conflict};

/// Nodes that one request lists.
const PAGE: u32 = 500;

type Values = BTreeMap<&'static str, String>;

/// Reads the Node. Nothing is published without it: applying would create one.
pub(super) async fn get(client: &Client, name: &str) -> Result<Node, PublishError> {
    let node = Api::<Node>::all(client.clone()).get_opt(name).await;
    match node.map_err(|error| PublishError::api("reading Node", name, error))? {
        Some(node) => Ok(node),
        None => Err(PublishError::NoNode(name.to_owned())),
    }
}

/// Applies this program's own names; returns whether anything was written. Values
/// that another program set under these names are replaced or removed: jobs are
/// placed by them, and they would pass for measured values.
pub(super) async fn apply_own(
    client: &Client,
    node: &Node,
    topology: &NodeTopology,
) -> Result<bool, PublishError> {
    let (labels, annotations) = (
        labels::node_labels(topology),
        labels::node_annotations(topology),
    );
    let foreign = [
        Foreign::of(node, "labels", &labels::NODE_LABELS, &labels),
        Foreign::of(node, "annotations", &labels::NODE_ANNOTATIONS, &annotations),
    ];
    for one in foreign.iter().flat_map(|one| &one.told) {
        tracing::warn!(
            node = node.name_any(),
            "replacing or removing a value that another program set: {one}"
        );
    }
    let mut written = !says(node, MANAGER, &labels, &annotations);
    if written {
        let params = PatchParams::apply(MANAGER).force();
        apply(client, node, &params, &labels, &annotations).await?;
    }
    if foreign.iter().any(|one| !one.unwanted.is_empty()) {
        clear(client, node, &foreign).await?;
        written = true;
    }
    Ok(written)
}

/// Values that another program set under the names of this program.
struct Foreign {
    /// `labels` or `annotations`.
    field: &'static str,
    /// Names that this program does not set now.
    unwanted: Vec<&'static str>,
    /// All foreign values, for the log.
    told: Vec<String>,
}

impl Foreign {
    fn of(node: &Node, field: &'static str, names: &[&'static str], wanted: &Values) -> Self {
        let have = match field {
            "labels" => node.labels(),
            _ => node.annotations(),
        };
        let managed = format!("f:{field}");
        let own = owned(node, |manager| manager == MANAGER, &managed);
        let others = owned(node, |manager| manager != MANAGER, &managed);
        let (mut unwanted, mut told) = (Vec::new(), Vec::new());
        for &name in names {
            let Some(value) = have.get(name) else {
                continue;
            };
            let foreign = !own.contains(name) || others.contains(name);
            if !foreign || wanted.get(name) == Some(value) {
                continue;
            }
            told.push(format!("{name}={value}"));
            if !wanted.contains_key(name) {
                unwanted.push(name);
            }
        }
        Self {
            field,
            unwanted,
            told,
        }
    }
}

/// Removes names that any manager has set, which applying does not do.
async fn clear(client: &Client, node: &Node, foreign: &[Foreign]) -> Result<(), PublishError> {
    let name = node.name_any();
    let mut metadata = json!({ "uid": node.uid() });
    for one in foreign {
        let nothing: BTreeMap<_, _> = one.unwanted.iter().map(|&name| (name, ())).collect();
        metadata[one.field] = json!(nothing);
    }
    let params = PatchParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let patch = Patch::Merge(json!({ "metadata": metadata }));
    let api = Api::<Node>::all(client.clone());
    let result = api.patch_metadata(&name, &params, &patch).await;
    result
        .map(drop)
        .map_err(|error| PublishError::api("removing from Node", &name, error))
}

/// Applies the alias labels, except those that another manager owns; returns whether anything was
/// written.
pub(super) async fn apply_aliases(
    client: &Client,
    node: &Node,
    mut labels: Values,
) -> Result<bool, PublishError> {
    let none = Values::new();
    labels.retain(|name, _| !set_by_another(node, ALIAS_MANAGER, name));
    if says(node, ALIAS_MANAGER, &labels, &none) {
        return Ok(false);
    }
    let params = PatchParams::apply(ALIAS_MANAGER);
    match apply(client, node, &params, &labels, &none).await {
        Ok(()) => Ok(true),
        // Another manager was faster; the next check sees which.
        Err(PublishError::Api { error, .. }) if is_conflict(&error) => {
            tracing::warn!(
                "alias labels are set by another manager: {}",
                client::reason(&error)
            );
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// All managers of this program.
const MANAGERS: [&str; 3] = [MANAGER, ALIAS_MANAGER, nvlink_device_plugin::MANAGER];

/// Removes everything that the managers of this program have set.
pub(super) async fn remove(client: &Client, node: &Node) -> Result<(), PublishError> {
    let none = Values::new();
    for manager in MANAGERS {
        if !says(node, manager, &none, &none) {
            let params = PatchParams::apply(manager).force();
            apply(client, node, &params, &none, &none).await?;
        }
    }
    Ok(())
}

/// Returns the names of the Nodes that have something of this program's managers.
pub(super) async fn published(client: &Client) -> Result<Vec<String>, PublishError> {
    let api = Api::<Node>::all(client.clone());
    let none = Values::new();
    let (mut names, mut page) = (Vec::new(), ListParams::default().limit(PAGE));
    loop {
        let nodes = api.list(&page).await;
        let nodes = nodes.map_err(|error| PublishError::api("listing Nodes", "", error))?;
        let ours = |node: &&Node| {
            let mut managers = MANAGERS.iter();
            managers.any(|manager| !says(node, manager, &none, &none))
        };
        names.extend(nodes.items.iter().filter(ours).map(ResourceExt::name_any));
        match nodes.metadata.continue_.filter(|next| !next.is_empty()) {
            Some(next) => page = page.continue_token(&next),
            None => return Ok(names),
        }
    }
}

async fn apply(
    client: &Client,
    node: &Node,
    params: &PatchParams,
    labels: &Values,
    annotations: &Values,
) -> Result<(), PublishError> {
    let name = node.name_any();
    let mut metadata = json!({ "name": name, "uid": node.uid() });
    if !labels.is_empty() {
        metadata["labels"] = json!(labels);
    }
    if !annotations.is_empty() {
        metadata["annotations"] = json!(annotations);
    }
    let patch = json!({ "apiVersion": "v1", "kind": "Node", "metadata": metadata });
    let api = Api::<Node>::all(client.clone());
    let result = api
        .patch_metadata(&name, params, &Patch::Apply(&patch))
        .await;
    result
        .map(drop)
        .map_err(|error| PublishError::api("applying to Node", &name, error))
}

/// Reports whether the Node has exactly these values from `manager`.
fn says(node: &Node, manager: &str, labels: &Values, annotations: &Values) -> bool {
    let same = |field: &str, have: &BTreeMap<String, String>, want: &Values| {
        let owned = owned(node, |name| name == manager, field);
        let wanted = want.keys().map(|&name| name.to_owned());
        owned == wanted.collect()
            && want
                .iter()
                .all(|(&name, value)| have.get(name) == Some(value))
    };
    same("f:labels", node.labels(), labels)
        && same("f:annotations", node.annotations(), annotations)
}

/// Reports whether a manager other than `manager` owns the label `name`.
fn set_by_another(node: &Node, manager: &str, name: &str) -> bool {
    owned(node, |other| other != manager, "f:labels").contains(name)
}

/// Returns the names of labels or annotations that the managers own, from the managed fields.
fn owned(node: &Node, manager: impl Fn(&str) -> bool, field: &str) -> BTreeSet<String> {
    let entries = node.managed_fields().iter();
    let entries = entries.filter(|entry| entry.manager.as_deref().is_some_and(&manager));
    let names = entries.filter_map(|entry| {
        let fields: &Value = &entry.fields_v1.as_ref()?.0;
        fields.get("f:metadata")?.get(field)?.as_object()
    });
    names
        .flatten()
        .filter_map(|(name, _)| Some(name.strip_prefix("f:")?.to_owned()))
        .collect()
}
