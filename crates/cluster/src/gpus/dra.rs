//! GPUs that DRA allocates: the devices in ResourceSlices, the ResourceClaims that hold them, and
//! the DeviceClasses by which the scheduler serves plain requests.

use std::collections::BTreeMap;

use nvlink_api::{
    crd::GPU_DRIVER,
    pod::{self, at, list},
};
use nvlink_topology::labels;
use serde_json::Value;

use super::{Name, id};

/// The version of the API of DRA that is read.
pub const API_VERSION: &str = "resource.k8s.io/v1";

/// The attribute with the PCI address of a device, which Kubernetes defines for all drivers.
const ADDRESS: &str = "resource.kubernetes.io/pciBusID";
/// The driver's attributes with the partitions of the Fabric Manager that a GPU is in: the size
/// follows, and the value is the number of the one partition of this size
/// (`FabricManagerPartitioning`, <https://github.com/kubernetes-sigs/dra-driver-nvidia-gpu>).
const PARTITION: &str = "partition";

/// The GPUs in a ResourceSlice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    pub(super) node: Name,
    pub(super) pool: String,
    pub(super) generation: i64,
    /// By name.
    pub(super) devices: BTreeMap<String, Device>,
    /// The scheduler may allocate a GPU among them to several claims at a time.
    pub(super) shares: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Device {
    /// The UUID of the GPU; of a part of one, that of the GPU that it is a part of. `None` for
    /// another device of a GPU, which has its address: `gpu-vfio-0` passes it through to a virtual
    /// machine.
    pub(super) uuid: Option<String>,
    /// The PCI address of the GPU.
    pub(super) address: Option<String>,
    /// It is a whole GPU, which the scheduler allocates to claims that tolerate nothing, and to one
    /// claim at a time.
    pub(super) usable: bool,
    /// The numbers of the partitions that it is in, by size.
    pub(super) partitions: BTreeMap<usize, i64>,
}

impl Slice {
    /// Reads a ResourceSlice by its `spec`; `None` if it has no whole GPUs of a node.
    #[must_use]
    pub fn of(spec: &Value) -> Option<Self> {
        let text = |path: &[&str]| at(spec, path).and_then(Value::as_str);
        if text(&["driver"])? != GPU_DRIVER {
            return None;
        }
        let known =
            list(spec, &["devices"]).filter_map(|device| Some((device, Device::of(device)?)));
        let known: Vec<(&Value, Device)> = known.collect();
        let shares = known.iter().any(|(device, _)| is_shared(device));
        let devices = known.into_iter().filter_map(|(device, known)| {
            let name = device.get("name")?.as_str()?.to_owned();
            Some((name, known))
        });
        Some(Self {
            node: text(&["nodeName"])?.into(),
            pool: text(&["pool", "name"])?.to_owned(),
            generation: at(spec, &["pool", "generation"]).and_then(Value::as_i64)?,
            devices: devices.collect(),
            shares,
        })
    }
}

/// Reports whether the scheduler may allocate a device to several claims at a time (KEP-5075).
fn is_shared(device: &Value) -> bool {
    device.get("allowMultipleAllocations") == Some(&Value::Bool(true))
}

impl Device {
    /// Reads a device; `None` if it is no GPU, no part of one and no other device of one.
    fn of(device: &Value) -> Option<Self> {
        let attribute = |name: &str| {
            let attributes = device.get("attributes")?;
            // The driver's own attributes may have its domain, but need not.
            let long = format!("{GPU_DRIVER}/{name}");
            let found = attributes.get(name).or_else(|| attributes.get(&long))?;
            found.get("string")?.as_str()
        };
        let part = attribute("parentUUID");
        let whole = part.is_none() && attribute("type").is_none_or(|of| of == "gpu");
        let uuid = part.or_else(|| attribute("uuid").filter(|_| whole));
        let address = attribute(ADDRESS);
        let keeps_off = |taint: &Value| {
            let effect = taint.get("effect").and_then(Value::as_str);
            matches!(effect, Some("NoSchedule" | "NoExecute"))
        };
        let tainted = list(device, &["taints"]).any(keeps_off);
        (uuid.is_some() || address.is_some() && !whole).then(|| Self {
            uuid: uuid.map(str::to_owned),
            address: address.map(str::to_owned),
            usable: whole && !is_shared(device) && !tainted,
            partitions: partitions(device),
        })
    }
}

