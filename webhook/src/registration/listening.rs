//! Before the first registration, a replica must listen: until then, the API server would refuse pods
//! that name a class.

use std::time::Duration;

use axum::http::Uri;
use k8s_openapi::api::{
    admissionregistration::v1::MutatingWebhookConfiguration as Registration,
    discovery::v1::EndpointSlice,
};
use kube::{Api, Client, api::ListParams};
use nvlink_runtime::client;
use tokio::{
    net::TcpStream,
    time::{sleep, timeout},
};

use super::{NAME, WebhookTarget};

/// The time between two looks.
const PAUSE: Duration = Duration::from_secs(1);
/// How long a connection may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// Waits until a replica at `target` listens. If the API server refuses pods already while none does,
/// there is nothing to wait for.
pub async fn listening(client: &Client, target: &WebhookTarget) {
    let mut told = false;
    loop {
        match is_closed(client).await {
            Ok(true) => return,
            Ok(false) => {}
            Err(error) => {
                let reason = client::reason(&error);
                tracing::warn!(name = NAME, reason, "cannot read the registration");
            }
        }
        if listens(client, target).await {
            return;
        }
        if !told {
            tracing::info!(
                "waiting until a replica of `nvlink-webhook serve` is ready before it is registered"
            );
            told = true;
        }
        sleep(PAUSE).await;
    }
}

/// Reports whether the registration has an entry that fails closed.
async fn is_closed(client: &Client) -> kube::Result<bool> {
    let api: Api<Registration> = Api::all(client.clone());
    let found = api.get_opt(NAME).await?;
    let mut entries = found
        .into_iter()
        .flat_map(|found| found.webhooks.unwrap_or_default());
    Ok(entries.any(|entry| entry.failure_policy.as_deref() == Some("Fail")))
}

async fn listens(client: &Client, target: &WebhookTarget) -> bool {
    let (namespace, name) = match target {
        WebhookTarget::Url(url) => return connects(url).await,
        WebhookTarget::Service {
            namespace, name, ..
        } => (namespace, name),
    };
    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), namespace);
    let of_service = ListParams::default().labels(&format!("kubernetes.io/service-name={name}"));
    match slices.list(&of_service).await {
        Ok(found) => found.items.iter().any(is_ready),
        Err(error) => {
            let reason = client::reason(&error);
            tracing::warn!(%namespace, service = name, reason, "cannot list the EndpointSlices of the Service");
            false
        }
    }
}

fn is_ready(slice: &EndpointSlice) -> bool {
    slice.endpoints.iter().any(|endpoint| {
        let conditions = endpoint.conditions.as_ref();
        // Absent means ready.
        conditions.and_then(|conditions| conditions.ready) != Some(false)
    })
}

/// Reports whether something accepts connections at an `https` URL.
async fn connects(url: &str) -> bool {
    let Ok(uri) = url.parse::<Uri>() else {
        return false;
    };
    let Some(host) = uri.host() else {
        return false;
    };
    let connecting =
        TcpStream::connect((host.trim_matches(['[', ']']), uri.port_u16().unwrap_or(443)));
    timeout(PATIENCE, connecting)
        .await
        .is_ok_and(|made| made.is_ok())
}
