//! GPUs taken past the device plugin, which hands out what the scheduler counted.

use serde_json::Value;

use super::Case;
use crate::{
    class::{Class, GPU},
    decide::{
        pod::{self, list},
        refusal::{Refusal, Rule},
    },
};

/// The variables by which NVIDIA's runtime hands a container GPUs, channels to
/// the memory of those of other nodes, the switches between GPUs, and the right
/// to cut GPUs up. Not those by which a job asks for what its own GPUs need,
/// such as `NVIDIA_GDRCOPY`.
pub const VARIABLES: [&str; 5] = [
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_IMEX_CHANNELS",
    "NVIDIA_NVSWITCH",
    "NVIDIA_MIG_CONFIG_DEVICES",
    "NVIDIA_MIG_MONITOR_DEVICES",
];
/// Values of the variables that give nothing.
pub const HARMLESS: [&str; 4] = ["", "disabled", "none", "void"];

/// Beginnings of the annotations by which a pod names devices, or directories
/// of the host, to the runtime: CDI's own, those of the device injector of
/// containerd's NRI (<https://github.com/containerd/nri>, in both spellings),
/// and those of CRI-O (`pkg/annotations` of <https://github.com/cri-o/cri-o>).
pub const ANNOTATIONS: [&str; 9] = [
    "cdi.k8s.io/",
    "cdi-devices.nri.io",
    "cdi-devices.noderesource.dev",
    "devices.crio.io",
    "devices.nri.io",
    "devices.noderesource.dev",
    "io.kubernetes.cri-o.Devices",
    "mounts.nri.io",
    "mounts.noderesource.dev",
];
/// Devices that such an annotation may name: CRI-O's own defaults, with which
/// images are built.
pub const OPEN_DEVICES: [&str; 2] = ["/dev/fuse", "/dev/net/tun"];

/// Where a container mounts something by which NVIDIA's toolkit, told to look
/// there, hands it the GPUs that the mounts are named after.
pub const DEVICE_MOUNTS: &str = "nvidia-container-devices";

/// What pods on the nodes of a restricted class may have of the host, with all
/// that lies in it: what jobs need, and directories of data. All else may lead
/// to GPUs: device nodes, the driver, `/proc`, the sockets by which a container
/// makes the host start others, and every other name of these.
pub const HOST_PATHS: [&str; 24] = [
    "/dev/hugepages",
    "/dev/infiniband",
    "/dev/shm",
    "/etc/localtime",
    "/etc/pki",
    "/etc/ssl/certs",
    "/etc/timezone",
    "/sys/class/infiniband",
    "/sys/class/net",
    "/usr/share/zoneinfo",
    "/var/log",
    "/beegfs",
    "/data",
    "/datasets",
    "/fsx",
    "/gpfs",
    "/lustre",
    "/mnt",
    "/models",
    "/nfs",
    "/raid",
    "/scratch",
    "/shared",
    "/weka",
];

/// Capabilities by which a container reaches what the host has.
pub const CAPABILITIES: [&str; 7] = [
    "ALL",
    "BPF",
    "DAC_READ_SEARCH",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_MODULE",
    "SYS_RAWIO",
];

/// Checks a change of a pod: the runtime reads annotations when it starts a
/// container, which may be later.
pub(super) fn check_change(case: Case<'_>, old: &Value) -> Result<(), Refusal> {
    match is_guarded(case) {
        true => check_annotations(case.pod, old),
        false => Ok(()),
    }
}

/// Whether GPUs are guarded from the pod: where there is a restricted class,
/// and in each class.
pub(super) fn is_guarded(case: Case<'_>) -> bool {
    !case.view.restricted().is_empty() || case.class().is_some()
}

