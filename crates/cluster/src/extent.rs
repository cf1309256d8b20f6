//! NodeTopology objects, reduced to what decisions need: which GPUs are free, which domains they
//! are in, and whether MIG splits some. The parser skips links and paths, nine tenths of the
//! text, so ten thousand nodes cost little.

use std::{borrow::Cow, collections::HashSet, fmt};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Resource,
    core::{ApiResource, DynamicResourceScope},
};
use nvlink_topology::NodeTopology;
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Number, Value};

use nvlink_admission::view::Free;

/// The fields that are parsed, at any depth.
const KEPT: &[&str] = &[
    "metadata",
    "name",
    "resourceVersion",
    "spec",
    "gpus",
    "index",
    "faults",
    "migEnabled",
    "domains",
    "status",
    "allocations",
];

#[derive(Clone, Debug)]
pub(super) struct Extent {
    metadata: ObjectMeta,
    document: Value,
}

/// The fields of the document that are needed.
#[derive(Deserialize)]
struct Document {
    spec: Spec,
    status: Option<Status>,
}

#[derive(Deserialize)]
struct Spec {
    gpus: Vec<Gpu>,
    #[serde(default)]
    domains: Vec<Set>,
}

#[derive(Deserialize)]
struct Gpu {
    index: u32,
    /// None in documents of versions that mark no GPUs.
    #[serde(default)]
    faults: Vec<IgnoredAny>,
    #[serde(default, rename = "migEnabled")]
    mig_enabled: bool,
}

#[derive(Deserialize)]
struct Status {
    /// None if unknown: an empty status remains when a status was removed.
    allocations: Option<Vec<Set>>,
}

/// The GPUs of a domain or of a container.
#[derive(Deserialize)]
struct Set {
    gpus: Vec<u32>,
}

impl Extent {
    /// Returns the same as [`free`], and whether MIG splits a GPU of the node.
    ///
    /// # Errors
    /// When the document does not match the CRD.
    pub(super) fn read(self) -> Result<(Option<Free>, bool), serde_json::Error> {
        let Document { spec, status } = serde_json::from_value(self.document)?;
        let mig = spec.gpus.iter().any(|gpu| gpu.mig_enabled);
        let Some(allocations) = status.and_then(|status| status.allocations) else {
            return Ok((None, mig));
        };
        let mut free: HashSet<u32> = spec.gpus.iter().map(|gpu| gpu.index).collect();
        for gpu in allocations.iter().flat_map(|set| &set.gpus) {
            free.remove(gpu);
        }
        let domains = spec.domains.iter().map(|set| set.gpus.as_slice());
        let broken = spec.gpus.iter().filter(|gpu| !gpu.faults.is_empty());
        Ok((most(free, broken.map(|gpu| gpu.index), domains), mig))
    }
}

/// Returns the highest number of free GPUs in one domain; `None` if allocations are unknown.
#[must_use]
pub fn free(node: &NodeTopology) -> Option<Free> {
    node.status.as_ref()?;
    let free = node.free_gpus().into_iter().collect();
    let domains = node.spec.domains.iter();
    let domains = domains.map(|domain| domain.gpus.as_slice());
    most(free, node.spec.broken_gpus(), domains)
}

fn most<'a>(
    mut free: HashSet<u32>,
    broken: impl Iterator<Item = u32>,
    domains: impl Iterator<Item = &'a [u32]> + Clone,
) -> Option<Free> {
    let largest = |free: &HashSet<u32>| {
        let domains = domains.clone();
        let in_domain = domains.map(|gpus| gpus.iter().filter(|gpu| free.contains(gpu)).count());
        // A GPU outside every domain is a set of one.
        let alone = usize::from(!free.is_empty());
        u32::try_from(in_domain.max().unwrap_or(0).max(alone)).ok()
    };
    let all = largest(&free)?;
    broken.for_each(|gpu| _ = free.remove(&gpu));
    let healthy = largest(&free)?;
    Some(Free { all, healthy })
}

impl<'de> Deserialize<'de> for Extent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Pruned(mut document) = Pruned::deserialize(deserializer)?;
        let metadata = document.get_mut("metadata").map(Value::take);
        let field = |name: &str| {
            let text = metadata.as_ref()?.get(name)?.as_str()?;
            Some(text.to_owned())
        };
        let metadata = ObjectMeta {
            name: field("name"),
            resource_version: field("resourceVersion"),
            ..ObjectMeta::default()
        };
        Ok(Self { metadata, document })
    }
}

