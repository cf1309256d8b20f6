//! The policy that is evaluated once for each class, which is its parameter.

use nvlink_topology::{GROUP, labels};
use serde_json::{Value, json};

use super::{cel, refuse};
use crate::{
    authorize::{RESOURCE, USE, role},
    decide::{
        Rule,
        provider::{Identity, PROVIDERS},
    },
};

/// The variables, each of which may use those before it.
pub(super) fn variables() -> Vec<Value> {
    let all = [
        ("name", "params.metadata.name".to_owned()),
        (
            "restricted",
            "params.spec.?access.?mode.orValue('Open') == 'Restricted'".to_owned(),
        ),
        (
            "changed",
            format!(
                "request.operation == 'UPDATE' && {} == ''",
                cel::SUBRESOURCE
            ),
        ),
        (
            "nodeLabels",
            "params.spec.?nodeSelector.?matchLabels.orValue({})".to_owned(),
        ),
    ];
    let mut all: Vec<_> = all.into_iter().collect();
    all.extend(super::pods::described());
    all.extend(subject());
    all.push(("way", way()));
    super::variables(all)
}

/// Who stands behind the pod, and whether they may use the class.
fn subject() -> Vec<(&'static str, String)> {
    let account = "object.spec.?serviceAccountName.orValue('')";
    let may = |who: &str| {
        format!(
            "{who}.group('{GROUP}').resource('{RESOURCE}').namespace(request.namespace).name(variables.name).check('{USE}').allowed()"
        )
    };
    vec![
        (
            "account",
            format!("{account} == '' ? 'default' : {account}"),
        ),
        (
            "runs",
            "params.spec.?access.?ciProjects.orValue([]).filter(p, p.runners.exists(r, request.userInfo.username == 'system:serviceaccount:' + r.namespace + ':' + r.serviceAccount))".to_owned(),
        ),
        ("listed", format!("variables.runs.exists(p, {})", listed())),
        ("project", project()),
        ("userMay", may("authorizer")),
        (
            "accountMay",
            may("authorizer.serviceAccount(request.namespace, variables.account)"),
        ),
        (
            "authorized",
            "variables.listed || variables.userMay || variables.accountMay".to_owned(),
        ),
    ]
}

/// Whether the entry `p` of the class lists the pod's project, by the table of providers.
fn listed() -> String {
    let rows = PROVIDERS.map(|row| {
        let word = row.word;
        let identity = match row.identity {
            Identity::Labels { project, group } => {
                let lists = |field: &str, label: &str| {
                    format!("p.?{field}.orValue([]).exists(i, string(i) == variables.labels[?'{label}'].orValue(''))")
                };
                format!(
                    "{} || {}",
                    lists("projectIds", project),
                    lists("rootNamespaceIds", group)
                )
            }
            Identity::Account => "p.?identities.orValue([]).exists(a, a.namespace == request.namespace && a.serviceAccount == variables.account)".to_owned(),
        };
        format!("(p.provider == '{word}' && ({identity}))")
    });
    rows.join(" || ")
}

/// The project that the webhook would write.
fn project() -> String {
    let namespace = "request.namespace".to_owned();
    PROVIDERS.iter().rev().fold(namespace, |rest, row| {
        let Identity::Labels { project, .. } = row.identity else {
            return rest;
        };
        let word = row.word;
        let id = format!("variables.labels[?'{project}'].orValue('')");
        format!(
            "variables.runs.exists(p, p.provider == '{word}') && {id}.matches('^(0|[1-9][0-9]{{0,18}})$') ? '{word}.' + {id} : {rest}"
        )
    })
}

/// The rule that asks for the right to the class; empty where none does.
fn way() -> String {
    let tolerates = |object| cel::tolerates(object, "variables.name");
    let selects = |object| cel::selects(object, "variables.nodeLabels");
    let own = "(variables.class == '' || variables.class == variables.name)";
    let [named, toleration, node, selector] = [
        Rule::NotAuthorized,
        Rule::Toleration,
        Rule::NodeName,
        Rule::NodeSelector,
    ]
    .map(Rule::as_str);
    let created = format!(
        "variables.wanted == variables.name ? '{named}' : {} ? '{toleration}' : object.spec.?nodeName.orValue('') != '' ? '{node}' : variables.gpus && {own} && {} ? '{selector}' : ''",
        tolerates("object"),
        selects("object")
    );
    let changed = format!(
        "{} && !{} ? '{toleration}' : variables.gpus && {own} && {} && !{} ? '{selector}' : ''",
        tolerates("object"),
        tolerates("oldObject"),
        selects("object"),
        selects("oldObject")
    );
    // The scheduler has named its node by now, so that `nodeName` says nothing.
    let debugged = format!(
        "variables.named == variables.name || variables.label == variables.name || variables.wanted == variables.name ? '{named}' : {} ? '{toleration}' : variables.gpus && {own} && {} ? '{selector}' : ''",
        tolerates("object"),
        selects("object")
    );
    format!(
        "!variables.restricted ? '' : variables.created ? ({created}) : variables.changed ? ({changed}) : variables.debugged ? ({debugged}) : ''"
    )
}

