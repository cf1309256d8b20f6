//! The rules of [`crate::decide::guard`] as ValidatingAdmissionPolicies, which
//! hold where the webhook is down or was never asked.
//!
//! Both are made from the same tables, and one list of cases is run against
//! both: `webhook/tests/cases`. A policy fails closed, so what it looks at is
//! narrowed first, by an expression that cannot fail: plain pods are let in by it.

use nvlink_topology::{API_VERSION, GROUP};
use serde_json::{Value, json};

use crate::{
    authorize::{RELEASE, RESOURCE},
    decide::Rule,
    registration::{OPT_OUT, exempt_names},
};

mod cel;
mod check;
mod class;
mod pods;

pub use cel::{concerns_changed, concerns_created};
pub use check::{differences, run};

/// The version of the API.
const POLICY_API: &str = "admissionregistration.k8s.io/v1";

/// The policies and their bindings, ready to be applied. Pods in `kube-system`
/// and in the namespaces `exempt` are not looked at, and neither are those in
/// namespaces with the label that says so.
#[must_use]
pub fn documents(exempt: &[String]) -> Vec<Value> {
    let class = json!({
        "paramKind": {"apiVersion": API_VERSION, "kind": "DomainClass"},
        "matchConstraints": pod_rules(exempt),
        "matchConditions": conditions(&cel::class_created(), &cel::class_changed()),
        "variables": class::variables(),
        "validations": class::validations(),
        "failurePolicy": "Fail"
    });
    let pods = json!({
        "matchConstraints": pod_rules(exempt),
        "matchConditions": conditions(&concerns_created(), &concerns_changed()),
        "variables": pods::variables(),
        "validations": pods::validations(),
        "failurePolicy": "Fail"
    });
    // No class, no rule: the policies may be there before the classes.
    let classes = json!({"selector": {}, "parameterNotFoundAction": "Allow"});
    [
        policy("class", &class, Some(&classes)),
        policy("pods", &pods, None),
        policy("bindings", &bindings(exempt), None),
        policy("namespaces", &namespaces(), None),
    ]
    .concat()
}

/// A policy and the binding that puts it to work everywhere.
fn policy(name: &str, spec: &Value, params: Option<&Value>) -> Vec<Value> {
    let name = format!("{name}.{GROUP}");
    let mut binding = json!({"policyName": name, "validationActions": ["Deny"]});
    if let Some(params) = params {
        binding["paramRef"] = params.clone();
    }
    let document = |kind: &str, spec: &Value| json!({"apiVersion": POLICY_API, "kind": kind, "metadata": {"name": name}, "spec": spec});
    vec![
        document("ValidatingAdmissionPolicy", spec),
        document("ValidatingAdmissionPolicyBinding", &binding),
    ]
}

/// Pods that are created or changed.
fn pod_rules(exempt: &[String]) -> Value {
    constraints(
        exempt,
        &[
            (&["CREATE", "UPDATE"], &["pods"]),
            (
                &["UPDATE"],
                &["pods/ephemeralcontainers", "pods/resize", "pods/status"],
            ),
        ],
    )
}

/// Operations, and the resources that they are done to.
type Operations<'a> = (&'a [&'a str], &'a [&'a str]);

/// What is done to `rules`, outside the exempt namespaces.
fn constraints(exempt: &[String], rules: &[Operations<'_>]) -> Value {
    let rule = |(operations, resources): &Operations<'_>| {
        json!({
            "apiGroups": [""], "apiVersions": ["v1"],
            "operations": operations, "resources": resources, "scope": "Namespaced"
        })
    };
    json!({
        "matchPolicy": "Equivalent",
        "namespaceSelector": {"matchExpressions": [
            {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": exempt_names(exempt)},
            {"key": OPT_OUT, "operator": "NotIn", "values": ["ignore"]}
        ]},
        "objectSelector": {},
        "resourceRules": rules.iter().map(rule).collect::<Vec<_>>()
    })
}

/// `created`, `changed`: what of a pod that is created or changed concerns a rule.
fn conditions(created: &str, changed: &str) -> Value {
    let concerns = format!("request.operation == 'CREATE' ? {created} : {changed}");
    json!([
        {"name": "not-of-a-kubelet", "expression": format!("!{}", cel::mirror())},
        {"name": "concerns-a-rule", "expression": concerns}
    ])
}

/// What comes to a pod with its node: the API server copies labels and
/// annotations of a Binding to the pod, past all rules on pods. That a Binding
/// names a node past all taints is what the right to create one means; RBAC
/// gives it to schedulers.
fn bindings(exempt: &[String]) -> Value {
    let own = |name| {
        format!(
            "{}.exists(k, k.startsWith('{GROUP}/'))",
            cel::map("object", name)
        )
    };
    let message = format!(
        "'a Binding cannot bring labels and annotations {GROUP}/* to a pod: user ' + request.userInfo.username + ' has not the verb {RELEASE} on all {RESOURCE}.{GROUP} in namespace ' + request.namespace"
    );
    json!({
        "matchConstraints": constraints(exempt, &[(&["CREATE"], &["pods/binding", "bindings"])]),
        "matchConditions": [{
            "name": "brings-what-is-ours",
            "expression": format!("{} || {}", own("labels"), own("annotations"))
        }],
        "validations": [validation(Rule::Locked, &cel::may_release(), &message)],
        "failurePolicy": "Fail"
    })
}

/// Who may take a namespace out: whoever may change classes.
fn namespaces() -> Value {
    let label = |object: &str| format!("{}[?'{OPT_OUT}'].orValue('')", cel::map(object, "labels"));
    let old = format!(
        "(request.operation == 'CREATE' ? '' : {})",
        label("oldObject")
    );
    let allowed =
        format!("authorizer.group('{GROUP}').resource('{RESOURCE}').check('update').allowed()");
    let message = format!(
        "'label {OPT_OUT} takes a namespace out of the rules on GPU pods: user ' + request.userInfo.username + ' has not the verb update on {RESOURCE}.{GROUP}'"
    );
    json!({
        "matchConstraints": {
            "matchPolicy": "Equivalent",
            "namespaceSelector": {},
            "objectSelector": {},
            // Labels may be written with the status and with what holds a deletion up too.
            "resourceRules": [{
                "apiGroups": [""], "apiVersions": ["v1"],
                "operations": ["CREATE", "UPDATE"],
                "resources": ["namespaces", "namespaces/status", "namespaces/finalize"],
                "scope": "*"
            }]
        },
        "matchConditions": [{
            "name": "label-changes", "expression": format!("{} != {old}", label("object"))
        }],
        "validations": [validation(Rule::OptOut, &allowed, &message)],
        "failurePolicy": "Fail"
    })
}

fn variables(all: Vec<(&'static str, String)>) -> Vec<Value> {
    let variable = |(name, expression)| json!({"name": name, "expression": expression});
    all.into_iter().map(variable).collect()
}

/// A validation that denies by `rule` where `when` holds.
fn refuse(rule: Rule, when: &str, message: &str) -> Value {
    validation(rule, &format!("!({when})"), message)
}

/// A validation that denies by `rule` unless `holds`. `message` is an
/// expression of one line, without the rule.
fn validation(rule: Rule, holds: &str, message: &str) -> Value {
    let rule = rule.as_str();
    json!({
        "expression": holds,
        "message": format!("rule {rule}"),
        "messageExpression": format!("'rule {rule}: ' + {message}"),
        "reason": "Forbidden"
    })
}
