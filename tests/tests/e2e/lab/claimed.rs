//! GPUs by claims, on a real kubelet with a DRA driver: what the container gets is what `place`
//! chose, in its order.

use std::{collections::BTreeMap, sync::Once};

use nvlink_tests::{DriverEvent, Kubectl, LabNode, assets, wait_until};
use serde_json::{Value, json};

use super::{
    Bench, SOON, WORK, cluster,
    preferred::{as_placed, has_the_gpus_of_place},
    spec, variable,
};
use crate::{allocations::held, pods::container};

/// The class of the driver's devices, by which the scheduler serves plain requests too. Returns
/// whether Kubernetes can do this.
pub(super) fn device_class() -> bool {
    static CREATED: Once = Once::new();
    if assets::lacks("DRAExtendedResource by default", 36) {
        return false;
    }
    CREATED.call_once(|| {
        let selector = "device.driver == 'gpu.nvidia.com' && \
            device.attributes['gpu.nvidia.com'].type == 'gpu'";
        let selector = json!({"cel": {"expression": selector}});
        let class = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass",
            "metadata": {"name": "gpu.nvidia.com"},
            "spec": {"selectors": [selector], "extendedResourceName": "nvidia.com/gpu"},
        });
        cluster().control_plane.kubectl().create(&class).unwrap();
    });
    true
}

/// Returns the GPUs whose device files a container has, with their UUIDs, from what [`WORK`] printed.
fn given<'b>(bench: &'b Bench, log: &str) -> BTreeMap<u32, &'b str> {
    assert_eq!(variable(log, "NVIDIA_VISIBLE_DEVICES"), Some("void"));
    let devices = bench.lab.claimable().unwrap();
    let files = log
        .lines()
        .filter_map(|line| line.strip_prefix("/dev/nvidia"));
    let gpu = |minor: &str| {
        let gpu = devices[&format!("gpu-{minor}")];
        (gpu, bench.uuid(gpu))
    };
    files.map(gpu).collect()
}

/// Runs pods like [`as_placed`].
fn as_claimed(name: &str, profile: &str, sizes: &[(usize, bool)]) {
    if device_class() {
        as_placed(
            &LabNode::new(name, profile).claimed(),
            "claimed",
            profile,
            sizes,
        );
    }
}

#[test]
fn a_container_gets_the_gpus_of_place_in_their_order() {
    as_claimed(
        "lab-claimed-mesh",
        "dgx1-v100",
        &[(1, true), (4, false), (3, true), (4, true)],
    );
}

#[test]
fn pairs_stay_together_on_a_board_with_bridges() {
    as_claimed(
        "lab-claimed-pairs",
        "a100-pcie-pairs",
        &[(1, true), (2, false), (3, true), (2, true), (2, true)],
    );
}

#[test]
fn a_mesh_of_four_is_left_as_whole_as_it_can_be() {
    as_claimed(
        "lab-claimed-quad",
        "hgx-a100-4",
        &[(1, false), (2, true), (2, true)],
    );
}

/// Creates a pod of the class with two GPUs in an init container, two in `one` and one in `two`.
fn create_several(bench: &Bench) {
    let with = |name: &str, gpus: u32, script: &str| {
        let mut container = container(name, gpus);
        container["image"] = json!("busybox:1");
        container["command"] = json!(["sh", "-c", script]);
        container
    };
    let mut spec = spec(bench.lab.name(), 0, WORK);
    spec["initContainers"] = json!([with("init", 2, &WORK[..WORK.find("until").unwrap()])]);
    spec["containers"] = json!([with("one", 2, WORK), with("two", 1, WORK)]);
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "several", "annotations": {"nvlink-domains.io/class": "claimed"}},
        "spec": spec,
    });
    bench.kubectl.create(&pod).unwrap();
    bench.wait_for_phase("several", "Running");
}

/// Runs a pod of one GPU without a class, for which the scheduler makes the claim itself, and returns
/// its GPU.
fn run_plain(bench: &Bench) -> Vec<u32> {
    let plain = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "plain"},
        "spec": spec(bench.lab.name(), 1, WORK),
    });
    bench.kubectl.create(&plain).unwrap();
    bench.wait_for_phase("plain", "Running");
    let text = bench.wait_for_pod("plain", 1);
    let log = bench.printed(&["plain"]);
    let served: Vec<u32> = given(bench, &log).into_keys().collect();
    assert_eq!(held(&text, "plain"), served);
    let pod = bench.kubectl.get(&["pod", "plain"]).unwrap();
    assert_eq!(pod["spec"]["resourceClaims"], Value::Null);
    served
}

