//! Why the API server admitted a pod without calling the webhook.

use k8s_openapi::api::{
    admissionregistration::v1::MutatingWebhookConfiguration, core::v1::Namespace,
};
use kube::{
    Api, Client,
    core::{Selector, SelectorExt},
};
use nvlink_api::REGISTRATION as NAME;
use nvlink_topology::labels;

use super::answer::{ENTRY, PODS};

/// Returns why the API server did not call the webhook for a pod in `namespace`, as far as the
/// user may read the reason.
pub(super) async fn why(client: &Client, namespace: &str) -> String {
    let registrations: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let registered = registrations.get_opt(NAME).await;
    let registered = registered.map(|found| found.map(selector));
    let labels = namespaces.get(namespace).await;
    let labels = labels.map(|found| found.metadata.labels.unwrap_or_default());
    let reason = match (registered, labels) {
        (Ok(None), _) => format!(
            "there is no MutatingWebhookConfiguration {NAME}: install the chart with webhook.enabled=true, or give --service or --url to nvlink-webhook serve"
        ),
        (Ok(Some(None)), _) => format!(
            "the MutatingWebhookConfiguration {NAME} has no entry {ENTRY}: the webhook writes it when a replica is ready: {PODS}"
        ),
        (Ok(Some(Some(selector))), Ok(labels)) if selector.matches(&labels) => {
            "it is registered for the namespace, but perhaps so recently that the API server does not know it yet: try again in a few seconds".to_owned()
        }
        (Ok(Some(Some(_))), Ok(_)) => format!(
            "namespace {namespace} is exempt, by --exempt-namespace or by the label {}=ignore: choose another with --namespace",
            labels::OPT_OUT
        ),
        _ => format!(
            "either it is not registered, or namespace {namespace} is exempt; to find out, run the check with the right to read both, or look: kubectl get mutatingwebhookconfiguration {NAME} -o yaml; kubectl get namespace {namespace} --show-labels"
        ),
    };
    format!("the webhook was not called for a pod that names a class: {reason}")
}

/// Returns the selector of the namespaces for whose pods the API server calls the webhook.
fn selector(registration: MutatingWebhookConfiguration) -> Option<Selector> {
    let mut entries = registration.webhooks.into_iter().flatten();
    let entry = entries.find(|entry| entry.name == ENTRY)?;
    entry.namespace_selector.unwrap_or_default().try_into().ok()
}
