//! Rules against access to GPUs that bypasses the device plugin, which allocates the GPUs that the
//! scheduler counted.

use nvlink_api::{
    class::{Class, GPU},
    crd::domain_class::Integration,
    pod::{self, Container, list},
};
use serde_json::Value;

use super::{Case, daemon, reach::Way};
use crate::decide::{
    devices::{self, has_fractions},
    refusal::{Refusal, Rule},
};

/// The variables by which NVIDIA's runtime gives a container GPUs, channels to the GPU memory of
/// other nodes, the switches between GPUs, and the right to partition GPUs. Variables that request
/// something for the job's own GPUs, such as `NVIDIA_GDRCOPY`, are not among them.
pub const VARIABLES: [&str; 5] = [
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_IMEX_CHANNELS",
    "NVIDIA_NVSWITCH",
    "NVIDIA_MIG_CONFIG_DEVICES",
    "NVIDIA_MIG_MONITOR_DEVICES",
];
/// Values of the variables that give a container nothing.
pub const HARMLESS: [&str; 4] = ["", "disabled", "none", "void"];

/// Prefixes of the annotations by which a pod requests devices, or directories of the host, from
/// the runtime: those of CDI, of the device injector of containerd's NRI
/// (<https://github.com/containerd/nri>, in both spellings), and of CRI-O (`pkg/annotations` of
/// <https://github.com/cri-o/cri-o>).
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
/// Devices that such an annotation may name: CRI-O's defaults, which image builds need.
pub const OPEN_DEVICES: [&str; 2] = ["/dev/fuse", "/dev/net/tun"];

/// The annotation with the name prefix of the ConfigMaps by which KAI's binder gives the pod parts
/// of GPUs. KAI's admission writes it.
pub const KAI_CONFIG_MAPS: &str = "runai/shared-gpu-configmap";

/// Part of the mount paths by which a container selects GPUs: if configured so, NVIDIA's toolkit
/// gives it the GPUs that the mounts are named after.
pub const DEVICE_MOUNTS: &str = "nvidia-container-devices";

/// Host paths, with everything below them, that pods on the nodes of a restricted class may mount:
/// what jobs need, and data directories. All other paths may expose GPUs: device nodes, the driver,
/// `/proc`, the sockets by which a container makes the host start others, and all aliases of these.
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

/// Capabilities that give a container access to the host's devices.
pub const CAPABILITIES: [&str; 7] = [
    "ALL",
    "BPF",
    "DAC_READ_SEARCH",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_MODULE",
    "SYS_RAWIO",
];

/// Checks a change of a pod. The runtime reads annotations when it starts a container, which may
/// happen after the change.
pub(super) fn check_change(case: Case<'_>, old: &Value) -> Result<(), Refusal> {
    match is_guarded(case) {
        true => check_annotations(case.pod, old),
        false => Ok(()),
    }
}

/// Reports whether the rules on devices apply to the pod: if there is a restricted class, or if the
/// pod has a class.
pub(super) fn is_guarded(case: Case<'_>) -> bool {
    !case.view.restricted().is_empty() || case.class().is_some()
}

/// Checks a new pod: annotations, variables and mounts, and NVIDIA's runtime without a request.
pub(super) fn check(case: Case<'_>) -> Result<(), Refusal> {
    if !is_guarded(case) {
        return Ok(());
    }
    let remedy = daemon::remedy_of(case.pod, case.namespace);
    check_devices(case).map_err(|refusal| refusal.with(&remedy))
}

fn check_devices(case: Case<'_>) -> Result<(), Refusal> {
    check_annotations(case.pod, &Value::Null)?;
    let parts = parts_of_kai(case.pod);
    for container in &case.held.containers {
        check_variables(container.name(), container.value(), parts)?;
    }
    // The runtime is accepted if a container has a GPU, a claim or a part of a GPU from KAI, or if
    // all containers hide GPUs.
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
                "runtimeClassName {name:?} would give the pod the GPUs that its images select, but no container requests a GPU: request nvidia.com/gpu in resources.limits, or remove runtimeClassName"
            ),
        )),
    }
}

/// Returns the pod's `runtimeClassName`, if it is a runtime of NVIDIA's.
pub(super) fn runtime(pod: &Value) -> Option<&str> {
    Some(pod::text(pod, &["spec", "runtimeClassName"])).filter(|name| name.contains("nvidia"))
}

/// Checks that GPUs are hidden from the containers without GPUs of an existing pod, to which the
/// webhook can no longer add the variable.
pub(super) fn check_hidden(pod: &Value, class: &Class) -> Result<(), Refusal> {
    match devices::untold(pod, &class.resource).first() {
        None => Ok(()),
        Some(container) => Err(Refusal::new(
            Rule::VisibleDevices,
            format!(
                "container {:?} requests no GPU but would see those that its image selects, on nodes of the restricted class {:?}: recreate the pod with this change, so that the webhook hides them",
                container.name(),
                class.name
            ),
        )
        .about(&class.name)),
    }
}

/// Checks that the pod requests no devices from the runtime. Annotations that `old` already has are
/// not checked again.
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
                "annotation {key} bypasses the device plugin and gives the pod devices that are allocated to others: remove it and request nvidia.com/gpu in resources.limits"
            ),
        )),
    }
}

/// Reports whether such an annotation names only devices that every pod may have.
fn are_open(value: &Value) -> bool {
    let mut devices = pod::text(value, &[]).split(',');
    devices.all(|device| {
        let path = device.split(':').next().unwrap_or_default();
        OPEN_DEVICES.contains(&path)
    })
}

