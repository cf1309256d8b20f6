//! Interprets the kubelet's answer: which containers hold which GPUs.

use std::collections::{BTreeMap, BTreeSet};

use nvlink_kubelet::devices::{Devices, is_gpu_resource};
use nvlink_kubelet::podresources::{ContainerResources, ListPodResourcesResponse};
use nvlink_kubelet::slices::{DRIVER, Slices};
use nvlink_source::LostGpu;
use nvlink_topology::NodeTopologySpec;
use prost::{DecodeError, Message};

/// Namespace and name of a pod.
pub(super) type PodName = (String, String);

/// The GPUs that containers hold, from the kubelet's answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// Pods with known or unknown GPUs, and their containers with GPUs, by name.
    pub(super) pods: BTreeMap<PodName, BTreeMap<String, Held>>,
    /// Names of GPU devices that match no GPU of the node.
    pub unknown: BTreeSet<String>,
}

/// The GPUs of one container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Held {
    /// Names of the devices in the kubelet. They never change while the container runs.
    pub(super) ids: BTreeSet<String>,
    /// The GPUs that answer.
    pub(super) gpus: BTreeSet<u32>,
    /// The GPUs that do not answer, each once.
    pub(super) lost: Vec<LostGpu>,
    /// GPUs that its unknown names may refer to.
    pub(super) possible: BTreeSet<u32>,
}

impl Held {
    /// Adds the GPU that `find` returns. Returns whether there is one.
    fn add(&mut self, id: &str, names: &Names<'_>, find: impl Fn(&Devices) -> Option<u32>) -> bool {
        let lost = |at: u32| names.lost_gpus.get(at as usize);
        if let Some(gpu) = find(&names.present) {
            self.gpus.insert(gpu);
        } else if let Some(gpu) = find(&names.lost).and_then(lost) {
            self.lose(gpu);
        } else {
            return false;
        }
        self.ids.insert(id.to_owned());
        true
    }

    fn merge(&mut self, other: Self) {
        self.ids.extend(other.ids);
        self.gpus.extend(other.gpus);
        self.possible.extend(other.possible);
        for gpu in other.lost {
            self.lose(&gpu);
        }
    }

    fn lose(&mut self, gpu: &LostGpu) {
        if !self.lost.contains(gpu) {
            self.lost.push(gpu.clone());
        }
    }
}

/// The GPUs of device names.
pub(super) struct Names<'a> {
    present: Devices,
    lost: Devices,
    lost_gpus: &'a [LostGpu],
    slices: &'a Slices,
}

impl<'a> Names<'a> {
    /// Creates the names of the node `spec`, whose GPUs `lost` do not answer.
    pub(super) fn of(spec: &NodeTopologySpec, lost: &'a [LostGpu], slices: &'a Slices) -> Self {
        Self {
            present: Devices::of(spec),
            lost: Devices::lost(lost),
            lost_gpus: lost,
            slices,
        }
    }
}

impl Holdings {
    /// Decodes the raw answer to `List` for the node `spec`, without ResourceSlices.
    ///
    /// # Errors
    /// When it is not such a message.
    pub fn decode(answer: &[u8], spec: &NodeTopologySpec) -> Result<Self, DecodeError> {
        let answer = ListPodResourcesResponse::decode(answer)?;
        Ok(Self::of(answer, &Names::of(spec, &[], &Slices::default())))
    }

    pub(super) fn of(answer: ListPodResourcesResponse, names: &Names<'_>) -> Self {
        let mut holdings = Self::default();
        for pod in answer.pod_resources {
            for container in pod.containers {
                let held = holdings.container(&container, names);
                if held.ids.is_empty() {
                    continue;
                }
                // Of two pods with the same name, one is ending: both hold their GPUs.
                let name = (pod.namespace.clone(), pod.name.clone());
                let containers = holdings.pods.entry(name).or_default();
                containers.entry(container.name).or_default().merge(held);
            }
        }
        holdings
    }

    fn container(&mut self, container: &ContainerResources, names: &Names<'_>) -> Held {
        let mut held = Held::default();
        for one in &container.devices {
            for id in &one.device_ids {
                let find = |devices: &Devices| devices.plugin(&one.resource_name, id);
                let known = held.add(id, names, find);
                if !known && is_gpu_resource(&one.resource_name) {
                    held.possible.extend(names.present.possible(id));
                    held.ids.insert(id.clone());
                    self.unknown.insert(id.clone());
                }
            }
        }
        let claims = container.dynamic_resources.iter();
        for claim in claims.flat_map(|one| &one.claim_resources) {
            if claim.driver_name == DRIVER {
                let id = format!("{}/{}", claim.pool_name, claim.device_name);
                let find = |devices: &Devices| devices.claim(claim, names.slices);
                if !held.add(&id, names, find) {
                    let possible = names.present.possible_claim(claim, names.slices);
                    held.possible.extend(possible);
                    self.unknown.insert(id.clone());
                    held.ids.insert(id);
                }
            }
        }
        held
    }

    /// Returns the GPUs for which it is unknown whether a pod holds them, because
    /// unknown names may refer to them.
    pub(super) fn uncertain(&self) -> BTreeSet<u32> {
        let all = || self.pods.values().flat_map(BTreeMap::values);
        let held: BTreeSet<u32> = all().flat_map(|held| &held.gpus).copied().collect();
        let possible = all().flat_map(|held| &held.possible).copied();
        possible.filter(|gpu| !held.contains(gpu)).collect()
    }

    /// Returns namespace, pod, container and GPUs of each container. Containers whose
    /// GPUs are all lost or unknown are skipped.
    pub fn gpus(&self) -> impl Iterator<Item = (&str, &str, &str, Vec<u32>)> {
        self.pods.iter().flat_map(|((namespace, pod), containers)| {
            let present = containers.iter().filter(|(_, held)| !held.gpus.is_empty());
            present.map(move |(container, held)| {
                let gpus = held.gpus.iter().copied().collect();
                (&**namespace, &**pod, &**container, gpus)
            })
        })
    }
}
