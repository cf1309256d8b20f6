//! What a pod would demand of its node if it were created with a change: the webhook would write
//! other requirements than those that it wrote.

use std::collections::BTreeSet;

use nvlink_topology::labels;
use serde_json::{Value, json};

use nvlink_api::class::Class;

const REQUIRED: &str = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution";

/// Returns `pod` without what its number of GPUs and its scope require of a node's domains.
pub(super) fn of_any_size(pod: &Value) -> Value {
    let sizes = [
        labels::DOMAIN_SIZE,
        labels::HEALTHY_DOMAIN_SIZE,
        labels::DOMAIN,
    ];
    without(pod, &sizes.into())
}

/// Returns `pod` as one of `class` instead of `own`.
pub(super) fn of_class(pod: &Value, own: Option<&Class>, class: &Class) -> Value {
    let mut keys: BTreeSet<&str> = labels::NODE_LABELS.into();
    let selector = own.into_iter().flat_map(|own| &own.selector);
    keys.extend(selector.map(|(key, _)| key.as_str()));
    let mut pod = without(pod, &keys);
    if !pod["spec"].is_object() {
        return pod;
    }
    let toleration = json!({"key": labels::CLASS, "value": class.name});
    match &mut pod["spec"]["tolerations"] {
        Value::Array(all) => all.push(toleration),
        other => *other = json!([toleration]),
    }
    let Some(least) = class.min_bandwidth else {
        return pod;
    };
    let fast = json!({
        "key": labels::BANDWIDTH, "operator": "Gt", "values": [least.saturating_sub(1).to_string()],
    });
    let terms = pod.pointer_mut(&format!("{REQUIRED}/nodeSelectorTerms"));
    match terms.and_then(Value::as_array_mut) {
        Some(terms) => {
            for term in terms {
                if let Some(all) = term
                    .get_mut("matchExpressions")
                    .and_then(Value::as_array_mut)
                {
                    all.push(fast.clone());
                }
            }
        }
        None => {
            let terms = json!({"nodeSelectorTerms": [{"matchExpressions": [fast]}]});
            pod["spec"]["affinity"] = json!({
                "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}
            });
        }
    }
    pod
}

/// Returns `pod` without requirements on the node labels `keys`.
fn without(pod: &Value, keys: &BTreeSet<&str>) -> Value {
    let mut pod = pod.clone();
    let terms = pod.pointer_mut(&format!("{REQUIRED}/nodeSelectorTerms"));
    let Some(terms) = terms.and_then(Value::as_array_mut) else {
        return pod;
    };
    let mut free = false;
    for term in terms {
        let kept = |one: &Value| {
            let key = one.get("key").and_then(Value::as_str);
            !key.is_some_and(|key| keys.contains(key))
        };
        if let Some(all) = term
            .get_mut("matchExpressions")
            .and_then(Value::as_array_mut)
        {
            all.retain(kept);
        }
        let is_empty = |field| {
            term.get(field)
                .and_then(Value::as_array)
                .is_none_or(Vec::is_empty)
        };
        free |= is_empty("matchExpressions") && is_empty("matchFields");
    }
    // Of several terms one must match, and this one now does.
    if free
        && let Some(affinity) = pod
            .pointer_mut("/spec/affinity/nodeAffinity")
            .and_then(Value::as_object_mut)
    {
        affinity.remove("requiredDuringSchedulingIgnoredDuringExecution");
    }
    pod
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(terms: Value) -> Value {
        json!({"spec": {"affinity": {"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}
        }}}})
    }

    fn one(key: &str) -> Value {
        json!({"key": key, "operator": "Exists"})
    }

    #[test]
    fn only_what_the_webhook_wrote_is_dropped() {
        let own = json!([{"matchExpressions": [one("zone"), one(labels::DOMAIN_SIZE)]}]);
        let left = json!([{"matchExpressions": [one("zone")]}]);
        assert_eq!(of_any_size(&pod(own)), pod(left));
        let ours = json!([{"matchExpressions": [one(labels::DOMAIN_SIZE)]}]);
        let free = json!({"spec": {"affinity": {"nodeAffinity": {}}}});
        assert_eq!(of_any_size(&pod(ours)), free);
        assert_eq!(of_any_size(&json!(7)), json!(7));
    }

    #[test]
    fn another_class_brings_its_requirements() {
        let class = |name: &str, spec: Value| Class::read(name, &spec).unwrap();
        let own = class("a", json!({"nodeSelector": {"matchLabels": {"pool": "a"}}}));
        let fast = class("b", json!({"minBandwidth": "400GBps"}));
        let terms =
            json!([{"matchExpressions": [one("pool"), one(labels::BANDWIDTH), one("zone")]}]);
        let changed = of_class(&pod(terms), Some(&own), &fast);
        let least = json!({"key": labels::BANDWIDTH, "operator": "Gt", "values": ["399"]});
        let required = changed.pointer(REQUIRED).unwrap();
        let expected = json!([{"matchExpressions": [one("zone"), least]}]);
        assert_eq!(required["nodeSelectorTerms"], expected);
        let toleration = json!([{"key": labels::CLASS, "value": "b"}]);
        assert_eq!(changed["spec"]["tolerations"], toleration);
        let bare = of_class(&json!({"spec": {}}), Some(&own), &fast);
        let expected = json!([{"matchExpressions": [least]}]);
        assert_eq!(
            bare.pointer(REQUIRED).unwrap()["nodeSelectorTerms"],
            expected
        );
    }
}
