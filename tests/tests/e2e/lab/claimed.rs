//! GPUs by claims, on a real kubelet with a DRA driver: what the container gets is what `place`
//! chose, in its order.

use std::{collections::BTreeMap, sync::Once};

use nvlink_tests::{LabNode, assets};
use serde_json::{Value, json};

use super::{
    Bench, WORK, cluster,
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
        let selector = json!({"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}});
        let class = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass",
            "metadata": {"name": "gpu.nvidia.com"},
            "spec": {"selectors": [selector], "extendedResourceName": "nvidia.com/gpu"},
        });
        cluster().control_plane.kubectl().create(&class).unwrap();
    });
    true
}

/// Returns the GPUs that the driver gave to a container, with their UUIDs, from the output of `env`.
fn given(log: &str) -> BTreeMap<u32, &str> {
    let variables = log.lines().filter_map(|line| line.split_once('='));
    let gpu =
        |(name, uuid): (&str, _)| Some((name.strip_prefix("NVIDIA_GPU_")?.parse().ok()?, uuid));
    variables.filter_map(gpu).collect()
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
    spec["initContainers"] = json!([with("init", 2, "env; echo ready")]);
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
    let served: Vec<u32> = given(&log).into_keys().collect();
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
    let gpus = logs.each_ref().map(|log| given(log));
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
