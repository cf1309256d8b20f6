//! The devices of this node in ResourceSlices.

use std::collections::{BTreeMap, HashMap};

use kube::{
    ResourceExt,
    core::{ApiResource, Object},
};
use serde::Deserialize;

/// The DRA driver whose devices are GPUs.
pub(super) const DRIVER: &str = "gpu.nvidia.com";

/// The parts of a ResourceSlice that are read.
pub(super) type SliceObject = Object<Spec, Nothing>;

/// Returns the API resource of the kind.
pub(super) fn resource() -> ApiResource {
    ApiResource {
        group: "resource.k8s.io".to_owned(),
        version: "v1".to_owned(),
        api_version: "resource.k8s.io/v1".to_owned(),
        kind: "ResourceSlice".to_owned(),
        plural: "resourceslices".to_owned(),
    }
}

/// A part that is not read.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Nothing {}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Spec {
    #[serde(default)]
    pool: Pool,
    #[serde(default)]
    devices: Vec<Device>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Pool {
    #[serde(default)]
    name: String,
    #[serde(default)]
    generation: i64,
}

#[derive(Clone, Debug, Deserialize)]
struct Device {
    name: String,
    #[serde(default)]
    attributes: BTreeMap<String, Attribute>,
}

#[derive(Clone, Debug, Deserialize)]
struct Attribute {
    string: Option<String>,
}

/// One slice: its pool, and UUIDs by device.
#[derive(Clone, Debug, Default)]
pub(super) struct Slice {
    pool: String,
    generation: i64,
    /// The device's own UUID, then that of its GPU if it is a part of one.
    devices: HashMap<String, Vec<String>>,
}

impl Slice {
    #[cfg(test)]
    pub(super) fn new(
        pool: &str,
        generation: i64,
        devices: impl IntoIterator<Item = (String, Vec<String>)>,
    ) -> Self {
        Self {
            pool: pool.to_owned(),
            generation,
            devices: devices.into_iter().collect(),
        }
    }
}

impl From<Spec> for Slice {
    fn from(spec: Spec) -> Self {
        let uuids = |mut device: Device| {
            // The driver's own attributes may have its domain, but need not.
            let mut text = |name: &str| {
                let long = format!("{}/{name}", DRIVER);
                let found = device.attributes.remove(name);
                found.or_else(|| device.attributes.remove(&long))?.string
            };
            let uuids: Vec<_> = ["uuid", "parentUUID"]
                .into_iter()
                .filter_map(&mut text)
                .collect();
            (!uuids.is_empty()).then_some((device.name, uuids))
        };
        Self {
            pool: spec.pool.name,
            generation: spec.pool.generation,
            devices: spec.devices.into_iter().filter_map(uuids).collect(),
        }
    }
}

/// All slices, by the name of the object.
#[derive(Clone, Debug, Default)]
pub(super) struct Slices(BTreeMap<String, Slice>);

impl Slices {
    pub(super) fn set(&mut self, name: &str, slice: Slice) {
        self.0.insert(name.to_owned(), slice);
    }

    pub(super) fn apply(&mut self, object: SliceObject) {
        self.set(&object.name_any(), object.spec.into());
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.0.remove(name);
    }

    pub(super) fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.0.retain(|name, _| keep(name));
    }

    /// Returns the UUIDs of a device: its own, and its GPU's. The newest generation of
    /// a pool is used.
    pub(super) fn uuids(&self, pool: &str, device: &str) -> Option<&[String]> {
        let of_pool = self.0.values().filter(|slice| slice.pool == pool);
        let named =
            of_pool.filter_map(|slice| Some((slice.generation, slice.devices.get(device)?)));
        let (_, uuids) = named.max_by_key(|(generation, _)| *generation)?;
        Some(uuids)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn slice(name: &str, generation: i64, uuid: &str) -> SliceObject {
        serde_json::from_value(json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name},
            "spec": {
                "driver": "gpu.nvidia.com", "nodeName": "n",
                "pool": {"name": "n", "generation": generation, "resourceSliceCount": 1},
                "devices": [
                    {"name": "gpu-0", "attributes": {
                        "uuid": {"string": uuid}, "type": {"string": "gpu"}, "index": {"int": 0}}},
                    {"name": "gpu-1-mig-1g18gb-19-0", "attributes": {
                        "gpu.nvidia.com/uuid": {"string": "MIG-1"}, "parentUUID": {"string": "GPU-1"}}},
                    {"name": "odd"},
                ]
            }
        }))
        .unwrap()
    }

    #[test]
    fn devices_by_pool_and_name_of_the_newest_generation() {
        let mut slices = Slices::default();
        slices.apply(slice("new", 2, "GPU-new"));
        slices.apply(slice("old", 1, "GPU-old"));
        assert_eq!(slices.uuids("n", "gpu-0").unwrap(), ["GPU-new"]);
        let mig = slices.uuids("n", "gpu-1-mig-1g18gb-19-0").unwrap();
        assert_eq!(mig, ["MIG-1", "GPU-1"]);
        assert_eq!(slices.uuids("other", "gpu-0"), None);
        assert_eq!(slices.uuids("n", "odd"), None);
        slices.remove("new");
        assert_eq!(slices.uuids("n", "gpu-0").unwrap(), ["GPU-old"]);
        slices.retain(|_| false);
        assert_eq!(slices.uuids("n", "gpu-0"), None);
    }
}
