//! Writes what pods show: conditions and annotations, and Events.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::{
    api::{core::v1, events::v1::Event},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff::Timestamp,
};
use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams, PostParams},
    core::request::Request,
};
use nvlink_api::{MANAGER, pod};
use nvlink_planner::Name;
use nvlink_runtime::{client, lease};
use serde_json::Value;

use super::{board::Task, review::Telling};
use crate::metrics::{Ended, Metrics, Written};

/// The name of the queue in Events.
const CONTROLLER: &str = "nvlink-domains.io/queue";
/// What the queue does, and says, in Events.
const ACTION: &str = "Queue";
const REASON: &str = "Queued";
/// The kind of Events that need somebody to do something. GitLab Runner shows no others in a job's log.
const WARNING: &str = "Warning";
/// What it does when it fails a pod, and how long it waits for that Event to be written.
const FAIL: &str = "Fail";
const PATIENCE: Duration = Duration::from_secs(5);
/// What it does when it compares a placement with what the pod got.
const COMPARE: &str = "Compare";
/// What it does when it looks at pods that another scheduler has placed, and what it finds.
const LOOK: &str = "Look";
const APART: &str = "NotKeptTogether";
/// The most characters of an Event's text, which may have 1 KiB; it is ASCII but for names.
const NOTE: usize = 1_000;

/// Writes what pods show.
#[derive(Clone)]
pub(super) struct Poster {
    client: Client,
    instance: Arc<str>,
    metrics: Arc<Metrics>,
}

/// An Event about a pod.
struct Said<'a> {
    name: String,
    action: &'a str,
    reason: &'a str,
    /// `Normal` or `Warning`.
    kind: &'a str,
    note: &'a str,
}

/// How a write ended.
#[derive(Debug)]
pub(super) struct Posted {
    /// Whether the status is written.
    pub(super) written: bool,
    /// What the API server refused or did not answer. A conflict, or a pod that is gone, is no failure.
    pub(super) failed: Option<Failed>,
}

/// A write that failed.
#[derive(Debug)]
pub(super) struct Failed {
    /// What was written, for the log.
    pub(super) write: &'static str,
    /// What the API server said, or why it said nothing.
    pub(super) reason: String,
    /// How long that took.
    pub(super) after: Duration,
}

impl Failed {
    fn new(write: &'static str, began: Instant, reason: String) -> Self {
        let after = began.elapsed();
        Self {
            write,
            reason,
            after,
        }
    }
}

impl Poster {
    pub(super) fn new(client: &Client, metrics: &Arc<Metrics>) -> Self {
        Self {
            client: client.clone(),
            instance: lease::host().into(),
            metrics: Arc::clone(metrics),
        }
    }

    /// Writes the status of a pod, and then its Event.
    pub(super) async fn post(self, task: Task) -> (Name, Posted) {
        let status = self.status(&task.document, &task.patch).await;
        let written = matches!(status, Ok(true));
        if written {
            super::failpoint::passed("show");
        }
        let mut failed = status.err();
        if let Some((note, warning)) = task.event.filter(|_| written) {
            let said = Said {
                // The board says the same only once, so nothing is aggregated.
                name: format!("{:x}", Timestamp::now().as_nanosecond()),
                action: ACTION,
                reason: REASON,
                kind: if warning { WARNING } else { "Normal" },
                note: &note,
            };
            failed = self.event(&task.document, &said).await.err();
        }
        let posted = Posted { written, failed };
        (task.pod, posted)
    }

    /// Tells a pod what became of its placement: creates the Event, then writes the condition. The
    /// Event has one name for each pod, so a later leader that finds no condition creates no second
    /// one.
    pub(super) async fn tell(self, telling: &Telling) -> Posted {
        if let Some((reason, kind, note)) = &telling.event {
            let uid = pod::at(&telling.document, &["metadata", "uid"]).and_then(Value::as_str);
            let said = Said {
                name: format!("placed.{}", uid.unwrap_or_default()),
                action: COMPARE,
                reason,
                kind,
                note,
            };
            if let Err(failed) = self.event(&telling.document, &said).await {
                return Posted {
                    written: false,
                    failed: Some(failed),
                };
            }
            super::failpoint::passed("event");
        }
        let status = self.status(&telling.document, &telling.patch).await;
        Posted {
            written: matches!(status, Ok(true)),
            failed: status.err(),
        }
    }

