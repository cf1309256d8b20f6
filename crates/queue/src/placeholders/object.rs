//! The placeholder of a waiting pod. Pure.

use nvlink_api::pod;
use nvlink_topology::labels;
use serde_json::{Map, Value, json};

use super::name;
use crate::feed::amounts::Amounts;

/// The name that the labels have, and the scheduler that no cluster has.
const NAME: &str = "nvlink-placeholder";
/// The type of the condition, and its reason (k8s.io/api, `PodScheduled` and `PodReasonUnschedulable`),
/// by which autoscalers know that a pod needs a node.
const CONDITION: &str = "PodScheduled";
const REASON: &str = "Unschedulable";

/// Returns the placeholder of `pod` for a node of `class`.
pub(crate) fn object(pod: &Value, class: &str, namespace: &str) -> Value {
    let text = |field| pod::text(pod, &["metadata", field]);
    let field = |field: &str| pod::at(pod, &["spec", field]).cloned();
    let mut spec = json!({
        "nodeSelector": field("nodeSelector"),
        "tolerations": field("tolerations"),
        "affinity": affinity(pod),
        "schedulerName": NAME,
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "securityContext": {
            "runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [{
            "name": "placeholder",
            // Never pulled.
            "image": "nvlink-domains.io/placeholder",
            "resources": resources(pod),
            "securityContext": {
                "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]},
            },
        }],
    });
    if let Some(fields) = spec.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "namespace": namespace,
            "name": name(text("uid")),
            "labels": {
                labels::PLACEHOLDER: class,
                "app.kubernetes.io/name": NAME, "app.kubernetes.io/part-of": "nvlink-domains",
            },
            "annotations": {
                labels::PLACEHOLDER_FOR: format!("{}/{}", text("namespace"), text("name")),
            },
        },
        "spec": spec,
    })
}

/// Returns the strategic merge patch of the status of a placeholder that was created at this time.
pub(super) fn condition(created: Option<&Value>) -> Value {
    json!({"status": {"conditions": [{
        "type": CONDITION, "status": "False", "reason": REASON,
        "message": "it requests a node of an autoscaler for a pod that waits in the queue, and never runs",
        "lastTransitionTime": created,
    }]}})
}

/// Reports whether autoscalers see that a pod needs a node.
pub(super) fn is_seen(pod: &Value) -> bool {
    let is = |one: &Value, key: &str, value: &str| pod::text(one, &[key]) == value;
    pod::list(pod, &["status", "conditions"])
        .any(|one| is(one, "type", CONDITION) && is(one, "reason", REASON))
}

/// Returns what a pod takes of its node. Kubernetes overcommits CPU, memory and storage only.
fn resources(pod: &Value) -> Value {
    let requests = Amounts::of_pod(pod).quantities();
    let plain = ["cpu", "memory", "ephemeral-storage"];
    let limits = requests
        .iter()
        .filter(|(name, _)| !plain.contains(&name.as_str()));
    let limits: Map<String, Value> = limits.map(|(a, b)| (a.clone(), b.clone())).collect();
    json!({"requests": requests, "limits": limits})
}

/// Returns the node affinity that a pod requires, without what only the exporter knows of a node: a node
/// that does not exist yet has none of its labels.
fn affinity(pod: &Value) -> Value {
    let path = [
        "spec",
        "affinity",
        "nodeAffinity",
        "requiredDuringSchedulingIgnoredDuringExecution",
        "nodeSelectorTerms",
    ];
    let mut terms: Vec<Value> = pod::list(pod, &path).cloned().collect();
    for term in &mut terms {
        let expressions = term.get_mut("matchExpressions");
        if let Some(expressions) = expressions.and_then(Value::as_array_mut) {
            expressions.retain(|one| !is_published(pod::text(one, &["key"])));
        }
    }
    // The terms are alternatives. An empty one would match no node.
    let is_empty = |term: &Value| {
        let lists = ["matchExpressions", "matchFields"];
        lists
            .iter()
            .all(|list| pod::list(term, &[list]).next().is_none())
    };
    if terms.iter().any(is_empty) {
        return Value::Null;
    }
    match terms.is_empty() {
        true => Value::Null,
        false => json!({"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms},
        }}),
    }
}

/// Reports whether the exporter, or its device plugin, writes this node label.
fn is_published(label: &str) -> bool {
    labels::NODE_LABELS.contains(&label) || label == labels::DEVICES
}
