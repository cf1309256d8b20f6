//! The kubelet's answer → who holds which GPUs.

use std::collections::{BTreeMap, BTreeSet};

use nvlink_topology::NodeTopologySpec;
use prost::{DecodeError, Message};

use super::{
    devices::{DRIVER, Devices, is_gpu_resource},
    podresources::{ContainerResources, ListPodResourcesResponse},
    slices::Slices,
};

/// Namespace and name of a pod.
pub(super) type PodName = (String, String);

/// What the kubelet's answer means.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// Pods that hold GPUs, and their containers that do, by name.
    pub(super) pods: BTreeMap<PodName, BTreeMap<String, Held>>,
    /// Names of GPUs that none of the node's is called.
    pub unknown: BTreeSet<String>,
}

/// What one container holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Held {
    /// Names of the devices, as the kubelet has them: the same as long as the container lives.
    pub(super) ids: BTreeSet<String>,
    /// The GPUs.
    pub(super) gpus: BTreeSet<u32>,
}

impl Holdings {
    /// Reads the answer to `List` as it came, for the node `spec`, without the
    /// help of ResourceSlices.
    ///
    /// # Errors
    /// When it is no such message.
    pub fn decode(answer: &[u8], spec: &NodeTopologySpec) -> Result<Self, DecodeError> {
        let answer = ListPodResourcesResponse::decode(answer)?;
        Ok(Self::of(answer, &Devices::of(spec), &Slices::default()))
    }

    pub(super) fn of(answer: ListPodResourcesResponse, devices: &Devices, slices: &Slices) -> Self {
        let mut holdings = Self::default();
        for pod in answer.pod_resources {
            let mut containers = BTreeMap::<String, Held>::new();
            for container in pod.containers {
                let held = holdings.container(&container, devices, slices);
                if !held.gpus.is_empty() {
                    let both = containers.entry(container.name).or_default();
                    both.ids.extend(held.ids);
                    both.gpus.extend(held.gpus);
                }
            }
            if !containers.is_empty() {
                let name = (pod.namespace, pod.name);
                holdings.pods.entry(name).or_default().extend(containers);
            }
        }
        holdings
    }

    fn container(
        &mut self,
        container: &ContainerResources,
        devices: &Devices,
        slices: &Slices,
    ) -> Held {
        let mut held = Held::default();
        for one in &container.devices {
            for id in &one.device_ids {
                let gpu = devices.plugin(&one.resource_name, id);
                if gpu.is_some() || is_gpu_resource(&one.resource_name) {
                    self.add(&mut held, id.clone(), gpu);
                }
            }
        }
        let claims = container.dynamic_resources.iter();
        for claim in claims.flat_map(|one| &one.claim_resources) {
            if claim.driver_name == DRIVER {
                let id = format!("{}/{}", claim.pool_name, claim.device_name);
                self.add(&mut held, id, devices.claim(claim, slices));
            }
        }
        held
    }

    fn add(&mut self, held: &mut Held, id: String, gpu: Option<u32>) {
        match gpu {
            Some(gpu) => held.gpus.extend([gpu]),
            None => self.unknown.extend([id.clone()]),
        }
        held.ids.insert(id);
    }

    /// The pods, by namespace and name, and the GPUs of their containers, by name.
    pub fn gpus(&self) -> impl Iterator<Item = (&str, &str, &str, Vec<u32>)> {
        self.pods.iter().flat_map(|((namespace, pod), containers)| {
            containers.iter().map(move |(container, held)| {
                let gpus = held.gpus.iter().copied().collect();
                (&**namespace, &**pod, &**container, gpus)
            })
        })
    }
}
