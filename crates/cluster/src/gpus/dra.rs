//! GPUs that DRA allocates: the devices in ResourceSlices, the ResourceClaims that hold them, and
//! the DeviceClasses by which the scheduler serves plain requests.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{
    self, DeviceClassSpec, DeviceRequestAllocationResult, ResourceClaim, ResourceSliceSpec,
};
use nvlink_api::crd::GPU_DRIVER;
use nvlink_topology::labels;

use super::{
    Name, id,
    nic_slice::{self, ADDRESS, NicSlice, ROOT},
};

/// The driver's attributes with the partitions of the Fabric Manager that a GPU is in: the size
/// follows, and the value is the number of the one partition of this size
/// (`FabricManagerPartitioning`, <https://github.com/kubernetes-sigs/dra-driver-nvidia-gpu>).
const PARTITION: &str = "partition";

/// What a ResourceSlice lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Slice {
    /// GPUs.
    Gpus(GpuSlice),
    /// Devices that may be NICs.
    Nics(NicSlice),
}

/// The GPUs in a ResourceSlice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuSlice {
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
    /// The PCIe root of a whole GPU.
    pub(super) root: Option<String>,
    /// It is a whole GPU, which the scheduler allocates to claims that tolerate nothing, and to one
    /// claim at a time.
    pub(super) usable: bool,
    /// The numbers of the partitions that it is in, by size.
    pub(super) partitions: BTreeMap<usize, i64>,
}

impl Slice {
    /// Reads a ResourceSlice by its `spec`; `None` if it has neither GPUs nor NICs of a node.
    #[must_use]
    pub fn of(spec: &ResourceSliceSpec) -> Option<Self> {
        match spec.driver == GPU_DRIVER {
            true => GpuSlice::of(spec).map(Self::Gpus),
            false => NicSlice::of(spec).map(Self::Nics),
        }
    }
}

impl GpuSlice {
    fn of(spec: &ResourceSliceSpec) -> Option<Self> {
        let all = spec.devices.iter().flatten();
        let known = all.filter_map(|device| Some((device, Device::of(device)?)));
        let known: Vec<_> = known.collect();
        Some(Self {
            node: spec.node_name.as_deref()?.into(),
            pool: spec.pool.name.clone(),
            generation: spec.pool.generation,
            shares: known.iter().any(|(device, _)| is_shared(device)),
            devices: known
                .into_iter()
                .map(|(device, known)| (device.name.clone(), known))
                .collect(),
        })
    }
}

/// Reports whether the scheduler may allocate a device to several claims at a time (KEP-5075).
fn is_shared(device: &v1::Device) -> bool {
    device.allow_multiple_allocations == Some(true)
}

impl Device {
    /// Reads a device; `None` if it is no GPU, no part of one and no other device of one.
    fn of(device: &v1::Device) -> Option<Self> {
        let attribute = |name: &str| {
            let attributes = device.attributes.as_ref()?;
            // The driver's own attributes may have its domain, but need not.
            let long = format!("{GPU_DRIVER}/{name}");
            let found = attributes.get(name).or_else(|| attributes.get(&long))?;
            found.string.as_deref()
        };
        let part = attribute("parentUUID");
        let whole = part.is_none() && attribute("type").is_none_or(|of| of == "gpu");
        let uuid = part.or_else(|| attribute("uuid").filter(|_| whole));
        let address = attribute(ADDRESS);
        let mut taints = device.taints.iter().flatten();
        let tainted = taints.any(|taint| matches!(&*taint.effect, "NoSchedule" | "NoExecute"));
        (uuid.is_some() || address.is_some() && !whole).then(|| Self {
            uuid: uuid.map(str::to_owned),
            address: address.map(str::to_owned),
            root: attribute(ROOT).filter(|_| whole).map(str::to_owned),
            usable: whole && !is_shared(device) && !tainted,
            partitions: partitions(device),
        })
    }
}

