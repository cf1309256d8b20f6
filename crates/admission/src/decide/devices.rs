//! Which GPUs a container sees: its own GPUs in a fixed order, or none if it requests none.
//!
//! At admission nobody knows which GPUs the container will get, so the code here never names one: a
//! UUID or a node's index in the pod would override what the device plugin allocates.

use nvlink_api::{
    crd::domain_class::Mapping,
    patch::Editor,
    pod::{self, Container, list},
};
use nvlink_topology::labels;
use serde_json::{Value, json};

use super::{Chosen, Refusal, claim, environment::Text};

/// The variable that hides GPUs from a container that requests none, whatever its image selects.
pub(super) const VOID: (&str, &str) = ("NVIDIA_VISIBLE_DEVICES", "void");
/// The variable that says in which order CUDA sees the GPUs of a container.
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";
/// The variable that lists the GPUs of a container by UUID, in rank order, as `nvlink-exporter
/// device-plugin` sets it.
const GPUS: &str = "NVLINK_DOMAINS_GPUS";
/// More GPUs than any node has. Bounds the patch of a pod with an absurd request.
const MAX_ORDINALS: u32 = 1024;
/// Annotations that request parts of GPUs from KAI, without a resource.
pub(crate) const FRACTIONS: [&str; 2] = ["gpu-fraction", "gpu-memory"];
/// The `schedulerName` of KAI.
pub(crate) const KAI: &str = "kai-scheduler";
/// The annotation that names the container that gets parts of GPUs from KAI; absent: the first one.
pub(crate) const FRACTION_CONTAINER: &str = "gpu-fraction-container-name";
/// Node labels of NVIDIA's feature discovery that show how a node's GPUs are partitioned, each with
/// the value for whole GPUs.
const SHARING: [(&str, &str); 2] = [
    ("nvidia.com/gpu.sharing-strategy", "none"),
    ("nvidia.com/mig.strategy", "none"),
];

/// The facts about devices that apply to all containers of a pod.
#[derive(Clone, Debug)]
pub(super) struct Devices<'a> {
    resource: &'a str,
    mapping: Mapping,
    /// The nodes allocate parts of GPUs under the resource name of whole GPUs.
    cut: bool,
    /// Some node that the pod may run on does.
    may_be_cut: bool,
    /// Some container may hold a part of a GPU that its resources do not show.
    hidden: bool,
    /// That container.
    fraction: Option<String>,
}

impl<'a> Devices<'a> {
    /// Reads the facts about the devices of `pod`.
    pub(super) fn of(pod: &Value, chosen: &'a Chosen) -> Self {
        let class = &chosen.class;
        let own = pod::at(pod, &["spec", "nodeSelector"]);
        let says = |key: &str, whole: &str| {
            let by_class = class.selector.iter().find(|(name, _)| name == key);
            let by_pod = own.and_then(|own| own.get(key)?.as_str());
            let values = [by_class.map(|(_, value)| value.as_str()), by_pod];
            values.into_iter().flatten().any(|value| value != whole)
        };
        Self {
            resource: &class.resource,
            mapping: class.mapping,
            cut: SHARING.iter().any(|(key, whole)| says(key, whole)),
            may_be_cut: chosen.may_be_cut,
            hidden: has_fractions(pod),
            fraction: fraction(pod),
        }
    }

