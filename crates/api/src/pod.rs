//! Pods as raw JSON: containers, GPU requests, metadata.

use json_patch::jsonptr::{Pointer, PointerBuf};
use nvlink_topology::labels;
use serde_json::Value;

use crate::{crd::GPU, quantity};

/// The path of a pod's labels.
pub const LABELS: &Pointer = Pointer::from_static("/metadata/labels");
/// The path of a pod's annotations.
pub const ANNOTATIONS: &Pointer = Pointer::from_static("/metadata/annotations");

/// Prefixes of the resources that are GPUs or parts of GPUs, other than NVIDIA's whole GPUs: those
/// of NVIDIA's device plugin, and of schedulers that share GPUs. NVIDIA's other resources are
/// networks.
pub const GPU_RESOURCES: [&str; 10] = [
    "nvidia.com/gpu.",
    "nvidia.com/gpumem",
    "nvidia.com/gpucores",
    "nvidia.com/mig-",
    "volcano.sh/gpu",
    "volcano.sh/vgpu",
    "koordinator.sh/gpu",
    "aliyun.com/gpu",
    "tencent.com/vcuda",
    "4paradigm.com/vgpu",
];

/// What the name of a request of the queue's claim begins with that is for the NICs of a GPU. Its rank
/// follows.
pub const NICS_OF: &str = "nics-";

/// Prefix of the resources that stand for a device class of DRA.
pub const DEVICE_CLASSES: &str = "deviceclass.resource.kubernetes.io/";

/// When a container runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// An init container: it ends before the next one starts.
    Init,
    /// A restartable init container: it runs beside all containers after it.
    Sidecar,
    Main,
}

/// A container of a pod.
#[derive(Clone, Copy, Debug)]
pub struct Container<'a> {
    pub role: Role,
    index: usize,
    value: &'a Value,
}

/// The position of a container in its pod.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    list: &'static str,
    index: usize,
}

impl Place {
    /// Returns the path of the container's field `field`.
    #[must_use]
    pub fn path(&self, field: &str) -> PointerBuf {
        PointerBuf::from_tokens(["spec", self.list, &self.index.to_string(), field])
    }
}

/// A GPU request that is not a whole number.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("container {container:?} requests {quantity} of {resource}, which is not a whole number")]
pub struct BadQuantity {
    container: String,
    resource: String,
    quantity: String,
}

impl<'a> Container<'a> {
    /// Returns its name; empty if it has none.
    #[must_use]
    pub fn name(&self) -> &'a str {
        text(self.value, &["name"])
    }

    #[must_use]
    pub fn value(&self) -> &'a Value {
        self.value
    }

    /// Returns its position in its pod.
    #[must_use]
    pub fn place(&self) -> Place {
        let list = if self.role == Role::Main {
            "containers"
        } else {
            "initContainers"
        };
        Place {
            list,
            index: self.index,
        }
    }

    /// Returns the number of whole GPUs that it requests: the amount of `resource`, and what the
    /// webhook turned into requests of the queue's claim.
    ///
    /// # Errors
    /// When the amount is not a whole number.
    pub fn amount(&self, resource: &str) -> Result<u32, BadQuantity> {
        let claimed = u32::try_from(self.claimed().count()).unwrap_or(u32::MAX);
        Ok(self.requested(resource)?.saturating_add(claimed))
    }

    /// Returns the requests of the queue's claim for GPUs that it names, one for each GPU.
    pub fn claimed(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let ours = self.requests_of_claim();
        ours.filter(|request| !request.starts_with(NICS_OF))
    }

    /// Returns the ranks of the GPUs for whose NICs it names requests of the queue's claim.
    pub fn nics(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let ours = self.requests_of_claim();
        ours.filter_map(|request| request.strip_prefix(NICS_OF))
    }

    fn requests_of_claim(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let claims = list(self.value, &["resources", "claims"]);
        let ours = claims.filter(|one| text(one, &["name"]) == labels::CLAIM);
        ours.map(|one| text(one, &["request"]))
    }

    /// Returns the amount of `resource` that it requests. The API server defaults requests to
    /// limits, and requires them to be equal for such resources.
    ///
    /// # Errors
    /// When the amount is not a whole number.
    pub fn requested(&self, resource: &str) -> Result<u32, BadQuantity> {
        let mut most = 0;
        for list in ["limits", "requests"] {
            let quantity = self
                .value
                .get("resources")
                .and_then(|all| all.get(list)?.get(resource));
            let Some(quantity) = quantity else { continue };
            most = most.max(quantity::whole(quantity).ok_or_else(|| BadQuantity {
                container: self.name().to_owned(),
                resource: resource.to_owned(),
                quantity: quantity.to_string().chars().take(64).collect(),
            })?);
        }
        Ok(most)
    }

    /// Reports whether it may hold a GPU of any kind: by a resource of NVIDIA's, by the resource
    /// `also`, or by a DRA request, which may be for a GPU.
    #[must_use]
    pub fn may_hold_gpu(&self, also: &str) -> bool {
        self.has_claims()
            || self
                .resources()
                .any(|name| name.starts_with("nvidia.com/") || name == also)
    }

    /// Reports whether it is certain that it gets GPUs (whole ones, parts, or `also`), by a device
    /// plugin or the queue's claim, which must therefore not be hidden from it. A network adapter
    /// of NVIDIA's is not a GPU. Other devices that DRA allocates do not count: the container gets
    /// them by CDI, whatever the pod's environment says, and NVIDIA's DRA driver hides all other
    /// GPUs by the same variable (`cmd/gpu-kubelet-plugin/cdi.go` of
    /// <https://github.com/kubernetes-sigs/dra-driver-nvidia-gpu>).
    #[must_use]
    pub fn holds_gpu(&self, also: &str) -> bool {
        let resource = |name: &str| {
            let mut known = GPU_RESOURCES.iter();
            name == GPU || name == also || known.any(|known| name.starts_with(known))
        };
        self.claimed().next().is_some() || self.resources().any(resource)
    }

    /// Returns the names of the resources that it requests.
    pub fn resources(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let lists = self.value.get("resources");
        let named = ["limits", "requests"]
            .into_iter()
            .filter_map(move |list| lists?.get(list)?.as_object());
        named
            .flatten()
            .filter(|(_, amount)| quantity::whole(amount) != Some(0))
            .map(|(name, _)| name.as_str())
    }

    /// Reports whether DRA allocates it devices of any kind.
    #[must_use]
    pub fn has_claims(&self) -> bool {
        let claims = self.value.get("resources");
        let claims = claims.and_then(|all| all.get("claims")?.as_array());
        claims.is_some_and(|all| !all.is_empty())
            || self
                .resources()
                .any(|name| name.starts_with(DEVICE_CLASSES))
    }
}

