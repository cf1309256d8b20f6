//! The `MutatingWebhookConfiguration`: which pods the API server calls the webhook for.

use k8s_openapi::{
    ByteString,
    api::admissionregistration::v1::{
        MatchCondition, MutatingWebhook, MutatingWebhookConfiguration, RuleWithOperations,
        ServiceReference, WebhookClientConfig,
    },
    apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement, ObjectMeta},
};
use nvlink_topology::{GROUP, labels};

pub mod listening;
pub mod registrar;

use nvlink_admission::policies;

use crate::admission::server::PATH;

/// The name of the configuration.
pub const NAME: &str = nvlink_api::REGISTRATION;

/// The address at which the API server calls the webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WebhookTarget {
    /// By URL, for a webhook outside the cluster: `https://HOST:PORT`, with or without the path.
    Url(String),
    Service {
        /// Namespace of the Service; the webhook is never called for pods in it.
        namespace: String,
        /// Name of the Service.
        name: String,
        /// Port of the Service.
        port: u16,
    },
}

/// CEL: the pod requests a GPU. Some container requests a resource of NVIDIA or
/// one that stands for a DRA device class.
const ASKS_FOR_GPU: &str = "\
[object.spec.containers, has(object.spec.initContainers) ? object.spec.initContainers : []].exists(list, \
list.exists(c, has(c.resources) && (\
(has(c.resources.limits) && c.resources.limits.exists(name, name.startsWith('nvidia.com/') || name.startsWith('deviceclass.resource.kubernetes.io/'))) || \
(has(c.resources.requests) && c.resources.requests.exists(name, name.startsWith('nvidia.com/') || name.startsWith('deviceclass.resource.kubernetes.io/'))))))";

/// Returns the configuration. All entries have the same path. Pods that name a
/// class fail closed, since their authors rely on the class; other GPU pods fail
/// open, so that plain jobs run when the webhook is down.
///
/// The API server decodes the pod again for each entry whose rules match, and
/// evaluates all its conditions. So there are as few entries and conditions as
/// possible. Kubelets write the status of pods often, so a policy alone checks it.
#[must_use]
pub fn registration(
    target: &WebhookTarget,
    exempt: &[String],
    ca_bundle_pem: &[u8],
) -> MutatingWebhookConfiguration {
    let entry = |name: &str, policy: &str, rules, (condition, expression): (&str, String)| {
        let condition = MatchCondition {
            name: condition.to_owned(),
            expression,
        };
        MutatingWebhook {
            name: format!("{name}.{GROUP}"),
            client_config: client(target, ca_bundle_pem),
            failure_policy: Some(policy.to_owned()),
            match_conditions: Some(vec![condition]),
            namespace_selector: Some(elsewhere(target, exempt)),
            rules: Some(rules),
            ..common()
        }
    };
    let created = rule("CREATE", &["pods"]);
    let changed = ["pods", "pods/ephemeralcontainers", "pods/resize"];
    let either = vec![created.clone(), rule("UPDATE", &changed)];
    let relies = ("names-a-class", relies_on_a_class());
    let others = ("concerns-a-rule", others());
    MutatingWebhookConfiguration {
        metadata: ObjectMeta {
            name: Some(NAME.to_owned()),
            ..Default::default()
        },
        webhooks: Some(vec![
            entry("class", "Fail", vec![created], relies),
            entry("guard", "Ignore", either, others),
        ]),
    }
}

/// Returns the CEL condition of a GPU pod that names a class.
fn relies_on_a_class() -> String {
    format!(
        "has(object.metadata.annotations) && '{}' in object.metadata.annotations && {ASKS_FOR_GPU}",
        labels::CLASS
    )
}

/// Returns the CEL condition of other GPU pods, pods that target a class in another
/// way, and later changes of pods. The policies enforce these rules when the
/// webhook is down; the webhook gives better explanations. What is cheap comes first.
fn others() -> String {
    format!(
        "!(request.operation == 'CREATE' && {}) && ({})",
        relies_on_a_class(),
        policies::concerns_a_rule(),
    )
}

/// Returns the fields that all entries share.
fn common() -> MutatingWebhook {
    MutatingWebhook {
        admission_review_versions: vec!["v1".to_owned()],
        match_policy: Some("Equivalent".to_owned()),
        reinvocation_policy: Some("IfNeeded".to_owned()),
        side_effects: "None".to_owned(),
        timeout_seconds: Some(5),
        ..Default::default()
    }
}

