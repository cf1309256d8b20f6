//! The HTTP admission endpoint.

use std::{
    convert::Infallible,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    Extension, Router,
    body::Body,
    extract::{RawQuery, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::post,
};
use nvlink_admission::{
    admit::{Admission, Origin},
    authorize::Authorizer,
    decide::{Action, Admitted, Record, Refusal, guard::Change},
};
use nvlink_api::pod;
use nvlink_runtime::connections::Peer;
use nvlink_topology::labels;
use serde_json::Value;
use tokio::time::timeout_at;

use crate::{
    admission::review::{self, Answer, Invalid, Request, Review},
    metrics::{Metrics, Outcome},
    recent::{Decision, Recent},
};

mod deadline;
mod intake;
pub mod listen;
pub(crate) mod room;
mod weight;

use intake::{Intake, Overloaded, Unread};
pub use intake::{MAX_BODY, SMALL, WAITING_ROOM};

/// The path of the admission endpoint.
pub const PATH: &str = "/mutate";

/// The webhook behind the admission endpoint.
#[derive(Debug)]
pub struct Webhook<A> {
    /// Decides on pods.
    pub admission: Admission<A>,
    /// Counts requests.
    pub metrics: Arc<Metrics>,
    /// Keeps the latest decisions for the page.
    pub recent: Recent,
}

/// The admission endpoint's state.
struct Endpoint<A> {
    webhook: Arc<Webhook<A>>,
    intake: Intake,
}

/// Returns the router of the admission endpoint.
pub fn admission_router<A: Authorizer + 'static>(webhook: Arc<Webhook<A>>) -> Router {
    let intake = Intake::default();
    Router::new()
        .route(PATH, post(mutate::<A>))
        .with_state(Arc::new(Endpoint { webhook, intake }))
}

async fn mutate<A: Authorizer>(
    State(endpoint): State<Arc<Endpoint<A>>>,
    peer: Option<Extension<Peer>>,
    RawQuery(query): RawQuery,
    body: Body,
) -> Response {
    let start = Instant::now();
    let deadline = tokio::time::Instant::now() + deadline::allowed(query.as_deref());
    let peer = peer.map(|Extension(peer)| peer);
    let answer = match endpoint.answer(peer, body, start, deadline).await {
        Ok(answer) => answer,
        Err(overloaded) => {
            let reason = endpoint.webhook.overloaded(&overloaded, start.elapsed());
            return (StatusCode::SERVICE_UNAVAILABLE, reason).into_response();
        }
    };
    match answer.to_review() {
        Ok(review) => ([(header::CONTENT_TYPE, "application/json")], review).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// The fields that every log line of a decision has.
#[derive(Clone, Copy)]
struct About<'a> {
    uid: &'a str,
    namespace: &'a str,
    pod: &'a str,
    user: &'a str,
    action: Action,
    took: Duration,
}

impl About<'_> {
    /// Returns the decision that admitted the pod, for the page. `written` is the pod as
    /// it should be.
    fn decision(
        &self,
        outcome: Outcome,
        record: Option<&Record>,
        written: &Value,
        warnings: &[String],
    ) -> Decision {
        // What kubectl prints about the pod.
        let reason = match (self.action, warnings) {
            (Action::Create, []) => "no class names or claims it".to_owned(),
            (_, []) => "no rule forbids the change".to_owned(),
            (_, warnings) => warnings.join("; "),
        };
        let project = || {
            let project = pod::metadata(written, "labels", labels::PROJECT)?;
            Some(project.as_str()?.to_owned())
        };
        let class = record.map(|record| record.class.as_str());
        Decision {
            project: record.and_then(|_| project()),
            gpus: record.map(|record| record.gpus),
            ..Decision::new(outcome, self.namespace, self.pod, &reason).about(class)
        }
    }
}

impl<A: Authorizer> Endpoint<A> {
    async fn answer(
        &self,
        peer: Option<Peer>,
        body: Body,
        start: Instant,
        deadline: tokio::time::Instant,
    ) -> Result<Answer, Overloaded> {
        let webhook = &self.webhook;
        let mut seat = match self.intake.take(peer, body, deadline).await {
            Ok(seat) => seat,
            Err(Unread::Invalid(invalid)) => return Ok(webhook.invalid(invalid, start)),
            Err(Unread::Overloaded(overloaded)) => return Err(overloaded),
        };
        let request = match webhook.read(&seat.body, start) {
            Ok(request) => request,
            Err(answer) => return Ok(*answer),
        };
        let uid = request.uid.clone();
        let decision = webhook.decide(request, start, || seat.wait());
        let reason = match timeout_at(deadline, decision).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(full)) => full,
            Err(_) => Overloaded::LATE,
        };
        Err(Overloaded { uid, reason })
    }
}

impl<A: Authorizer> Webhook<A> {
    /// Returns the answer to a review, however long the access reviews take.
    pub async fn answer(&self, body: &[u8]) -> Answer {
        let start = Instant::now();
        match self.read(body, start) {
            Ok(request) => {
                let Ok(answer) = self
                    .decide(request, start, || Ok::<_, Infallible>(()))
                    .await;
                answer
            }
            Err(answer) => *answer,
        }
    }

