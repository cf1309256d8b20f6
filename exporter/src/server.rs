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
    metrics::{self, Format},
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
    match metrics::render(latest.get(), Instant::now(), format) {
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

/// Ready from the first good collection on. Not less so when a later one
/// fails: then the metrics that say so must still be scraped.
async fn ready(State(latest): Latests) -> Response {
    match latest.was_good() {
        true => "ok\n".into_response(),
        false => unavailable("no collection has succeeded yet").into_response(),
    }
}

async fn topology(State(latest): Latests) -> Response {
    let snapshot = latest.get();
    let data = snapshot
        .as_ref()
        .and_then(|snapshot| snapshot.data.as_ref());
    match data.map(|data| output::json(&data.topology)) {
        Some(Ok(text)) => typed("application/json", text),
        _ => {
            let error = snapshot
                .as_ref()
                .and_then(|snapshot| snapshot.health.error.clone());
            let error = error.unwrap_or_else(|| "no collection has ended yet".to_owned());
            let body = serde_json::json!({ "error": error }).to_string() + "\n";
            let kind = [(header::CONTENT_TYPE, "application/json")];
            (StatusCode::SERVICE_UNAVAILABLE, kind, body).into_response()
        }
    }
}

async fn index(State(latest): Latests) -> Response {
    let html = page::render(latest.get().as_deref(), Instant::now());
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