/// Reports whether a pod requests devices of any kind, by a claim or a resource: the name of every
/// device plugin's resource has a domain.
#[must_use]
pub fn has_devices(pod: &Value) -> bool {
    let device =
        |one: &Container<'_>| one.has_claims() || one.resources().any(|name| name.contains('/'));
    list(pod, &["spec", "resourceClaims"]).next().is_some() || containers(pod).iter().any(device)
}

/// Returns all containers of `pod`: init containers first, each kind in the pod's order.
#[must_use]
pub fn containers(pod: &Value) -> Vec<Container<'_>> {
    let list = |name: &str| {
        let list = pod.get("spec").and_then(|spec| spec.get(name)?.as_array());
        list.into_iter()
            .flatten()
            .enumerate()
            .filter(|(_, value)| value.is_object())
    };
    let init = list("initContainers").map(|(index, value)| {
        let restarts = value.get("restartPolicy").and_then(Value::as_str) == Some("Always");
        Container {
            role: if restarts { Role::Sidecar } else { Role::Init },
            index,
            value,
        }
    });
    let main = list("containers").map(|(index, value)| Container {
        role: Role::Main,
        index,
        value,
    });
    init.chain(main).collect()
}

/// Returns the amount of `resource` that the pod requests, as Kubernetes computes it: the larger of
/// all containers and sidecars together, and the largest init phase (an init container with the
/// sidecars that started before it).
///
/// # Errors
/// When a container requests an amount that is not a whole number.
pub fn request(containers: &[Container<'_>], resource: &str) -> Result<u32, BadQuantity> {
    let (mut together, mut sidecars, mut phase) = (0_u32, 0_u32, 0_u32);
    for container in containers {
        let amount = container.amount(resource)?;
        match container.role {
            Role::Main => together = together.saturating_add(amount),
            Role::Sidecar => {
                sidecars = sidecars.saturating_add(amount);
                phase = phase.max(sidecars);
            }
            Role::Init => phase = phase.max(sidecars.saturating_add(amount)),
        }
    }
    Ok(together.saturating_add(sidecars).max(phase))
}

/// Returns the value at `path`, key by key. `Value::pointer` would allocate two strings per key.
#[must_use]
pub fn at<'a>(value: &'a Value, path: &[&str]) -> Option<&'a Value> {
    path.iter().try_fold(value, |value, key| value.get(key))
}

/// Returns the string at `path`; empty if there is none.
#[must_use]
pub fn text<'a>(value: &'a Value, path: &[&str]) -> &'a str {
    let text = at(value, path).and_then(Value::as_str);
    text.unwrap_or_default()
}

/// Returns the items of the list at `path`; empty if there is no list.
pub fn list<'a>(value: &'a Value, path: &[&str]) -> impl Iterator<Item = &'a Value> + use<'a> {
    at(value, path)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
}