/// Returns the numbers of the partitions that a device is in, by size.
fn partitions(device: &Value) -> BTreeMap<usize, i64> {
    let attributes = pod::entries(device, &["attributes"]);
    let partition = |(name, value): (&String, &Value)| {
        let own = name.strip_prefix(GPU_DRIVER);
        let name = own.and_then(|own| own.strip_prefix('/')).unwrap_or(name);
        let size = name.strip_prefix(PARTITION)?.parse().ok()?;
        Some((size, value.get("int")?.as_i64()?))
    };
    attributes.filter_map(partition).collect()
}

/// A ResourceClaim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Pool and name of each GPU that it holds.
    pub(super) holds: Vec<(String, String)>,
    /// Those that its pods look at with admin access. Others may hold them.
    pub(super) looks: Vec<(String, String)>,
    /// What it asks for, if it is not allocated.
    asks: Vec<String>,
    /// The scheduler has allocated it.
    allocated: bool,
    /// The pods that it is reserved for.
    pub(super) users: Vec<User>,
}

/// A pod for which a claim is reserved.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct User {
    /// As [`id`] joins it.
    pub pod: Name,
    pub uid: String,
}

/// What a DeviceClass says about plain requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceClass {
    /// The extended resource that the scheduler serves by claims of this class.
    pub(super) resource: Option<String>,
}

impl DeviceClass {
    /// Reads a DeviceClass by its `spec`.
    #[must_use]
    pub fn of(spec: &Value) -> Self {
        let resource = at(spec, &["extendedResourceName"]).and_then(Value::as_str);
        Self {
            resource: resource.map(str::to_owned),
        }
    }
}

impl Claim {
    /// Reads a ResourceClaim; `None` if it is neither allocated nor the queue's, or being deleted
    /// without having been allocated.
    #[must_use]
    pub fn of(claim: &Value) -> Option<Self> {
        let text = |value: &Value, key: &str| Some(value.get(key)?.as_str()?.to_owned());
        let metadata = claim.get("metadata")?;
        let namespace = text(metadata, "namespace")?;
        let results = list(claim, &["status", "allocation", "devices", "results"]);
        let ours = results.filter(|one| text(one, "driver").as_deref() == Some(GPU_DRIVER));
        let looks = |one: &&Value| one.get("adminAccess") == Some(&Value::Bool(true));
        let (looks, holds): (Vec<&Value>, Vec<&Value>) = ours.partition(looks);
        let names = |of: Vec<&Value>| -> Vec<(String, String)> {
            let name = |one: &Value| Some((text(one, "pool")?, text(one, "device")?));
            of.into_iter().filter_map(name).collect()
        };
        let users = list(claim, &["status", "reservedFor"])
            .filter(|one| text(one, "resource").as_deref() == Some("pods"));
        let allocated = at(claim, &["status", "allocation"]).is_some_and(Value::is_object);
        let this = Self {
            asks: match allocated {
                true => Vec::new(),
                false => expressions(claim),
            },
            holds: names(holds),
            looks: names(looks),
            allocated,
            users: users
                .filter_map(|one| {
                    let pod = id(&namespace, &text(one, "name")?);
                    let uid = text(one, "uid")?;
                    Some(User { pod, uid })
                })
                .collect(),
        };
        let name = text(metadata, "name")?;
        let ends = text(metadata, "deletionTimestamp").is_some();
        (this.allocated || !ends && name.starts_with(labels::CLAIM_PREFIX)).then_some(this)
    }
}

impl Claim {
    /// Reports whether the scheduler has allocated it.
    #[must_use]
    pub fn is_allocated(&self) -> bool {
        self.allocated
    }

    /// Returns the CEL expressions of the devices that it asks for, if it is not allocated.
    #[must_use]
    pub fn asks(&self) -> &[String] {
        &self.asks
    }
}

/// Returns the CEL expressions of the devices that a claim asks for, in the order of its requests.
fn expressions(claim: &Value) -> Vec<String> {
    let requests = list(claim, &["spec", "devices", "requests"]);
    let selectors = requests.flat_map(|one| list(one, &["exactly", "selectors"]));
    let texts = selectors.filter_map(|one| at(one, &["cel", "expression"]));
    let texts = texts.map(|text| text.as_str().unwrap_or_default().to_owned());
    texts.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn claims_that_hold_nothing_count_only_if_they_are_the_queues() {
        let named = |name: &str| {
            let claim = json!({"metadata": {"namespace": "n", "name": name}});
            Claim::of(&claim).is_some()
        };
        assert!(named("nvlink-domains-train-1") && !named("mine"));
        assert_eq!(Claim::of(&json!({"metadata": 7})), None);
    }
}
