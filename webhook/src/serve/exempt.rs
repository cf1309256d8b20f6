//! Exempt namespaces, to whose pods no rule applies.

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client, api::ListParams, core::PartialObjectMeta};
use nvlink_admission::policies;
use nvlink_runtime::client;

use crate::{args::TrustArgs, registration::WebhookTarget};

/// Returns their names, including the webhook's own namespace. Logs a warning for
/// each that does not exist.
pub(super) fn names(args: &TrustArgs, client: &Client) -> Vec<String> {
    let mut names = policies::exempt_names(&args.exempt.exempt_namespaces);
    if let Some(WebhookTarget::Service { namespace, .. }) = &args.service
        && !names.contains(namespace)
    {
        names.push(namespace.clone());
    }
    tokio::spawn(warn_of_missing(client.clone(), names.clone()));
    names
}

/// Logs a warning for each missing namespace: anybody who may create a namespace of
/// that name can create unchecked pods in it.
async fn warn_of_missing(client: Client, names: Vec<String>) {
    let namespaces: Api<PartialObjectMeta<Namespace>> = Api::all(client);
    for namespace in names {
        let named = ListParams::default().fields(&format!("metadata.name={namespace}"));
        match namespaces.list_metadata(&named).await {
            Ok(found) if found.items.is_empty() => tracing::warn!(
                namespace,
                "an exempt namespace does not exist, so anybody who creates it can run unchecked pods in it: create it, or remove it from --exempt-namespace"
            ),
            Ok(_) => {}
            Err(error) => {
                let reason = client::reason(&error);
                tracing::warn!(
                    namespace,
                    reason,
                    "cannot check whether an exempt namespace exists"
                );
                return;
            }
        }
    }
}