/// Returns the entries of the object at `path`; empty if there is no object.
pub fn entries<'a>(
    value: &'a Value,
    path: &[&str],
) -> impl Iterator<Item = (&'a String, &'a Value)> + use<'a> {
    at(value, path)
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
}

/// Returns a label or annotation; `None` if it is absent or null.
#[must_use]
pub fn metadata<'a>(pod: &'a Value, map: &str, key: &str) -> Option<&'a Value> {
    let value = pod.get("metadata")?.get(map)?.get(key)?;
    (!value.is_null()).then_some(value)
}

/// Returns the service account that the pod runs as.
#[must_use]
pub fn service_account(pod: &Value) -> &str {
    ["serviceAccountName", "serviceAccount"]
        .map(|field| text(pod, &["spec", field]))
        .into_iter()
        .find(|name| !name.is_empty())
        .unwrap_or("default")
}

/// Returns the pod's name for a log line. A new pod may have only a `generateName`.
#[must_use]
pub fn display_name(pod: &Value) -> String {
    match text(pod, &["metadata", "name"]) {
        "" => at(pod, &["metadata", "generateName"])
            .and_then(Value::as_str)
            .map_or_else(String::new, |prefix| format!("{prefix}*")),
        name => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn container(gpus: u32) -> Value {
        json!({"name": "c", "resources": {"limits": {"nvidia.com/gpu": gpus.to_string()}}})
    }

    fn sidecar(gpus: u32) -> Value {
        let mut sidecar = container(gpus);
        sidecar["restartPolicy"] = json!("Always");
        sidecar
    }

    #[track_caller]
    fn check(init: &[Value], main: &[Value], expected: u32) {
        let pod = json!({"spec": {"initContainers": init, "containers": main}});
        assert_eq!(request(&containers(&pod), "nvidia.com/gpu"), Ok(expected));
    }

    #[test]
    fn requests_add_up_as_in_kubernetes() {
        check(&[], &[container(4)], 4);
        check(
            &[],
            &[container(4), container(2), json!({"name": "plain"})],
            6,
        );
        check(&[container(8)], &[container(4)], 8);
        check(&[container(2)], &[container(4)], 4);
        check(&[sidecar(1)], &[container(4)], 5);
        check(&[sidecar(1), container(6)], &[container(4)], 7);
        check(&[container(6), sidecar(1)], &[container(4)], 6);
        check(&[sidecar(1), sidecar(2)], &[], 3);
    }

    #[test]
    fn a_request_without_a_limit_counts() {
        let pod =
            json!({"spec": {"containers": [{"resources": {"requests": {"nvidia.com/gpu": 2}}}]}});
        assert_eq!(request(&containers(&pod), "nvidia.com/gpu"), Ok(2));
    }

    #[test]
    fn a_bad_quantity_is_named() {
        let pod = json!({"spec": {"containers": [
            {"name": "train", "resources": {"limits": {"nvidia.com/gpu": "1.5"}}}
        ]}});
        let error = request(&containers(&pod), "nvidia.com/gpu").unwrap_err();
        assert_eq!(
            error.to_string(),
            "container \"train\" requests \"1.5\" of nvidia.com/gpu, which is not a whole number"
        );
    }

    #[test]
    fn any_kind_of_gpu_is_recognized() {
        for (resources, expected) in [
            (json!({"limits": {"nvidia.com/mig-1g.10gb": 1}}), true),
            (json!({"limits": {"nvidia.com/gpu": "0"}}), false),
            (json!({"limits": {"cpu": 1}}), false),
            (json!({"claims": [{"name": "gpu"}]}), true),
            (json!({"requests": {"example.com/gpu": 1}}), true),
            (json!({"limits": {"nvidia.com/hostdev": 1}}), true),
            (
                json!({"limits": {"deviceclass.resource.kubernetes.io/x": 1}}),
                true,
            ),
            (json!("odd"), false),
        ] {
            let pod = json!({"spec": {"containers": [{"resources": resources}]}});
            assert_eq!(
                containers(&pod)[0].may_hold_gpu("example.com/gpu"),
                expected,
                "{pod}"
            );
        }
    }

    #[test]
    fn network_adapters_are_not_gpus() {
        for (name, expected) in [
            ("nvidia.com/gpu", true),
            ("nvidia.com/gpu.shared", true),
            ("nvidia.com/mig-1g.10gb.shared", true),
            ("deviceclass.resource.kubernetes.io/gpu.nvidia.com", false),
            ("example.com/gpu", true),
            ("nvidia.com/hostdev", false),
            ("nvidia.com/gpudirect", false),
            ("rdma/hca_shared_devices_a", false),
            ("example.com/no-gpu", false),
        ] {
            let pod = json!({"spec": {"containers": [{"resources": {"limits": {name: 1}}}]}});
            assert_eq!(
                containers(&pod)[0].holds_gpu("example.com/gpu"),
                expected,
                "{name}"
            );
        }
    }
}
