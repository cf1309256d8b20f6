//! Allocations with a real API server: the record of free GPUs, DRA, decisions, ended pods.

use std::{path::PathBuf, sync::OnceLock};

use nvlink_tests::{Exporter, Helm, Kubectl, Kubelet, Node, kubelet::Container, node, wait_until};
use serde_json::{Value, json};

use super::{Bench, GPU, SOON, held, quality, value};
use crate::{
    pods::{decision, gpu_pod},
    shared::{control_plane, create_class, namespace_with_class, namespace_without_webhook},
};

/// Applies the chart's rights for the exporter, and returns a kubeconfig of its service account.
fn account() -> PathBuf {
    let helm = Helm::new().unwrap();
    for template in ["namespaces.yaml", "exporter/rbac.yaml"] {
        let manifest = helm.template(template, "").unwrap();
        control_plane().kubectl().apply(&manifest).unwrap();
    }
    let user = "system:serviceaccount:nvlink-exporter:nvlink-exporter";
    control_plane().kubeconfig_for(user).unwrap()
}

/// Returns the namespace of the fake kubelet's pods.
fn ci() -> Kubectl {
    static CI: OnceLock<Kubectl> = OnceLock::new();
    CI.get_or_init(|| namespace_without_webhook("ci")).clone()
}

fn publish(name: &str, kubelet: Kubelet, source: &str) -> Bench {
    let socket = kubelet.socket().to_str().unwrap().to_owned();
    let arguments = ["--source", source, "--kubelet-socket", &socket];
    let arguments = [&arguments[..], &["--collection-interval", "100ms"]].concat();
    let exporter = Exporter::publishing(&account(), name, &arguments).unwrap();
    let bench = Bench::of(exporter, kubelet);
    bench.wait_for("the first answer", |text| {
        super::succeeded(text) == Some(1.0)
    });
    bench
}

/// Creates a node with an exporter that publishes.
fn on_node(name: &str, source: &str) -> Bench {
    let nodes = [Node::new(name, 8).pool(name)];
    node::create(control_plane().kubectl(), &nodes).unwrap();
    publish(name, Kubelet::start().unwrap(), source)
}

/// Waits until the cluster has `count` allocations of a node, and returns them.
fn published(bench: &Bench, node: &str, count: usize) -> Vec<Value> {
    published_as(bench, node, |all| all.len() == count)
}

/// Waits until the allocations of a node in the cluster are as wanted, and returns them.
fn published_as(bench: &Bench, node: &str, wanted: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    let allocations = wait_until("the allocations", SOON, || {
        let object = control_plane().kubectl().get(&["nodetopology", node])?;
        let status = &object["status"];
        let allocations = status["allocations"].as_array();
        anyhow::ensure!(allocations.is_some_and(|all| wanted(all)), "{status:#}");
        Ok(allocations.cloned())
    });
    allocations.unwrap_or_else(|error| panic!("{error:#}\n{}", bench.exporter.process.log()))
}

const RECORD: &str = "alloc-record";

/// Creates a pod on the node [`RECORD`] and returns its UID.
fn create_there(kubectl: &Kubectl, name: &str) -> String {
    let pod = bound(kubectl, name, RECORD, |_| ());
    pod["metadata"]["uid"].as_str().unwrap().to_owned()
}

fn all_with_uid(all: &[Value], count: usize) -> bool {
    all.len() == count && all.iter().all(|one| one["podUid"].is_string())
}

