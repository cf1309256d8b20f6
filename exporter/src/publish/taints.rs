//! DeviceTaintRules: they keep pods that get their GPUs by resource claims (DRA) off the
//! broken ones. There is one rule for each device of a broken GPU, where the API server
//! serves the kind.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
    core::{ApiResource, GroupVersionKind},
};
use nvlink_kubelet::slices::{self, DRIVER, Identity, SliceObject, Slices};
use nvlink_topology::{NodeTopologySpec, bus_id, descriptor::short_value, labels};
use serde_json::{Value, json};

use super::{MANAGER, PublishError, is_not_found};

const GROUP: &str = "resource.k8s.io";
/// The versions of the kind, newest first. Alpha came with Kubernetes 1.33 and beta with
/// 1.36, both off by default.
const VERSIONS: [&str; 3] = ["v1", "v1beta2", "v1alpha3"];
/// Label of a rule: its node, as a label value.
const NODE: &str = "nvlink-domains.io/node";
/// How long an answer to the question which version is served counts.
const REMEMBERED: Duration = Duration::from_secs(3600);

/// The rules of one node.
#[derive(Default)]
pub(super) struct Taints {
    /// The kind, if it is served, and when that was asked.
    kind: Option<(Instant, Option<ApiResource>)>,
    /// No rule exists, so there is nothing to ask while no GPU is broken.
    clean: bool,
}

impl Taints {
    /// Updates the rules of `node` to the broken and lost GPUs of `spec`; returns whether
    /// anything was written.
    pub(super) async fn apply(
        &mut self,
        client: &Client,
        node: &Node,
        spec: &NodeTopologySpec,
    ) -> Result<bool, PublishError> {
        let broken = broken(spec);
        if self.clean && broken.is_empty() {
            return Ok(false);
        }
        let name = node.name_any();
        let Some(kind) = self.kind(client, &name).await? else {
            return Ok(false);
        };
        let wanted = match broken.is_empty() {
            true => BTreeMap::new(),
            false => rules(&kind, node, &slices(client, &name).await?, &broken),
        };
        let api = Api::<DynamicObject>::all_with(client.clone(), &kind);
        let present = present(&api, &name).await?;
        let mut written = false;
        for rule in present.iter().map(ResourceExt::name_any) {
            if !wanted.contains_key(&rule) {
                delete(&api, &rule).await?;
                written = true;
            }
        }
        for (rule, wanted) in &wanted {
            if !present.iter().any(|one| says(one, rule, wanted)) {
                let params = PatchParams::apply(MANAGER).force();
                let applied = api.patch(rule, &params, &Patch::Apply(wanted)).await;
                let failed = |error| PublishError::api("applying DeviceTaintRule", rule, error);
                applied.map_err(failed)?;
                written = true;
            }
        }
        self.clean = broken.is_empty();
        Ok(written)
    }

    /// Deletes all rules of the node `name`.
    pub(super) async fn remove(&mut self, client: &Client, name: &str) -> Result<(), PublishError> {
        let Some(kind) = self.kind(client, name).await? else {
            return Ok(());
        };
        let api = Api::<DynamicObject>::all_with(client.clone(), &kind);
        for rule in present(&api, name).await? {
            delete(&api, &rule.name_any()).await?;
        }
        Ok(())
    }

    /// Returns the newest served version of the kind; `None` if the API server has none.
    async fn kind(
        &mut self,
        client: &Client,
        node: &str,
    ) -> Result<Option<ApiResource>, PublishError> {
        if let Some((at, kind)) = &self.kind
            && at.elapsed() < REMEMBERED
        {
            return Ok(kind.clone());
        }
        let mut found = None;
        for version in VERSIONS {
            let api_version = format!("{GROUP}/{version}");
            match client.list_api_group_resources(&api_version).await {
                Ok(list) if list.resources.iter().any(|one| one.name == PLURAL) => {
                    let kind = GroupVersionKind::gvk(GROUP, version, "DeviceTaintRule");
                    found = Some(ApiResource::from_gvk_with_plural(&kind, PLURAL));
                    break;
                }
                Ok(_) => {}
                Err(error) if is_not_found(&error) => {}
                Err(error) => {
                    return Err(PublishError::api(
                        "looking for DeviceTaintRules",
                        node,
                        error,
                    ));
                }
            }
        }
        self.kind = Some((Instant::now(), found.clone()));
        Ok(found)
    }
}

