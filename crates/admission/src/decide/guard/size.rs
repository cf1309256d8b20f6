//! Limits on the size of pods. The policies evaluate each part of a pod, some of them once per
//! class. Without a limit, anybody who may create pods could keep the API server busy for seconds
//! with a single pod.

use nvlink_api::pod;
use serde_json::Value;

use crate::decide::refusal::{Refusal, Rule};

/// The most parts that a pod may have. Today's pods have a few dozen.
pub const MOST_PARTS: usize = 2000;
/// The longest path of a `hostPath`, in characters: `PATH_MAX` of Linux.
pub const LONGEST_PATH: usize = 4096;

/// The most bytes of an object that etcd stores by default (`--max-request-bytes`).
const STORED: usize = 1_572_864;
/// The most bytes of the texts in a pod that waits. The queue adds annotations, of which Kubernetes allows
/// 262,144 bytes in all, conditions, and a node for each affinity term.
const MOST_BYTES: usize = 1_048_576;

pub(super) fn check(pod: &Value) -> Result<(), Refusal> {
    let parts = parts(pod);
    let paths = pod::list(pod, &["spec", "volumes"])
        .filter_map(|volume| pod::at(volume, &["hostPath", "path"])?.as_str());
    if parts <= MOST_PARTS
        && paths
            .into_iter()
            .all(|path| path.chars().count() <= LONGEST_PATH)
    {
        return Ok(());
    }
    Err(Refusal::new(
        Rule::Size,
        format!(
            "the pod has more than {MOST_PARTS} containers, variables, mounts, resources, volumes, tolerations, affinity terms, labels and annotations together, or a hostPath of more than {LONGEST_PATH} characters: move large settings into a ConfigMap"
        ),
    ))
}

/// Refuses a pod that waits in a queue and is so large that the queue could not write into it later: it
/// would hold its GPUs for ever. `pod` is what the API server will store.
pub(in crate::decide) fn check_room(pod: &Value) -> Result<(), Refusal> {
    let bytes = bytes(pod);
    if bytes <= MOST_BYTES {
        return Ok(());
    }
    Err(Refusal::new(
        Rule::Size,
        format!(
            "the pod has {bytes} bytes of text, but a pod that waits in the queue may have at most {MOST_BYTES}: the API server stores at most {STORED} bytes of a pod, and the queue writes into it. Move what is large, such as arguments or a script, into a ConfigMap or the image"
        ),
    ))
}

/// Returns the length of all keys and texts.
fn bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(list) => list.iter().map(bytes).sum(),
        Value::Object(map) => map
            .iter()
            .map(|(key, value)| key.len() + bytes(value))
            .sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 1,
    }
}

/// Returns the number of parts that the rules evaluate one by one.
fn parts(pod: &Value) -> usize {
    let kinds = ["containers", "initContainers", "ephemeralContainers"];
    let containers = kinds
        .iter()
        .flat_map(|kind| pod::list(pod, &["spec", kind]));
    let own: usize = containers.map(|one| 1 + of_container(one)).sum();
    let lists = ["volumes", "tolerations", "schedulingGates"];
    let lists: usize = lists
        .iter()
        .map(|name| pod::list(pod, &["spec", name]).count())
        .sum();
    let terms = pod::list(
        pod,
        &[
            "spec",
            "affinity",
            "nodeAffinity",
            "requiredDuringSchedulingIgnoredDuringExecution",
            "nodeSelectorTerms",
        ],
    );
    let terms: usize = terms
        .map(|term| 1 + size(term, &["matchExpressions"]))
        .sum();
    let maps = [
        ["metadata", "labels"],
        ["metadata", "annotations"],
        ["spec", "nodeSelector"],
    ];
    own + lists + terms + maps.iter().map(|map| size(pod, map)).sum::<usize>()
}

fn of_container(container: &Value) -> usize {
    let lists: [&[&str]; 7] = [
        &["env"],
        &["envFrom"],
        &["volumeMounts"],
        &["resources", "claims"],
        &["resources", "limits"],
        &["resources", "requests"],
        &["securityContext", "capabilities", "add"],
    ];
    lists.iter().map(|path| size(container, path)).sum()
}

/// Returns the number of entries of a list or map.
fn size(value: &Value, path: &[&str]) -> usize {
    match pod::at(value, path) {
        Some(Value::Array(entries)) => entries.len(),
        Some(Value::Object(entries)) => entries.len(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(field: &str, count: usize) -> Value {
        let container = |entries: Value| json!({"name": "main", field: entries});
        let entries: Vec<_> = (0..count)
            .map(|number| json!({"name": number.to_string()}))
            .collect();
        json!({"spec": {"containers": [container(json!(entries))]}})
    }

    #[test]
    fn the_parts_of_a_pod_are_counted() {
        check(&pod("env", MOST_PARTS - 1)).unwrap();
        let refused = check(&pod("env", MOST_PARTS)).unwrap_err();
        assert_eq!(refused.rule, Rule::Size);
        check(&pod("volumeMounts", MOST_PARTS)).unwrap_err();
        check(&pod("ports", 10 * MOST_PARTS)).unwrap();
        let path =
            |length| json!({"spec": {"volumes": [{"hostPath": {"path": "x".repeat(length)}}]}});
        check(&path(LONGEST_PATH)).unwrap();
        check(&path(LONGEST_PATH + 1)).unwrap_err();
    }

    #[test]
    fn the_queue_has_room_to_write() {
        let pod = |length: usize| json!({"spec": {"containers": [{"args": ["x".repeat(length)]}]}});
        check_room(&pod(MOST_BYTES - 100)).unwrap();
        let refused = check_room(&pod(MOST_BYTES)).unwrap_err();
        assert_eq!(refused.rule, Rule::Size);
        assert!(refused.message.contains("ConfigMap"), "{refused}");
    }
}
