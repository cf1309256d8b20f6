//! What the queue keeps of a pod.

use serde_json::Value;

use crate::notice;

/// Removes large parts that the queue never reads.
pub(crate) fn prune(pod: &mut Value) {
    if let Some(metadata) = pod.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    if let Some(status) = pod.get_mut("status").and_then(Value::as_object_mut) {
        let read = ["phase", "startTime", "conditions", "containerStatuses"];
        status.retain(|key, _| read.contains(&key.as_str()));
        let conditions = status.get_mut("conditions").and_then(Value::as_array_mut);
        // The others keep their places in the list, by which a patch names them.
        for condition in conditions.into_iter().flatten() {
            if !notice::is_ours(condition)
                && let Some(condition) = condition.as_object_mut()
            {
                condition.retain(|key, _| ["type", "reason"].contains(&key.as_str()));
            }
        }
    }
    let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) else {
        return;
    };
    if let Some(volumes) = spec.get_mut("volumes").and_then(Value::as_array_mut) {
        volumes.retain(|volume| volume.get("persistentVolumeClaim").is_some());
    }
    for list in ["containers", "initContainers"] {
        let containers = spec.get_mut(list).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            if let Some(container) = container.as_object_mut() {
                for field in [
                    "volumeMounts",
                    "livenessProbe",
                    "readinessProbe",
                    "startupProbe",
                    "lifecycle",
                ] {
                    container.remove(field);
                }
            }
        }
    }
}
