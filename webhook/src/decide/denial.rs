//! Why somebody may not use a class, and what would change that.

use nvlink_topology::{GROUP, labels};
use serde_json::{Value, json};

use super::{
    guard::daemon::{self, Remedy},
    project,
    refusal::{Refusal, Rule},
};
use crate::{
    authorize::{ALL, RESOURCE, Subject, USE},
    class::{
        Class,
        provider::{self, Identity},
    },
    crd::access::GrantedIn,
};

/// Why `subject` may not use `class` in `namespace`, and the commands that
/// would change that. `how` says in brackets how the pod came to the class.
///
/// The commands come last, a line each: the request of a CI runner is answered
/// by the change of the class that lists its project, any other by a Role.
/// `remedy`: what else helps.
pub(super) fn denial(
    subject: &Subject,
    class: &Class,
    how: &str,
    pod: &Value,
    namespace: &str,
    remedy: Option<Remedy>,
) -> String {
    let Subject {
        user,
        service_account,
    } = subject;
    let name = &class.name;
    let account = format!("{namespace}/{service_account}");
    let why = format!(
        "class {name:?}{how} is restricted: neither user {:?} nor service account {account:?} has the verb {USE:?} on {RESOURCE}.{GROUP}/{name} in {}",
        user.username,
        match class.granted_in {
            GrantedIn::Namespace => format!("namespace {namespace}"),
            GrantedIn::Cluster => "the whole cluster".to_owned(),
        }
    );
    let grant = |aside: &str| {
        format!(
            "{why}.{aside}{}To grant it to the service account:\n{}",
            shared(service_account),
            role(name, service_account, namespace, class.granted_in)
        )
    };
    match (listing(subject, class, pod, namespace), remedy) {
        (Some((project, command)), _) => format!(
            "{why}, and {project} is not listed in the class. To grant it to {project}:\n{command}"
        ),
        (None, Some(Remedy::Only(text))) => format!("{why}. {text}"),
        (None, Some(Remedy::Else(text))) => grant(&format!(" {text}\n")),
        (None, None) => grant(" "),
    }
}

/// Why `subject` may not tolerate the taint of `class`, or of [`ALL`], by hand.
/// Nobody need know whether there is such a class.
pub(super) fn toleration(subject: &Subject, class: &str, namespace: &str) -> String {
    let Subject {
        user,
        service_account,
    } = subject;
    let (taint, right) = match class {
        ALL => ("the taints of several classes".to_owned(), String::new()),
        name => (format!("the taint of class {name:?}"), format!("/{name}")),
    };
    format!(
        "the pod tolerates {taint} by hand, and neither user {:?} nor service account {:?} has the verb {USE:?} on {}{RESOURCE}.{GROUP}{right} in namespace {namespace}. Pods with GPUs get the toleration from the webhook: name the class in annotation {} instead. {}\nTo grant it to the service account:\n{}",
        user.username,
        format!("{namespace}/{service_account}"),
        if class == ALL { "all " } else { "" },
        labels::CLASS,
        daemon::exemption(namespace),
        role(class, service_account, namespace, GrantedIn::Namespace)
    )
}

/// The refusal where nobody could say whether the class may be used.
pub(super) fn unknown(name: &str, reason: &str) -> Refusal {
    let what = match name {
        ALL => "the right to all classes is needed".to_owned(),
        name => format!("the right to class {name:?} is needed"),
    };
    let message =
        format!("{what}, and whether it may be used could not be found out: {reason}; try again");
    Refusal::new(Rule::ReviewFailed, message).about(name)
}

/// What a grant to the account of all pods that name none would mean.
fn shared(service_account: &str) -> &'static str {
    match service_account {
        "default" => {
            "All pods of the namespace that name no account run as \"default\": better give this one an account of its own. "
        }
        _ => "",
    }
}

/// The commands, a line each, that let the service account use the class.
/// The Role is applied as a document, because `kubectl create role` takes the
/// verb `use` for PodSecurityPolicies alone.
pub(crate) fn role(
    class: &str,
    service_account: &str,
    namespace: &str,
    granted_in: GrantedIn,
) -> String {
    let mut rule = json!({"apiGroups": [GROUP], "resources": [RESOURCE], "verbs": [USE]});
    let role = match class {
        ALL => format!("{USE}-all-classes"),
        name => {
            rule["resourceNames"] = json!([name]);
            format!("{USE}-{name}")
        }
    };
    let mut metadata = json!({"name": role});
    let (kind, word, binding, place) = match granted_in {
        GrantedIn::Namespace => {
            metadata["namespace"] = json!(namespace);
            let place = format!(" -n {namespace}");
            ("Role", "role", format!("{role}-{service_account}"), place)
        }
        GrantedIn::Cluster => {
            let binding = format!("{role}-{namespace}-{service_account}");
            ("ClusterRole", "clusterrole", binding, String::new())
        }
    };
    let document = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": kind,
        "metadata": metadata,
        "rules": [rule]
    });
    format!(
        "echo '{document}' | kubectl apply -f -\n\
         kubectl create {word}binding {binding} --{word}={role} --serviceaccount={namespace}:{service_account}{place}"
    )
}

/// Who the CI system says that the pod is of, and the command that lists it in the class.
fn listing(
    subject: &Subject,
    class: &Class,
    pod: &Value,
    namespace: &str,
) -> Option<(String, String)> {
    let mut entries = class.ci_projects.iter().enumerate();
    let (index, entry) = entries.find(|(_, entry)| project::runs(entry, subject))?;
    let (who, field, value, present) = match provider::of(entry.provider).identity {
        Identity::Labels { project, .. } => {
            let id = project::id(pod, project)?;
            let present = !entry.project_ids.is_empty();
            (format!("project {id}"), "projectIds", json!(id), present)
        }
        Identity::Account => {
            let account = &subject.service_account;
            let value = json!({"namespace": namespace, "serviceAccount": account});
            (
                format!("service account {namespace}/{account}"),
                "identities",
                value,
                !entry.identities.is_empty(),
            )
        }
    };
    let path = format!("/spec/access/ciProjects/{index}/{field}");
    let patch = match present {
        true => json!([{"op": "add", "path": format!("{path}/-"), "value": value}]),
        false => json!([{"op": "add", "path": path, "value": [value]}]),
    };
    let command = format!(
        "kubectl patch {RESOURCE}.{GROUP} {} --type=json -p '{patch}'",
        class.name
    );
    Some((who, command))
}
