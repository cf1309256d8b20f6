//! HTTP: `/sim/faults`, which injects faults into a simulated node and removes
//! them. It exists only for the source `sim`.

use std::sync::Arc;

use axum::{
    Router,
    body::Bytes,
    extract::{DefaultBodyLimit, State},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use nvlink_source::sim::Control;

use crate::{origin, output};

/// Maximum size of a list of faults, in bytes.
const MOST_BYTES: usize = 1 << 16;

/// Returns the route for the faults of `control`: `GET` returns the list, `PUT`
/// replaces it, `DELETE` removes all faults. Each answers with the resulting
/// list.
pub fn router(control: Arc<Control>) -> Router {
    Router::new()
        .route("/sim/faults", get(show).put(replace).delete(clear))
        .layer(DefaultBodyLimit::max(MOST_BYTES))
        .with_state(control)
}

async fn show(State(control): State<Arc<Control>>) -> Response {
    answer(&control)
}

async fn replace(
    State(control): State<Arc<Control>>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Refusal> {
    origin::check(&headers)?;
    let kind = headers.get(header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if !kind.eq_ignore_ascii_case("application/json") {
        let reason = "send the list with `Content-Type: application/json`\n";
        return Err((StatusCode::UNSUPPORTED_MEDIA_TYPE, reason.to_owned()));
    }
    let replaced = control.replace(&body);
    replaced.map_err(|error| (StatusCode::BAD_REQUEST, format!("{error}\n")))?;
    Ok(answer(&control))
}

async fn clear(
    State(control): State<Arc<Control>>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    origin::check(&headers)?;
    control.clear();
    Ok(answer(&control))
}

type Refusal = (StatusCode, String);

fn answer(control: &Control) -> Response {
    let kind = [
        (header::CONTENT_TYPE, "application/json"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    match output::json(&control.faults()) {
        Ok(text) => (kind, text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}
