//! From the fault of a GPU to the node on which the scheduler places a job.

use std::{collections::BTreeSet, time::Duration};

use nvlink_tests::{Exporter, Kubectl, Node, assets, http, node, programs, wait_until};
use serde_json::{Value, json};

use crate::{
    pods::{gpu_pod, is_bound, is_unschedulable, wait_for_pods},
    shared::{control_plane, create_class, namespace_with_class, namespace_without_webhook},
};

const SOON: Duration = Duration::from_secs(30);
const FAULT: &str = r#"[{"recovery-action": {"gpu": 2, "action": "gpu_reset"}}]"#;

/// Starts an exporter of a node of its own in `pool`.
fn exporter(name: &str, pool: &str) -> Exporter {
    let control_plane = control_plane();
    let arguments = ["--source", "sim:dgx-h100", "--collection-interval", "100ms"];
    node::create(control_plane.kubectl(), &[Node::new(name, 8).pool(pool)]).unwrap();
    Exporter::publishing(control_plane.kubeconfig(), name, &arguments).unwrap()
}

pub(crate) fn set(exporter: &Exporter, faults: &str) {
    let answer = http::send("PUT", &exporter.url("/sim/faults"), faults).unwrap();
    assert_eq!(answer.status, 200, "{}", answer.body);
}

/// Waits until the node's largest domain has `gpus` healthy GPUs.
fn wait_for_healthy(name: &str, gpus: &str) {
    let label = "nvlink-domains.io/healthy-domain-size";
    wait_until(&format!("{gpus} healthy GPUs of {name}"), SOON, || {
        let node = control_plane().kubectl().get(&["node", name])?;
        let labels = &node["metadata"]["labels"];
        anyhow::ensure!(labels[label] == gpus, "the label is {}", labels[label]);
        assert_eq!(labels["nvlink-domains.io/domain-size"], "8");
        Ok(Some(()))
    })
    .unwrap();
}

/// Returns the faults of each GPU in the NodeTopology, once GPU 2 has `wanted`.
fn wait_for_faults(name: &str, wanted: &Value) {
    wait_until(&format!("the faults {wanted} of {name}"), SOON, || {
        let topology = control_plane().kubectl().get(&["nodetopology", name])?;
        let found = &topology["spec"]["gpus"][2]["faults"];
        anyhow::ensure!(found == wanted, "the faults are {found}");
        Ok(Some(()))
    })
    .unwrap();
}

/// Creates a pod of `gpus` GPUs and waits until `wanted` is true of it; returns its node.
fn place(kubectl: &Kubectl, name: &str, gpus: u32, wanted: fn(&Value) -> bool) -> Value {
    let mut pod = gpu_pod(name, gpus);
    pod["metadata"]["labels"] = json!({"job": name});
    node::in_pool(&mut pod["spec"], "broken");
    kubectl.create(&pod).unwrap();
    let pods = wait_for_pods(kubectl, &format!("job={name}"), 1, wanted);
    pods[0]["spec"]["nodeName"].clone()
}

fn remove(kubectl: &Kubectl) {
    let now = ["--all", "--force", "--grace-period=0"];
    kubectl
        .run(&[&["delete", "pods"][..], &now].concat())
        .unwrap();
}

#[test]
fn a_broken_gpu_keeps_jobs_off_its_node_until_it_is_reset() {
    let (a, b) = (
        exporter("broken-a", "broken"),
        exporter("broken-b", "broken"),
    );
    wait_for_healthy("broken-a", "8");
    wait_for_healthy("broken-b", "8");
    set(&a, FAULT);
    wait_for_healthy("broken-a", "7");
    wait_for_faults("broken-a", &json!(["recovery-gpu-reset"]));
    let metrics = a.metrics().unwrap();
    let unhealthy = metrics
        .lines()
        .filter(|line| line.starts_with("nvlink_gpu_unhealthy{"));
    let unhealthy: Vec<_> = unhealthy.collect();
    let [series] = &unhealthy[..] else {
        panic!("{unhealthy:?}");
    };
    assert!(
        series.contains("gpu=\"2\"") && series.contains("reason=\"recovery-gpu-reset\""),
        "{series}"
    );

    // The document that the exporter serves is what `place` reads.
    let served = http::text(&a.url("/api/v1/topology")).unwrap();
    let served: Value = serde_json::from_str(&served).unwrap();
    assert_eq!(
        served["spec"]["gpus"][2]["faults"],
        json!(["recovery-gpu-reset"])
    );

    create_class(
        "broken-avoid",
        &json!({"placement": {"brokenGpus": "Avoid"}}),
    );
    create_class("broken-last", &json!({}));
    let avoid = namespace_with_class("broken-avoid", "broken-avoid");
    let last = namespace_with_class("broken-last", "broken-last");
    for (kubectl, name) in [(&avoid, "avoid"), (&last, "last")] {
        assert_eq!(place(kubectl, name, 8, is_bound), "broken-b", "{name}");
        remove(kubectl);
    }
    // Where no node is healthy, one class waits and the other takes what there is.
    set(&b, FAULT);
    wait_for_healthy("broken-b", "7");
    assert!(place(&avoid, "eight", 8, is_unschedulable).is_null());
    assert!(place(&avoid, "seven", 7, is_bound).is_string());
    assert!(place(&last, "eight", 8, is_bound).is_string());
    remove(&last);

    set(&b, r#"[{"gpu-reset": {"gpu": 2}}]"#);
    wait_for_healthy("broken-b", "8");
    wait_for_faults("broken-b", &Value::Null);
    remove(&avoid);
    assert_eq!(place(&avoid, "again", 8, is_bound), "broken-b");
}

/// Creates a ResourceSlice with GPU 2 of `node`, as NVIDIA's DRA driver does.
pub(crate) fn create_slice(kubectl: &Kubectl, node: &str) {
    let topology = kubectl.get(&["nodetopology", node]).unwrap();
    let uuid = &topology["spec"]["gpus"][2]["uuid"];
    let slice = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": node},
        "spec": {
            "driver": "gpu.nvidia.com", "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "gpu-2", "attributes": {"uuid": {"string": uuid}}}],
        },
    });
    kubectl.create(&slice).unwrap();
}