/// Returns the numbers of the partitions that a device is in, by size.
fn partitions(device: &v1::Device) -> BTreeMap<usize, i64> {
    let attributes = device.attributes.iter().flatten();
    let partition = |(name, value): (&String, &v1::DeviceAttribute)| {
        let own = name.strip_prefix(GPU_DRIVER);
        let name = own.and_then(|own| own.strip_prefix('/')).unwrap_or(name);
        let size = name.strip_prefix(PARTITION)?.parse().ok()?;
        Some((size, value.int?))
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
    /// The devices of other drivers that it holds.
    pub(super) others: Vec<nic_slice::Id>,
    /// What it asks for, if it is not allocated.
    asks: Vec<String>,
    /// The scheduler has allocated it.
    allocated: bool,
    /// The pods that it is reserved for.
    pub(super) users: Vec<User>,
    /// The UID of its controller: of the queue's, that of the pod that it was made for.
    owner: Option<String>,
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
    expressions: Vec<String>,
}

impl DeviceClass {
    /// Reads a DeviceClass by its `spec`.
    #[must_use]
    pub fn of(spec: &DeviceClassSpec) -> Self {
        let selectors = spec.selectors.iter().flatten();
        let expressions = selectors.filter_map(|one| Some(&one.cel.as_ref()?.expression));
        Self {
            resource: spec.extended_resource_name.clone(),
            expressions: expressions.cloned().collect(),
        }
    }

    /// Reports whether it may be for devices of a driver, as far as its expressions tell.
    pub(super) fn is_for(&self, driver: &str) -> bool {
        let mut expressions = self.expressions.iter();
        self.expressions.is_empty() || expressions.any(|one| one.contains(driver))
    }
}

impl Claim {
    /// Reads a ResourceClaim; `None` if it is neither allocated nor the queue's, or being deleted
    /// without having been allocated.
    #[must_use]
    pub fn of(claim: &ResourceClaim) -> Option<Self> {
        let namespace = claim.metadata.namespace.as_deref()?;
        let name = claim.metadata.name.as_deref()?;
        let status = claim.status.as_ref();
        let allocation = status.and_then(|status| status.allocation.as_ref());
        let devices = allocation.and_then(|allocation| allocation.devices.as_ref());
        let results = devices.and_then(|devices| devices.results.as_ref());
        let results = results.into_iter().flatten();
        let (ours, others): (Vec<_>, Vec<_>) = results.partition(|one| one.driver == GPU_DRIVER);
        let others = others
            .into_iter()
            .filter(|one| one.admin_access != Some(true));
        let other = |one: &DeviceRequestAllocationResult| {
            let (driver, pool) = (one.driver.clone(), one.pool.clone());
            (driver, pool, one.device.clone())
        };
        let ours = ours.into_iter();
        let (looks, holds): (Vec<_>, Vec<_>) = ours.partition(|one| one.admin_access == Some(true));
        let names = |of: Vec<&DeviceRequestAllocationResult>| {
            let name = |one: &DeviceRequestAllocationResult| (one.pool.clone(), one.device.clone());
            of.into_iter().map(name).collect()
        };
        let users = status.and_then(|status| status.reserved_for.as_ref());
        let users = users.into_iter().flatten();
        let users = users.filter(|one| one.resource == "pods").map(|one| User {
            pod: id(namespace, &one.name),
            uid: one.uid.clone(),
        });
        let mut owners = claim.metadata.owner_references.iter().flatten();
        let owner = owners.find(|owner| owner.controller == Some(true));
        let this = Self {
            asks: match allocation {
                Some(_) => Vec::new(),
                None => expressions(claim),
            },
            holds: names(holds),
            looks: names(looks),
            others: others.map(other).collect(),
            allocated: allocation.is_some(),
            users: users.collect(),
            owner: owner.map(|owner| owner.uid.clone()),
        };
        let ends = claim.metadata.deletion_timestamp.is_some();
        (this.allocated || !ends && name.starts_with(labels::CLAIM_PREFIX)).then_some(this)
    }
}

impl Claim {
    /// Reports whether the scheduler has allocated it.
    #[must_use]
    pub fn is_allocated(&self) -> bool {
        self.allocated
    }

    /// Reports whether it was made for the pod with this UID, and not for an earlier one of its name,
    /// as far as it says for whom.
    #[must_use]
    pub fn is_of(&self, uid: &str) -> bool {
        self.owner.as_deref().is_none_or(|owner| owner == uid)
    }

    /// Returns the CEL expressions of the devices that it asks for, if it is not allocated.
    #[must_use]
    pub fn asks(&self) -> &[String] {
        &self.asks
    }
}

/// Returns the CEL expressions of the devices that a claim asks for, in the order of its requests.
fn expressions(claim: &ResourceClaim) -> Vec<String> {
    let devices = claim.spec.devices.iter();
    let requests = devices.flat_map(|devices| devices.requests.iter().flatten());
    let exactly = requests.filter_map(|one| one.exactly.as_ref());
    let selectors = exactly.flat_map(|one| one.selectors.iter().flatten());
    let expressions = selectors.filter_map(|one| Some(one.cel.as_ref()?.expression.clone()));
    expressions.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn claims_that_hold_nothing_count_only_if_they_are_the_queues() {
        let named = |name: &str| {
            let claim = json!({"metadata": {"namespace": "n", "name": name}});
            Claim::of(&serde_json::from_value(claim).unwrap()).is_some()
        };
        assert!(named("nvlink-domains-train-1") && !named("mine"));
        assert_eq!(Claim::of(&ResourceClaim::default()), None);
    }
}