impl WebhookTarget {
    /// Returns the host names that the API server calls, which the certificate must have.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        match self {
            Self::Url(url) => {
                let rest = url.trim_start_matches("https://");
                let host = rest.split('/').next().unwrap_or(rest);
                let host = match host.strip_prefix('[') {
                    Some(address) => address.split(']').next().unwrap_or(address),
                    None => host.rsplit_once(':').map_or(host, |(host, _)| host),
                };
                vec![host.to_owned()]
            }
            Self::Service {
                namespace, name, ..
            } => ["", ".cluster.local"]
                .map(|end| format!("{name}.{namespace}.svc{end}"))
                .to_vec(),
        }
    }
}

/// Returns a rule for `operation` on `resources` of pods.
fn rule(operation: &str, resources: &[&str]) -> RuleWithOperations {
    RuleWithOperations {
        api_groups: Some(vec![String::new()]),
        api_versions: Some(vec!["v1".to_owned()]),
        operations: Some(vec![operation.to_owned()]),
        resources: Some(resources.iter().map(|&name| name.to_owned()).collect()),
        scope: Some("Namespaced".to_owned()),
    }
}

fn client(target: &WebhookTarget, ca_bundle_pem: &[u8]) -> WebhookClientConfig {
    let ca_bundle = Some(ByteString(ca_bundle_pem.to_vec()));
    match target {
        WebhookTarget::Url(url) => {
            let url = url.trim_end_matches('/').trim_end_matches(PATH);
            WebhookClientConfig {
                ca_bundle,
                url: Some(format!("{url}{PATH}")),
                service: None,
            }
        }
        WebhookTarget::Service {
            namespace,
            name,
            port,
        } => {
            let service = ServiceReference {
                namespace: namespace.clone(),
                name: name.clone(),
                path: Some(PATH.to_owned()),
                port: Some((*port).into()),
            };
            WebhookClientConfig {
                ca_bundle,
                service: Some(service),
                url: None,
            }
        }
    }
}

/// Selects every namespace except `kube-system` and the webhook's own (the cluster
/// and the webhook must be able to start while the webhook is down), the `exempt`
/// ones of the platform's own daemons, and those with the label that exempts them.
fn elsewhere(target: &WebhookTarget, exempt: &[String]) -> LabelSelector {
    let mut others = exempt.to_vec();
    if let WebhookTarget::Service { namespace, .. } = target {
        others.insert(0, namespace.clone());
    }
    let values = policies::exempt_names(&others);
    let not_in = |key: &str, values: Vec<String>| LabelSelectorRequirement {
        key: key.to_owned(),
        operator: "NotIn".to_owned(),
        values: Some(values),
    };
    LabelSelector {
        match_expressions: Some(vec![
            not_in("kubernetes.io/metadata.name", values),
            not_in(labels::OPT_OUT, vec!["ignore".to_owned()]),
        ]),
        match_labels: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pods_that_name_a_class_fail_closed() {
        let target = WebhookTarget::Service {
            namespace: "nvlink".to_owned(),
            name: "hook".to_owned(),
            port: 443,
        };
        let exempt = ["gpu-operator".to_owned()];
        let webhooks = registration(&target, &exempt, b"ca").webhooks.unwrap();
        let policies: Vec<_> = webhooks
            .iter()
            .map(|hook| hook.failure_policy.as_deref().unwrap())
            .collect();
        assert_eq!(policies, ["Fail", "Ignore"]);
        for hook in &webhooks {
            let selector = hook
                .namespace_selector
                .as_ref()
                .unwrap()
                .match_expressions
                .as_ref()
                .unwrap();
            assert_eq!(
                selector[0].values.as_deref().unwrap(),
                ["kube-system", "nvlink", "gpu-operator"]
            );
        }
    }

    #[test]
    fn the_names_of_a_certificate() {
        let names = |url: &str| WebhookTarget::Url(url.to_owned()).names();
        assert_eq!(names("https://10.0.0.1:8443/mutate"), ["10.0.0.1"]);
        assert_eq!(names("https://[::1]:8443"), ["::1"]);
        assert_eq!(names("https://hook.example"), ["hook.example"]);
        let service = WebhookTarget::Service {
            namespace: "nvlink".to_owned(),
            name: "hook".to_owned(),
            port: 443,
        };
        assert_eq!(service.names()[0], "hook.nvlink.svc");
    }

    #[test]
    fn the_path_is_added_to_a_url_once() {
        for url in ["https://h:1", "https://h:1/", "https://h:1/mutate"] {
            let webhooks = registration(&WebhookTarget::Url(url.to_owned()), &[], b"")
                .webhooks
                .unwrap();
            assert_eq!(
                webhooks[0].client_config.url.as_deref(),
                Some("https://h:1/mutate")
            );
        }
    }
}
