//! Maps names of devices, as device plugins and DRA drivers write them, to GPU indices.

use std::collections::{BTreeSet, HashMap};

use nvlink_source::LostGpu;
use nvlink_topology::{Gpu, NodeTopologySpec, bus_id};

use crate::{podresources::ClaimResource, slices::Slices};

/// The GPUs of a node, by all their names.
#[derive(Debug, Default)]
pub struct Devices {
    /// By UUID, in lower case.
    uuids: HashMap<String, u32>,
    /// By normalized PCI address.
    addresses: HashMap<String, u32>,
    indices: BTreeSet<u32>,
    /// GPUs with MIG enabled.
    mig: BTreeSet<u32>,
    /// GPUs without a known UUID.
    nameless: BTreeSet<u32>,
}

/// How much of a GPU a device of a device plugin is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Whole,
    /// One of several containers that use all of it in turns.
    Share,
}

impl Devices {
    pub fn of(spec: &NodeTopologySpec) -> Self {
        let uuid = |gpu: &Gpu| Some((gpu.uuid.as_ref()?.to_ascii_lowercase(), gpu.index));
        let those = |wanted: fn(&&Gpu) -> bool| {
            let gpus = spec.gpus.iter().filter(wanted);
            gpus.map(|gpu| gpu.index).collect()
        };
        Self {
            uuids: spec.gpus.iter().filter_map(uuid).collect(),
            addresses: { spec.gpus.iter() }
                .filter_map(|gpu| Some((bus_id(gpu.pci_bus_id.as_ref()?), gpu.index)))
                .collect(),
            indices: those(|_| true),
            mig: those(|gpu| gpu.mig_enabled),
            nameless: those(|gpu| gpu.uuid.is_none()),
        }
    }

    /// Returns the only GPU with MIG enabled, if there is exactly one.
    fn only_mig(&self) -> Option<u32> {
        let first = self.mig.first().copied();
        first.filter(|_| self.mig.len() == 1)
    }

    /// Returns the GPUs that an unknown device `id` may be, or may be on. An unknown
    /// UUID can only be that of a GPU without a known UUID.
    pub fn possible(&self, id: &str) -> BTreeSet<u32> {
        let is_uuid = |id: &str| strip(id, "GPU-").is_some();
        match strip(id, "MIG-") {
            Some(on) if is_uuid(on) => self.nameless.clone(),
            Some(_) => self.mig.clone(),
            None if is_uuid(id) => self.nameless.clone(),
            None => self.indices.clone(),
        }
    }

    /// Returns the GPUs that an unknown device of a claim may be, or may be on.
    pub fn possible_claim(&self, claim: &ClaimResource, slices: &Slices) -> BTreeSet<u32> {
        match slices.identity(&claim.pool_name, &claim.device_name) {
            // It is none of the GPUs whose addresses are known.
            Some(known) if known.address.is_some() => self.nameless.clone(),
            Some(known) => {
                let uuids = known.uuids.iter();
                uuids.flat_map(|uuid| self.possible(uuid)).collect()
            }
            None => self.indices.clone(),
        }
    }

    /// Maps UUIDs of GPUs that do not answer to positions in `lost`. Their indices are
    /// not mapped: other GPUs may have them now.
    pub fn lost(lost: &[LostGpu]) -> Self {
        let all = || (0..).zip(lost);
        let uuids = all().filter_map(|(at, gpu)| Some((gpu.uuid.as_ref()?, at)));
        let addresses = all().filter_map(|(at, gpu)| Some((gpu.pci_bus_id.as_ref()?, at)));
        Self {
            uuids: uuids
                .map(|(uuid, at)| (uuid.to_ascii_lowercase(), at))
                .collect(),
            addresses: addresses
                .map(|(address, at)| (bus_id(address), at))
                .collect(),
            ..Self::default()
        }
    }

    /// Returns the GPU of the device plugin's name `id`:
    ///
    /// * `GPU-UUID`; `GPU-UUID::3` is a share of it (time-slicing, MPS);
    /// * `MIG-GPU-UUID/1/0` (drivers before R470), and `MIG-UUID`, which does not
    ///   contain the GPU: it is known only if one GPU alone has MIG enabled;
    /// * for NVIDIA's own resources also `0`, `0::3` and `0:1` (an index, a share of
    ///   it, a MIG device on it), and GKE's `nvidia0`, `nvidia0/gi3`,
    ///   `nvidia0/vgpu1`. GKE uses the numbers of device files, which are in the
    ///   order of the PCI bus, like indices.
    pub fn plugin(&self, resource: &str, id: &str) -> Option<u32> {
        let (device, _share) = id.split_once("::").unwrap_or((id, ""));
        if let Some(on) = strip(device, "MIG-") {
            let (uuid, _instances) = on.split_once('/').unwrap_or((on, ""));
            return self.uuid(uuid).or(self.only_mig());
        }
        if let Some(gpu) = self.uuid(device) {
            return Some(gpu);
        }
        if !is_gpu_resource(resource) {
            return None;
        }
        let (device, _part) = match device.strip_prefix("nvidia") {
            Some(number) => number.split_once('/').unwrap_or((number, "")),
            None => device.split_once(':').unwrap_or((device, "")),
        };
        self.index(device)
    }

