//! Maintains the `MutatingWebhookConfiguration` while the webhook runs.
//!
//! It applies the whole object by server-side apply, and repairs changes as soon as
//! the watch reports them. Where the API server refuses the result, because somebody else wrote an
//! address of the other kind (`url` beside `service`), it replaces the addresses first.
//!
//! Every replica does so, not only the leader. While there is no leader, jobs
//! would bypass the webhook if somebody deleted the registration, and all would be
//! refused if its CA were outdated. A new replica must be registered before it
//! gets requests. All replicas apply the same object; if they do not, as during a
//! rollout, `quarrel` slows them down. Only the CAs may differ for some minutes, while replicas get
//! a new one at different times: `others` keeps those of the others.

use std::{sync::Arc, time::Duration};

use futures::{Stream, StreamExt};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration as Registration;
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
    core::PartialObjectMeta,
    runtime::watcher,
};
use nvlink_api::MANAGER;
use nvlink_runtime::{client, supervise::Heartbeat, watch::events};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

use crate::{
    metrics::Metrics,
    registration::{NAME, WebhookTarget, listening::listening, registration},
};

mod others;
mod quarrel;

use others::Others;
use quarrel::{Quarrel, differences};

type Change = watcher::Event<PartialObjectMeta<Registration>>;

/// The minimum time between two writes. It grows if each write is undone ([`quarrel`]).
const PACE: Duration = Duration::from_secs(1);
/// The time until the next write without a change, and after a failure.
const LOOK: Duration = Duration::from_secs(60);
const RETRY: Duration = Duration::from_secs(5);

/// After this time without a heartbeat the registrar is stuck: three requests and
/// `LOOK` take less.
pub const STUCK: Duration = Duration::from_secs(300);

/// Maintains the configuration.
#[derive(Clone)]
pub struct Registrar {
    client: Client,
    target: WebhookTarget,
    exempt: Vec<String>,
    bundle: watch::Receiver<String>,
    registered: watch::Sender<String>,
}

impl Registrar {
    /// Returns a registrar for a webhook at `target`, with a certificate of the CAs
    /// in `bundle`, which is not called for pods in the namespaces `exempt`.
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

    /// Returns a receiver of the bundle that was registered last; empty before the first time.
    #[must_use]
    pub fn registered(&self) -> watch::Receiver<String> {
        self.registered.subscribe()
    }

    /// Waits until a replica listens, unless the API server refuses pods already while none does.
    pub async fn listening(&self) {
        listening(&self.client, &self.target).await;
    }

    /// Applies the configuration now, when the bundle changes, when somebody
    /// else changed it, and every minute. `metrics` show whether it succeeds. Never ends.
    pub async fn run(mut self, heart: Arc<Heartbeat>, metrics: Arc<Metrics>) {
        let api: Api<Registration> = Api::all(self.client.clone());
        let config = watcher::Config::default().fields(&format!("metadata.name={NAME}"));
        let metas: Api<PartialObjectMeta<Registration>> = Api::all(self.client.clone());
        let mut changes = events(metas, config).boxed();
        let (mut applied, mut foreign): (Option<Registration>, bool) = (None, false);
        let (mut quarrel, mut others) = (Quarrel::default(), Others::default());
        let mut fields = String::new();
        loop {
            heart.beat();
            let bundle = self.bundle.borrow_and_update().clone();
            let version = applied.as_ref().and_then(ResourceExt::resource_version);
            if let (true, Some(applied)) = (foreign, &applied) {
                let found = self.changed(&api, applied).await;
                // Two replicas may both write between this read and the next write.
                fields = if found.is_empty() { fields } else { found };
            }
            let (mut wait, mut rest) = (LOOK, None);
            let written = self.write(&api, &bundle, &mut others).await;
            metrics.registration(written.is_some());
            match written {
                Some(now) => {
                    if version != now.resource_version() {
                        tracing::info!(name = NAME, "registered with the API server");
                        rest = foreign.then(|| quarrel.repaired(Instant::now())).flatten();
                    }
                    applied = Some(now);
                    self.registered.send_replace(bundle);
                }
                None => wait = RETRY,
            }
            sleep(PACE).await;
            if let Some(rest) = rest {
                heart.rest();
                metrics.registration_disputed();
                if self.rest(rest, &fields).await {
                    foreign = false;
                    continue;
                }
                heart.beat();
            }
            let version = applied.as_ref().and_then(ResourceExt::resource_version);
            let wake = woken(&mut self.bundle, &mut changes, version.as_deref());
            foreign = timeout(wait, wake).await.unwrap_or(false);
        }
    }

    /// Waits for `rest` before the next repair. Returns whether the wait ended early
    /// because of a new bundle.
    async fn rest(&mut self, rest: Duration, fields: &str) -> bool {
        let seconds = rest.as_secs();
        tracing::warn!(
            name = NAME,
            fields,
            seconds,
            "somebody keeps changing the registration, perhaps a replica with other flags; the next repair is delayed"
        );
        timeout(rest, news(&mut self.bundle)).await.is_ok()
    }

