//! GPUs taken past the device plugin, which hands out what the scheduler counted.

use serde_json::Value;

use super::{Case, daemon, reach::Way};
use crate::{
    class::{Class, GPU},
    crd::domain_class::Integration,
    decide::{
        devices::{self, has_fractions},
        pod::{self, Container, list},
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

/// Annotation in which KAI's admission keeps the beginning of the names of the
/// ConfigMaps by which its binder hands parts of GPUs to the pod.
pub const KAI_CONFIG_MAPS: &str = "runai/shared-gpu-configmap";

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
    let remedy = daemon::exemption(case.namespace);
    check_devices(case).map_err(|refusal| refusal.with(&remedy))
}

fn check_devices(case: Case<'_>) -> Result<(), Refusal> {
    check_annotations(case.pod, &Value::Null)?;
    let parts = parts_of_kai(case.pod);
    for container in &case.held.containers {
        check_variables(container.name(), container.value(), parts)?;
    }
    // What DRA hands out, and what sees no GPU, is told so.
    let handed = |one: &Container<'_>| {
        let mut values = entries(one.value(), VARIABLES[0]);
        one.holds_gpu(GPU) || one.has_claims() || values.any(|entry| is_part(entry, parts))
    };
    let containers = &case.held.containers;
    let told = || containers.iter().all(|one| hides_gpus(one.value()));
    let fits = containers.iter().any(handed) || told();
    match runtime(case.pod).filter(|_| !fits) {
        None => Ok(()),
        Some(name) => Err(Refusal::new(
            Rule::RuntimeClass,
            format!(
                "runtimeClassName {name:?} would give the pod the GPUs that its image names, but no container asks for one: ask for nvidia.com/gpu in resources.limits, or remove runtimeClassName"
            ),
        )),
    }
}

/// The class of the pod's runtime, if that is NVIDIA's.
pub(super) fn runtime(pod: &Value) -> Option<&str> {
    let name = pod.get("spec")?.get("runtimeClassName")?.as_str()?;
    name.contains("nvidia").then_some(name)
}

