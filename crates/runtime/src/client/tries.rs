//! The tries of one request. kube repeats what the API server answers with 429, 503 or 504, after
//! the time that it names. When the time limit of the request ends, the last of these answers is
//! the result: a server that is busy has answered.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
    time::Duration,
};

use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use kube::client::{Body, DynBody, retry::RetryPolicy};
use serde_json::json;
use tower::{BoxError, retry::Policy};

/// The status of the last answer that a request got and was repeated for.
#[derive(Clone, Debug, Default)]
pub(super) struct Last(Arc<AtomicU16>);

impl Last {
    /// Adds the note to `request`, and so to its repetitions.
    pub(super) fn of(request: &mut Request<Body>) -> Self {
        let last = Self::default();
        request.extensions_mut().insert(last.clone());
        last
    }

    /// Returns the last answer, in the API server's form; `None` if there was none.
    pub(super) fn answer(&self, limit: Duration) -> Option<Response<Box<DynBody>>> {
        let status = StatusCode::from_u16(self.0.load(Ordering::Relaxed)).ok()?;
        let words = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": format!("the API server answers {status}, and did so for {limit:?}"),
            "reason": if status == StatusCode::TOO_MANY_REQUESTS { "TooManyRequests" } else { "" },
            "code": status.as_u16(),
        });
        let body = Full::from(words.to_string()).map_err(|never| -> BoxError { match never {} });
        let mut answer = Response::new(Box::new(body) as Box<DynBody>);
        *answer.status_mut() = status;
        Some(answer)
    }
}

/// kube's own policy, which notes each answer that it repeats a request for.
#[derive(Clone)]
pub(super) struct Noting(RetryPolicy);

impl Default for Noting {
    fn default() -> Self {
        Self(RetryPolicy::server_retry())
    }
}

impl<R> Policy<Request<Body>, Response<R>, BoxError> for Noting {
    type Future = tokio::time::Sleep;

    fn retry(
        &mut self,
        request: &mut Request<Body>,
        result: &mut Result<Response<R>, BoxError>,
    ) -> Option<Self::Future> {
        let again = self.0.retry(request, result)?;
        if let (Ok(answer), Some(Last(last))) = (result, request.extensions().get()) {
            last.store(answer.status().as_u16(), Ordering::Relaxed);
        }
        Some(again)
    }

    fn clone_request(&mut self, request: &Request<Body>) -> Option<Request<Body>> {
        <RetryPolicy as Policy<_, Response<R>, BoxError>>::clone_request(&mut self.0, request)
    }
}