/// The rules, in the order of the webhook's. Those of the other policy on what
/// the webhook writes come first: nothing says which policy the API server asks
/// first, and the pod's author is told the same rule by either. They are cheap.
/// What looks through containers is in the other policy alone, because this
/// one is evaluated as often as there are classes.
pub(super) fn validations() -> Vec<Value> {
    let mut rules = super::pods::reserved();
    rules.extend(written());
    rules.extend(privileges());
    rules.push(access());
    rules
}

/// Labels that only the webhook writes.
fn written() -> [Value; 2] {
    let forged = format!(
        "variables.created && variables.class == variables.name && '{0}' in variables.labels && variables.labels['{0}'] != variables.project",
        labels::PROJECT
    );
    let label = "variables.created && variables.label == variables.name && variables.wanted == '' && variables.gpus && !(has(params.spec.appliesTo) && (!variables.restricted || variables.authorized))";
    [
        refuse(
            Rule::ReservedLabel,
            &forged,
            &format!(
                "'label {} is written by the webhook alone, and here it is ' + variables.project",
                labels::PROJECT
            ),
        ),
        refuse(
            Rule::ReservedLabel,
            label,
            &format!(
                "'label {} is written by the webhook alone: to choose a class, set the annotation of that name'",
                labels::CLASS
            ),
        ),
    ]
}

/// What the host has, taken by a pod that is for the nodes of a restricted class.
fn privileges() -> [Value; 3] {
    // What is there is looked at again when a change makes the pod one for these nodes.
    let whole = "(variables.created || variables.changed)";
    let privileged = format!(
        "variables.way != '' && ((variables.changed ? {} : variables.added).exists(c, {}) || ({whole} && object.spec.?hostPID.orValue(false)))",
        cel::containers("object"),
        cel::privileged("c")
    );
    let host = format!(
        "variables.way != '' && {whole} && {}",
        cel::host_path("object")
    );
    let ephemeral = format!(
        "variables.way != '' && variables.debugged && variables.added.exists(c, !{})",
        cel::hides("c")
    );
    [
        refuse(
            Rule::Privileged,
            &privileged,
            "'a privileged container, one with capabilities of the host, and hostPID reach all GPUs of their node, and the pod is for nodes of the restricted class ' + variables.name",
        ),
        refuse(
            Rule::HostPath,
            &host,
            "'a hostPath may lead to the GPUs of the host or their driver, and the pod is for nodes of the restricted class ' + variables.name",
        ),
        refuse(
            Rule::EphemeralContainer,
            &ephemeral,
            "'an ephemeral container would see the GPUs that its image names, in a pod that is for nodes of the restricted class ' + variables.name + ': set NVIDIA_VISIBLE_DEVICES to void in it'",
        ),
    ]
}

/// The commands that grant the right, as the webhook names them; on one line,
/// as the API server wants it. Within a string of CEL.
fn grant() -> String {
    let names = [
        ("@class", "variables.name"),
        ("@account", "variables.account"),
        ("@namespace", "request.namespace"),
    ];
    let [class, account, namespace] = names.map(|(place, _)| place);
    let commands = role(class, account, namespace)
        .replace('\n', " && ")
        .replace('\'', "\\'");
    names.iter().fold(commands, |text, (place, name)| {
        text.replace(place, &format!("' + {name} + '"))
    })
}

/// The rule about the right, by whichever way the pod came to the class.
fn access() -> Value {
    let subject = "'user ' + request.userInfo.username + ' and service account ' + request.namespace + '/' + variables.account";
    let message = format!(
        "'rule ' + variables.way + ': class ' + variables.name + ' is restricted: ' + {subject} + ' have not the verb {USE} on {RESOURCE}.{GROUP}/' + variables.name + ' in namespace ' + request.namespace + ', and spec.access.ciProjects of the class lists no CI project of this pod. To grant it to the service account: {}'",
        grant()
    );
    json!({
        "expression": "variables.way == '' || variables.authorized",
        "message": "the class is restricted",
        "messageExpression": message,
        "reason": "Forbidden"
    })
}