/// Checks that GPUs are hidden from those containers of a pod that hold none. It
/// is there already, and cannot be given the variable any more.
pub(super) fn check_hidden(pod: &Value, class: &Class) -> Result<(), Refusal> {
    match devices::untold(pod, &class.resource).first() {
        None => Ok(()),
        Some(container) => Err(Refusal::new(
            Rule::VisibleDevices,
            format!(
                "container {:?} asks for no GPU and would see those that its image names, on nodes of the restricted class {:?}: create the pod anew as it should be, which hides them",
                container.name(),
                class.name
            ),
        )
        .about(&class.name)),
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
/// image says is answered by the value `void`, where it may hold none. `parts`:
/// what [`parts_of_kai`] says, where KAI may hand out GPUs.
pub(super) fn check_variables(
    name: &str,
    container: &Value,
    parts: Option<&str>,
) -> Result<(), Refusal> {
    let refuse = |what: &str, variable: &str| {
        Err(Refusal::new(
            Rule::VisibleDevices,
            format!(
                "container {name:?} {what} {variable} by hand, which gives it GPUs that were handed to others: remove it and ask for nvidia.com/gpu in resources.limits; to hide GPUs, set it to \"void\""
            ),
        ))
    };
    for variable in VARIABLES {
        let mut values = entries(container, variable);
        if values.any(|entry| !gives_nothing(entry) && !is_part(entry, parts)) {
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

/// The entries of `variable` in the container's environment.
fn entries<'a>(
    container: &'a Value,
    variable: &'a str,
) -> impl Iterator<Item = &'a Value> + use<'a> {
    list(container, &["env"])
        .filter(move |entry| entry.get("name").and_then(Value::as_str) == Some(variable))
}

fn gives_nothing(entry: &Value) -> bool {
    let elsewhere = entry.get("valueFrom").is_some_and(|from| !from.is_null());
    let value = entry.get("value").and_then(Value::as_str).unwrap_or("");
    !elsewhere && HARMLESS.contains(&value)
}

/// The beginning of the names of the ConfigMaps in which KAI's binder names the
/// GPUs of which the pod gets parts, if KAI's admission has prepared it for that.
fn parts_of_kai(pod: &Value) -> Option<&str> {
    let maps = pod::metadata(pod, "annotations", KAI_CONFIG_MAPS)?.as_str()?;
    (has_fractions(pod) && !maps.is_empty()).then_some(maps)
}

/// Whether an entry takes its value from a ConfigMap whose name begins with `parts`.
fn is_part(entry: &Value, parts: Option<&str>) -> bool {
    let map = pod::at(entry, &["valueFrom", "configMapKeyRef", "name"]).and_then(Value::as_str);
    let visible = entry.get("name").and_then(Value::as_str) == Some(VARIABLES[0]);
    visible
        && parts
            .zip(map)
            .is_some_and(|(parts, map)| map.starts_with(parts))
}

/// Whether a container says that it sees no GPU, whatever its image says.
pub(super) fn hides_gpus(container: &Value) -> bool {
    let mut told = entries(container, VARIABLES[0]).peekable();
    told.peek().is_some() && told.all(gives_nothing)
}

/// Checks that a pod, which comes to the nodes of `class` by `way`, does not
/// take what the host has.
pub(super) fn check_privileges(case: Case<'_>, class: &Class, way: Way) -> Result<(), Refusal> {
    let remedy = daemon::remedy(case, class);
    check_parts(case, class, way)?;
    for container in &case.held.containers {
        let (name, value) = (container.name(), container.value());
        check_privileged(name, value, class, way, remedy.text())?;
    }
    let pids = case.pod.get("spec").and_then(|spec| spec.get("hostPID"));
    if pids.and_then(Value::as_bool) == Some(true) {
        let what = "the pod has hostPID, by which it takes over processes that hold GPUs";
        let refusal = refuse_privileged(what, "spec.hostPID", class, way);
        return Err(refusal.with(remedy.text()));
    }
    let mut paths = list(case.pod, &["spec", "volumes"])
        .filter_map(|volume| volume.get("hostPath")?.get("path")?.as_str());
    match paths.find(|path| !is_open(path)) {
        None => Ok(()),
        Some(path) => Err(Refusal::new(
            Rule::HostPath,
            format!(
                "hostPath {path:?} may lead to the host's GPUs or their driver, and the pod {} the restricted class {:?}: remove the volume; what its pods may have of the host is {}",
                way.reaches(),
                class.name,
                HOST_PATHS.join(", ")
            ),
        )
        .about(&class.name)
        .with(remedy.text())),
    }
}

/// Checks that the pod takes no parts of GPUs on nodes where KAI hands out none:
/// whoever may write ConfigMaps in its namespace chooses the GPUs.
fn check_parts(case: Case<'_>, class: &Class, way: Way) -> Result<(), Refusal> {
    if class.scheduler.integration == Integration::KAI {
        return Ok(());
    }
    let mut containers = case.held.containers.iter();
    let taking = containers.find(|one| check_variables(one.name(), one.value(), None).is_err());
    match taking {
        None => Ok(()),
        Some(one) => Err(Refusal::new(
            Rule::VisibleDevices,
            format!(
                "the environment of container {:?} names the GPUs that it sees, as with KAI, and the pod {} the restricted class {:?}, on whose nodes KAI shares none: its spec.scheduler.integration is not KAI",
                one.name(),
                way.reaches(),
                class.name
            ),
        )
        .about(&class.name)
        .with(&daemon::exemption(case.namespace))),
    }
}

/// Checks that a container has no rights by which it reaches all GPUs of its
/// node, in a pod that comes to the nodes of `class` by `way`.
pub(super) fn check_privileged(
    name: &str,
    container: &Value,
    class: &Class,
    way: Way,
    remedy: &str,
) -> Result<(), Refusal> {
    let context = container.get("securityContext");
    let field = |field: &str| context.and_then(|context| context.get(field));
    let refuse = |what: &str, field: &str| {
        let what = format!("container {name:?} {what}, which gives it all GPUs of its node");
        let field = format!("securityContext.{field}");
        Err(refuse_privileged(&what, &field, class, way).with(remedy))
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

fn refuse_privileged(what: &str, field: &str, class: &Class, way: Way) -> Refusal {
    Refusal::new(
        Rule::Privileged,
        format!(
            "{what}, and the pod {} the restricted class {:?}: remove {field}",
            way.reaches(),
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
