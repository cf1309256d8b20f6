//! The pods of the tests, and checks on them.

use std::time::Duration;

use nvlink_tests::{Kubectl, wait_until};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(60);

/// Returns a container that requests `gpus` GPUs.
pub(crate) fn container(name: &str, gpus: u32) -> Value {
    let mut container =
        json!({"name": name, "image": "busybox", "command": ["python", "train.py"]});
    if gpus > 0 {
        container["resources"] = json!({"limits": {"nvidia.com/gpu": gpus.to_string()}});
    }
    container
}

/// Returns a pod spec with one container that requests `gpus` GPUs.
pub(crate) fn spec(gpus: u32) -> Value {
    json!({"restartPolicy": "Never", "containers": [container("main", gpus)]})
}

/// Returns a bare pod that requests `gpus` GPUs.
pub(crate) fn gpu_pod(name: &str, gpus: u32) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec(gpus)})
}

/// Returns the webhook's decision on a pod, if it made one.
pub(crate) fn decision(pod: &Value) -> Option<Value> {
    let text = pod["metadata"]["annotations"]["nvlink-domains.io/decision"].as_str()?;
    Some(serde_json::from_str(text).expect("the decision is JSON"))
}

/// Returns the value of a container's environment variable.
pub(crate) fn variable<'a>(container: &'a Value, name: &str) -> Option<&'a str> {
    let mut variables = container["env"].as_array()?.iter();
    variables.find(|one| one["name"] == name)?["value"].as_str()
}

/// Returns the alternatives of a pod's required node affinity.
pub(crate) fn node_terms(pod: &Value) -> &[Value] {
    let affinity = &pod["spec"]["affinity"]["nodeAffinity"];
    let required = &affinity["requiredDuringSchedulingIgnoredDuringExecution"];
    required["nodeSelectorTerms"]
        .as_array()
        .map_or(&[], Vec::as_slice)
}

/// Returns the webhook's requirement on nodes for `gpus` GPUs in one domain.
pub(crate) fn domain_of(gpus: u32) -> Value {
    json!({
        "key": "nvlink-domains.io/domain-size", "operator": "Gt", "values": [(gpus - 1).to_string()],
    })
}

/// Asserts that `pod` has everything that the class gives to a pod of `gpus` GPUs.
#[track_caller]
pub(crate) fn assert_mutated(pod: &Value, class: &str, gpus: u32) {
    let decision = decision(pod).unwrap_or_else(|| panic!("the webhook did not change {pod:#}"));
    assert_eq!(decision["class"], class);
    assert_eq!(decision["gpus"], gpus);
    assert_eq!(pod["metadata"]["labels"]["nvlink-domains.io/class"], class);
    let terms = node_terms(pod);
    assert!(!terms.is_empty(), "the pod has no node affinity");
    for term in terms {
        let expressions = term["matchExpressions"].as_array().expect("expressions");
        assert!(expressions.contains(&domain_of(gpus)), "{term:#}");
    }
    let devices: Vec<String> = (0..gpus).map(|device| device.to_string()).collect();
    let main = &pod["spec"]["containers"][0];
    assert_eq!(
        variable(main, "CUDA_VISIBLE_DEVICES"),
        Some(&*devices.join(","))
    );
    assert_eq!(variable(main, "CUDA_DEVICE_ORDER"), Some("PCI_BUS_ID"));
}

/// Waits until `count` pods that match a selector satisfy `wanted`, and returns all that match.
pub(crate) fn wait_for_pods(
    kubectl: &Kubectl,
    selector: &str,
    count: usize,
    wanted: impl Fn(&Value) -> bool,
) -> Vec<Value> {
    wait_until(&format!("{count} pods with {selector}"), SOON, || {
        let pods = kubectl.get(&["pods", "-l", selector])?;
        let pods = pods["items"].as_array().cloned().unwrap_or_default();
        let matching = pods.iter().filter(|pod| wanted(pod)).count();
        anyhow::ensure!(
            matching == count,
            "{matching} of {} pods are as wanted",
            pods.len()
        );
        Ok(Some(pods))
    })
    .unwrap()
}

/// Reports whether the scheduler has chosen a node.
pub(crate) fn is_bound(pod: &Value) -> bool {
    pod["spec"]["nodeName"].is_string()
}

/// Reports whether the scheduler has tried the pod and found no node.
pub(crate) fn is_unschedulable(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    conditions
        .into_iter()
        .flatten()
        .any(|one| one["reason"] == "Unschedulable")
}

/// Returns the pod without the fields that differ between two pods made in the same way.
pub(crate) fn comparable(pod: &Value) -> Value {
    let mut pod = pod.clone();
    let metadata = pod["metadata"].as_object_mut().expect("metadata");
    for own in [
        "name",
        "namespace",
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "managedFields",
    ] {
        metadata.remove(own);
    }
    pod["spec"]
        .as_object_mut()
        .expect("spec")
        .remove("nodeName");
    pod.as_object_mut().expect("a pod").remove("status");
    pod
}
