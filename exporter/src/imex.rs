//! IMEX on the node: which containers hold channels, by which the GPUs of several nodes of a fabric
//! share memory, and the daemons that serve them.

use std::collections::{BTreeMap, BTreeSet};

use nvlink_kubelet::podresources::{ListPodResourcesResponse, PodResources};

/// NVIDIA's DRA driver for ComputeDomains. Its devices of a node are `channel-N` and `daemon-N`
/// (kubernetes-sigs/dra-driver-nvidia-gpu, `cmd/compute-domain-kubelet-plugin/deviceinfo.go`).
const DRIVER: &str = "compute-domain.nvidia.com";

/// Namespace and name of a pod.
type PodName = (String, String);

/// The channels and daemons of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imex {
    /// The channels that containers hold.
    pub channels: BTreeSet<Channel>,
    /// The pods of daemons, and whether they are ready; `None` if the Kubernetes API does not say it.
    /// The driver probes with `nvidia-imex-ctl -q`, which asks the daemon of the node, and with nothing on
    /// nodes without a fabric.
    pub daemons: BTreeMap<PodName, Option<bool>>,
}

/// A channel that a container holds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Channel {
    pub namespace: String,
    pub pod: String,
    pub container: String,
    /// Its number on the node. A container whose ComputeDomain gives it all channels is said to hold 0.
    pub number: u32,
}

impl Imex {
    /// Returns what the kubelet says of the pods that have not ended; `ready` reports whether a pod is.
    pub(crate) fn of(
        answer: &ListPodResourcesResponse,
        has_ended: impl Fn(&PodName) -> bool,
        ready: impl Fn(&PodName) -> Option<bool>,
    ) -> Self {
        let mut imex = Self::default();
        for pod in &answer.pod_resources {
            let name = (pod.namespace.clone(), pod.name.clone());
            if has_ended(&name) {
                continue;
            }
            for (container, kind, number) in devices(pod) {
                match kind {
                    "channel" => drop(imex.channels.insert(Channel {
                        namespace: pod.namespace.clone(),
                        pod: pod.name.clone(),
                        container: container.to_owned(),
                        number,
                    })),
                    "daemon" => drop(imex.daemons.insert(name.clone(), ready(&name))),
                    _ => {}
                }
            }
        }
        imex
    }
}

/// Returns container, kind and number of each device of the driver that a pod holds.
fn devices(pod: &PodResources) -> impl Iterator<Item = (&str, &str, u32)> {
    pod.containers.iter().flat_map(|container| {
        let claims = container.dynamic_resources.iter();
        let devices = claims.flat_map(|claim| &claim.claim_resources);
        let ours = devices.filter(|device| device.driver_name == DRIVER);
        ours.filter_map(|device| {
            // Drafts of the driver number no daemons.
            let name = device.device_name.split_once('-');
            let (kind, number) = name.unwrap_or((&device.device_name, "0"));
            Some((&*container.name, kind, number.parse().ok()?))
        })
    })
}

#[cfg(test)]
mod tests {
    use nvlink_kubelet::podresources::{ClaimResource, ContainerResources, DynamicResource};

    use super::*;

    fn pod(name: &str, driver: &str, devices: &[&str]) -> PodResources {
        let device = |device: &&str| ClaimResource {
            driver_name: driver.to_owned(),
            device_name: (*device).to_owned(),
            ..ClaimResource::default()
        };
        let claim = DynamicResource {
            claim_resources: devices.iter().map(device).collect(),
            ..DynamicResource::default()
        };
        PodResources {
            name: name.to_owned(),
            namespace: "ci".to_owned(),
            containers: vec![ContainerResources {
                name: "main".to_owned(),
                dynamic_resources: vec![claim.clone(), claim],
                ..ContainerResources::default()
            }],
        }
    }

    #[test]
    fn only_known_devices_of_the_driver_count_and_each_once() {
        let odd = ["channel-x", "channel--1", "daemon-", "else-0", ""];
        let answer = ListPodResourcesResponse {
            pod_resources: vec![
                pod("train", DRIVER, &["channel-0", "channel-7"]),
                pod("starts", DRIVER, &[]),
                pod("odd", DRIVER, &odd),
                pod("other", "gpu.nvidia.com", &["channel-0", "daemon-0"]),
                pod("up", DRIVER, &["daemon-0"]),
                pod("unknown", DRIVER, &["daemon"]),
                pod("ended", DRIVER, &["channel-0", "daemon-0"]),
            ],
        };
        let imex = Imex::of(
            &answer,
            |(_, pod)| pod == "ended",
            |(_, pod)| (pod == "up").then_some(true),
        );
        let channels = imex.channels.iter().map(|one| (&*one.pod, one.number));
        assert_eq!(channels.collect::<Vec<_>>(), [("train", 0), ("train", 7)]);
        let daemons = imex.daemons.iter();
        let daemons = daemons.map(|((_, pod), ready)| (&**pod, *ready));
        let wanted = [("unknown", None), ("up", Some(true))];
        assert_eq!(daemons.collect::<Vec<_>>(), wanted);
    }
}