    /// Returns the pod to decide on, or the answer if there is no pod.
    fn read(&self, body: &[u8], start: Instant) -> Result<Request, Box<Answer>> {
        match review::read(body) {
            Ok(Review::Pod(request)) => Ok(*request),
            Ok(Review::Other { uid, reason }) => {
                self.metrics.admission(Outcome::Untouched, start.elapsed());
                tracing::info!(uid, outcome = "untouched", reason, "decided");
                Err(Box::new(Answer {
                    uid,
                    warnings: vec![reason],
                    ..Answer::default()
                }))
            }
            Err(invalid) => Err(Box::new(self.invalid(invalid, start))),
        }
    }

    fn invalid(&self, invalid: Invalid, start: Instant) -> Answer {
        self.metrics.admission(Outcome::Invalid, start.elapsed());
        self.recent
            .add(|| Decision::new(Outcome::Invalid, "", "", &invalid.message));
        tracing::warn!(
            uid = invalid.uid,
            outcome = "invalid",
            reason = invalid.message,
            "decided"
        );
        Answer::invalid(invalid)
    }

    fn overloaded(&self, overloaded: &Overloaded, took: Duration) -> &'static str {
        let Overloaded { uid, reason } = overloaded;
        self.metrics.admission(Outcome::Overloaded, took);
        self.recent
            .add(|| Decision::new(Outcome::Overloaded, "", "", reason));
        tracing::warn!(uid, outcome = "overloaded", ?took, reason, "not decided");
        reason
    }

    /// Decides on `request`. Calls `wait` before each request to the API server;
    /// an error of `wait` ends the decision.
    async fn decide<E>(
        &self,
        request: Request,
        start: Instant,
        wait: impl FnMut() -> Result<(), E>,
    ) -> Result<Answer, E> {
        let Request {
            uid,
            namespace,
            subject,
            action,
            pod,
            old,
        } = request;
        let name = pod::display_name(&pod);
        let admission = &self.admission;
        let decision = match action {
            Action::Create => {
                let origin = Origin {
                    request: &uid,
                    ..Origin::default()
                };
                let created = admission.create(pod, &namespace, &subject, origin, wait);
                created.await?
            }
            _ => {
                let change = Change::of(action, &old, &pod, &namespace, &subject);
                let let_in = |()| Admitted::default();
                admission.update(&change, wait).await?.map(let_in)
            }
        };
        let about = About {
            uid: &uid,
            namespace: &namespace,
            pod: &name,
            user: &subject.user.username,
            action,
            took: start.elapsed(),
        };
        let answer = match decision {
            Ok(admitted) => self.admitted(&about, admitted),
            Err(refusal) => self.denied(&about, refusal),
        };
        Ok(Answer { uid, ..answer })
    }

    fn admitted(&self, about: &About<'_>, admitted: Admitted) -> Answer {
        let About {
            uid,
            namespace,
            pod,
            user,
            took,
            ..
        } = *about;
        let Admitted {
            pod: written,
            record,
            decision,
            patch,
            warnings,
        } = admitted;
        let outcome = match (&record, patch.is_empty()) {
            (None, true) => Outcome::Untouched,
            (Some(_), true) => Outcome::Unchanged,
            // Includes pods without a class whose containers get no GPU.
            (_, false) => Outcome::Mutated,
        };
        self.metrics.admission(outcome, took);
        let record = record.as_ref();
        // Of changes that are simply allowed, the queue alone makes thousands.
        let allowed = outcome == Outcome::Untouched && warnings.is_empty();
        if about.action == Action::Create || !allowed {
            self.recent
                .add(|| about.decision(outcome, record, &written, &warnings));
        }
        tracing::info!(
            uid,
            namespace,
            pod,
            user,
            outcome = outcome.into_str(),
            class = record.map(|record| record.class.as_str()),
            gpus = record.map(|record| record.gpus),
            scope = record.map(|record| record.scope.as_str()),
            operations = patch.len(),
            ?took,
            warnings = warnings.join("; "),
            "decided"
        );
        Answer {
            patch,
            warnings,
            audit: decision,
            ..Answer::default()
        }
    }

    fn denied(&self, about: &About<'_>, refusal: Refusal) -> Answer {
        let About {
            uid,
            namespace,
            pod,
            user,
            took,
            ..
        } = *about;
        let answer = refusal.answer();
        let Refusal {
            rule,
            message,
            class,
        } = refusal;
        self.metrics.admission(Outcome::Denied, took);
        let known = class
            .as_deref()
            .filter(|class| self.admission.view.read().class(class).is_some());
        self.metrics
            .denial(known.unwrap_or_default().to_owned(), rule.into_str());
        self.recent.add(|| {
            let decision = Decision::new(Outcome::Denied, namespace, pod, &message);
            let rule = Some(rule.into_str());
            Decision {
                rule,
                ..decision.about(class.as_deref())
            }
        });
        let (outcome, rule) = (Outcome::Denied.into_str(), rule.into_str());
        tracing::info!(
            uid,
            namespace,
            pod,
            user,
            outcome,
            class,
            rule,
            ?took,
            reason = message,
            "decided"
        );
        Answer {
            refused: Some((403, answer)),
            audit: Some(format!("denied: {rule}")),
            ..Answer::default()
        }
    }
}