    /// Says in an Event why a pod is about to fail: whoever sees that it failed reads its Events at once.
    /// The Event has one name for each pod, so a second attempt creates no second one. The pod fails all
    /// the same if it cannot be written.
    pub(super) async fn warn(&self, document: &Value, reason: &str, note: &str) {
        let uid = pod::at(document, &["metadata", "uid"]).and_then(Value::as_str);
        let said = Said {
            name: format!("failed.{}", uid.unwrap_or_default()),
            action: FAIL,
            reason,
            kind: WARNING,
            note,
        };
        let written = tokio::time::timeout(PATIENCE, self.event(document, &said)).await;
        let failed = match written {
            Ok(Ok(())) => return,
            Ok(Err(failed)) => failed.reason,
            Err(_) => format!("no answer within {}s", PATIENCE.as_secs()),
        };
        let name = pod::text(document, &["metadata", "name"]);
        let namespace = pod::text(document, &["metadata", "namespace"]);
        tracing::warn!(
            namespace,
            name,
            reason = failed,
            "cannot write the Event of a pod that fails"
        );
    }

    /// Says in an Event that nothing keeps the pods of a job together, once for each `job`.
    pub(super) async fn apart(
        &self,
        document: &Value,
        job: &str,
        note: &str,
    ) -> Result<(), Failed> {
        let said = Said {
            name: format!("apart.{job}"),
            action: LOOK,
            reason: APART,
            kind: WARNING,
            note,
        };
        self.event(document, &said).await
    }

    async fn status(&self, document: &Value, patch: &Value) -> Result<bool, Failed> {
        let began = Instant::now();
        let failed = |reason| Failed::new("status", began, reason);
        let text = |field| pod::at(document, &["metadata", field]).and_then(Value::as_str);
        let (namespace, name) = (text("namespace"), text("name").unwrap_or_default());
        let requests = Request::new(v1::Pod::url_path(&(), namespace));
        let params = PatchParams {
            field_manager: Some(MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let patch = Patch::Strategic(patch);
        let request = requests.patch_subresource("status", name, &params, &patch);
        let request = request.map_err(|error| failed(error.to_string()))?;
        let answer = self.client.request::<Value>(request).await;
        let ended = match &answer {
            Ok(_) => Ended::Written,
            Err(kube::Error::Api(status)) => match status.code {
                404 => Ended::Gone,
                409 => Ended::Conflict,
                429 | 500.. => Ended::Unanswered,
                _ => Ended::Refused,
            },
            Err(_) => Ended::Unanswered,
        };
        self.metrics.queue().write(Written::Show, ended);
        match (ended, answer) {
            (Ended::Gone | Ended::Conflict, _) => Ok(false),
            (_, Err(error)) => Err(failed(client::reason(&error))),
            (_, Ok(_)) => Ok(true),
        }
    }

    /// Creates an Event about a pod, unless there is one of this name.
    async fn event(&self, document: &Value, said: &Said<'_>) -> Result<(), Failed> {
        let began = Instant::now();
        let text = |field| {
            let text = pod::at(document, &["metadata", field]).and_then(Value::as_str);
            text.unwrap_or_default().to_owned()
        };
        let now = Timestamp::now();
        // A name has at most 253 characters.
        let name: String = text("name").chars().take(200).collect();
        let event = Event {
            metadata: ObjectMeta {
                name: Some(format!("{name}.{}", said.name)),
                namespace: Some(text("namespace")),
                ..ObjectMeta::default()
            },
            action: Some(said.action.to_owned()),
            event_time: Some(MicroTime(now)),
            note: Some(said.note.chars().take(NOTE).collect()),
            reason: Some(said.reason.to_owned()),
            regarding: Some(v1::ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Pod".to_owned()),
                name: Some(text("name")),
                namespace: Some(text("namespace")),
                uid: Some(text("uid")),
                ..v1::ObjectReference::default()
            }),
            reporting_controller: Some(CONTROLLER.to_owned()),
            reporting_instance: Some(self.instance.to_string()),
            type_: Some(said.kind.to_owned()),
            ..Event::default()
        };
        let api: Api<Event> = Api::namespaced(self.client.clone(), &text("namespace"));
        match api.create(&PostParams::default(), &event).await {
            // The namespace is being deleted, or the Event is there.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            Err(error) => Err(Failed::new("event", began, client::reason(&error))),
            Ok(_) => Ok(()),
        }
    }
}