#[test]
fn the_record_of_free_gpus_outlives_the_exporter() {
    let kubectl = ci();
    let bench = on_node(RECORD, "sim:dgx1-v100");
    published(&bench, RECORD, 0);
    create_there(&kubectl, "first");
    let second = create_there(&kubectl, "second");
    bench.run_pod("first", &[2, 3, 4, 5, 6, 7]);
    bench.wait_for_pod("first", 6);
    bench.run_pod("second", &[0, 1]);
    let text = bench.wait_for_pod("second", 2);
    assert_eq!(quality(&text, "second"), (Some(0.5), Some(1.0)));
    let second = json!({"namespace": "ci", "pod": "second", "podUid": second,
        "container": "main", "gpus": [0, 1], "freeWhenPlaced": [0, 1]});
    let all = published_as(&bench, RECORD, |all| all_with_uid(all, 2));
    assert_eq!(all[1], second);

    let bench = pods_come_unseen(&kubectl, bench);
    let text = bench.wait_for("the record", |text| quality(text, "second").1.is_some());
    assert_eq!(quality(&text, "second"), (Some(0.5), Some(1.0)));
    assert_eq!(quality(&text, "late"), (Some(0.5), None));
    let all = published_as(&bench, RECORD, |all| all_with_uid(all, 3));
    assert_eq!(all[0]["pod"], "first");
    let free = all[0].get("freeWhenPlaced");
    assert_eq!(free, None, "another pod with the same name");
    let text = bench.exporter.metrics().unwrap();
    assert_eq!(quality(&text, "first").1, None);

    // A pod with the same name and other GPUs is another pod.
    bench.kubelet.remove_pod("ci", "late");
    bench.run_pod("second", &[0, 5]);
    let text = bench.wait_for("another pod", |text| held(text, "second") == [0, 5]);
    // The pod could have got 1 and 5, which two links join.
    let (node, free) = quality(&text, "second");
    assert!(free.unwrap() < 0.4, "{free:?}");
    assert_eq!(free, node);
    let all = published(&bench, RECORD, 2);
    assert_eq!(all[1]["freeWhenPlaced"], json!([0, 1, 5]));
    both_managers_stay();
}

/// While no exporter runs, creates one pod, and another with the name and the GPUs of an
/// earlier one. Which GPUs were free for them is unknown.
fn pods_come_unseen(kubectl: &Kubectl, bench: Bench) -> Bench {
    let Bench {
        exporter,
        kubelet,
        uuids,
    } = bench;
    drop(exporter);
    let force = ["delete", "pod", "first", "--grace-period=0", "--force"];
    kubectl.run(&force).unwrap();
    create_there(kubectl, "first");
    create_there(kubectl, "late");
    let late = Container::named("main").holding(GPU, &[&uuids[0], &uuids[1]]);
    kubelet.run_pod("ci", "late", [late]);
    publish(RECORD, kubelet, "sim:dgx1-v100")
}

/// Asserts that the spec and the status have different managers.
fn both_managers_stay() {
    let object = control_plane()
        .kubectl()
        .get(&["nodetopology", RECORD, "--show-managed-fields"])
        .unwrap();
    assert_eq!(object["spec"]["gpus"].as_array().unwrap().len(), 8);
    let managers = object["metadata"]["managedFields"].to_string();
    assert!(
        managers.contains("nvlink-exporter-allocations"),
        "{managers}"
    );
}

#[test]
fn nothing_is_written_while_pods_do_not_change() {
    let bench = on_node("alloc-quiet", "sim:dgx1-v100");
    bench.run_pod("job", &[0, 1]);
    published(&bench, "alloc-quiet", 1);
    let version = || {
        let object = control_plane()
            .kubectl()
            .get(&["nodetopology", "alloc-quiet"]);
        object.unwrap()["metadata"]["resourceVersion"].clone()
    };
    let before = version();
    let calls = bench.kubelet.calls();
    bench.wait_for("more answers", |_| bench.kubelet.calls() > calls + 10);
    assert_eq!(version(), before);
}

/// Creates a pod on a node, as if the scheduler had chosen it.
fn bound(kubectl: &Kubectl, name: &str, node: &str, change: impl FnOnce(&mut Value)) -> Value {
    let mut pod = gpu_pod(name, 2);
    pod["spec"]["nodeName"] = json!(node);
    change(&mut pod);
    kubectl.create(&pod).unwrap()
}

