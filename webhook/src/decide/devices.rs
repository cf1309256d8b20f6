//! Which GPUs a container sees: an order for those that it holds, and none
//! for a container that asked for none.
//!
//! At admission nobody knows which GPUs these will be, so nothing here names
//! one: a UUID or an index of the node in the pod would beat what the device
//! plugin hands out.

use serde_json::{Value, json};

use super::{Chosen, Refusal};
use crate::{
    decide::patch::Editor,
    decide::pod::{self, Container, list},
};

/// Hides GPUs from a container that asked for none, whatever its image says.
pub(super) const VOID: (&str, &str) = ("NVIDIA_VISIBLE_DEVICES", "void");
/// More GPUs than any node has: bounds the patch of a pod that asks for nonsense.
const MAX_ORDINALS: u32 = 1024;
/// Annotations by which KAI hands out parts of GPUs that no resource names.
pub(crate) const FRACTIONS: [&str; 2] = ["gpu-fraction", "gpu-memory"];
/// The scheduler that does so, and the annotation that names the container that
/// gets them; absent: the first.
pub(crate) const KAI: &str = "kai-scheduler";
pub(crate) const FRACTION_CONTAINER: &str = "gpu-fraction-container-name";
/// Node labels of NVIDIA's feature discovery that say how a node's GPUs are
/// cut up, and the values that mean not at all.
const SHARING: [(&str, &str); 2] = [
    ("nvidia.com/gpu.sharing-strategy", "none"),
    ("nvidia.com/mig.strategy", "none"),
];

/// What holds for all containers of a pod.
#[derive(Clone, Debug)]
pub(super) struct Devices<'a> {
    resource: &'a str,
    /// The nodes hand out parts of GPUs under the name of whole ones.
    cut: bool,
    /// Some container may hold a part of a GPU that its resources do not show.
    hidden: bool,
    /// That container.
    fraction: Option<String>,
}

impl<'a> Devices<'a> {
    /// Reads what concerns the devices of `pod`.
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
            cut: SHARING.iter().any(|(key, whole)| says(key, whole)),
            hidden: has_fractions(pod),
            fraction: fraction(pod),
        }
    }

    /// The order in which `container` sees its `gpus` whole GPUs. The ordinals
    /// count what the container holds: a slice of MIG or a shared GPU has none.
    pub(super) fn order(&self, container: &Container<'_>, gpus: u32) -> Vec<(String, String)> {
        if gpus == 0 || self.cut || self.hidden || self.has_parts(container) {
            return Vec::new();
        }
        let ordinals: Vec<_> = (0..gpus.min(MAX_ORDINALS))
            .map(|gpu| gpu.to_string())
            .collect();
        vec![
            pair("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
            pair("CUDA_VISIBLE_DEVICES", &ordinals.join(",")),
        ]
    }

    /// What keeps GPUs out of sight of `container`, if it surely holds none.
    /// Not tuning but isolation, so that `environment: none` does not switch it off.
    pub(super) fn none(&self, container: &Container<'_>) -> Option<(String, String)> {
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

/// The containers of a pod that surely hold no GPU, and do not say which they
/// see. `resource` stands for a whole GPU.
pub(super) fn untold<'a>(pod: &'a Value, resource: &str) -> Vec<Container<'a>> {
    let devices = Devices {
        resource,
        cut: false,
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

/// Hides GPUs from the containers of a pod that surely hold none, where it is in
/// no class, and gives their names.
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

/// Whether KAI hands the pod parts of GPUs.
pub(super) fn has_fractions(pod: &Value) -> bool {
    let mut keys = FRACTIONS.iter();
    keys.any(|key| pod::metadata(pod, "annotations", key).is_some())
}

/// The container of `pod` to which KAI hands parts of GPUs. In pods of others
/// such annotations say nothing.
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

fn pair(name: &str, value: &str) -> (String, String) {
    (name.to_owned(), value.to_owned())
}