    /// Returns how much of a GPU the device plugin's name `id` means, in the forms of
    /// [`Self::plugin`]; `None` if that is a MIG device or another part, and if it names no GPU.
    pub fn part(&self, resource: &str, id: &str) -> Option<Part> {
        let (device, share) = match id.split_once("::") {
            Some((device, _)) => (device, Part::Share),
            None => (id, Part::Whole),
        };
        let is_part = strip(device, "MIG-").is_some() || device.contains(['/', ':']);
        self.plugin(resource, id)
            .filter(|_| !is_part)
            .map(|_| share)
    }

    /// Returns the GPU of a claim's device, from its ResourceSlice. Without one, only a UUID in a
    /// name tells it: `gpu-2` has the number of the device file `/dev/nvidia2`, which need not be
    /// the index. `nvidia.com/gpu=2`, of NVIDIA's container toolkit, has the index.
    pub fn claim(&self, claim: &ClaimResource, slices: &Slices) -> Option<u32> {
        if let Some(known) = slices.identity(&claim.pool_name, &claim.device_name) {
            let by_uuid = known.uuids.iter().find_map(|uuid| self.uuid(uuid));
            let address = known.address.as_ref();
            return by_uuid.or_else(|| self.addresses.get(address?).copied());
        }
        let cdi = claim.cdi_devices.iter().find_map(|cdi| {
            let (kind, device) = cdi.name.split_once('=')?;
            match kind {
                "nvidia.com/gpu" => self.uuid(device).or_else(|| self.index(device)),
                _ => kind
                    .contains("nvidia.com/")
                    .then(|| self.in_name(device))
                    .flatten(),
            }
        });
        cdi.or_else(|| self.in_name(&claim.device_name))
    }

    /// Returns the GPU of a name such as `gpu-UUID`, `CLAIM-UID-gpu-UUID` or `GPU-UUID`.
    fn in_name(&self, name: &str) -> Option<u32> {
        let lower = name.to_ascii_lowercase();
        self.uuid(&lower[lower.find("gpu-")?..])
    }

    fn uuid(&self, uuid: &str) -> Option<u32> {
        self.uuids.get(&uuid.to_ascii_lowercase()).copied()
    }

    fn index(&self, number: &str) -> Option<u32> {
        let digits = number.bytes().all(|b| b.is_ascii_digit());
        let index = number.parse().ok().filter(|_| digits)?;
        self.indices.contains(&index).then_some(index)
    }
}

/// Reports whether each device of a resource is a GPU, or a part of one.
pub fn is_gpu_resource(name: &str) -> bool {
    let name = name.strip_prefix("nvidia.com/").unwrap_or_default();
    name == "gpu" || name.starts_with("gpu.") || name.starts_with("mig-")
}

/// Removes `prefix` from `text`, ignoring case.
fn strip<'t>(text: &'t str, prefix: &str) -> Option<&'t str> {
    let (head, tail) = text.split_at_checked(prefix.len())?;
    head.eq_ignore_ascii_case(prefix).then_some(tail)
}

#[cfg(test)]
mod tests {
    use nvlink_source::SourceSpec;

    use super::*;
    use crate::{
        podresources::CdiDevice,
        slices::{DRIVER, Identity, Slice},
    };

    fn spec(mig: &[u32]) -> NodeTopologySpec {
        let source: SourceSpec = "sim:dgx-h100".parse().unwrap();
        let reading = source.open(Some("n")).unwrap().read(Default::default());
        let mut spec = reading.unwrap().topology.spec;
        for gpu in &mut spec.gpus {
            gpu.mig_enabled = mig.contains(&gpu.index);
        }
        spec
    }

    fn uuid(spec: &NodeTopologySpec, gpu: usize) -> &str {
        spec.gpus[gpu].uuid.as_deref().unwrap()
    }

    #[test]
    fn device_plugins_have_many_names_for_a_gpu() {
        let spec = spec(&[]);
        let devices = Devices::of(&spec);
        let three = uuid(&spec, 3);
        let gpu = |id: &str| devices.plugin("nvidia.com/gpu", id);
        for id in [
            three,
            &three.to_uppercase(),
            &format!("{three}::2"),
            &format!("MIG-{three}/1/0"),
            "3",
            "3::1",
            "3:1",
            "nvidia3",
            "nvidia3/gi2",
            "nvidia3/vgpu1",
        ] {
            assert_eq!(gpu(id), Some(3), "{id}");
        }
        for id in [
            "8",
            "-1",
            "+1",
            "nvidia",
            "nvidiactl",
            "",
            "::",
            ":",
            "GPU-",
            "MIG-",
            "99999999999",
            "é",
            "MIG-7f3e1b1c-0000-5555-aaaa-123456789abc",
        ] {
            assert_eq!(gpu(id), None, "{id:?}");
        }
    }

