//! The devices of this node in ResourceSlices.

use std::collections::{BTreeMap, HashMap};

use kube::{
    ResourceExt,
    core::{ApiResource, GroupVersionKind, Object},
};
use nvlink_topology::bus_id;
use serde::Deserialize;

/// The DRA driver whose devices are GPUs.
pub const DRIVER: &str = "gpu.nvidia.com";
/// The attribute with the PCI address of a device, which Kubernetes defines for all drivers.
const ADDRESS: &str = "resource.kubernetes.io/pciBusID";

/// The parts of a ResourceSlice that are read.
pub type SliceObject = Object<Spec, Nothing>;

/// Returns the API resource of the kind.
pub fn resource() -> ApiResource {
    let kind = GroupVersionKind::gvk("resource.k8s.io", "v1", "ResourceSlice");
    ApiResource::from_gvk_with_plural(&kind, "resourceslices")
}

/// A part that is not read.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Nothing {}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct Spec {
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

/// One slice: its pool, and what identifies the GPU of each device.
#[derive(Clone, Debug, Default)]
pub struct Slice {
    pool: String,
    generation: i64,
    devices: HashMap<String, Identity>,
}

/// What identifies the GPU of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The device's own UUID, then that of its GPU if it is a part of one.
    pub uuids: Vec<String>,
    /// The normalized PCI address. A GPU that is passed through to a virtual machine is a device
    /// with a UUID of its own, `gpu-vfio-0`.
    pub address: Option<String>,
}

impl Slice {
    #[cfg(test)]
    pub fn new(
        pool: &str,
        generation: i64,
        devices: impl IntoIterator<Item = (String, Identity)>,
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
        let identity = |mut device: Device| {
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
            let address = text(ADDRESS).map(|address| bus_id(&address));
            let known = !uuids.is_empty() || address.is_some();
            known.then_some((device.name, Identity { uuids, address }))
        };
        Self {
            pool: spec.pool.name,
            generation: spec.pool.generation,
            devices: spec.devices.into_iter().filter_map(identity).collect(),
        }
    }
}

/// All slices, by the name of the object.
#[derive(Clone, Debug, Default)]
pub struct Slices(BTreeMap<String, Slice>);

impl Slices {
    pub fn set(&mut self, name: &str, slice: Slice) {
        self.0.insert(name.to_owned(), slice);
    }

    pub fn apply(&mut self, object: SliceObject) {
        self.set(&object.name_any(), object.spec.into());
    }

    pub fn remove(&mut self, name: &str) {
        self.0.remove(name);
    }

    pub fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.0.retain(|name, _| keep(name));
    }

    /// Returns pool, name and identity of each device, those of the newest generation of each pool.
    pub fn devices(&self) -> impl Iterator<Item = (&str, &str, &Identity)> {
        let generations = |pool: &str| {
            let of_pool = self.0.values().filter(move |slice| slice.pool == pool);
            of_pool.map(|slice| slice.generation).max()
        };
        let slices = self.0.values();
        let current = slices.filter(move |one| generations(&one.pool) == Some(one.generation));
        current.flat_map(|slice| {
            let devices = slice.devices.iter();
            devices.map(|(name, identity)| (&*slice.pool, &**name, identity))
        })
    }

    /// Returns what identifies the GPU of a device. The newest generation of a pool is used.
    pub fn identity(&self, pool: &str, device: &str) -> Option<&Identity> {
        let of_pool = self.0.values().filter(|slice| slice.pool == pool);
        let named =
            of_pool.filter_map(|slice| Some((slice.generation, slice.devices.get(device)?)));
        let (_, identity) = named.max_by_key(|(generation, _)| *generation)?;
        Some(identity)
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
                    {"name": "gpu-vfio-1", "attributes": {
                        "uuid": {"string": "27ab9a0c"}, "driverVersion": {"version": "580.65.6"},
                        "resource.kubernetes.io/pciBusID": {"string": "0000:1A:00.0"}}},
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
        let uuids = |slices: &Slices, pool: &str, device: &str| {
            let identity = slices.identity(pool, device)?;
            Some(identity.uuids.join(" "))
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(uuids(&slices, "n", "gpu-0"), some("GPU-new"));
        let mig = uuids(&slices, "n", "gpu-1-mig-1g18gb-19-0");
        assert_eq!(mig, some("MIG-1 GPU-1"));
        let twin = slices.identity("n", "gpu-vfio-1").unwrap();
        assert_eq!(twin.address.as_deref(), Some("0000:1a:00.0"));
        assert_eq!(uuids(&slices, "other", "gpu-0"), None);
        assert_eq!(uuids(&slices, "n", "odd"), None);
        slices.remove("new");
        assert_eq!(uuids(&slices, "n", "gpu-0"), some("GPU-old"));
        slices.retain(|_| false);
        assert_eq!(uuids(&slices, "n", "gpu-0"), None);
    }
}
