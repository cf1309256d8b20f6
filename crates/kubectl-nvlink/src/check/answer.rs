//! The pod of the check, and what the API server answers.

use std::fmt;

use k8s_openapi::api::core::v1::Pod;
use nvlink_runtime::client;
use nvlink_topology::labels;
use serde::Deserialize;
use serde_json::json;

use super::Failed;

/// The resource that the pod requests.
pub(super) const RESOURCE: &str = "nvidia.com/gpu";
/// The entry of the registration for pods that name a class.
pub(super) const ENTRY: &str = "class.nvlink-domains.io";
/// The command that shows the pods of the chart's webhook.
pub(super) const PODS: &str =
    "kubectl get pods --all-namespaces -l app.kubernetes.io/name=nvlink-webhook";

/// Returns a pod that names `class`, requests one GPU, satisfies the Pod Security level
/// `restricted`, and has all requests and limits that a quota may require.
pub(super) fn pod(class: &str) -> serde_json::Result<Pod> {
    serde_json::from_value(json!({
        "metadata": {
            "generateName": "nvlink-webhook-check-",
            "annotations": {labels::CLASS: class},
        },
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": false,
            "securityContext": {
                "runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [{
                "name": "main",
                "image": "registry.k8s.io/pause:3.10",
                "resources": {"limits": {RESOURCE: "1", "cpu": "10m", "memory": "16Mi"}},
                "securityContext": {
                    "allowPrivilegeEscalation": false,
                    "capabilities": {"drop": ["ALL"]},
                    "readOnlyRootFilesystem": true,
                },
            }],
        },
    }))
}

/// What the webhook did with a pod.
pub(super) enum Answer {
    /// It gave the pod a class.
    Decided(Decision),
    /// It refused the pod with this text.
    Refused(String),
    /// The pod was admitted, and the webhook was not called or did not change it.
    Admitted,
}

/// The parts of the decision's annotation that are shown.
#[derive(Deserialize)]
pub(super) struct Decision {
    pub(super) class: String,
    gpus: u32,
    scope: String,
    pattern: String,
    #[serde(default)]
    guess: bool,
    #[serde(default)]
    env: Vec<String>,
    why: String,
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            class, gpus, why, ..
        } = self;
        let guess = if self.guess { " (a guess)" } else { "" };
        write!(
            f,
            "a pod with {gpus} {RESOURCE} gets class {class:?}, because {why}: scope {}, pattern {}{guess}",
            self.scope, self.pattern
        )?;
        match &self.env[..] {
            [] => Ok(()),
            names => write!(f, ", environment {}", names.join(", ")),
        }
    }
}

impl Answer {
    /// Returns what the webhook did, by what the API server answered about a pod in `namespace`.
    ///
    /// # Errors
    /// When the webhook did not answer, or the API server did not get as far as the webhook.
    pub(super) fn new(created: kube::Result<Pod>, namespace: &str) -> Result<Self, Failed> {
        let error = match created {
            Ok(pod) => return Ok(Self::admitted(&pod)),
            Err(error) => error,
        };
        let said = client::reason(&error);
        if let Some((_, rest)) = said.split_once(&format!("{ENTRY:?} denied the request: ")) {
            return Ok(Self::Refused(rest.to_owned()));
        }
        if said.contains(&format!("failed calling webhook {ENTRY:?}")) {
            return Err(Failed::Webhook(format!(
                "the webhook is registered, but does not answer, so pods that name a class are refused: {said}\nlook at its pods, their log, its Service and NetworkPolicies: {PODS}"
            )));
        }
        let code = match &error {
            kube::Error::Api(status) => status.code,
            _ => 0,
        };
        Err(Failed::Unknown(match code {
            0 => format!("no access to the cluster: {said}"),
            403 if said.contains("cannot create resource \"pods\"") => format!(
                "the check needs the right to create pods in namespace {namespace}, although it creates none: {said}\nto grant it: kubectl create role check --verb=create --resource=pods -n {namespace}; kubectl create rolebinding check --role=check --user=USER -n {namespace}"
            ),
            404 => format!("{said}; choose an existing namespace with --namespace"),
            _ => format!(
                "something else refuses the pod before the webhook is called: {said}\nremove the cause, or choose another namespace with --namespace"
            ),
        }))
    }

    fn admitted(pod: &Pod) -> Self {
        let annotations = pod.metadata.annotations.as_ref();
        let text = annotations.and_then(|all| all.get(labels::DECISION));
        match text.map(|text| serde_json::from_str(text)) {
            Some(Ok(decision)) => Self::Decided(decision),
            _ => Self::Admitted,
        }
    }
}