#[test]
fn the_pattern_is_the_one_that_the_webhook_decided() {
    create_class("alloc-pattern", &json!({"access": {"mode": "Open"}}));
    let kubectl = namespace_with_class("alloc-pattern", "alloc-pattern");
    let bench = on_node("alloc-pattern", "sim:dgx1-v100");
    let name = "alloc-pattern";
    let pod = bound(&kubectl, "moe", name, |pod| {
        let all =
            json!({"nvlink-domains.io/pattern": "all-to-all", "nvlink-domains.io/gang": "two"});
        pod["metadata"]["annotations"] = all;
        pod["spec"].as_object_mut().unwrap().remove("nodeName");
        pod["spec"]["schedulerName"] = json!("nobody");
    });
    assert_eq!(decision(&pod).unwrap()["pattern"], "all-to-all");
    bind(&kubectl, "moe", name);
    let ids = [&bench.uuids[0], &bench.uuids[1]];
    let main = || Container::named("main").holding(GPU, &ids);
    bench.kubelet.run_pod("alloc-pattern", "moe", [main()]);
    bench.kubelet.run_pod("alloc-pattern", "nameless", [main()]);
    let says = |text: &str, pod: &str, pattern: &str, source: &str| {
        let labels = [("pod", pod), ("pattern", pattern), ("source", source)];
        value(text, "nvlink_placement_pattern_info", &labels) == Some(1.0)
    };
    let text = bench.wait_for("the decision", |text| {
        says(text, "moe", "all-to-all", "decision")
    });
    assert!(says(&text, "nameless", "all-reduce", "default"), "{text}");
    // The labels that the webhook wrote.
    let info = |labels: &[_]| value(&text, "nvlink_placement_info", labels);
    let path = [("gpus", "2"), ("path", "NVLINK")];
    let written = [
        ("class", "alloc-pattern"),
        ("project", "alloc-pattern"),
        ("gang", "gang two"),
    ];
    let of = |pod, more: &[_]| info(&[&[("pod", pod)][..], &path, more].concat());
    assert_eq!(of("moe", &written), Some(1.0), "{text}");
    assert_eq!(of("nameless", &[]), Some(1.0), "{text}");
    assert_eq!(of("nameless", &written[..1]), None, "{text}");

    // A pod that has ended holds no GPU, whatever the kubelet reports.
    end(&kubectl, "moe");
    bench.wait_for("its end", |text| !text.contains("pod=\"moe\""));
}

/// Lets a pod have ended.
fn end(kubectl: &Kubectl, pod: &str) {
    let ended = json!({"status": {"phase": "Succeeded"}}).to_string();
    let patch = ["patch", "pod", pod, "--subresource=status", "--type=merge"];
    kubectl
        .run(&[&patch[..], &["-p", &ended]].concat())
        .unwrap();
}

#[test]
fn a_pod_that_has_ended_holds_no_channel_as_long_as_the_kubelet_lists_it() {
    let name = "alloc-channel";
    let bench = on_node(name, "sim:dgx1-v100");
    bound(&ci(), "wide", name, |_| {});
    let driver = "compute-domain.nvidia.com";
    let main = Container::named("main").claiming_of(driver, "channel", name, &["channel-0"]);
    bench.kubelet.run_pod("ci", "wide", [main]);
    let holds = |text: &str| text.contains("nvlink_imex_channel_info{");
    bench.wait_for("the channel", holds);
    end(&ci(), "wide");
    bench.wait_for("its end", |text| !holds(text));
    let calls = bench.kubelet.calls();
    let later = bench.wait_for("more looks", |_| bench.kubelet.calls() > calls + 10);
    assert!(!holds(&later), "{later}");
}

/// Binds `pod` to `node`, as the scheduler does.
fn bind(kubectl: &Kubectl, pod: &str, node: &str) {
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node}});
    let path = format!(
        "/api/v1/namespaces/{}/pods/{pod}/binding",
        kubectl.namespace()
    );
    let arguments = ["create", "--raw", &path, "-f", "-"];
    kubectl.run_with(&arguments, &binding.to_string()).unwrap();
}