#[test]
fn plain_requests_and_containers_that_share_a_claim_get_their_own_gpus() {
    if !device_class() {
        return;
    }
    let profile = "dgx1-v100";
    let bench = Bench::start_with(&LabNode::new("lab-shared", profile).claimed(), profile);

    let served = run_plain(&bench);
    create_several(&bench);
    let free: Vec<u32> = (0..8).filter(|gpu| !served.contains(gpu)).collect();
    let held = held(&bench.wait_for_pod("several", 3), "several");
    assert!(
        held.iter().all(|gpu| free.contains(gpu)),
        "{held:?} of {free:?}"
    );
    let log = |name| bench.printed(&["several", "-c", name]);
    let logs = ["init", "one", "two"].map(log);
    let gpus = logs.each_ref().map(|log| given(&bench, log));
    assert_eq!(
        gpus[0], gpus[1],
        "an init container shares with one that comes later"
    );
    let both: Vec<u32> = gpus[1].keys().chain(gpus[2].keys()).copied().collect();
    assert_eq!(
        both.len(),
        3,
        "no GPU in two containers at a time: {gpus:?}"
    );
    for (log, gpus) in logs.iter().zip(&gpus) {
        let named: Vec<&str> = variable(log, "NVLINK_DOMAINS_GPUS")
            .unwrap()
            .split(',')
            .collect();
        assert_eq!(named.len(), gpus.len());
        assert!(
            named
                .iter()
                .all(|uuid| gpus.values().any(|one| one == uuid)),
            "{named:?}"
        );
    }

    // What ends is free again.
    bench
        .kubectl
        .run(&["delete", "pod", "several", "--now"])
        .unwrap();
    bench.wait_for_pod("several", 0);
    bench.run_pod_of("claimed", "after", 4);
    has_the_gpus_of_place(&bench, "after", profile, 4, &free);
}

/// Starts a node with eight GPUs whose driver has these flags, or returns `None` where Kubernetes has
/// no such devices.
fn bench_with(name: &str, profile: &str, flags: &[&str]) -> Option<Bench> {
    device_class()
        .then(|| Bench::start_with(&LabNode::new(name, profile).claimed_with(flags), profile))
}

/// Creates a claim with one request, and a pod of this name that uses it and runs [`WORK`].
fn create_claimant(bench: &Bench, kubectl: &Kubectl, name: &str, exactly: &Value) {
    let request = json!({"name": "devices", "exactly": exactly});
    let claim = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name},
        "spec": {"devices": {"requests": [request]}},
    });
    kubectl.create(&claim).unwrap();
    let mut spec = spec(bench.lab.name(), 0, WORK);
    spec["resourceClaims"] = json!([{"name": "devices", "resourceClaimName": name}]);
    spec["containers"][0]["resources"] = json!({"claims": [{"name": "devices"}]});
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec,
    });
    kubectl.create(&pod).unwrap();
    let wait = [
        "wait",
        "--for=condition=Ready",
        "--timeout=60s",
        "pod",
        name,
    ];
    kubectl.run(&wait).unwrap();
}

#[test]
fn a_monitor_that_looks_at_all_gpus_keeps_nobody_off() {
    let name = "lab-monitor";
    let Some(bench) = bench_with(name, "dgx1-v100", &[]) else {
        return;
    };
    let labels = json!({"resource.kubernetes.io/admin-access": "true"});
    let plane = &cluster().control_plane;
    let monitoring = plane.namespace("monitoring", &labels, &json!({})).unwrap();
    let all = json!({
        "deviceClassName": "gpu.nvidia.com", "allocationMode": "All", "adminAccess": true,
    });
    create_claimant(&bench, &monitoring, "monitor", &all);
    let log = wait_until("the monitor to print what it sees", SOON, || {
        let log = monitoring.run(&["logs", "monitor"])?;
        Ok(log.contains("ready\n").then_some(log))
    })
    .unwrap();
    assert_eq!(given(&bench, &log).len(), 8, "{log}");
    bench.run_pod_of("claimed", "train", 8);
    let text = bench.wait_for_pod("train", 8);
    assert!(!text.contains("pod=\"monitor\""), "{text}");
    assert_eq!(given(&bench, &bench.printed(&["train"])).len(), 8);
    let topology = bench.kubectl.get(&["nodetopology", name]).unwrap();
    let allocations = topology["status"]["allocations"].as_array().unwrap();
    assert_eq!(allocations.len(), 1, "{allocations:#?}");
    assert_eq!(
        allocations[0]["freeWhenPlaced"],
        json!([0, 1, 2, 3, 4, 5, 6, 7])
    );
}

