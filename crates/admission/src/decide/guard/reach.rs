//! Pods that target the nodes of a restricted class.

use nvlink_api::{class::Class, pod::list};
use nvlink_topology::labels;
use serde_json::Value;

use super::{Case, node_name, pinned};
use crate::{authorize::ALL, decide::Rule};

/// The path of the alternatives of a pod's required node affinity.
pub(super) const TERMS: [&str; 5] = [
    "spec",
    "affinity",
    "nodeAffinity",
    "requiredDuringSchedulingIgnoredDuringExecution",
    "nodeSelectorTerms",
];

/// How a pod targets the nodes of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// It names the class.
    Named,
    /// Its namespace names the class.
    Default,
    /// Its label says that it already has the class.
    Given,
    /// It tolerates the taint of the class.
    Toleration,
    /// It sets `nodeName`, which bypasses the scheduler and all taints.
    NodeName,
    /// It is on a node of the class.
    Node,
    /// Its selector or affinity selects the nodes.
    Selector,
}

impl Way {
    pub(super) fn rule(self) -> Rule {
        match self {
            Self::Named | Self::Default | Self::Given => Rule::NotAuthorized,
            Self::Toleration => Rule::Toleration,
            Self::NodeName | Self::Node => Rule::NodeName,
            Self::Selector => Rule::NodeSelector,
        }
    }

    /// Reports whether daemons use this way: they run on all nodes, or on one by name.
    pub(super) fn is_unnamed(self) -> bool {
        matches!(self, Self::Toleration | Self::NodeName)
    }

    /// Returns the words of a refusal between "the pod" and the class.
    pub(super) fn reaches(self) -> &'static str {
        match self {
            Self::Named | Self::Default | Self::Given => "targets nodes of",
            Self::Toleration => "tolerates the taint of",
            Self::NodeName => "sets nodeName, which may be a node of",
            Self::Node => "is on a node of",
            Self::Selector => "selects the nodes of",
        }
    }

    /// Returns the words of a refusal after the name of the class.
    pub(super) fn how(self, namespace: &str) -> String {
        match self {
            Self::Named => String::new(),
            Self::Default => format!(" (the default class of namespace {namespace})"),
            Self::Given => " (the class of this pod)".to_owned(),
            Self::Toleration => " (the pod tolerates the taint of its nodes)".to_owned(),
            Self::NodeName => " (the pod's nodeName may be one of its nodes)".to_owned(),
            Self::Node => " (the pod is on one of its nodes)".to_owned(),
            Self::Selector => " (the pod selects its nodes)".to_owned(),
        }
    }
}

/// Returns how a new pod targets the nodes of `class`, if it does.
pub(super) fn of_pod(case: Case<'_>, class: &Class) -> Option<Way> {
    let is = |name: Option<&str>| name == Some(class.name.as_str());
    if is(case.held.named) {
        return Some(Way::Named);
    }
    if is(case.default) {
        return Some(Way::Default);
    }
    if pinned::is_outside(case.pod, case.held, class, case.view) {
        return None;
    }
    if tolerates(case.pod, class) {
        return Some(Way::Toleration);
    }
    // The creator names the node and so bypasses the scheduler.
    if !node_name(case.pod).is_empty() {
        return Some(Way::NodeName);
    }
    by_selector(case, class)
}

/// Returns how an existing pod targets the nodes of `class`, if it does. The scheduler has set its
/// `nodeName`, which therefore shows only where the pod is.
pub(super) fn of_running(case: Case<'_>, class: &Class) -> Option<Way> {
    let is = |name: Option<&str>| name == Some(class.name.as_str());
    if is(case.held.named) {
        return Some(Way::Named);
    }
    if is(case.held.label) {
        return Some(Way::Given);
    }
    if is(case.default) {
        return Some(Way::Default);
    }
    if tolerates(case.pod, class) {
        return Some(Way::Toleration);
    }
    if case.view.is_node_of(node_name(case.pod), class) {
        return Some(Way::Node);
    }
    by_selector(case, class)
}

fn by_selector(case: Case<'_>, class: &Class) -> Option<Way> {
    // The taint of these nodes keeps off pods of other classes, and the webhook itself may have
    // written a selector that two classes share.
    let other = case.class().is_some_and(|name| name != class.name);
    (case.held.gpus && !other && selects(case.pod, class)).then_some(Way::Selector)
}

/// Reports whether the pod tolerates the taint of `class`.
pub(super) fn tolerates(pod: &Value, class: &Class) -> bool {
    list(pod, &["spec", "tolerations"]).any(|toleration| {
        let field = |name: &str| toleration.get(name).and_then(Value::as_str).unwrap_or("");
        let matches = match (field("key"), field("operator")) {
            ("", "Exists") => true,
            (labels::CLASS, "" | "Equal") => field("value") == class.name,
            // `Exists`, and operators of later versions.
            (labels::CLASS, _) => true,
            _ => false,
        };
        // The taint has the effect NoSchedule; tolerations of other effects do not match it.
        matches && matches!(field("effect"), "" | "NoSchedule")
    })
}

/// Returns the only class whose taint `toleration` tolerates, or [`ALL`] if it has the taint's key
/// and matches any value.
pub(super) fn class_of(toleration: &Value) -> Option<&str> {
    let field = |name: &str| toleration.get(name).and_then(Value::as_str).unwrap_or("");
    if field("key") != labels::CLASS || !matches!(field("effect"), "" | "NoSchedule") {
        return None;
    }
    match field("operator") {
        "" | "Equal" => Some(field("value")).filter(|class| (1..=63).contains(&class.len())),
        _ => Some(ALL),
    }
}

/// Reports whether the node selector, together with one of the required terms of node affinity,
/// requires all labels that define the nodes of `class`.
pub(super) fn selects(pod: &Value, class: &Class) -> bool {
    let selector = pod.get("spec").and_then(|spec| spec.get("nodeSelector"));
    let chosen = |key: &str, value: &str| {
        let chosen = selector.and_then(|selector| selector.get(key)?.as_str());
        chosen == Some(value)
    };
    let mut wanted = class.selector.iter();
    if class.selector.is_empty() {
        // Every node is a node of the class: there is nothing to select.
        return false;
    }
    wanted.all(|(key, value)| chosen(key, value))
        || list(pod, &TERMS).any(|term| {
            let mut wanted = class.selector.iter();
            wanted.all(|(key, value)| chosen(key, value) || requires(term, key, value))
        })
}

fn requires(term: &Value, key: &str, value: &str) -> bool {
    list(term, &["matchExpressions"]).any(|expression| {
        let field = |name: &str| expression.get(name).and_then(Value::as_str);
        field("key") == Some(key)
            && field("operator") == Some("In")
            && list(expression, &["values"]).any(|one| one.as_str() == Some(value))
    })
}
