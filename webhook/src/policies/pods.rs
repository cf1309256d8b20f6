//! The policy on what only the webhook writes into pods, whatever the class.

use nvlink_topology::{GROUP, labels};
use serde_json::Value;

use super::{cel, refuse};
use crate::{
    authorize::{RELEASE, RESOURCE},
    decide::{
        Rule,
        guard::{CDI, GATE, VARIABLES},
        intent::ALIAS_GROUP,
        provider::{Identity, PROVIDERS},
    },
};

/// What a pod says of its class; variables of both policies on pods.
pub(super) fn described() -> Vec<(&'static str, String)> {
    let class = |map: &str| format!("variables.{map}[?'{}'].orValue('')", labels::CLASS);
    let default = format!(
        "namespaceObject.metadata.?annotations[?'{}'].orValue('')",
        labels::DEFAULT_CLASS
    );
    let fresh = format!(
        "{}.filter(c, !{}.exists(o, o.name == c.name))",
        cel::ephemeral("object"),
        cel::ephemeral("oldObject")
    );
    vec![
        ("created", "request.operation == 'CREATE'".to_owned()),
        (
            "debugged",
            format!("{} == 'ephemeralcontainers'", cel::SUBRESOURCE),
        ),
        (
            "added",
            format!(
                "variables.created ? {} : variables.debugged ? {fresh} : []",
                cel::containers("object")
            ),
        ),
        ("labels", cel::map("object", "labels")),
        ("annotations", cel::map("object", "annotations")),
        ("gpus", cel::gpus("object")),
        ("named", class("annotations")),
        ("label", class("labels")),
        (
            "wanted",
            // A pod that is there was given what its label says.
            format!(
                "'{}' in variables.annotations ? variables.named : variables.gpus && (request.operation == 'CREATE' || variables.label == '') ? {default} : ''",
                labels::CLASS
            ),
        ),
        (
            "class",
            "variables.wanted != '' ? variables.wanted : variables.label".to_owned(),
        ),
    ]
}

pub(super) fn variables() -> Vec<Value> {
    super::variables(described())
}

/// The rules, in the order of the webhook's.
pub(super) fn validations() -> Vec<Value> {
    let mut rules = reserved();
    rules.extend(devices());
    rules.push(nameless());
    rules
}

/// GPUs taken past the device plugin.
fn devices() -> [Value; 3] {
    let taken = format!(
        "(variables.created && {}) || variables.added.exists(c, {})",
        cel::names_devices("object"),
        cel::by_hand("c")
    );
    let runtime = format!(
        "variables.created && object.spec.?runtimeClassName.orValue('').contains('nvidia') && !{}",
        cel::holds("object")
    );
    let resized = format!("{} == 'resize' && {}", cel::SUBRESOURCE, resized());
    [
        refuse(
            Rule::VisibleDevices,
            &taken,
            &format!(
                "'a container sets {}, or an annotation {CDI}* names devices, by hand, which gives the pod GPUs that were handed to others: remove it, or set the variable to void'",
                VARIABLES.join(" or ")
            ),
        ),
        refuse(
            Rule::RuntimeClass,
            &runtime,
            "'runtimeClassName ' + object.spec.runtimeClassName + ' without a request for a GPU: ask for nvidia.com/gpu in resources.limits'",
        ),
        refuse(
            Rule::Resize,
            &resized,
            "'the GPUs of a pod cannot be resized: create the pod anew'",
        ),
    ]
}

/// A class without a name, which does not exist. That another does not, only
/// the webhook can know.
fn nameless() -> Value {
    let nameless = format!(
        "variables.created && '{}' in variables.annotations && variables.named == ''",
        labels::CLASS
    );
    refuse(
        Rule::UnknownClass,
        &nameless,
        &format!("'annotation {} names no class'", labels::CLASS),
    )
}

/// What only the webhook writes; rules of both policies on pods.
pub(super) fn reserved() -> Vec<Value> {
    let created = "variables.created";
    let decision = format!(
        "{created} && '{}' in variables.annotations && variables.label == ''",
        labels::DECISION
    );
    let class = format!(
        "{created} && variables.label != '' && (variables.wanted != '' ? variables.label != variables.wanted : !variables.gpus)"
    );
    // Of which class the label is, the other policy says; this one holds where
    // there is no such class.
    let project = format!(
        "{created} && '{0}' in variables.labels && (variables.class == '' || !(variables.labels['{0}'] in {1}))",
        labels::PROJECT,
        projects()
    );
    let gang = format!(
        "{created} && '{}' in variables.labels && !((variables.gpus || variables.wanted != '') && {})",
        labels::GANG,
        named_gang()
    );
    let locked = format!(
        "request.operation == 'UPDATE' && {} in ['', 'status'] && {} && !{}",
        cel::SUBRESOURCE,
        cel::changed(),
        cel::may_release()
    );
    let alone = |key: &str| {
        format!("'label {key} is written by the webhook alone: remove it from the pod'")
    };
    vec![
        refuse(
            Rule::ReservedAnnotation,
            &decision,
            &format!(
                "'annotation {} is written by the webhook alone: remove it from the pod'",
                labels::DECISION
            ),
        ),
        refuse(Rule::ReservedLabel, &class, &alone(labels::CLASS)),
        refuse(Rule::ReservedLabel, &project, &alone(labels::PROJECT)),
        refuse(Rule::ReservedLabel, &gang, &alone(labels::GANG)),
        refuse(
            Rule::Locked,
            &locked,
            &format!(
                "'the labels and annotations {GROUP}/* and the scheduling gate {GATE} cannot be changed once the pod is there: user ' + request.userInfo.username + ' has not the verb {RELEASE} on all {RESOURCE}.{GROUP} in namespace ' + request.namespace"
            ),
        ),
    ]
}

/// What the projects of a pod may be called, whatever its class.
fn projects() -> String {
    let names = PROVIDERS.iter().filter_map(|row| match row.identity {
        Identity::Labels { project, .. } => Some(format!(
            "'{}.' + variables.labels[?'{project}'].orValue('')",
            row.word
        )),
        Identity::Account => None,
    });
    let names: Vec<_> = std::iter::once("request.namespace".to_owned())
        .chain(names)
        .collect();
    format!("[{}]", names.join(", "))
}

/// The label of the gang is that of the gang which the annotations name. What
/// cannot be a label value has a hash for it, which CEL cannot make.
fn named_gang() -> String {
    let annotation =
        |key: &str, other: &str| format!("variables.annotations[?'{key}'].orValue({other})");
    let name = annotation(labels::GANG, &annotation(ALIAS_GROUP, "''"));
    let size = annotation(labels::GANG_SIZE, "''");
    let label = format!("variables.labels['{}']", labels::GANG);
    format!(
        "(!{size}.matches('^[+]?0*1$') && [{name}].exists(g, g.size() <= 63 && g.matches('^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$') ? {label} == g : g != '' && {label}.matches('^x[0-9a-f]{{16}}$')))"
    )
}

/// Some container has other amounts of NVIDIA's resources than it had.
fn resized() -> String {
    let limits = |container: &str| format!("{container}.?resources.?limits.orValue({{}})");
    let (new, old) = (limits("c"), limits("o"));
    let differ = |from: &str, to: &str| {
        format!(
            "{from}.exists(n, n.startsWith('nvidia.com/') && !(n in {to} && {to}[n] == {from}[n]))"
        )
    };
    format!(
        "{}.exists(c, {}.exists(o, o.name == c.name && ({} || {})))",
        cel::containers("object"),
        cel::containers("oldObject"),
        differ(&new, &old),
        differ(&old, &new)
    )
}