#[test]
fn a_gpu_that_the_driver_taints_is_for_no_job() {
    let flags = ["-feature-gates=NVMLDeviceHealthCheck=true"];
    let Some(bench) = bench_with("lab-tainted", "hgx-a100-4", &flags) else {
        return;
    };
    let tell = |event, taint: &str| {
        bench.lab.report(event).unwrap();
        wait_until("the driver to taint the GPU", SOON, || {
            let get = ["get", "resourceslices", "-o", "json"];
            Ok(bench.kubectl.run(&get)?.contains(taint).then_some(()))
        })
        .unwrap();
    };
    // An application's fault, a GPU without events, and a fault of the GPU.
    tell(DriverEvent::Xid { gpu: 0, xid: 13 }, "\"13\"");
    tell(DriverEvent::Unmonitored { gpu: 1 }, "/unmonitored\"");
    tell(DriverEvent::Xid { gpu: 2, xid: 79 }, "\"79\"");
    bench.run_pod_of("claimed", "healthy", 3);
    assert_eq!(
        held(&bench.wait_for_pod("healthy", 3), "healthy"),
        [0, 1, 3]
    );
    bench.end("healthy");
    bench.wait_for_pod("healthy", 0);
    tell(DriverEvent::GpuLost, "/gpu-lost\"");
    bench.create_pod_of("claimed", "lost", 1);
    let pod = wait_until("the pod to say that it waits", SOON, || {
        let pod = bench.kubectl.get(&["pod", "lost"])?;
        let conditions = pod["status"]["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        let waits = conditions.any(|one| one["type"] == "nvlink-domains.io/Queued");
        Ok(waits.then_some(pod))
    })
    .unwrap();
    assert!(pod["spec"]["schedulingGates"].is_array(), "{pod:#}");
    let delete = ["delete", "pod", "lost", "--now"];
    bench.kubectl.run(&delete).unwrap();
}

#[test]
fn a_gpu_of_which_a_part_or_its_twin_is_taken_is_for_no_job() {
    let mig = "device.attributes['gpu.nvidia.com'].profile == '1g.10gb' && \
        device.attributes['gpu.nvidia.com'].parentUUID == 'UUID'";
    let vfio = "device.attributes['resource.kubernetes.io'].pciBusID == 'ADDRESS'";
    for (name, flag, kind, selector) in [
        ("lab-mig", "-feature-gates=DynamicMIG=true", "mig", mig),
        (
            "lab-vfio",
            "-feature-gates=PassthroughSupport=true",
            "vfio",
            vfio,
        ),
    ] {
        let Some(bench) = bench_with(name, "dgx-h100", &[flag]) else {
            return;
        };
        let class = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass",
            "metadata": {"name": format!("{kind}.nvidia.com")},
            "spec": {"selectors": [{"cel": {"expression": format!(
                "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == '{kind}'"
            )}}]},
        });
        bench.kubectl.create(&class).unwrap();
        let gpu = &bench.lab.recording()["spec"]["gpus"][5];
        let address = gpu["pciBusId"].as_str().unwrap().to_ascii_lowercase();
        let expression = selector
            .replace("UUID'", &format!("{}'", bench.uuid(5)))
            .replace("ADDRESS", &address["0000".len()..]);
        let part = json!({
            "deviceClassName": format!("{kind}.nvidia.com"),
            "selectors": [{"cel": {"expression": expression}}],
        });
        create_claimant(&bench, bench.kubectl, &format!("{kind}-user"), &part);
        bench.run_pod_of("claimed", &format!("beside-{kind}"), 7);
        let text = bench.wait_for_pod(&format!("beside-{kind}"), 7);
        let own = held(&text, &format!("beside-{kind}"));
        assert_eq!(own, [0, 1, 2, 3, 4, 6, 7], "{name}");
        assert_eq!(held(&text, &format!("{kind}-user")), [5], "{name}");
    }
}

#[test]
fn gpus_that_claims_can_share_are_for_no_job_and_the_class_says_so() {
    let name = "lab-shares";
    let flags = [
        "-feature-gates=ConsumableShares=true",
        "-consumable-shares=4",
    ];
    let Some(bench) = bench_with(name, "hgx-a100-4", &flags) else {
        return;
    };
    bench.create_pod_of("claimed", "alone", 1);
    let message = wait_until("the class to say why", SOON, || {
        let class = bench.kubectl.get(&["domainclass", "claimed"])?;
        let conditions = class["status"]["conditions"].as_array().cloned();
        let mut found = conditions.into_iter().flatten();
        let found = found.find(|one| one["type"] == "Exclusive" && one["status"] == "False");
        Ok(found.and_then(|one| one["message"].as_str().map(str::to_owned)))
    })
    .unwrap();
    assert!(message.contains(name), "{message}");
    let pod = bench.kubectl.get(&["pod", "alone"]).unwrap();
    assert!(pod["spec"]["schedulingGates"].is_array(), "{pod:#}");
    bench
        .kubectl
        .run(&["delete", "pod", "alone", "--now"])
        .unwrap();
}
