//! Texts of refusals for a missing right, with the commands that grant it.

use nvlink_api::{
    class::{Class, provider::Identity},
    crd::access::{CiProvider, GrantedIn},
};
use nvlink_topology::{GROUP, labels};
use serde_json::{Value, json};

use super::{
    guard::daemon::{self, Remedy},
    project,
    refusal::{Refusal, Rule},
};
use crate::authorize::{ALL, RESOURCE, Subject, USE};

/// Explains why `subject` may not use `class` in `namespace`, with the commands that grant the
/// right. `how` says in brackets how the pod reaches the class.
///
/// The commands come last, one per line. For a CI runner they change the class so that it lists
/// the project, for all others they create a Role. `remedy` is what else helps.
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
            "{why}.{aside}{}To grant this right to the service account:\n{}",
            shared(service_account),
            role(name, service_account, namespace, class.granted_in)
        )
    };
    let listed = listing(subject, class, pod, namespace);
    if let (None, Some(unknown)) = (&listed, project::unknown(class, subject, pod)) {
        return format!("{why}, and {unknown}");
    }
    match (listed, remedy) {
        (
            Some(Listing {
                project,
                only,
                command,
            }),
            _,
        ) => format!(
            "{why}, and {project} is not listed in the class. To grant this right to {project}{only}:\n{command}"
        ),
        (None, Some(Remedy::Only(text))) => format!("{why}. {text}"),
        (None, Some(Remedy::Else(text))) => grant(&format!(" {text}\n")),
        (None, None) => grant(" "),
    }
}

/// Explains why `subject` may not add a toleration of the taint of `class`, or of [`ALL`].
/// The class need not exist.
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
        "the pod tolerates {taint}, but neither user {:?} nor service account {:?} has the verb {USE:?} on {}{RESOURCE}.{GROUP}{right} in namespace {namespace}. Remove the toleration and name the class in annotation {} instead: the webhook adds the toleration to pods with GPUs. {}\nTo grant this right to the service account:\n{}",
        user.username,
        format!("{namespace}/{service_account}"),
        if class == ALL { "all " } else { "" },
        labels::CLASS,
        daemon::exemption(namespace),
        role(class, service_account, namespace, GrantedIn::Namespace)
    )
}

/// Explains why `subject` may not start a pod past the queue of `class`: the pod names its node, or no
/// class.
pub(super) fn past_queue(subject: &Subject, class: &Class, by_node: bool) -> String {
    let name = &class.name;
    let (how, remedy) = match by_node {
        true => (
            "names its node".to_owned(),
            "remove nodeName; to choose among the nodes of the class, use nodeSelector or node affinity".to_owned(),
        ),
        false => (
            format!("targets nodes of class {name:?} without naming the class"),
            format!("name it in annotation {}: {name}", labels::CLASS),
        ),
    };
    format!(
        "the pod {how}, so it would start past the queue of class {name:?}, perhaps on GPUs that the queue has given to another pod, and outside the quota of its project: {remedy}. Only users and service accounts with the verb {USE:?} on all {RESOURCE}.{GROUP} may do so, and {:?} is none",
        subject.user.username
    )
}

/// Returns the refusal for a right that could not be checked.
pub(super) fn unknown(name: &str, reason: &str) -> Refusal {
    let what = match name {
        ALL => "all classes".to_owned(),
        name => format!("class {name:?}"),
    };
    let message = format!(
        "the pod needs the right to use {what}, which cannot be checked: {reason}; try again"
    );
    Refusal::new(Rule::ReviewFailed, message).about(name)
}

/// Returns a caution for grants to `default`, the account of all pods that set none.
fn shared(service_account: &str) -> &'static str {
    match service_account {
        "default" => {
            "All pods of the namespace without a serviceAccountName run as \"default\": prefer an account of its own for this pod. "
        }
        _ => "",
    }
}

/// Returns the commands, one per line, that grant the service account the right to the class.
/// The Role is applied as a document, because `kubectl create role` accepts the verb `use` for
/// PodSecurityPolicies only.
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

/// How a CI project or account is listed in a class.
struct Listing {
    /// The project or account.
    project: String,
    /// On which condition, as the end of a sentence.
    only: String,
    command: String,
}

/// Returns how the CI project or account of the pod is listed in the class.
fn listing(subject: &Subject, class: &Class, pod: &Value, namespace: &str) -> Option<Listing> {
    let mut entries = class.ci_projects.iter().enumerate();
    let Some((index, entry)) = entries.find(|(_, entry)| project::runs(entry, subject)) else {
        return runner(subject, class, pod);
    };
    let (who, field, value, present) = match entry.provider.identity() {
        Identity::Labels { project, .. } => {
            let id = project::told(pod, project).ok()??;
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
    Some(Listing {
        project: who,
        only: String::new(),
        command,
    })
}

/// Returns the project of a GitLab job, and the command that lists its runner with it in a class that
/// does not list the runner yet: a right of the service account would be one of all projects. Anybody can
/// write the label, so the text says on which condition, and a controller of Kubernetes is no runner.
fn runner(subject: &Subject, class: &Class, pod: &Value) -> Option<Listing> {
    let Identity::Labels { project, .. } = CiProvider::Gitlab.identity() else {
        return None;
    };
    let id = project::told(pod, project).ok()??;
    let account = subject
        .user
        .username
        .strip_prefix("system:serviceaccount:")?;
    let (namespace, name) = account.split_once(':')?;
    if namespace == "kube-system" {
        return None;
    }
    let entry = json!({
        "provider": CiProvider::Gitlab.into_str(), "projectIds": [id],
        "runners": [{"namespace": namespace, "serviceAccount": name}],
    });
    let patch = match class.ci_projects.is_empty() {
        true => json!([{"op": "add", "path": "/spec/access/ciProjects", "value": [entry]}]),
        false => json!([{"op": "add", "path": "/spec/access/ciProjects/-", "value": entry}]),
    };
    let command = format!(
        "kubectl patch {RESOURCE}.{GROUP} {} --type=json -p '{patch}'",
        class.name
    );
    Some(Listing {
        project: format!("project {id}"),
        only: format!(
            ", if {namespace}/{name} is the account of GitLab Runner and of nothing else"
        ),
        command,
    })
}