/// Adds the device that passes GPU 2 through to a virtual machine: only its PCI address is that of the
/// GPU.
fn add_twin(kubectl: &Kubectl, node: &str) {
    let topology = kubectl.get(&["nodetopology", node]).unwrap();
    let address = topology["spec"]["gpus"][2]["pciBusId"].as_str().unwrap();
    let twin = json!({"name": "gpu-vfio-2", "attributes": {
        "uuid": {"string": "4ad4a2c5-9f3e-5b0e-8a6e-1f0f4a1f2a3b"},
        "resource.kubernetes.io/pciBusID": {"string": nvlink_topology::bus_id(address)},
    }});
    let patch = json!([{"op": "add", "path": "/spec/devices/-", "value": twin}]).to_string();
    let patch = ["patch", "resourceslice", node, "--type=json", "-p", &patch];
    kubectl.run(&patch).unwrap();
}

/// Waits until `node` has `count` DeviceTaintRules, and returns them.
pub(crate) fn wait_for_rules(kubectl: &Kubectl, node: &str, count: usize) -> Vec<Value> {
    let label = format!("nvlink-domains.io/node={node}");
    wait_until(&format!("{count} DeviceTaintRules of {node}"), SOON, || {
        let rules = kubectl.get(&["devicetaintrules", "-l", &label])?;
        let rules = rules["items"].as_array().cloned().unwrap_or_default();
        Ok((rules.len() == count).then_some(rules))
    })
    .unwrap()
}

/// Creates a pod with a claim of a GPU of `node`, and waits until `wanted` is true of it.
fn claim(kubectl: &Kubectl, name: &str, node: &str, wanted: fn(&Value) -> bool) {
    let claim = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name},
        "spec": {"devices": {"requests": [
            {"name": "gpu", "exactly": {"deviceClassName": "broken-gpu"}}
        ]}},
    });
    kubectl.create(&claim).unwrap();
    let mut pod = gpu_pod(name, 0);
    pod["metadata"]["labels"] = json!({"job": name});
    node::in_pool(&mut pod["spec"], node);
    pod["spec"]["resourceClaims"] = json!([{"name": "gpu", "resourceClaimName": name}]);
    pod["spec"]["containers"][0]["resources"] = json!({"claims": [{"name": "gpu"}]});
    kubectl.create(&pod).unwrap();
    wait_for_pods(kubectl, &format!("job={name}"), 1, wanted);
}

/// Asserts that the rules taint both devices of GPU 2 of `node`.
fn assert_tainted(rules: &[Value], node: &str, reason: &str) {
    let mut devices = BTreeSet::new();
    for rule in rules {
        let (selector, taint) = (&rule["spec"]["deviceSelector"], &rule["spec"]["taint"]);
        assert_eq!(selector["driver"], "gpu.nvidia.com");
        assert_eq!(selector["pool"], node);
        devices.extend(selector["device"].as_str());
        assert_eq!(taint["key"], "nvlink-domains.io/broken");
        assert_eq!(taint["value"], reason);
        assert_eq!(taint["effect"], "NoSchedule");
    }
    assert_eq!(devices, BTreeSet::from(["gpu-2", "gpu-vfio-2"]));
}

#[test]
fn a_broken_gpu_is_tainted_for_claims_until_it_is_reset() {
    if assets::lacks_taint_rules() {
        return;
    }
    let (name, kubectl) = ("broken-dra", control_plane().kubectl());
    let exporter = exporter(name, name);
    wait_for_healthy(name, "8");
    wait_for_faults(name, &Value::Null);
    create_slice(kubectl, name);
    add_twin(kubectl, name);
    let class = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass",
        "metadata": {"name": "broken-gpu"},
        "spec": {"selectors": [{"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}]},
    });
    kubectl.create(&class).unwrap();
    let jobs = namespace_without_webhook("broken-dra");

    set(&exporter, FAULT);
    let rules = wait_for_rules(kubectl, name, 2);
    assert_tainted(&rules, name, "recovery-gpu-reset");
    assert_eq!(rules[0]["metadata"]["ownerReferences"][0]["name"], name);
    claim(&jobs, "tainted", name, is_unschedulable);

    remove(&jobs);
    set(&exporter, r#"[{"gpu-reset": {"gpu": 2}}]"#);
    wait_for_rules(kubectl, name, 0);
    claim(&jobs, "healed", name, is_bound);
    remove(&jobs);

    // A lost GPU is tainted, too, and `unpublish` removes what is left.
    set(&exporter, r#"[{"gpu-lost": {"gpu": 2}}]"#);
    let rules = wait_for_rules(kubectl, name, 2);
    assert_tainted(&rules, name, "lost");
    drop(exporter);
    let mut unpublish = nvlink_tests::command(programs::path(programs::EXPORTER).unwrap());
    unpublish.args(["unpublish", "--node-name", name]);
    let output = unpublish
        .env("KUBECONFIG", control_plane().kubeconfig())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    wait_for_rules(kubectl, name, 0);
}
