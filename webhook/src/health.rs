//! The admin endpoints, on a separate port: health, readiness and metrics.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::SystemTime,
};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};

use nvlink_runtime::{lease::Leadership, log, supervise::Supervisor};

use crate::metrics::Metrics;

/// A shared handle to whether the webhook may get requests.
#[derive(Clone, Debug)]
pub struct Readiness {
    serving: Arc<AtomicBool>,
    /// When the certificate expires, in seconds since 1970.
    expiry: Arc<AtomicI64>,
    metrics: Arc<Metrics>,
}

impl Readiness {
    #[must_use]
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self {
            serving: Arc::default(),
            expiry: Arc::new(AtomicI64::new(i64::MAX)),
            metrics,
        }
    }

    /// Records whether requests are served.
    pub fn set(&self, serving: bool) {
        self.serving.store(serving, Ordering::Relaxed);
        self.metrics.ready(serving);
    }

    /// Records that the certificate in use is valid until `expiry`.
    pub fn certificate_until(&self, expiry: SystemTime) {
        let seconds = seconds(expiry);
        self.expiry.store(seconds, Ordering::Relaxed);
        self.metrics.certificate_expiry(seconds);
    }

    /// Records that a new certificate is in use, valid until `expiry`.
    pub fn certificate_taken(&self, expiry: SystemTime) {
        self.certificate_until(expiry);
        self.metrics.certificate(true);
    }

    /// Records that a new certificate could not be used; the one in use stays.
    pub fn certificate_kept(&self) {
        self.metrics.certificate(false);
    }

    /// Returns why the webhook is not ready; none if it is.
    #[must_use]
    pub fn obstacle(&self) -> Option<&'static str> {
        if !self.serving.load(Ordering::Relaxed) {
            return Some(
                "starting (it waits for its certificate, or its caches are not synced yet), or shutting down",
            );
        }
        let expired = self.expiry.load(Ordering::Relaxed) <= seconds(SystemTime::now());
        expired.then_some("the certificate has expired: the API server does not accept it")
    }
}

fn seconds(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| {
        i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
    })
}

/// The state that the admin endpoints report.
#[derive(Clone, Debug)]
pub struct Health {
    /// Whether the webhook may get requests.
    pub readiness: Readiness,
    /// Whether its parts live.
    pub supervisor: Supervisor,
    /// Whether this replica leads; set once the election has started.
    pub leadership: Arc<OnceLock<Leadership>>,
}

/// Returns the router of the admin endpoints.
pub fn admin_router(health: Health) -> Router {
    Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(health)
}

async fn livez(State(health): State<Health>) -> (StatusCode, String) {
    answer(health.supervisor.obstacle())
}

async fn readyz(State(health): State<Health>) -> (StatusCode, String) {
    answer(health.readiness.obstacle())
}

fn answer(obstacle: Option<impl std::fmt::Display>) -> (StatusCode, String) {
    match obstacle {
        None => (StatusCode::OK, "ok\n".to_owned()),
        Some(obstacle) => (StatusCode::SERVICE_UNAVAILABLE, format!("{obstacle}\n")),
    }
}

async fn metrics(State(health): State<Health>) -> Response {
    let metrics = &health.readiness.metrics;
    let leads = health.leadership.get().and_then(Leadership::term);
    metrics.process(
        leads.is_some(),
        log::dropped(),
        &health.supervisor.restarts(),
    );
    match metrics.render() {
        Ok(page) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], page).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}