#[test]
fn dra_devices_are_identified_by_their_slices() {
    if nvlink_tests::assets::lacks("resource.k8s.io/v1", 34) {
        return;
    }
    let bench = on_node("alloc-dra", "sim:dgx1-v100");
    let run = |pod: &str, devices: &[&str]| {
        let main = Container::named("main").claiming("alloc-dra", devices);
        bench.kubelet.run_pod("ci", pod, [main]);
    };
    // The number of a device file is no index: without a slice, the GPUs are unknown.
    run("claimed", &["gpu-0", "gpu-1"]);
    let log = || bench.exporter.process.log();
    wait_until("the GPUs to be unknown", SOON, || {
        let told = "the kubelet reports GPU devices that are unknown on this node";
        Ok(log().contains(told).then_some(()))
    })
    .unwrap();
    assert_eq!(
        held(&bench.exporter.metrics().unwrap(), "claimed"),
        [0_u32; 0]
    );

    let attributes =
        |uuid: &str, kind: &str| json!({"uuid": {"string": uuid}, "type": {"string": kind}});
    let mut mig = attributes("MIG-7f3e1b1c-0000-5555-aaaa-123456789abc", "mig");
    mig["parentUUID"] = json!({"string": bench.uuids[5]});
    let mut twin = attributes("27ab9a0c-7d3c-5ac0-9f0c-3b5b1f4a7e52", "vfio");
    twin["resource.kubernetes.io/pciBusID"] = json!({"string": bus_id(&bench, 6)});
    create_slice(
        "alloc-dra",
        json!([
            {"name": "gpu-0", "attributes": attributes(&bench.uuids[3], "gpu")},
            {"name": "gpu-1", "attributes": attributes(&bench.uuids[2], "gpu")},
            {"name": "gpu-9-mig-1g18gb-19-0", "attributes": mig},
            {"name": "gpu-vfio-4", "attributes": twin},
        ]),
    );
    bench.wait_for("the slice", |text| held(text, "claimed") == [2, 3]);
    run("slice", &["gpu-9-mig-1g18gb-19-0"]);
    assert_eq!(held(&bench.wait_for_pod("slice", 1), "slice"), [5]);
    run("machine", &["gpu-vfio-4"]);
    assert_eq!(held(&bench.wait_for_pod("machine", 1), "machine"), [6]);
}

/// Returns the PCI address of a GPU, as the kernel writes it.
fn bus_id(bench: &Bench, gpu: usize) -> String {
    let topology = super::topology(&bench.exporter);
    let address = topology["spec"]["gpus"][gpu]["pciBusId"].as_str().unwrap();
    address["0000".len()..].to_ascii_lowercase()
}

/// Creates the ResourceSlice of a node.
fn create_slice(node: &str, devices: Value) {
    let slice = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
        "metadata": {"name": format!("{node}-gpus")},
        "spec": {
            "driver": "gpu.nvidia.com", "nodeName": node, "devices": devices,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        },
    });
    control_plane().kubectl().create(&slice).unwrap();
}

/// Creates a claim that has the devices of `looks` with admin access, and those of `holds` without.
fn create_claim(kubectl: &Kubectl, name: &str, pool: &str, looks: &[&str], holds: &[&str]) {
    let request = |name: &str, admin: bool| {
        let mut exactly = json!({"deviceClassName": "gpu.nvidia.com"});
        if admin {
            exactly["adminAccess"] = json!(true);
        }
        json!({"name": name, "exactly": exactly})
    };
    let claim = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name},
        "spec": {"devices": {"requests": [request("looks", true), request("holds", false)]}},
    });
    kubectl.create(&claim).unwrap();
    let result = |device: &&str, request: &str| {
        let mut result = json!({
            "driver": "gpu.nvidia.com", "pool": pool, "device": device, "request": request,
        });
        if request == "looks" {
            result["adminAccess"] = json!(true);
        }
        result
    };
    let looks = looks.iter().map(|device| result(device, "looks"));
    let results = looks.chain(holds.iter().map(|device| result(device, "holds")));
    let results: Vec<Value> = results.collect();
    let status = json!({"status": {"allocation": {"devices": {"results": results}}}});
    let patch = [
        "patch",
        "resourceclaim",
        name,
        "--subresource=status",
        "--type=merge",
    ];
    let status = status.to_string();
    kubectl
        .run(&[&patch[..], &["-p", &status]].concat())
        .unwrap();
}

