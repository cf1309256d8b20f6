//! The pods of the tests, and what to look for in them.

use std::time::Duration;

use nvlink_tests::{Kubectl, wait_until};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(60);

/// A container that asks for `gpus` GPUs.
pub(crate) fn container(name: &str, gpus: u32) -> Value {
    let mut container =
        json!({"name": name, "image": "busybox", "command": ["python", "train.py"]});
    if gpus > 0 {
        container["resources"] = json!({"limits": {"nvidia.com/gpu": gpus.to_string()}});
    }
    container
}

/// A pod spec whose one container asks for `gpus` GPUs.
pub(crate) fn spec(gpus: u32) -> Value {
    json!({"restartPolicy": "Never", "containers": [container("main", gpus)]})
}

/// A bare pod that asks for `gpus` GPUs.
pub(crate) fn gpu_pod(name: &str, gpus: u32) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec(gpus)})
}

/// The webhook's decision on a pod, if it made one.
pub(crate) fn decision(pod: &Value) -> Option<Value> {
    let text = pod["metadata"]["annotations"]["nvlink-domains.io/decision"].as_str()?;
    Some(serde_json::from_str(text).expect("the decision is JSON"))
}

/// The value of a container's environment variable.
pub(crate) fn variable<'a>(container: &'a Value, name: &str) -> Option<&'a str> {
    let mut variables = container["env"].as_array()?.iter();
    variables.find(|one| one["name"] == name)?["value"].as_str()
}

/// The alternatives of a pod's required node affinity.
pub(crate) fn node_terms(pod: &Value) -> &[Value] {
    let affinity = &pod["spec"]["affinity"]["nodeAffinity"];
    let required = &affinity["requiredDuringSchedulingIgnoredDuringExecution"];
    required["nodeSelectorTerms"]
        .as_array()
        .map_or(&[], Vec::as_slice)
}

/// What the webhook requires of a node for `gpus` GPUs in one domain.
pub(crate) fn domain_of(gpus: u32) -> Value {
    json!({
        "key": "nvlink-domains.io/domain-size", "operator": "Gt", "values": [(gpus - 1).to_string()],
    })
}

/// Fails unless `pod` has all that the class gives to a pod of `gpus` GPUs.
#[track_caller]
pub(crate) fn assert_mutated(pod: &Value, class: &str, gpus: u32) {
    let decision = decision(pod).unwrap_or_else(|| panic!("the webhook did not touch {pod:#}"));
    assert_eq!(decision["class"], class);
    assert_eq!(decision["gpus"], gpus);
    assert_eq!(pod["metadata"]["labels"]["nvlink-domains.io/class"], class);
    let terms = node_terms(pod);
    assert!(!terms.is_empty(), "there is node affinity");
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

/// The pods that match a selector, once there are `count` that satisfy `wanted`.
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

/// Whether the scheduler has chosen a node.
pub(crate) fn is_bound(pod: &Value) -> bool {
    pod["spec"]["nodeName"].is_string()
}

/// Whether the scheduler has looked at the pod and found no node.
pub(crate) fn is_unschedulable(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    conditions
        .into_iter()
        .flatten()
        .any(|one| one["reason"] == "Unschedulable")
}

/// The pod's spec without what differs between two pods made alike.
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