/// Checks a pod that is created: variables, and the runtime without a request.
pub(super) fn check(case: Case<'_>) -> Result<(), Refusal> {
    if !is_guarded(case) {
        return Ok(());
    }
    check_annotations(case.pod, &Value::Null)?;
    for container in &case.held.containers {
        check_variables(container.name(), container.value())?;
    }
    let runtime = case.pod.get("spec");
    let runtime = runtime.and_then(|spec| spec.get("runtimeClassName")?.as_str());
    let handed = case.held.containers.iter().any(|one| one.holds_gpu(GPU));
    match runtime.filter(|name| name.contains("nvidia") && !handed) {
        None => Ok(()),
        Some(name) => Err(Refusal::new(
            Rule::RuntimeClass,
            format!(
                "runtimeClassName {name:?} would give the pod the GPUs that its image names, but no container asks for one: ask for nvidia.com/gpu in resources.limits, or remove runtimeClassName"
            ),
        )),
    }
}

/// Checks that the pod does not name devices to the runtime. What it was let in
/// with, as `old` has it, is not looked at again.
fn check_annotations(pod: &Value, old: &Value) -> Result<(), Refusal> {
    let mut entries = pod::entries(pod, &["metadata", "annotations"]);
    let found = entries.find(|(key, value)| {
        ANNOTATIONS.iter().any(|start| key.starts_with(start))
            && !are_open(value)
            && pod::metadata(old, "annotations", key) != Some(value)
    });
    match found {
        None => Ok(()),
        Some((key, _)) => Err(Refusal::new(
            Rule::VisibleDevices,
            format!(
                "annotation {key} names devices by hand, which gives the pod those that were handed to others: remove it and ask for nvidia.com/gpu in resources.limits"
            ),
        )),
    }
}

/// Whether the value of such an annotation names devices alone that anybody may have.
fn are_open(value: &Value) -> bool {
    let mut devices = value.as_str().unwrap_or_default().split(',');
    devices.all(|device| {
        let path = device.split(':').next().unwrap_or_default();
        OPEN_DEVICES.contains(&path)
    })
}

/// Checks that a container does not say itself which GPUs it sees. What its
/// image says is answered by the value `void`, where it may hold none.
pub(super) fn check_variables(name: &str, container: &Value) -> Result<(), Refusal> {
    let refuse = |what: &str, variable: &str| {
        Err(Refusal::new(
            Rule::VisibleDevices,
            format!(
                "container {name:?} {what} {variable} by hand, which gives it GPUs that were handed to others: remove it and ask for nvidia.com/gpu in resources.limits; to hide GPUs, set it to \"void\""
            ),
        ))
    };
    for variable in VARIABLES {
        if values(container, variable).any(|harmless| !harmless) {
            return refuse("sets", variable);
        }
        let mut prefixes = list(container, &["envFrom"])
            .filter_map(|source| source.get("prefix")?.as_str())
            .filter(|prefix| !prefix.is_empty());
        // A source without prefix may hold the variable too, but nothing here shows it.
        if prefixes.any(|prefix| variable.starts_with(prefix)) {
            return refuse("has an envFrom with a prefix that sets", variable);
        }
    }
    let mut mounts = list(container, &["volumeMounts"]).filter_map(|one| one.get("mountPath"));
    if mounts.any(|path| {
        path.as_str()
            .is_some_and(|path| path.contains(DEVICE_MOUNTS))
    }) {
        return refuse("has a volumeMount that stands for", VARIABLES[0]);
    }
    Ok(())
}

/// For each entry of `variable`, whether it gives nothing.
fn values<'a>(container: &'a Value, variable: &'a str) -> impl Iterator<Item = bool> + use<'a> {
    let entries = list(container, &["env"])
        .filter(move |entry| entry.get("name").and_then(Value::as_str) == Some(variable));
    entries.map(|entry| {
        let elsewhere = entry.get("valueFrom").is_some_and(|from| !from.is_null());
        let value = entry.get("value").and_then(Value::as_str).unwrap_or("");
        !elsewhere && HARMLESS.contains(&value)
    })
}

/// Whether a container says that it sees no GPU, whatever its image says.
pub(super) fn hides_gpus(container: &Value) -> bool {
    let values = || values(container, VARIABLES[0]);
    values().next().is_some() && values().all(|harmless| harmless)
}

