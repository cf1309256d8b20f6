//! GPUs taken past the device plugin, which hands out what the scheduler counted.

use serde_json::Value;

use super::{Case, Held, reach::list};
use crate::{
    class::Class,
    decide::refusal::{Refusal, Rule},
    pod::Container,
};

/// The variable by which NVIDIA's runtime hands GPUs to a container.
const VARIABLE: &str = "NVIDIA_VISIBLE_DEVICES";
/// Values of it that give no GPU.
pub const HARMLESS: [&str; 3] = ["", "void", "none"];

/// Where a container mounts something by which NVIDIA's toolkit, told to look
/// there, hands it the GPUs that the mounts are named after.
pub const DEVICE_MOUNTS: &str = "nvidia-container-devices";

/// Host paths that lead to GPUs: device nodes, the driver's libraries, and the
/// sockets and directories by which a container makes the host start others.
/// Beginnings of paths: `/dev/nvidia` is `/dev/nvidia0` too.
pub const DEVICE_PATHS: [&str; 20] = [
    "/dev/nvidia",
    "/dev/dri",
    "/dev/vfio",
    "/dev/char",
    "/proc/driver/nvidia",
    "/run/nvidia",
    "/var/run/nvidia",
    "/usr/local/nvidia",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/home/kubernetes/bin/nvidia",
    "/var/lib/kubelet",
    "/etc/kubernetes/manifests",
    "/run/containerd",
    "/var/run/containerd",
    "/run/crio",
    "/var/run/crio",
    "/run/docker.sock",
    "/var/run/docker.sock",
];

/// Checks a pod that is created: variables, and the runtime without a request.
pub(super) fn check(case: Case<'_>, held: &Held<'_>) -> Result<(), Refusal> {
    let guarded = case.view.restricted().next().is_some() || held.class().is_some();
    if !guarded {
        return Ok(());
    }
    for container in &held.containers {
        check_variables(container.name(), container.value())?;
    }
    let runtime = case.pod.get("spec");
    let runtime = runtime.and_then(|spec| spec.get("runtimeClassName")?.as_str());
    match runtime.filter(|name| name.starts_with("nvidia") && !held.gpus) {
        None => Ok(()),
        Some(name) => Err(Refusal::new(
            Rule::RuntimeClass,
            format!(
                "runtimeClassName {name:?} would give the pod the GPUs that its image names, but no container asks for one: ask for nvidia.com/gpu in resources.limits, or remove runtimeClassName"
            ),
        )),
    }
}

/// Checks that a container does not say itself which GPUs it sees. What its
/// image says is answered by the value `void`, where it may hold none.
pub(super) fn check_variables(name: &str, container: &Value) -> Result<(), Refusal> {
    let refuse = |what: &str| {
        Err(Refusal::new(
            Rule::VisibleDevices,
            format!(
                "container {name:?} {what} {VARIABLE} by hand, which gives it GPUs that were handed to others: remove it and ask for nvidia.com/gpu in resources.limits; to hide GPUs, set it to \"void\""
            ),
        ))
    };
    if variable(container).any(|harmless| !harmless) {
        return refuse("sets");
    }
    let mut prefixes = list(container, &["envFrom"])
        .filter_map(|source| source.get("prefix")?.as_str())
        .filter(|prefix| !prefix.is_empty());
    // A source without prefix may hold the variable too, but nothing here shows it.
    if prefixes.any(|prefix| VARIABLE.starts_with(prefix)) {
        return refuse("has an envFrom with a prefix that sets");
    }
    let mut mounts = list(container, &["volumeMounts"]).filter_map(|one| one.get("mountPath"));
    if mounts.any(|path| {
        path.as_str()
            .is_some_and(|path| path.contains(DEVICE_MOUNTS))
    }) {
        return refuse("has a volumeMount that stands for");
    }
    Ok(())
}

/// For each entry of the variable, whether it gives no GPU.
fn variable(container: &Value) -> impl Iterator<Item = bool> {
    let entries = list(container, &["env"])
        .filter(|entry| entry.get("name").and_then(Value::as_str) == Some(VARIABLE));
    entries.map(|entry| {
        let elsewhere = entry.get("valueFrom").is_some_and(|from| !from.is_null());
        let value = entry.get("value").and_then(Value::as_str).unwrap_or("");
        !elsewhere && HARMLESS.contains(&value)
    })
}

/// Whether a container says that it sees no GPU, whatever its image says.
pub(super) fn hides_gpus(container: &Value) -> bool {
    variable(container).next().is_some() && variable(container).all(|harmless| harmless)
}

/// Checks that a pod on the nodes of `class` does not take what the host has.
pub(super) fn check_privileges(pod: &Value, class: &Class) -> Result<(), Refusal> {
    let containers = crate::pod::containers(pod);
    let privileged = containers
        .iter()
        .find(|one| is_privileged(one.value()))
        .map(Container::name);
    if let Some(name) = privileged {
        return Err(refuse_privileged(name, class));
    }
    let mut paths = list(pod, &["spec", "volumes"])
        .filter_map(|volume| volume.get("hostPath")?.get("path")?.as_str());
    match paths.find(|path| leads_to_devices(path)) {
        None => Ok(()),
        Some(path) => Err(Refusal::new(
            Rule::HostPath,
            format!(
                "hostPath {path:?} leads to the host's GPUs or their driver, which pods on the nodes of the restricted class {:?} get from the device plugin alone: remove the volume, or run the pod in a namespace that is exempt",
                class.name
            ),
        )
        .about(&class.name)),
    }
}

pub(super) fn is_privileged(container: &Value) -> bool {
    let context = container.get("securityContext");
    context.and_then(|context| context.get("privileged")?.as_bool()) == Some(true)
}

pub(super) fn refuse_privileged(name: &str, class: &Class) -> Refusal {
    Refusal::new(
        Rule::Privileged,
        format!(
            "container {name:?} is privileged, which gives it all GPUs of its node, and the pod is for nodes of the restricted class {:?}: remove securityContext.privileged, or run the pod in a namespace that is exempt",
            class.name
        ),
    )
    .about(&class.name)
}

/// Whether a host path is, holds or lies in one that leads to GPUs.
fn leads_to_devices(path: &str) -> bool {
    let parts = path.split('/').filter(|part| !["", "."].contains(part));
    let path: String = parts.flat_map(|part| ["/", part]).collect();
    DEVICE_PATHS
        .iter()
        .any(|guarded| path.starts_with(guarded) || guarded.starts_with(&format!("{path}/")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_paths() {
        for path in [
            "/",
            "/dev",
            "/dev/",
            "//dev//nvidia0",
            "/dev/./nvidiactl",
            "/dev/nvidia-caps/x",
            "/run",
            "/usr/lib",
            "/var/lib/kubelet/device-plugins",
            "/run/containerd/containerd.sock",
        ] {
            assert!(leads_to_devices(path), "{path}");
        }
        for path in [
            "/dev/shm",
            "/dev/infiniband",
            "/data",
            "/var/log",
            "/devices",
            "/mnt/dev",
        ] {
            assert!(!leads_to_devices(path), "{path}");
        }
    }
}