    /// Returns the variables that fix the order in which `container` sees its `gpus` whole GPUs.
    /// The ordinals number the container's own GPUs: MIG slices and shared GPUs have none.
    pub(super) fn order(&self, container: &Container<'_>, gpus: u32) -> Vec<(String, Text)> {
        if gpus == 0 || self.cut || self.hidden || self.has_parts(container) {
            return Vec::new();
        }
        let by_address = pair("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
        let visible = match self.mapping {
            // The node's plugin knows the ring of the GPUs, and a variable of the pod would win.
            Mapping::Preferred => return vec![by_address],
            // The queue writes the annotation when it has chosen the GPUs.
            Mapping::Claim => {
                let key = claim::key(&claim::ranks_of(container));
                let of = |prefix: &str| Text::Annotation(format!("{prefix}{key}"));
                return vec![
                    by_address,
                    (VISIBLE.to_owned(), of(labels::QUEUE_ORDER)),
                    (GPUS.to_owned(), of(labels::QUEUE_GPUS)),
                ];
            }
            Mapping::DevicePlugin if self.may_be_cut => return Vec::new(),
            Mapping::DevicePlugin => {
                let ordinals = (0..gpus.min(MAX_ORDINALS)).map(|gpu| gpu.to_string());
                Text::Plain(ordinals.collect::<Vec<_>>().join(","))
            }
        };
        vec![by_address, (VISIBLE.to_owned(), visible)]
    }

    /// Returns the variable that hides GPUs from `container`, if it certainly holds none.
    /// This is isolation, not tuning, so `environment: none` does not turn it off.
    pub(super) fn none(&self, container: &Container<'_>) -> Option<(String, Text)> {
        let handed = container.holds_gpu(self.resource)
            || self.fraction.as_deref() == Some(container.name());
        (!handed).then(|| pair(VOID.0, VOID.1))
    }

    fn has_parts(&self, container: &Container<'_>) -> bool {
        container.resources().any(|name| {
            let part = name.starts_with("nvidia.com/mig-") || name.starts_with("nvidia.com/gpu");
            part && name != self.resource
        })
    }
}

/// Returns the containers of a pod that certainly hold no GPU and do not set
/// `NVIDIA_VISIBLE_DEVICES`. `resource` is the resource of a whole GPU.
pub(super) fn untold<'a>(pod: &'a Value, resource: &str) -> Vec<Container<'a>> {
    let devices = Devices {
        resource,
        mapping: Mapping::default(),
        cut: false,
        may_be_cut: false,
        hidden: has_fractions(pod),
        fraction: fraction(pod),
    };
    let untold = |container: &Container<'_>| {
        let mut names = list(container.value(), &["env"]).filter_map(|entry| entry.get("name"));
        devices.none(container).is_some() && !names.any(|name| name == VOID.0)
    };
    let containers = pod::containers(pod).into_iter();
    containers.filter(untold).collect()
}

/// Hides GPUs from the containers of a pod without a class that certainly hold none, and returns
/// the names of these containers.
pub(super) fn hide(pod: &mut Editor, resource: &str) -> Result<Vec<String>, Refusal> {
    let untold = untold(pod.document(), resource).into_iter();
    let planned: Vec<_> = untold
        .map(|container| (container.place(), container.name().to_owned(), VOID))
        .collect();
    let mut hidden = Vec::new();
    for (place, container, (name, value)) in planned {
        pod.append(&place.path("env"), json!({"name": name, "value": value}))?;
        hidden.push(container);
    }
    Ok(hidden)
}

/// Reports whether the pod has annotations that request parts of GPUs from KAI.
pub(super) fn has_fractions(pod: &Value) -> bool {
    let mut keys = FRACTIONS.iter();
    keys.any(|key| pod::metadata(pod, "annotations", key).is_some())
}

/// Returns the name of the container of `pod` that gets parts of GPUs from KAI. In pods of other
/// schedulers such annotations have no effect.
fn fraction(pod: &Value) -> Option<String> {
    let spec = pod.get("spec")?;
    if spec.get("schedulerName")?.as_str() != Some(KAI) || !has_fractions(pod) {
        return None;
    }
    let named = pod::metadata(pod, "annotations", FRACTION_CONTAINER);
    let first = || list(pod, &["spec", "containers"]).next()?.get("name");
    let name = named.or_else(first)?.as_str()?;
    Some(name.to_owned())
}

fn pair(name: &str, value: &str) -> (String, Text) {
    (name.to_owned(), Text::Plain(value.to_owned()))
}
