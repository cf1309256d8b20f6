//! Keeps the `MutatingWebhookConfiguration` right while the webhook runs.
//!
//! Server-side apply of the whole object: what somebody changed is put right
//! as soon as the watch tells of it, and every replica may do so, since they
//! all apply the same.

use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
    core::PartialObjectMeta,
    runtime::{WatchStreamExt, watcher},
};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use crate::registration::{NAME, WebhookTarget, registration};

/// Field manager of the configuration.
pub const MANAGER: &str = "nvlink-webhook";
/// At least this long between two writes: replicas of two versions would
/// otherwise put each other's right without end.
const PACE: Duration = Duration::from_secs(1);
/// A look without any reason, and the wait after a failure.
const LOOK: Duration = Duration::from_secs(60);
const RETRY: Duration = Duration::from_secs(5);

/// Keeps the configuration right.
pub struct Registrar {
    client: Client,
    target: WebhookTarget,
    exempt: Vec<String>,
    bundle: watch::Receiver<String>,
    registered: watch::Sender<String>,
}

impl Registrar {
    /// For a webhook at `target` whose certificates `bundle` signs, which the
    /// pods of the namespaces `exempt` do not concern.
    #[must_use]
    pub fn new(
        client: Client,
        target: WebhookTarget,
        exempt: Vec<String>,
        bundle: watch::Receiver<String>,
    ) -> Self {
        Self {
            client,
            target,
            exempt,
            bundle,
            registered: watch::Sender::new(String::new()),
        }
    }

    /// The bundle that the API server was told last; empty before the first time.
    #[must_use]
    pub fn registered(&self) -> watch::Receiver<String> {
        self.registered.subscribe()
    }

    /// Applies the configuration now, when the bundle changes, when somebody
    /// else changed it, and every minute. Never ends.
    pub async fn run(mut self) {
        let api: Api<MutatingWebhookConfiguration> = Api::all(self.client.clone());
        let config = watcher::Config::default().fields(&format!("metadata.name={NAME}"));
        let metas: Api<PartialObjectMeta<MutatingWebhookConfiguration>> =
            Api::all(self.client.clone());
        let mut changes = watcher(metas, config).default_backoff().boxed();
        let mut version = None;
        loop {
            let bundle = self.bundle.borrow_and_update().clone();
            let wait = match self.apply(&api, &bundle).await {
                Ok(now) => {
                    if version != now {
                        tracing::info!(name = NAME, "registered with the API server");
                    }
                    version = now;
                    self.registered.send_replace(bundle);
                    LOOK
                }
                Err(error) => {
                    let reason = reason(&error);
                    tracing::warn!(name = NAME, reason, "cannot register with the API server");
                    RETRY
                }
            };
            sleep(PACE).await;
            let other = async {
                while let Some(event) = changes.next().await {
                    if event.is_ok_and(|event| concerns(&event, version.as_deref())) {
                        return;
                    }
                }
                // The stream never ends; if it did, the next look still comes.
                std::future::pending::<()>().await;
            };
            let wake = async {
                tokio::select! {
                    // An error: nobody sends any more, and the bundle stays as it is.
                    Ok(()) = self.bundle.changed() => {}
                    () = other => {}
                }
            };
            drop(timeout(wait, wake).await);
        }
    }

    /// Applies it and gives its version: an old one where it was right already.
    async fn apply(
        &self,
        api: &Api<MutatingWebhookConfiguration>,
        bundle: &str,
    ) -> kube::Result<Option<String>> {
        let wanted = registration(&self.target, &self.exempt, bundle.as_bytes());
        let params = PatchParams::apply(MANAGER).force();
        let applied = api.patch(NAME, &params, &Patch::Apply(&wanted)).await?;
        Ok(applied.metadata.resource_version)
    }
}

/// Whether an event tells of something else than what we applied.
fn concerns(
    event: &watcher::Event<PartialObjectMeta<MutatingWebhookConfiguration>>,
    version: Option<&str>,
) -> bool {
    match event {
        watcher::Event::Delete(_) => true,
        watcher::Event::Apply(object) | watcher::Event::InitApply(object) => {
            object.metadata.resource_version.as_deref() != version
        }
        watcher::Event::Init | watcher::Event::InitDone => false,
    }
}

fn reason(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if status.code == 403 => format!(
            "the service account may not: grant it get, list, watch, create and patch on \
             mutatingwebhookconfigurations ({})",
            status.message
        ),
        kube::Error::Api(status) => status.message.clone(),
        error => error.to_string(),
    }
}