impl Resource for Extent {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(resource: &ApiResource) -> Cow<'_, str> {
        resource.kind.as_str().into()
    }

    fn group(resource: &ApiResource) -> Cow<'_, str> {
        resource.group.as_str().into()
    }

    fn version(resource: &ApiResource) -> Cow<'_, str> {
        resource.version.as_str().into()
    }

    fn plural(resource: &ApiResource) -> Cow<'_, str> {
        resource.plural.as_str().into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// Any JSON, with only the fields in [`KEPT`] of its objects. Parsing accepts every
/// type: one malformed object among ten thousand must not stop the others.
struct Pruned(Value);

impl<'de> Deserialize<'de> for Pruned {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Pruning).map(Self)
    }
}

struct Pruning;

impl<'de> Visitor<'de> for Pruning {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut kept = Map::new();
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            if KEPT.contains(&key.as_ref()) {
                let Pruned(value) = map.next_value()?;
                kept.insert(key.into_owned(), value);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(Value::Object(kept))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut kept = Vec::new();
        while let Some(Pruned(item)) = items.next_element()? {
            kept.push(item);
        }
        Ok(Value::Array(kept))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
}

#[cfg(test)]
mod tests {
    use kube::ResourceExt;
    use serde_json::json;

    use super::*;

    fn read(document: &Value) -> Extent {
        serde_json::from_str(&document.to_string()).unwrap()
    }

    fn document() -> Value {
        let gpu = |index: u32| json!({"index": index, "uuid": format!("GPU-{index}")});
        json!({
            "apiVersion": nvlink_topology::API_VERSION, "kind": nvlink_topology::KIND,
            "metadata": {
                "name": "n", "resourceVersion": "7",
                "managedFields": [{"manager": "m", "fieldsV1": {"f:spec": {}}}]
            },
            "spec": {
                "source": {"kind": "nvml"},
                "gpus": (0..6).map(gpu).collect::<Vec<_>>(),
                "edges": [], "paths": [],
                "domains": [{"id": "a", "gpus": [0, 1, 2]}, {"id": "b", "gpus": [3, 4]}]
            }
        })
    }

    #[test]
    fn a_reduced_document_gives_the_same_result_as_the_whole() {
        let mut document = document();
        let whole = |document: &Value| serde_json::from_value(document.clone()).unwrap();
        assert_eq!(read(&document).read().unwrap(), (None, false));
        assert_eq!(free(&whole(&document)), None);
        document["status"] = json!({});
        assert_eq!(read(&document).read().unwrap(), (None, false));
        for gpu in [0, 3] {
            document["spec"]["gpus"][gpu]["faults"] = json!(["missing-links", "row-remap"]);
        }
        for (held, all, healthy) in [
            (json!([]), 3, 2),
            (json!([[0, 1]]), 2, 1),
            (json!([[0, 1], [2, 3]]), 1, 1),
            (json!([[0, 1, 2, 3, 4]]), 1, 1),
            (json!([[0, 1, 2, 4, 5]]), 1, 0),
            (json!([[0, 1, 2, 3, 4, 5]]), 0, 0),
        ] {
            let left = Free { all, healthy };
            let one = |gpus| json!({"namespace": "a", "pod": "p", "container": "c", "gpus": gpus});
            let all: Value = held.as_array().unwrap().iter().map(one).collect();
            document["status"] = json!({"allocations": all});
            let got = read(&document).read().unwrap();
            assert_eq!(got, (Some(left), false), "{held}");
            assert_eq!(free(&whole(&document)), Some(left), "{held}");
        }
    }

    #[test]
    fn mig_on_one_gpu_is_known_with_and_without_allocations() {
        let mut document = document();
        document["spec"]["gpus"][5]["migEnabled"] = json!(true);
        assert_eq!(read(&document).read().unwrap(), (None, true));
        document["status"] = json!({"allocations": []});
        assert!(read(&document).read().unwrap().1);
    }

    #[test]
    fn unneeded_fields_are_dropped_and_no_type_stops_the_parser() {
        let extent = read(&document());
        assert_eq!(extent.name_any(), "n");
        assert_eq!(extent.resource_version().as_deref(), Some("7"));
        let text = extent.document.to_string();
        assert!(!text.contains("GPU-") && !text.contains("f:spec"), "{text}");
        for odd in [
            json!(7),
            json!(null),
            json!("x"),
            json!([1.5, -1, true]),
            json!({"gpus": 3}),
        ] {
            let mut document = document();
            document["spec"] = odd.clone();
            assert!(read(&document).read().is_err(), "{odd}");
        }
    }
}