    #[test]
    fn devices_of_other_vendors_are_gpus_only_by_uuid() {
        let spec = spec(&[]);
        let devices = Devices::of(&spec);
        for resource in ["acme.com/gold-gpu", "nvidia.com/hostdev", "rdma/hca"] {
            assert_eq!(devices.plugin(resource, uuid(&spec, 1)), Some(1));
            assert_eq!(devices.plugin(resource, "1"), None, "{resource}");
        }
        for resource in ["nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb"] {
            assert_eq!(devices.plugin(resource, "1::0"), Some(1), "{resource}");
        }
    }

    #[test]
    fn a_mig_device_is_on_the_only_gpu_that_has_mig() {
        let id = "MIG-7f3e1b1c-0000-5555-aaaa-123456789abc::1";
        let on = |mig: &[u32]| Devices::of(&spec(mig)).plugin("nvidia.com/mig-1g.10gb", id);
        assert_eq!(on(&[5]), Some(5));
        assert_eq!(on(&[5, 6]), None);
        assert_eq!(on(&[]), None);
    }

    #[test]
    fn an_unknown_name_has_possible_gpus() {
        let possible = |mig: &[u32], id: &str| {
            let mut spec = spec(mig);
            spec.gpus[1].uuid = None;
            let possible = Devices::of(&spec).possible(id);
            possible.into_iter().collect::<Vec<_>>()
        };
        assert_eq!(possible(&[5, 6], "MIG-7f3e1b1c-0000::1"), [5, 6]);
        assert_eq!(possible(&[], "MIG-7f3e1b1c-0000"), [0_u32; 0]);
        for id in ["GPU-foreign", "gpu-foreign::2", "MIG-GPU-foreign/1/0"] {
            assert_eq!(possible(&[5], id), [1], "{id}");
        }
        assert_eq!(possible(&[5], "vfio-17").len(), 8);
    }

    fn claim(device: &str, cdi: &str) -> ClaimResource {
        ClaimResource {
            cdi_devices: vec![CdiDevice { name: cdi.into() }],
            driver_name: DRIVER.into(),
            pool_name: "n".into(),
            device_name: device.into(),
        }
    }

    #[test]
    fn a_claim_s_device_is_identified_by_its_slice_or_its_name() {
        let spec = spec(&[]);
        let devices = Devices::of(&spec);
        let mut slices = Slices::default();
        let known = |devices: &Devices, slices: &Slices, device: &str, cdi: &str| {
            devices.claim(&claim(device, cdi), slices)
        };
        let uid = "k8s.gpu.nvidia.com/claim=dab5ab50-d59a-42a6-af16-cfd4628c0f7a-";
        let two = uuid(&spec, 2).to_lowercase();
        for (device, cdi) in [
            ("", format!("{uid}{two}")),
            ("", format!("nvidia.com/gpu={}", uuid(&spec, 2))),
            ("", "nvidia.com/gpu=2".to_owned()),
            (&*two, String::new()),
        ] {
            assert_eq!(
                known(&devices, &slices, device, &cdi),
                Some(2),
                "{device} {cdi}"
            );
        }
        // The number of a device file is no index.
        for (device, cdi) in [
            ("gpu-2", format!("{uid}gpu-2")),
            ("gpu-2-mig-1g18gb-19-0", String::new()),
            ("gpu-vfio-2", String::new()),
            ("2", "k8s.gpu.nvidia.com/device=2".to_owned()),
        ] {
            assert_eq!(known(&devices, &slices, device, &cdi), None, "{device}");
            let possible = devices.possible_claim(&claim(device, &cdi), &slices);
            assert_eq!(possible.len(), 8, "{device}");
        }

        let identity = |uuids: &[&str], address: Option<&str>| Identity {
            uuids: uuids.iter().map(|&uuid| uuid.to_owned()).collect(),
            address: address.map(bus_id),
        };
        let four = identity(&["MIG-x", uuid(&spec, 4)], None);
        let twin = identity(&["27ab9a0c"], spec.gpus[5].pci_bus_id.as_deref());
        let both = [("gpu-2", four), ("gpu-vfio-1", twin)];
        let both = both.map(|(name, one)| (name.to_owned(), one));
        slices.set("s", Slice::new("n", 1, both));
        let cdi = format!("{uid}gpu-2");
        assert_eq!(known(&devices, &slices, "gpu-2", &cdi), Some(4));
        assert_eq!(known(&devices, &slices, "gpu-vfio-1", ""), Some(5));
        // If the slice has a GPU of another node, the name is not used.
        let foreign = identity(&["GPU-foreign"], None);
        slices.set("s", Slice::new("n", 1, [("gpu-2".to_owned(), foreign)]));
        assert_eq!(known(&devices, &slices, "gpu-2", &cdi), None);
    }
}
