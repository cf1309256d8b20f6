//! HTTP: metrics, health, the document, the page. Every answer comes from the
//! latest snapshot and never waits for the source.

mod scrape;

use std::{sync::Arc, time::Instant};

use axum::{
    Router,
    body::Body,
    extract::State,
    http::{HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};

use self::scrape::Shared;
use crate::{metrics::Groups, output, page, snapshot::Latest};

/// What is served, and where.
#[derive(Debug)]
pub struct Site {
    /// The state to serve.
    pub latest: Arc<Latest>,
    /// The path of the metrics; with `/`, there is no page.
    pub metrics_path: String,
    /// The families that are served.
    pub groups: Groups,
}

impl Site {
    /// Returns a site with all families and the default paths.
    #[must_use]
    pub fn new(latest: Arc<Latest>) -> Self {
        Self {
            latest,
            metrics_path: "/metrics".to_owned(),
            groups: Groups::ALL,
        }
    }
}

/// The paths that the metrics cannot use.
pub const PATHS: [&str; 7] = [
    "/livez",
    "/readyz",
    "/api",
    "/page.css",
    "/page.js",
    "/sim",
    "/-",
];

pub fn router(site: Site) -> Router {
    let scrape = get(scrape::scrape).with_state(Arc::new(Shared::new(&site)));
    let mut router = Router::new()
        .route(&site.metrics_path, scrape)
        .route("/livez", get(live))
        .route("/readyz", get(ready))
        .route("/api/v1/topology", get(topology));
    if site.metrics_path != "/" {
        router = router.route("/", get(index)).merge(page::assets());
    }
    router.fallback(nothing).with_state(Arc::new(site))
}

async fn nothing() -> (StatusCode, &'static str) {
    let body = "there is nothing at this path; see / for links\n";
    (StatusCode::NOT_FOUND, body)
}

type Sites = State<Arc<Site>>;

/// Reports whether all vital parts of the process work. The source is not one of
/// them, even if it hangs: see [`collect::start`](crate::collect::start).
async fn live(State(site): Sites) -> Response {
    match site.latest.statistics().supervisor.obstacle() {
        None => "ok\n".into_response(),
        Some(reason) => unavailable(&reason).into_response(),
    }
}

/// Reports whether there are recent data, without which the node's page and
/// metrics are of no use. `/metrics` itself always answers, and reports the failure.
async fn ready(State(site): Sites) -> Response {
    let view = site.latest.view(Instant::now());
    if view.is_fresh() && !view.is_released() {
        return "ok\n".into_response();
    }
    let error = view.error().unwrap_or_default();
    unavailable(&match view.age {
        None => format!("no collection has succeeded yet: {error}"),
        Some(age) => format!("the data are {} s old: {error}", age.as_secs()),
    })
    .into_response()
}

async fn topology(State(site): Sites) -> Response {
    let view = site.latest.view(Instant::now());
    match view.document().map(|document| output::json(&document)) {
        Some(Ok(text)) => typed("application/json", text),
        _ => {
            let body = serde_json::json!({ "error": view.error() }).to_string() + "\n";
            let kind = [(header::CONTENT_TYPE, "application/json")];
            (StatusCode::SERVICE_UNAVAILABLE, kind, body).into_response()
        }
    }
}

async fn index(State(site): Sites) -> Response {
    let html = page::render(&site.latest.view(Instant::now()), &site.metrics_path);
    let mut response = typed("text/html; charset=utf-8", html);
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(page::POLICY),
    );
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    response
}

fn typed(content_type: &'static str, body: impl Into<Body>) -> Response {
    let headers: [(HeaderName, &str); 2] = [
        (header::CONTENT_TYPE, content_type),
        (header::CACHE_CONTROL, "no-store"),
    ];
    (headers, body.into()).into_response()
}

fn unavailable(reason: &str) -> (StatusCode, String) {
    (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n"))
}
