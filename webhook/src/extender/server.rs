//! The extender over HTTP.
//!
//! It has a listener of its own, so that its callers take no connection, no memory and no
//! time from admission: connections are counted apart, all bodies together hold at most
//! 32 MiB (one peer's at most half), one call is parsed and answered at a time, on a
//! thread that is not one of those that serve admission, and it stops searching after
//! a second.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    Extension, Router,
    body::{Body, HttpBody},
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::post,
};
use futures::StreamExt;
use nvlink_runtime::connections::Peer;
use serde::Serialize;
use tokio::{sync::Semaphore, task::spawn_blocking, time::timeout};

use super::{
    Extender,
    wire::{Args, FilterResult},
};
use crate::{
    admission::server::room::{Shared, units},
    metrics::{Call, Metrics, Verb},
};

/// The paths; `urlPrefix` of the scheduler's configuration ends with `/scheduler`.
pub const FILTER: &str = "/scheduler/filter";
pub const PRIORITIZE: &str = "/scheduler/prioritize";

/// The largest body, in bytes: 5,000 names of nodes and a pod have less than 2 MiB, 500
/// whole nodes about as much as this.
pub const MAX_BODY: usize = 8 << 20;
/// Room for all bodies together, in bytes.
const ROOM: usize = 32 << 20;
/// Time for a body to arrive and to wait for its turn. The scheduler schedules no other pod
/// meanwhile; the configuration in `deploy/scheduler` lets it wait for 3 s.
const WAIT: Duration = Duration::from_secs(1);
/// Time in which placements that are not known yet are searched; the other nodes of the
/// call are only counted.
const SEARCH: Duration = Duration::from_secs(1);

/// The extender behind its endpoint.
#[derive(Debug)]
pub struct Endpoint {
    extender: Extender,
    metrics: Arc<Metrics>,
    bodies: Shared,
    /// One call is answered at a time, as schedulers call.
    turn: Arc<Semaphore>,
}

/// Returns the router of the extender.
pub fn router(extender: Extender, metrics: Arc<Metrics>) -> Router {
    metrics.extender().start();
    let endpoint = Endpoint {
        extender,
        metrics,
        bodies: Shared::new(ROOM),
        turn: Arc::new(Semaphore::new(1)),
    };
    Router::new()
        .route(FILTER, post(filter))
        .route(PRIORITIZE, post(prioritize))
        .with_state(Arc::new(endpoint))
}

type Caller = Option<Extension<Peer>>;

async fn filter(State(endpoint): State<Arc<Endpoint>>, peer: Caller, body: Body) -> Response {
    let answer = |extender: &Extender, body: &[u8]| {
        let result = Args::parse(body).and_then(|args| extender.filter(args, until(SEARCH)));
        match result {
            Ok(result) => (Call::Answered, json(&result)),
            // The scheduler logs this reason; of another status it would log only the number.
            Err(reason) => (Call::Invalid, json(&FilterResult::error(reason))),
        }
    };
    endpoint.serve(Verb::Filter, peer, body, answer).await
}

async fn prioritize(State(endpoint): State<Arc<Endpoint>>, peer: Caller, body: Body) -> Response {
    let answer = |extender: &Extender, body: &[u8]| {
        let result = Args::parse(body).and_then(|args| extender.prioritize(&args, until(SEARCH)));
        match result {
            Ok(result) => (Call::Answered, json(&result)),
            Err(reason) => (
                Call::Invalid,
                (StatusCode::BAD_REQUEST, reason).into_response(),
            ),
        }
    };
    endpoint.serve(Verb::Prioritize, peer, body, answer).await
}

/// Allows searches for `time` from now.
fn until(time: Duration) -> impl FnMut() -> bool {
    let start = Instant::now();
    move || start.elapsed() < time
}

fn json(value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(text) => ([(header::CONTENT_TYPE, "application/json")], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// Why a call gets no answer.
struct Unanswered(Call, StatusCode, &'static str);

impl Unanswered {
    const LARGE: Self = Self(
        Call::Invalid,
        StatusCode::PAYLOAD_TOO_LARGE,
        "the request is larger than 8 MiB: set nodeCacheCapable: true in the scheduler's configuration",
    );
    const SLOW: Self = Self(
        Call::Overloaded,
        StatusCode::SERVICE_UNAVAILABLE,
        "the request did not arrive in time, or others are being answered: try again",
    );
    const BROKEN: Self = Self(
        Call::Invalid,
        StatusCode::INTERNAL_SERVER_ERROR,
        "the request cannot be answered; see the log of nvlink-webhook",
    );
}

impl Endpoint {
    async fn serve(
        &self,
        verb: Verb,
        peer: Caller,
        body: Body,
        answer: impl FnOnce(&Extender, &[u8]) -> (Call, Response) + Send + 'static,
    ) -> Response {
        let start = Instant::now();
        let peer = peer.map(|Extension(peer)| peer);
        let (call, response) = match self.answer(peer, body, answer).await {
            Ok(answered) => answered,
            Err(Unanswered(call, status, reason)) => (call, (status, reason).into_response()),
        };
        let took = start.elapsed();
        self.metrics.extender().count(verb, call, took);
        let (verb, outcome) = (verb.into_str(), call.into_str());
        tracing::debug!(verb, outcome, ?took, "extended the scheduler");
        response
    }

    async fn answer(
        &self,
        peer: Option<Peer>,
        body: Body,
        answer: impl FnOnce(&Extender, &[u8]) -> (Call, Response) + Send + 'static,
    ) -> Result<(Call, Response), Unanswered> {
        let arriving = async {
            let size = body.size_hint().exact();
            let size = size.and_then(|size| usize::try_from(size).ok());
            let size = size.unwrap_or(MAX_BODY);
            if size > MAX_BODY {
                return Err(Unanswered::LARGE);
            }
            let room = self
                .bodies
                .take(peer, units(size).unwrap_or(u32::MAX))
                .await;
            let body = read(body, size).await?;
            let turn = Arc::clone(&self.turn).acquire_owned().await;
            Ok((room, body, turn.map_err(|_| Unanswered::SLOW)?))
        };
        let arrived = timeout(WAIT, arriving).await;
        let (_room, body, turn) = arrived.unwrap_or(Err(Unanswered::SLOW))?;
        let extender = self.extender.clone();
        let answering = spawn_blocking(move || {
            // Also if the caller is gone: nobody else is answered meanwhile.
            let _turn = turn;
            answer(&extender, &body)
        });
        answering.await.map_err(|error| {
            tracing::error!(%error, "the extender failed");
            Unanswered::BROKEN
        })
    }
}

async fn read(body: Body, size: usize) -> Result<Vec<u8>, Unanswered> {
    let mut read = Vec::with_capacity(size.min(MAX_BODY));
    let mut chunks = body.into_data_stream();
    while let Some(chunk) = chunks.next().await {
        // The caller is gone.
        let chunk = chunk.map_err(|_| Unanswered::SLOW)?;
        if read.len() + chunk.len() > MAX_BODY {
            return Err(Unanswered::LARGE);
        }
        read.extend_from_slice(&chunk);
    }
    Ok(read)
}