/// The exporter has the rights of the chart and no more.
#[test]
fn a_pod_that_only_looks_holds_nothing() {
    if nvlink_tests::assets::lacks("admin access by default", 34) {
        return;
    }
    let name = "alloc-looks";
    let kubectl = ci();
    let label = ["label", "namespace", "ci", "--overwrite"];
    let admin = ["resource.kubernetes.io/admin-access=true"];
    kubectl.run(&[&label[..], &admin].concat()).unwrap();
    let bench = on_node(name, "sim:dgx1-v100");
    // In no order, and by numbers that are no indices.
    let device = |gpu: usize| {
        let uuid = &bench.uuids[gpu];
        let attributes = json!({"type": {"string": "gpu"}, "uuid": {"string": uuid}});
        json!({"name": format!("gpu-{}", 7 - gpu), "attributes": attributes})
    };
    let devices: Vec<Value> = [3, 0, 7, 1, 6, 2, 5, 4].into_iter().map(device).collect();
    create_slice(name, json!(devices));
    let all: Vec<String> = (0..8).map(|minor| format!("gpu-{minor}")).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    create_claim(&kubectl, "looks", name, &all, &[]);
    create_claim(&kubectl, "both", name, &all, &["gpu-7", "gpu-6"]);
    let run = |pod: &str, claim: &str, devices: &[&str]| {
        let main = Container::named("main").claiming_by(claim, name, devices);
        bench.kubelet.run_pod("ci", pod, [main]);
    };
    run("monitor", "looks", &all);
    run("both", "both", &all);
    // A claim that is gone, of a pod whose end the kubelet has not seen.
    run("gone", "gone", &["gpu-5"]);
    let text = bench.wait_for_pod("both", 2);
    assert_eq!(held(&text, "both"), [0, 1]);
    assert_eq!(held(&text, "monitor"), [0_u32; 0]);
    assert_eq!(
        held(&text, "gone"),
        [2],
        "held while nothing says otherwise"
    );
    let free = value(&text, "nvlink_largest_free_set_gpus", &[]);
    assert_eq!(free, Some(5.0), "{text}");
    let (node, free) = quality(&text, "both");
    assert_eq!(free, node, "all GPUs were free");
    published_as(&bench, name, |all| {
        let pods: Vec<&Value> = all.iter().map(|one| &one["pod"]).collect();
        pods == ["both", "gone"]
    });
    let log = bench.exporter.process.log();
    assert!(log.contains("cannot read ResourceClaims"), "{log}");
}

/// The exporter's own namespace is that of its kubeconfig: `default`.
#[test]
fn the_result_of_a_benchmark_comes_from_its_termination_message() {
    let name = "alloc-benchmark";
    let foreign = namespace_without_webhook(name);
    let bench = on_node(name, "sim:dgx-h100");
    let message = |gigabytes: u64| {
        let level = json!({"size": 1_u64 << 33, "bytesPerSecond": gigabytes * 1_000_000_000, "seconds": 0.04});
        let run =
            json!({"collective": "all_reduce", "gpus": 8, "nodes": 1, "levels": {"large": level}});
        json!({"nvlinkCollectives": 1, "runs": [run]}).to_string()
    };
    let end = |kubectl: &Kubectl, message: &str| {
        bound(kubectl, name, name, |pod| {
            pod["metadata"]["labels"] = json!({"nvlink-domains.io/benchmark": "true"});
            // Without GPUs, the webhook of other tests leaves it alone.
            pod["spec"]["containers"][0]["resources"] = json!({});
        });
        let terminated =
            json!({"exitCode": 0, "finishedAt": "2026-08-01T10:11:12Z", "message": message});
        let container = json!({"name": "main", "image": "x", "imageID": "", "ready": false,
            "restartCount": 0, "state": {"terminated": terminated}});
        let status = json!({"status": {"phase": "Succeeded", "containerStatuses": [container]}});
        let patch = ["patch", "pod", name, "--subresource=status", "--type=merge"];
        let status = status.to_string();
        kubectl
            .run(&[&patch[..], &["-p", &status]].concat())
            .unwrap();
    };
    end(&foreign, &message(999));
    end(
        &control_plane().kubectl().in_namespace("default"),
        &message(350),
    );
    let labels = [
        ("collective", "all_reduce"),
        ("gpus", "8"),
        ("path", "NVLINK"),
    ];
    let of =
        |text: &str, metric: &str| value(text, &format!("nvlink_collective_{metric}"), &labels);
    let text = bench.wait_for("the result", |text| of(text, "runs_total") == Some(1.0));
    assert_eq!(
        of(&text, "bus_bandwidth_bytes_per_second"),
        Some(350e9),
        "{text}"
    );
    assert_eq!(of(&text, "model_bytes_per_second"), Some(478.8e9), "{text}");
    assert_eq!(
        of(&text, "timestamp_seconds"),
        Some(1_785_579_072.0),
        "{text}"
    );
}
