//! HTTP: the page, its changes, and the cluster as JSON. Everything is read with GET or
//! HEAD; nothing can be changed.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use axum::{
    Router,
    extract::{RawQuery, State},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use tokio::task::spawn_blocking;

use super::{Page, render};

type Pages = State<Arc<Page>>;

/// Returns the routes.
pub fn router(page: Arc<Page>) -> Router {
    Router::new()
        .route("/", get(index))
        .route("/node", get(node))
        .route("/changes", get(changes))
        .route("/api/v1/cluster", get(cluster))
        .merge(render::assets())
        .fallback(nothing)
        .with_state(page)
}

async fn nothing() -> (StatusCode, &'static str) {
    let body = "there is nothing at this path; see / for the page\n";
    (StatusCode::NOT_FOUND, body)
}

async fn index(State(page): Pages, RawQuery(query): RawQuery) -> Response {
    let query = parameter(query, "q");
    rendered(move || html(StatusCode::OK, page.html(&query))).await
}

async fn node(State(page): Pages, RawQuery(query): RawQuery) -> Response {
    let name = parameter(query, "name");
    rendered(move || match page.node(&name) {
        Some(text) => html(StatusCode::OK, text),
        None => {
            let body = format!("there is no NodeTopology {name:?}; see / for all nodes\n");
            (StatusCode::NOT_FOUND, body).into_response()
        }
    })
    .await
}

async fn changes(State(page): Pages, RawQuery(query): RawQuery) -> Response {
    let cursor = parameter(query.clone(), "since");
    let query = parameter(query, "q");
    rendered(move || typed("application/json", page.changes(&cursor, &query))).await
}

/// Returns the cluster, or 304 if the reader has it already.
async fn cluster(State(page): Pages, headers: HeaderMap) -> Response {
    rendered(move || {
        let text = page.json();
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        let tag = format!("\"{:016x}\"", hasher.finish());
        let known = headers.get(header::IF_NONE_MATCH);
        let known = known.and_then(|known| known.to_str().ok());
        let mut response = match known.is_some_and(|known| known.contains(&tag)) {
            true => StatusCode::NOT_MODIFIED.into_response(),
            false => typed("application/json", text),
        };
        if let Ok(tag) = HeaderValue::from_str(&tag) {
            response.headers_mut().insert(header::ETAG, tag);
        }
        // It may be kept, but not used without asking.
        let revalidated = HeaderValue::from_static("no-cache");
        response
            .headers_mut()
            .insert(header::CACHE_CONTROL, revalidated);
        response
    })
    .await
}

/// Renders on a thread that may block: rating the placements of a large node takes long,
/// and must not delay decisions.
async fn rendered(render: impl FnOnce() -> Response + Send + 'static) -> Response {
    spawn_blocking(render).await.unwrap_or_else(|error| {
        tracing::error!(%error, "the page cannot be rendered");
        let body = "the page cannot be rendered; see the log\n";
        (StatusCode::INTERNAL_SERVER_ERROR, body).into_response()
    })
}

/// Returns the value of a parameter; empty if there is none.
fn parameter(query: Option<String>, name: &str) -> String {
    let query = query.unwrap_or_default();
    let mut all = form_urlencoded::parse(query.as_bytes());
    let value = all.find(|(key, _)| key == name);
    value
        .map(|(_, value)| value.into_owned())
        .unwrap_or_default()
}

fn html(status: StatusCode, text: String) -> Response {
    let mut response = typed("text/html; charset=utf-8", text);
    *response.status_mut() = status;
    response.headers_mut().insert(
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(render::POLICY),
    );
    response
}

fn typed(content_type: &'static str, body: String) -> Response {
    let headers: [(HeaderName, &str); 3] = [
        (header::CONTENT_TYPE, content_type),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, body).into_response()
}