/// Checks that a pod on the nodes of `class` does not take what the host has.
pub(super) fn check_privileges(pod: &Value, class: &Class) -> Result<(), Refusal> {
    for container in pod::containers(pod) {
        check_privileged(container.name(), container.value(), class)?;
    }
    let pids = pod.get("spec").and_then(|spec| spec.get("hostPID"));
    if pids.and_then(Value::as_bool) == Some(true) {
        let what = "the pod has hostPID, by which it takes over processes that hold GPUs";
        return Err(refuse_privileged(what, "spec.hostPID", class));
    }
    let mut paths = list(pod, &["spec", "volumes"])
        .filter_map(|volume| volume.get("hostPath")?.get("path")?.as_str());
    match paths.find(|path| !is_open(path)) {
        None => Ok(()),
        Some(path) => Err(Refusal::new(
            Rule::HostPath,
            format!(
                "hostPath {path:?} may lead to the host's GPUs or their driver, which pods on the nodes of the restricted class {:?} get from the device plugin alone; what they may have of the host is {}: remove the volume, or run the pod in a namespace that is exempt",
                class.name,
                HOST_PATHS.join(", ")
            ),
        )
        .about(&class.name)),
    }
}

/// Checks that a container has no rights by which it reaches all GPUs of its node.
pub(super) fn check_privileged(
    name: &str,
    container: &Value,
    class: &Class,
) -> Result<(), Refusal> {
    let context = container.get("securityContext");
    let field = |field: &str| context.and_then(|context| context.get(field));
    let refuse = |what: &str, field: &str| {
        let what = format!("container {name:?} {what}, which gives it all GPUs of its node");
        let field = format!("securityContext.{field}");
        Err(refuse_privileged(&what, &field, class))
    };
    if field("privileged").and_then(Value::as_bool) == Some(true) {
        return refuse("is privileged", "privileged");
    }
    if field("procMount").and_then(Value::as_str) == Some("Unmasked") {
        return refuse("sees the host's /proc unmasked", "procMount");
    }
    let mut added = context
        .into_iter()
        .flat_map(|context| list(context, &["capabilities", "add"]))
        .filter_map(Value::as_str);
    match added.find(|name| is_capability_of_the_host(name)) {
        None => Ok(()),
        Some(capability) => refuse(
            &format!("has the capability {capability}"),
            "capabilities.add",
        ),
    }
}

/// Runtimes take the names of capabilities in any case, and some with `CAP_`.
fn is_capability_of_the_host(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    CAPABILITIES.contains(&name.strip_prefix("CAP_").unwrap_or(&name))
}

fn refuse_privileged(what: &str, field: &str, class: &Class) -> Refusal {
    Refusal::new(
        Rule::Privileged,
        format!(
            "{what}, and the pod is for nodes of the restricted class {:?}: remove {field}, or run the pod in a namespace that is exempt",
            class.name
        ),
    )
    .about(&class.name)
}

/// Whether a host path is one that pods of restricted classes may have.
fn is_open(path: &str) -> bool {
    let parts = path.split('/').filter(|part| !["", "."].contains(part));
    let path: String = parts.flat_map(|part| ["/", part]).collect();
    !path.contains("/..")
        && HOST_PATHS.iter().any(|open| {
            path.strip_prefix(open)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_paths() {
        for path in [
            "/",
            "/dev",
            "//dev//nvidia0",
            "/dev/./nvidiactl",
            "/dev/shm/../nvidia0",
            "/dev/shmem",
            "/proc/1/root/dev",
            "/lib/x86_64-linux-gnu",
            "/run/systemd/private",
            "/run/k3s/containerd/containerd.sock",
            "/sys/class",
            "/home/kubernetes/bin",
            "",
        ] {
            assert!(!is_open(path), "{path}");
        }
        for path in [
            "/dev/shm",
            "/dev/infiniband/",
            "//data/./sets",
            "/var/log/pods",
            "/mnt/dev",
        ] {
            assert!(is_open(path), "{path}");
        }
    }
}
