//! What a ResourceSlice says of devices that may be NICs.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{self, ResourceSliceSpec};

use super::Name;

/// The attributes with the PCIe root and the PCI address of a device, which Kubernetes defines for all
/// drivers.
pub const ROOT: &str = "resource.kubernetes.io/pcieRoot";
pub(super) const ADDRESS: &str = "resource.kubernetes.io/pciBusID";
/// Attributes in the domain of the driver: the same address, whether a device does RDMA, the name of its RDMA device,
/// and the state of its interface (`AttrPCIAddress`, `AttrRDMA`, `AttrRDMADevice` and `AttrState` of
/// pkg/apis/attributes.go, <https://github.com/kubernetes-sigs/dranet> of August 2026; up to v1.4.0, NICs with an
/// interface have no name of the RDMA device).
const OWN_ADDRESS: &str = "pciAddress";
const RDMA: &str = "rdma";
const RDMA_DEVICE: &str = "rdmaDevice";
const STATE: &str = "state";

/// The devices of a ResourceSlice that may be NICs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicSlice {
    pub(super) node: Name,
    pub(super) driver: String,
    pub(super) pool: String,
    pub(super) generation: i64,
    /// By name.
    pub(super) devices: BTreeMap<String, Device>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Device {
    pub(super) root: String,
    pub(super) address: String,
    /// The attribute that has the address: its domain and its name.
    pub(super) attribute: (String, &'static str),
    /// The slice says that it does RDMA.
    pub(super) does_rdma: bool,
    /// Its RDMA device, if the slice names it.
    pub(super) rdma: Option<String>,
    /// Its interface is down.
    pub(super) down: bool,
}

/// Driver, pool and name of a device.
pub(super) type Id = (String, String, String);

impl NicSlice {
    /// Reads a ResourceSlice by its `spec`; `None` if it has no devices of a node with PCIe roots.
    pub(super) fn of(spec: &ResourceSliceSpec) -> Option<Self> {
        let devices = spec.devices.iter().flatten();
        let devices = devices
            .filter_map(|device| Some((device.name.clone(), Device::of(device, &spec.driver)?)));
        let devices: BTreeMap<String, Device> = devices.collect();
        (!devices.is_empty()).then_some(Self {
            node: spec.node_name.as_deref()?.into(),
            driver: spec.driver.clone(),
            pool: spec.pool.name.clone(),
            generation: spec.pool.generation,
            devices,
        })
    }

    /// Returns its driver and its pool.
    pub(super) fn pool(&self) -> (String, String) {
        (self.driver.clone(), self.pool.clone())
    }

    pub(super) fn id(&self, device: &str) -> Id {
        (self.driver.clone(), self.pool.clone(), device.to_owned())
    }
}

impl Device {
    fn of(device: &v1::Device, driver: &str) -> Option<Self> {
        let attributes = device.attributes.as_ref()?;
        let text = |name: &str| {
            let text = attributes.get(name)?.string.clone();
            text.filter(|text| !text.is_empty())
        };
        // The driver's own attributes may have its domain, but need not.
        let long = |name: &str| format!("{driver}/{name}");
        let own = |name: &str| text(&long(name)).or_else(|| text(name));
        let flag = |name: &str| attributes.get(name).and_then(|one| one.bool);
        let mut taints = device.taints.iter().flatten();
        let tainted = taints.any(|taint| matches!(&*taint.effect, "NoSchedule" | "NoExecute"));
        let standard = || {
            let (domain, name) = ADDRESS.split_once('/')?;
            Some((text(ADDRESS)?, (domain.to_owned(), name)))
        };
        let address = own(OWN_ADDRESS).map(|value| (value, (driver.to_owned(), OWN_ADDRESS)));
        let (address, attribute) = address.or_else(standard).filter(|_| !tainted)?;
        let rdma = own(RDMA_DEVICE).filter(|name| is_device(name));
        Some(Self {
            root: text(ROOT)?,
            address,
            attribute,
            does_rdma: rdma.is_some() || flag(&long(RDMA)).or_else(|| flag(RDMA)) == Some(true),
            rdma,
            down: own(STATE).as_deref() == Some("down"),
        })
    }
}

/// Reports whether a text is the name of an RDMA device: it becomes part of lists.
pub(super) fn is_device(name: &str) -> bool {
    let valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    (1..64).contains(&name.len()) && name.bytes().all(valid)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Returns the RDMA device of the only device of a slice; `None` if the device is no NIC that does RDMA.
    fn rdma_of(attributes: &Value, taints: &Value) -> Option<String> {
        let device = json!({"name": "d", "attributes": attributes, "taints": taints});
        let spec = json!({
            "driver": "dra.net", "nodeName": "n1", "devices": [device],
            "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
        });
        let slice = NicSlice::of(&serde_json::from_value(spec).unwrap())?;
        let device = slice.devices.into_values().next()?;
        device.rdma.filter(|_| device.does_rdma)
    }

    #[test]
    fn addresses_may_be_those_of_kubernetes_and_odd_devices_are_no_nics() {
        let text = |text: &str| json!({"string": text});
        let good =
            json!({ROOT: text("a"), ADDRESS: text("0000:11:00.0"), "rdmaDevice": text("mlx5_0")});
        assert_eq!(rdma_of(&good, &json!([])).as_deref(), Some("mlx5_0"));
        let tainted = json!([{"key": "bad", "effect": "NoSchedule"}]);
        assert_eq!(rdma_of(&good, &tainted), None);
        for (key, value) in [
            (ROOT, json!({"int": 1})),
            (ROOT, text("")),
            (ADDRESS, json!({"bool": true})),
            ("rdmaDevice", text("mlx5_0,mlx5_1")),
            ("rdmaDevice", text("")),
        ] {
            let mut bad = good.clone();
            bad[key] = value;
            assert_eq!(rdma_of(&bad, &json!([])), None, "{key}");
        }
    }
}