    /// Returns which fields somebody changed since `applied`, for the log.
    async fn changed(&self, api: &Api<Registration>, applied: &Registration) -> String {
        let webhooks =
            |registration: &Registration| serde_json::json!({"webhooks": registration.webhooks});
        match api.get_opt(NAME).await {
            Ok(Some(found)) => differences(&webhooks(applied), &webhooks(&found)),
            Ok(None) => "all: the registration was deleted".to_owned(),
            Err(error) => format!("unknown: {}", reason(&error)),
        }
    }

    /// Writes the configuration and returns the result, whose version is unchanged if the
    /// configuration was already right; `None` if it cannot be written, which is logged.
    async fn write(
        &self,
        api: &Api<Registration>,
        bundle: &str,
        others: &mut Others,
    ) -> Option<Registration> {
        let written = async {
            let found = api.get_opt(NAME).await?;
            let bundle = others.beside(bundle, found.as_ref(), Instant::now());
            let wanted = registration(&self.target, &self.exempt, bundle.as_bytes());
            match apply(api, &wanted).await {
                Err(error) if is_invalid(&error) => readdress(api, &wanted, error).await,
                other => other,
            }
        };
        let log = |error: &kube::Error| {
            let reason = reason(error);
            tracing::warn!(name = NAME, reason, "cannot register with the API server");
        };
        written.await.inspect_err(log).ok()
    }
}

async fn apply(api: &Api<Registration>, wanted: &Registration) -> kube::Result<Registration> {
    let params = PatchParams::apply(MANAGER).force();
    api.patch(NAME, &params, &Patch::Apply(wanted)).await
}

/// Replaces the addresses of the existing configuration, and applies it again. An apply keeps the
/// fields of others, so that an entry with a `url` of somebody else gets a `service` beside it,
/// which the API server refuses as `error`.
async fn readdress(
    api: &Api<Registration>,
    wanted: &Registration,
    error: kube::Error,
) -> kube::Result<Registration> {
    let entries = wanted.webhooks.iter().flatten().map(|entry| {
        let mut entry = serde_json::json!(entry);
        entry["clientConfig"]["$patch"] = "replace".into();
        entry
    });
    let patch = serde_json::json!({"webhooks": entries.collect::<Vec<_>>()});
    let params = PatchParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let replaced = api.patch(NAME, &params, &Patch::Strategic(patch)).await;
    // The first error explains more than that of the attempt to mend it.
    replaced.map_err(|_| error)?;
    let written = apply(api, wanted).await?;
    tracing::info!(
        name = NAME,
        "replaced the addresses in the registration: somebody else had written another kind of address (url or service) there"
    );
    Ok(written)
}

/// Reports whether the API server refuses the object as invalid.
fn is_invalid(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 422)
}

/// Waits until there is something to write. Returns false for another bundle, and
/// true if somebody else changed what the webhook wrote as `version`.
async fn woken(
    bundle: &mut watch::Receiver<String>,
    changes: &mut (impl Stream<Item = Result<Change, watcher::Error>> + Unpin),
    version: Option<&str>,
) -> bool {
    let other = async {
        let mut listed = false;
        while let Some(event) = changes.next().await {
            // A list without the object means that it was deleted before the watch started.
            let gone = matches!(event, Ok(watcher::Event::InitDone)) && !listed;
            listed = matches!(event, Ok(watcher::Event::InitApply(_)));
            if gone || event.is_ok_and(|event| concerns(&event, version)) {
                return;
            }
        }
        // The stream never ends; if it did, the write after `LOOK` would still come.
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = news(bundle) => false,
        () = other => true,
    }
}

/// Waits until there is another bundle.
async fn news(bundle: &mut watch::Receiver<String>) {
    if bundle.changed().await.is_err() {
        // The sender is gone, so the bundle does not change any more.
        std::future::pending::<()>().await;
    }
}

/// Reports whether an event shows a version that this registrar did not apply.
fn concerns(event: &Change, version: Option<&str>) -> bool {
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
        // Applying creates what is missing, and the chart grants no right to do so.
        kube::Error::Api(status)
            if status.code == 403
                && (status.message.contains("cannot create")
                    // API servers of Kubernetes 1.30 give no reason.
                    || status.message.trim_end().ends_with("is forbidden:")) =>
        {
            format!(
                "the registration does not exist, and the service account may not create it: install \
                 the chart or its manifests again, or grant it create on \
                 mutatingwebhookconfigurations ({})",
                status.message
            )
        }
        kube::Error::Api(status) if status.code == 403 => format!(
            "the service account lacks rights: grant it get, list, watch, create and patch on \
             mutatingwebhookconfigurations ({})",
            status.message
        ),
        error => client::reason(error),
    }
}
