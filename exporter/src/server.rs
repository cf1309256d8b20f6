//! HTTP: metrics, health, the document, the page. Every answer comes from the
//! latest snapshot; none waits for the source.

use std::{sync::Arc, time::Instant};

use axum::{
    Router,
    extract::State,
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};

use crate::{
    metrics::{self, Format, Groups},
    output, page,
    snapshot::Latest,
};

/// The routes, over the snapshots of `latest`.
pub fn router(latest: Arc<Latest>) -> Router {
    Router::new()
        .route("/", get(index))
        .route("/metrics", get(scrape))
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/api/v1/topology", get(topology))
        .with_state(latest)
}

type Latests = State<Arc<Latest>>;

async fn scrape(State(latest): Latests, headers: HeaderMap) -> Response {
    let accept: Vec<_> = headers
        .get_all(header::ACCEPT)
        .into_iter()
        .filter_map(|value| value.to_str().ok())
        .collect();
    let format = Format::accepted(&accept.join(","));
    match metrics::render(&latest.view(Instant::now()), format, Groups::ALL) {
        Ok(text) => typed(format.content_type(), text),
        Err(error) => {
            tracing::error!(%error, "metrics cannot be written");
            (
                StatusCode::INTERNAL_SERVER_ERROR,
                "metrics cannot be written\n",
            )
                .into_response()
        }
    }
}

/// Ready while there are recent data: the Node's page and metrics are of use
/// then. `/metrics` itself always answers, and says why there are none.
async fn ready(State(latest): Latests) -> Response {
    let view = latest.view(Instant::now());
    if view.is_fresh() {
        return "ok\n".into_response();
    }
    let error = view.error().unwrap_or_default();
    unavailable(&match view.age {
        None => format!("no collection has succeeded yet: {error}"),
        Some(age) => format!("the data are {} s old: {error}", age.as_secs()),
    })
    .into_response()
}

async fn topology(State(latest): Latests) -> Response {
    let view = latest.view(Instant::now());
    match view.document().map(|document| output::json(&document)) {
        Some(Ok(text)) => typed("application/json", text),
        _ => {
            let body = serde_json::json!({ "error": view.error() }).to_string() + "\n";
            let kind = [(header::CONTENT_TYPE, "application/json")];
            (StatusCode::SERVICE_UNAVAILABLE, kind, body).into_response()
        }
    }
}

async fn index(State(latest): Latests) -> Response {
    let html = page::render(&latest.view(Instant::now()));
    let policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
    let mut response = typed("text/html; charset=utf-8", html);
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(policy),
    );
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    response
}

fn typed(content_type: &'static str, body: String) -> Response {
    let headers: [(HeaderName, &str); 2] = [
        (header::CONTENT_TYPE, content_type),
        (header::CACHE_CONTROL, "no-store"),
    ];
    (headers, body).into_response()
}

fn unavailable(reason: &str) -> (StatusCode, String) {
    (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n"))
}
