//! Keeps the `MutatingWebhookConfiguration` right while the webhook runs.
//!
//! Server-side apply of the whole object: what somebody changed is put right
//! as soon as the watch tells of it.
//!
//! Every replica does so, not the leader alone: while nobody leads, a
//! registration that somebody deleted lets jobs past the webhook, and one whose
//! authority is no longer right refuses them all. A replica that starts must be
//! known before anybody is sent to it. They all apply the same; where they do
//! not, as in a rollout, `quarrel` makes them slow.

use std::{sync::Arc, time::Duration};

use futures::{Stream, StreamExt};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration as Registration;
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
    core::PartialObjectMeta,
    runtime::watcher,
};
use nvlink_runtime::{client, supervise::Heartbeat, watch::events};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

use crate::{
    cluster::MANAGER,
    registration::{NAME, WebhookTarget, registration},
};

mod quarrel;

use quarrel::{Quarrel, differences};

type Change = watcher::Event<PartialObjectMeta<Registration>>;

/// At least this long between two writes. Where each is undone it grows ([`quarrel`]).
const PACE: Duration = Duration::from_secs(1);
/// A look without any reason, and the wait after a failure.
const LOOK: Duration = Duration::from_secs(60);
const RETRY: Duration = Duration::from_secs(5);

/// Without a sign of life for so long it is stuck: two requests and a look take less.
pub const STUCK: Duration = Duration::from_secs(300);

/// Keeps the configuration right.
#[derive(Clone)]
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
    pub async fn run(mut self, heart: Arc<Heartbeat>) {
        let api: Api<Registration> = Api::all(self.client.clone());
        let config = watcher::Config::default().fields(&format!("metadata.name={NAME}"));
        let metas: Api<PartialObjectMeta<Registration>> = Api::all(self.client.clone());
        let mut changes = events(metas, config).boxed();
        let (mut applied, mut foreign): (Option<Registration>, bool) = (None, false);
        let mut quarrel = Quarrel::default();
        loop {
            heart.beat();
            let bundle = self.bundle.borrow_and_update().clone();
            let version = applied.as_ref().and_then(ResourceExt::resource_version);
            let found = match (foreign, &applied) {
                (true, Some(applied)) => self.changed(&api, applied).await,
                _ => String::new(),
            };
            let (mut wait, mut rest) = (LOOK, None);
            match self.apply(&api, &bundle).await {
                Ok(now) => {
                    if version != now.resource_version() {
                        tracing::info!(name = NAME, "registered with the API server");
                        rest = foreign.then(|| quarrel.repaired(Instant::now())).flatten();
                    }
                    applied = Some(now);
                    self.registered.send_replace(bundle);
                }
                Err(error) => {
                    let reason = reason(&error);
                    tracing::warn!(name = NAME, reason, "cannot register with the API server");
                    wait = RETRY;
                }
            }
            sleep(PACE).await;
            if let Some(rest) = rest {
                heart.rest();
                if self.rest(rest, &found).await {
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

    /// Leaves the configuration as it is for a while. Whether it is to be
    /// written before that, because there is another bundle.
    async fn rest(&mut self, rest: Duration, fields: &str) -> bool {
        let seconds = rest.as_secs();
        tracing::warn!(
            name = NAME,
            fields,
            seconds,
            "somebody keeps changing the registration, perhaps a replica with other flags: the next change stays for a while"
        );
        timeout(rest, news(&mut self.bundle)).await.is_ok()
    }

    /// What somebody changed of what was `applied`, for people.
    async fn changed(&self, api: &Api<Registration>, applied: &Registration) -> String {
        let webhooks =
            |registration: &Registration| serde_json::json!({"webhooks": registration.webhooks});
        match api.get_opt(NAME).await {
            Ok(Some(found)) => differences(&webhooks(applied), &webhooks(&found)),
            Ok(None) => "all: it was deleted".to_owned(),
            Err(error) => format!("not known: {}", reason(&error)),
        }
    }

    /// Applies it and gives what the API server has then: with an old version
    /// where it was right already.
    async fn apply(&self, api: &Api<Registration>, bundle: &str) -> kube::Result<Registration> {
        let wanted = registration(&self.target, &self.exempt, bundle.as_bytes());
        let params = PatchParams::apply(MANAGER).force();
        api.patch(NAME, &params, &Patch::Apply(&wanted)).await
    }
}

/// Until there is something to write: another bundle, or (then it is true)
/// somebody else's change of what we wrote as `version`.
async fn woken(
    bundle: &mut watch::Receiver<String>,
    changes: &mut (impl Stream<Item = Result<Change, watcher::Error>> + Unpin),
    version: Option<&str>,
) -> bool {
    let other = async {
        let mut listed = false;
        while let Some(event) = changes.next().await {
            // A list that lacks it tells of a deletion before the watch began.
            let gone = matches!(event, Ok(watcher::Event::InitDone)) && !listed;
            listed = matches!(event, Ok(watcher::Event::InitApply(_)));
            if gone || event.is_ok_and(|event| concerns(&event, version)) {
                return;
            }
        }
        // The stream never ends; if it did, the next look still comes.
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = news(bundle) => false,
        () = other => true,
    }
}

/// Until there is another bundle.
async fn news(bundle: &mut watch::Receiver<String>) {
    if bundle.changed().await.is_err() {
        // Nobody sends any more, and the bundle stays as it is.
        std::future::pending::<()>().await;
    }
}

/// Whether an event tells of something else than what we applied.
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
        kube::Error::Api(status) if status.code == 403 => format!(
            "the service account may not: grant it get, list, watch, create and patch on \
             mutatingwebhookconfigurations ({})",
            status.message
        ),
        error => client::reason(error),
    }
}
