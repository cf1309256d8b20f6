//! Namespaces whose pods no rule concerns.

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client, api::ListParams, core::PartialObjectMeta};
use nvlink_runtime::client;

use crate::{args::TlsArgs, policies, registration::WebhookTarget};

/// Their names, that of the webhook's own among them. The log tells of those
/// that do not exist.
pub(super) fn names(args: &TlsArgs, client: &Client) -> Vec<String> {
    let mut names = policies::exempt_names(&args.exempt.exempt_namespaces);
    if let Some(WebhookTarget::Service { namespace, .. }) = &args.service
        && !names.contains(namespace)
    {
        names.push(namespace.clone());
    }
    tokio::spawn(warn_of_missing(client.clone(), names.clone()));
    names
}

/// Whoever may create namespaces has, in one of such a name, pods that nobody
/// looks at.
async fn warn_of_missing(client: Client, names: Vec<String>) {
    let namespaces: Api<PartialObjectMeta<Namespace>> = Api::all(client);
    for namespace in names {
        let named = ListParams::default().fields(&format!("metadata.name={namespace}"));
        match namespaces.list_metadata(&named).await {
            Ok(found) if found.items.is_empty() => tracing::warn!(
                namespace,
                "an exempt namespace does not exist, and whoever creates it has pods that nobody looks at: create it, or take it out of --exempt-namespace"
            ),
            Ok(_) => {}
            Err(error) => {
                let reason = client::reason(&error);
                tracing::warn!(
                    namespace,
                    reason,
                    "cannot look whether an exempt namespace exists"
                );
                return;
            }
        }
    }
}