const PLURAL: &str = "devicetaintrules";

/// Returns the broken GPUs, each with its first reason, by UUID and by PCI address.
fn broken(spec: &NodeTopologySpec) -> BTreeMap<String, String> {
    let marked = spec.gpus.iter().filter_map(|gpu| {
        let reason = short_value(&gpu.faults.first()?.to_string());
        Some((&gpu.uuid, &gpu.pci_bus_id, reason))
    });
    let lost = spec.lost.iter();
    let lost = lost.map(|gpu| (&gpu.uuid, &gpu.pci_bus_id, "lost".to_owned()));
    let all = marked.chain(lost).flat_map(|(uuid, address, reason)| {
        let address = address.as_deref().map(bus_id);
        let names = [uuid.clone(), address].into_iter().flatten();
        names.map(move |name| (name, reason.clone()))
    });
    all.collect()
}

/// Reads the ResourceSlices of `node`; none where the kind is not served.
async fn slices(client: &Client, node: &str) -> Result<Slices, PublishError> {
    let api = Api::<SliceObject>::all_with(client.clone(), &slices::resource());
    let fields = format!("spec.nodeName={node},spec.driver={DRIVER}");
    let mut slices = Slices::default();
    match api.list(&ListParams::default().fields(&fields)).await {
        Ok(list) => list.into_iter().for_each(|slice| slices.apply(slice)),
        Err(error) if is_not_found(&error) => {}
        Err(error) => return Err(PublishError::api("listing ResourceSlices", node, error)),
    }
    Ok(slices)
}

/// Returns the rules by name.
fn rules(
    kind: &ApiResource,
    node: &Node,
    slices: &Slices,
    broken: &BTreeMap<String, String>,
) -> BTreeMap<String, Value> {
    let name = node.name_any();
    let rule = |(pool, of, identity): (&str, &str, &Identity)| {
        let ids = identity.uuids.iter().chain(&identity.address);
        let reason = ids.filter_map(|id| broken.get(id)).next()?;
        // Names of devices have no dots.
        let rule = format!("nvlink-{}", short_value(&format!("{of}.{pool}")));
        let object = json!({
            "apiVersion": kind.api_version,
            "kind": kind.kind,
            "metadata": {
                "name": rule,
                "labels": { NODE: short_value(&name) },
                "ownerReferences": [{
                    "apiVersion": "v1", "kind": "Node", "name": name, "uid": node.uid(),
                }],
            },
            "spec": {
                "deviceSelector": { "driver": DRIVER, "pool": pool, "device": of },
                "taint": { "key": labels::BROKEN, "value": reason, "effect": "NoSchedule" },
            },
        });
        Some((rule, object))
    };
    slices.devices().filter_map(rule).collect()
}

/// Reports whether `object` is the rule `name` as it is `wanted`. The API server adds the
/// time of the taint.
fn says(object: &DynamicObject, name: &str, wanted: &Value) -> bool {
    let (have, want) = (&object.data["spec"], &wanted["spec"]);
    let same = |field: &str| have["taint"][field] == want["taint"][field];
    object.name_any() == name
        && have["deviceSelector"] == want["deviceSelector"]
        && ["key", "value", "effect"].into_iter().all(same)
}

/// Returns the rules of the node `name`.
async fn present(api: &Api<DynamicObject>, name: &str) -> Result<Vec<DynamicObject>, PublishError> {
    let labels = format!("{NODE}={}", short_value(name));
    let rules = api.list(&ListParams::default().labels(&labels)).await;
    let rules =
        rules.map_err(|error| PublishError::api("listing DeviceTaintRules of", name, error));
    Ok(rules?.items)
}

async fn delete(api: &Api<DynamicObject>, rule: &str) -> Result<(), PublishError> {
    match api.delete(rule, &DeleteParams::default()).await {
        Ok(_) => Ok(()),
        Err(error) if is_not_found(&error) => Ok(()),
        Err(error) => Err(PublishError::api("deleting DeviceTaintRule", rule, error)),
    }
}