/// Checks that a container does not select the GPUs that it sees. The webhook overrides its image's
/// selection with the value `void` if the container may hold none. `parts`: the result of
/// [`parts_of_kai`] if KAI may give the pod GPUs.
pub(super) fn check_variables(
    name: &str,
    container: &Value,
    parts: Option<&str>,
) -> Result<(), Refusal> {
    let refuse = |what: &str, variable: &str| {
        Err(Refusal::new(
            Rule::VisibleDevices,
            format!(
                "container {name:?} {what} {variable}, which bypasses the device plugin and gives it GPUs that are allocated to others: remove it and request nvidia.com/gpu in resources.limits; to hide GPUs, set the variable to \"void\""
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
        // A source without a prefix may hold the variable too, but the pod does not show that.
        if prefixes.any(|prefix| variable.starts_with(prefix)) {
            return refuse("has an envFrom with a prefix that may set", variable);
        }
    }
    let mut mounts = list(container, &["volumeMounts"]).filter_map(|one| one.get("mountPath"));
    if mounts.any(|path| {
        path.as_str()
            .is_some_and(|path| path.contains(DEVICE_MOUNTS))
    }) {
        return refuse("has a volumeMount that acts as", VARIABLES[0]);
    }
    Ok(())
}

/// Returns the entries of `variable` in the container's environment.
fn entries<'a>(
    container: &'a Value,
    variable: &'a str,
) -> impl Iterator<Item = &'a Value> + use<'a> {
    list(container, &["env"]).filter(move |entry| pod::text(entry, &["name"]) == variable)
}

fn gives_nothing(entry: &Value) -> bool {
    let elsewhere = entry.get("valueFrom").is_some_and(|from| !from.is_null());
    !elsewhere && HARMLESS.contains(&pod::text(entry, &["value"]))
}

/// Returns the name prefix of the ConfigMaps in which KAI's binder lists the GPUs that the pod gets
/// parts of, if KAI's admission has prepared the pod for that.
fn parts_of_kai(pod: &Value) -> Option<&str> {
    let maps = pod::metadata(pod, "annotations", KAI_CONFIG_MAPS)?.as_str()?;
    (has_fractions(pod) && !maps.is_empty()).then_some(maps)
}

/// Reports whether an entry reads its value from a ConfigMap whose name begins with `parts`.
fn is_part(entry: &Value, parts: Option<&str>) -> bool {
    let map = pod::at(entry, &["valueFrom", "configMapKeyRef", "name"]).and_then(Value::as_str);
    pod::text(entry, &["name"]) == VARIABLES[0]
        && parts
            .zip(map)
            .is_some_and(|(parts, map)| map.starts_with(parts))
}

/// Reports whether a container sets `NVIDIA_VISIBLE_DEVICES` so that it sees no GPU, whatever its
/// image selects.
pub(super) fn hides_gpus(container: &Value) -> bool {
    let mut told = entries(container, VARIABLES[0]).peekable();
    told.peek().is_some() && told.all(gives_nothing)
}

/// Checks that a pod, which targets the nodes of `class` by `way`, has no access to the host's
/// devices.
pub(super) fn check_privileges(case: Case<'_>, class: &Class, way: Way) -> Result<(), Refusal> {
    let remedy = daemon::remedy(case, class);
    check_parts(case, class, way)?;
    check_device_classes(case, class, way)?;
    for container in &case.held.containers {
        let (name, value) = (container.name(), container.value());
        check_privileged(name, value, class, way, remedy.text())?;
    }
    if pod::at(case.pod, &["spec", "hostPID"]) == Some(&Value::Bool(true)) {
        let what = "the pod has hostPID, which lets it take over processes that hold GPUs";
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
                "hostPath {path:?} may expose the host's GPUs or their driver, and the pod {} the restricted class {:?}: remove the volume; pods on the nodes of the class may mount only {}",
                way.reaches(),
                class.name,
                HOST_PATHS.join(", ")
            ),
        )
        .about(&class.name)
        .with(remedy.text())),
    }
}

/// Checks that the pod requests no parts of GPUs from KAI on nodes where KAI shares none: anybody
/// who may write ConfigMaps in the namespace could choose the GPUs.
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
                "the environment of container {:?} selects the GPUs that it sees, as with KAI, and the pod {} the restricted class {:?}, whose spec.scheduler.integration is not KAI: remove the variable, or set that field to KAI if KAI shares the GPUs of its nodes",
                one.name(),
                way.reaches(),
                class.name
            ),
        )
        .about(&class.name)
        .with(&daemon::remedy_of(case.pod, case.namespace))),
    }
}

/// Checks that the pod requests no devices by a DeviceClass as a resource: the queue neither counts
/// nor chooses them.
fn check_device_classes(case: Case<'_>, class: &Class, way: Way) -> Result<(), Refusal> {
    let containers = case.held.containers.iter();
    let mut asked = containers.flat_map(|one| one.resources().map(move |name| (one, name)));
    match asked.find(|(_, name)| name.starts_with(pod::DEVICE_CLASSES)) {
        None => Ok(()),
        Some((one, name)) => Err(Refusal::new(
            Rule::Claim,
            format!(
                "container {:?} requests {name}, which gives it devices out of sight of the queue, and the pod {} the restricted class {:?}: request {}; for other devices, name a claim",
                one.name(),
                way.reaches(),
                class.name,
                class.resource
            ),
        )
        .about(&class.name)),
    }
}

/// Checks that a container has no privileges that give it all GPUs of its node, in a pod that
/// targets the nodes of `class` by `way`.
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

/// Reports whether a capability is in [`CAPABILITIES`]. Runtimes ignore the case of the names, and
/// some accept the prefix `CAP_`.
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

/// Reports whether pods of restricted classes may mount a host path.
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
