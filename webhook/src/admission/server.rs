//! HTTP: the admission endpoint.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::Body,
    extract::State,
    http::header,
    response::{IntoResponse, Response},
    routing::post,
};

use crate::{
    admission::admit::Admission,
    admission::review::{self, Answer, Invalid, Request, Review},
    authorize::Authorizer,
    decide::pod,
    decide::{Action, Admitted, Refusal},
    metrics::{Metrics, Outcome},
};

mod intake;

use intake::Intake;
pub use intake::{ARRIVAL, MAX_BODY, SMALL, SMALL_ROOM};

/// The path of the admission endpoint.
pub const PATH: &str = "/mutate";

/// What the admission endpoint works with.
#[derive(Debug)]
pub struct Webhook<A> {
    /// How pods are decided on.
    pub admission: Admission<A>,
    /// Where requests are counted.
    pub metrics: Arc<Metrics>,
}

/// The admission endpoint's state.
struct Endpoint<A> {
    webhook: Arc<Webhook<A>>,
    intake: Intake,
}

/// The router of the admission endpoint.
pub fn admission_router<A: Authorizer + 'static>(webhook: Arc<Webhook<A>>) -> Router {
    let intake = Intake::default();
    Router::new()
        .route(PATH, post(mutate::<A>))
        .with_state(Arc::new(Endpoint { webhook, intake }))
}

async fn mutate<A: Authorizer>(State(endpoint): State<Arc<Endpoint<A>>>, body: Body) -> Response {
    let Endpoint { webhook, intake } = &*endpoint;
    let (start, deadline) = (Instant::now(), tokio::time::Instant::now() + ARRIVAL);
    let answer = match intake.take(body, deadline).await {
        Ok(taken) => webhook.answer(&taken.body).await,
        Err(invalid) => webhook.invalid(invalid, start),
    };
    let json = [(header::CONTENT_TYPE, "application/json")];
    (json, answer.to_review().to_string()).into_response()
}

impl<A: Authorizer> Webhook<A> {
    /// The answer to a review.
    pub async fn answer(&self, body: &[u8]) -> Answer {
        let start = Instant::now();
        match review::read(body) {
            Ok(Review::Pod(request)) => self.decide(*request, start).await,
            Ok(Review::Other { uid, reason }) => {
                self.metrics.admission(Outcome::Untouched, start.elapsed());
                tracing::info!(uid, outcome = "untouched", reason, "decided");
                Answer {
                    uid,
                    warnings: vec![reason],
                    ..Answer::default()
                }
            }
            Err(invalid) => self.invalid(invalid, start),
        }
    }

    fn invalid(&self, invalid: Invalid, start: Instant) -> Answer {
        self.metrics.admission(Outcome::Invalid, start.elapsed());
        tracing::warn!(
            uid = invalid.uid,
            outcome = "invalid",
            reason = invalid.message,
            "decided"
        );
        Answer::invalid(invalid)
    }

    async fn decide(&self, request: Request, start: Instant) -> Answer {
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
            Action::Create => admission.admit(pod, &namespace, &subject).await,
            _ => {
                admission
                    .change(action, &old, pod, &namespace, &subject)
                    .await
            }
        };
        // One line a decision, which carries the request's uid.
        let user = &subject.user.username;
        let span = tracing::info_span!("admission", uid, namespace, pod = name, user);
        let _entered = span.enter();
        match decision {
            Ok(admitted) => self.admitted(uid, admitted, start.elapsed()),
            Err(refusal) => self.denied(uid, refusal, start.elapsed()),
        }
    }

    fn admitted(&self, uid: String, admitted: Admitted, took: Duration) -> Answer {
        let Admitted {
            record,
            patch,
            warnings,
            ..
        } = admitted;
        let outcome = match (&record, patch.is_empty()) {
            (None, true) => Outcome::Untouched,
            (Some(_), true) => Outcome::Unchanged,
            // Also a pod without a class, whose containers are shown no GPU.
            (_, false) => Outcome::Mutated,
        };
        self.metrics.admission(outcome, took);
        let record = record.as_ref();
        tracing::info!(
            outcome = outcome.as_str(),
            class = record.map(|record| record.class.as_str()),
            gpus = record.map(|record| record.gpus),
            scope = record.map(|record| record.scope.as_str()),
            operations = patch.len(),
            ?took,
            warnings = warnings.join("; "),
            "decided"
        );
        Answer {
            uid,
            patch,
            warnings,
            refused: None,
            audit: record.and_then(|record| serde_json::to_string(record).ok()),
        }
    }

    fn denied(&self, uid: String, refusal: Refusal, took: Duration) -> Answer {
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
            .denial(known.unwrap_or_default().to_owned(), rule.as_str());
        let (outcome, rule) = (Outcome::Denied.as_str(), rule.as_str());
        tracing::info!(outcome, class, rule, ?took, reason = message, "decided");
        Answer {
            uid,
            refused: Some((403, answer)),
            audit: Some(format!("denied: {rule}")),
            ..Answer::default()
        }
    }
}
