//! Which nodes a pod may run on: node affinity, toleration, and affinity within a gang.
//!
//! The user's own terms are narrowed, never replaced.

use json_patch::jsonptr::{Pointer, PointerBuf};
use nvlink_api::{
    class::Class,
    crd::domain_class::Mapping,
    patch::{Editor, WrongType},
    pod,
};
use nvlink_topology::{BrokenGpus, Pattern, Scope, labels};
use serde_json::{Value, json};

use super::{
    Chosen, Settings,
    refusal::{Refusal, Rule},
};

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
/// The weight of a preference for nodes in one NVLink domain with other pods of the gang. Half of it is
/// that of one rack, and so on: closer is worth more than all that is farther.
const CLOSE: u32 = 100;
/// The weight of a preference for healthy nodes, the highest one.
const HEALTHY: u32 = 100;
/// The weight of a preference for nodes that are not slow: a slow node comes after all others
/// that are healthy, and before those with broken GPUs.
const NOT_SLOW: u32 = 50;

/// Returns the size of the domain that the pod needs on its node, or `None` if its GPUs need not
/// share a domain: for a single GPU, or a scope other than a domain.
#[must_use]
pub fn domain_size(scope: Scope, gpus: u32) -> Option<u32> {
    (scope == Scope::NvlinkDomain && gpus >= 2).then_some(gpus)
}

/// Adds a preference for nodes with a domain that is large enough without its broken GPUs. A
/// class that avoids broken GPUs requires such nodes instead.
pub(super) fn prefer_healthy_nodes(pod: &mut Editor, chosen: &Chosen) -> Result<(), Refusal> {
    let size = domain_size(chosen.scope, chosen.gpus);
    let Some(size) = size.filter(|_| chosen.class.broken_gpus == BrokenGpus::Last) else {
        return Ok(());
    };
    prefer(pod, HEALTHY, &above(labels::HEALTHY_DOMAIN_SIZE, size))
}

/// Adds a preference for nodes whose benchmarks do not measure below those of their siblings.
/// Pods whose GPUs communicate with no others get none, so that they use up slow nodes.
pub(super) fn prefer_fast_nodes(pod: &mut Editor, chosen: &Chosen) -> Result<(), Refusal> {
    let alone = chosen.gpus < 2 && chosen.intent.gang.is_none();
    if alone || chosen.pattern == Pattern::None {
        return Ok(());
    }
    prefer(
        pod,
        NOT_SLOW,
        &json!({"key": labels::SLOW, "operator": "DoesNotExist"}),
    )
}

fn prefer(pod: &mut Editor, weight: u32, expression: &Value) -> Result<(), Refusal> {
    let term = json!({"weight": weight, "preference": {"matchExpressions": [expression]}});
    let path = affinity("nodeAffinity", PREFERRED);
    Ok(append_missing(pod, &path, &[term])?)
}

/// Adds node affinity for nodes of the class with domains that are large and fast enough.
pub(super) fn require_nodes(pod: &mut Editor, chosen: &Chosen) -> Result<(), Refusal> {
    let expressions = expressions(&chosen.class, chosen.required_domain());
    Ok(require(pod, expressions)?)
}

/// Adds node affinity for nodes that meet all `expressions`.
pub(super) fn require(pod: &mut Editor, expressions: Vec<Value>) -> Result<(), WrongType> {
    narrow(pod, "matchExpressions", expressions)
}

/// Narrows the pod's node affinity to one node, also while Kubernetes allows only that: each term
/// gets a requirement, and none is changed.
///
/// # Errors
/// When a part of the affinity has the wrong type.
pub fn pin(pod: &mut Editor, node: &str) -> Result<(), WrongType> {
    let field = json!({"key": "metadata.name", "operator": "In", "values": [node]});
    narrow(pod, "matchFields", vec![field])
}

/// Adds requirements to each alternative of the pod's required node affinity, as its
/// `matchExpressions` or `matchFields`.
fn narrow(pod: &mut Editor, kind: &str, requirements: Vec<Value>) -> Result<(), WrongType> {
    if requirements.is_empty() {
        return Ok(());
    }
    let required = affinity("nodeAffinity", REQUIRED);
    let terms = required.with_trailing_token("nodeSelectorTerms");
    if pod.get(&required).is_none() {
        let term = Value::from_iter([(kind, Value::Array(requirements))]);
        return pod.append(&terms, term);
    }
    // The terms are alternatives, so each of them is narrowed. A term without requirements matches
    // no node, and a new requirement would make it match some: it stays as it is.
    let count = pod
        .get(&terms)
        .and_then(Value::as_array)
        .map_or(0, Vec::len);
    for index in 0..count {
        let at = |field: &str| terms.concat(&PointerBuf::from_tokens([&index.to_string(), field]));
        let filled = |field| pod.get(&at(field)).is_some_and(|list| list != &json!([]));
        if !filled("matchExpressions") && !filled("matchFields") {
            continue;
        }
        append_missing(pod, &at(kind), &requirements)?;
    }
    Ok(())
}

fn expressions(class: &Class, size: Option<u32>) -> Vec<Value> {
    let selector = class.selector.iter();
    let size = match class.broken_gpus {
        // Also a single GPU must be a healthy one.
        BrokenGpus::Avoid => Some(above(labels::HEALTHY_DOMAIN_SIZE, size.unwrap_or(1))),
        _ => size.map(|size| above(labels::DOMAIN_SIZE, size)),
    };
    selector
        .map(|(key, value)| json!({"key": key, "operator": "In", "values": [value]}))
        .chain(size)
        // The bandwidth defines the nodes of the class, whatever the pod's size.
        .chain(
            class
                .min_bandwidth
                .map(|least| above(labels::BANDWIDTH, least)),
        )
        .chain((class.mapping == Mapping::Preferred).then(preferring))
        .collect()
}

/// Returns the requirement that `nvlink-exporter device-plugin` runs on the node.
fn preferring() -> Value {
    json!({"key": labels::DEVICES, "operator": "In", "values": [labels::PREFERRED]})
}

/// Returns the requirement that the label `key` is at least `least`, which is above 0.
fn above(key: &str, least: u32) -> Value {
    json!({"key": key, "operator": "Gt", "values": [(least - 1).to_string()]})
}

/// Adds a toleration of the taint that keeps other pods off the nodes of the class.
pub(super) fn tolerate(pod: &mut Editor, class: &Class) -> Result<(), Refusal> {
    let path = Pointer::from_static("/spec/tolerations");
    let same = |toleration: &Value| {
        let field = |name: &str| toleration.get(name).and_then(Value::as_str);
        field("key") == Some(labels::CLASS)
            && field("operator").is_none_or(|operator| operator == "Equal" || operator.is_empty())
            && field("value") == Some(&class.name)
            && field("effect") == Some("NoSchedule")
            && toleration
                .get("tolerationSeconds")
                .is_none_or(Value::is_null)
    };
    if pod
        .get(path)
        .and_then(Value::as_array)
        .is_some_and(|all| all.iter().any(same))
    {
        return Ok(());
    }
    let toleration = json!({
        "key": labels::CLASS, "operator": "Equal", "value": class.name, "effect": "NoSchedule"
    });
    Ok(pod.append(path, toleration)?)
}

/// Adds pod affinity that keeps the pods of a gang together: as close as possible, and within the
/// gang's scope.
///
/// The scheduler places the first pod of the gang, although there is no other pod yet, only if the
/// pod matches all of its own required terms. If it did not match a term of the user's, the whole
/// gang would stay Pending forever, so such a pod is refused.
pub(super) fn join_gang(
    pod: &mut Editor,
    scope: Scope,
    gang: &str,
    settings: &Settings,
) -> Result<(), Refusal> {
    let term = |key: &str| json!({"labelSelector": {"matchLabels": {labels::GANG: gang}}, "topologyKey": key});
    let network = settings.network_labels.iter();
    let levels = [labels::DOMAIN, &settings.rack_label].into_iter();
    let levels = levels.chain(network.map(String::as_str));
    let levels: Vec<&str> = levels.chain([&*settings.zone_label]).collect();
    let closer = match scope {
        Scope::Gpu | Scope::NvlinkDomain | Scope::Node => 0,
        Scope::Rack => 1,
        Scope::Zone => levels.len() - 1,
        Scope::Cluster => levels.len(),
    };
    let preferred = affinity("podAffinity", PREFERRED);
    for (at, key) in levels.into_iter().take(closer).enumerate() {
        let weight = CLOSE.checked_shr(at as u32).unwrap_or(0).max(1);
        let item = json!({"weight": weight, "podAffinityTerm": term(key)});
        append_missing(pod, &preferred, &[item])?;
    }
    let key = match scope {
        Scope::Gpu | Scope::Node => "kubernetes.io/hostname",
        Scope::NvlinkDomain => labels::DOMAIN,
        Scope::Rack => &settings.rack_label,
        Scope::Zone => &settings.zone_label,
        Scope::Cluster => return Ok(()),
    };
    let term = term(key);
    let path = affinity("podAffinity", REQUIRED);
    let present = pod.get(&path).and_then(Value::as_array);
    let mut others = present.into_iter().flatten().enumerate();
    let bad = others.find(|(_, own)| **own != term && !matches_itself(pod.document(), own));
    if let Some((index, _)) = bad {
        return Err(Refusal::new(
            Rule::Affinity,
            format!(
                "the gang's first pod could never be scheduled, unless it matches all of its own podAffinity: the term spec.affinity.podAffinity.{REQUIRED}[{index}] must have only matchLabels that the pod has, and no namespaces; drop the term, make it preferred, or remove annotation {}",
                labels::GANG
            ),
        ));
    }
    Ok(append_missing(pod, &path, &[term])?)
}

/// Reports whether a pod certainly matches its own pod affinity term: the term has no namespaces,
/// and only labels that the pod has.
fn matches_itself(document: &Value, term: &Value) -> bool {
    let absent = |value: &Value, fields: &[&str]| {
        fields.iter().all(|field| {
            let value = value.get(field).unwrap_or(&Value::Null);
            value.is_null() || value == &json!([])
        })
    };
    let fields = [
        "namespaces",
        "namespaceSelector",
        "matchLabelKeys",
        "mismatchLabelKeys",
    ];
    let Some(selector) = term
        .get("labelSelector")
        .filter(|selector| selector.is_object())
    else {
        return false;
    };
    let wanted = selector.get("matchLabels").and_then(Value::as_object);
    absent(term, &fields)
        && absent(selector, &["matchExpressions"])
        && wanted
            .into_iter()
            .flatten()
            .all(|(key, value)| pod::metadata(document, "labels", key) == Some(value))
}

/// Returns the path of the terms of one kind of affinity.
fn affinity(kind: &str, necessity: &str) -> PointerBuf {
    PointerBuf::from_tokens(["spec", "affinity", kind, necessity])
}

fn append_missing(pod: &mut Editor, list: &Pointer, items: &[Value]) -> Result<(), WrongType> {
    for item in items {
        let present = pod
            .get(list)
            .and_then(Value::as_array)
            .is_some_and(|all| all.contains(item));
        if !present {
            pod.append(list, item.clone())?;
        }
    }
    Ok(())
}
