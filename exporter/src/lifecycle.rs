//! HTTP: `/-/release` and `/-/open`, which release the source and open it again,
//! for work on the driver. The paths begin with `/-/`, as in Prometheus all paths
//! that change its state.

use std::time::Duration;

use axum::{
    Router,
    extract::{RawQuery, State},
    http::{HeaderMap, StatusCode},
    routing::post,
};
use nvlink_runtime::duration;

use crate::{
    origin,
    release::{Hold, Release},
};

/// The flag that enables the paths.
pub const FLAG: &str = "web.enable-lifecycle";
/// How long the source is released by default.
const USUAL: Duration = Duration::from_secs(600);
/// How long a request waits for the release.
const PATIENCE: Duration = Duration::from_secs(10);

/// Returns the routes. If they are not `enabled`, their answers name the flag that enables them.
pub fn router(release: Release, enabled: bool) -> Router {
    match enabled {
        true => Router::new()
            .route("/-/release", post(let_go))
            .route("/-/open", post(open))
            .with_state(release),
        false => Router::new()
            .route("/-/release", post(refuse))
            .route("/-/open", post(refuse)),
    }
}

type Answer = (StatusCode, String);

async fn refuse() -> Answer {
    let reason = format!("not enabled: start the exporter with --{FLAG}\n");
    (StatusCode::FORBIDDEN, reason)
}

async fn let_go(
    State(release): State<Release>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Answer, Answer> {
    origin::check(&headers)?;
    let time = time(query.as_deref().unwrap_or_default());
    let time = time.map_err(|reason| (StatusCode::BAD_REQUEST, format!("{reason}\n")))?;
    Ok(match release.ask(time, PATIENCE).await {
        Hold::Released(left) => {
            let left = left.as_secs_f64();
            let text = format!("released; opened again in {left:.0} s, or after POST /-/open\n");
            (StatusCode::OK, text)
        }
        Hold::Asked => {
            let text = "the source does not answer: it is released as soon as it does\n";
            (StatusCode::ACCEPTED, text.to_owned())
        }
        // Another request cancelled the release in the meantime.
        Hold::Held => (
            StatusCode::CONFLICT,
            "the source is open again\n".to_owned(),
        ),
    })
}

async fn open(State(release): State<Release>, headers: HeaderMap) -> Result<Answer, Answer> {
    origin::check(&headers)?;
    release.cancel();
    Ok((StatusCode::OK, "the source is read again\n".to_owned()))
}

/// Parses the query: at most one `for=5m`, and nothing else.
fn time(query: &str) -> Result<Duration, String> {
    let mut time = None;
    for (key, value) in form_urlencoded::parse(query.as_bytes()) {
        if key != "for" {
            return Err(format!("unknown parameter {key:?}; expected for=DURATION"));
        }
        let value = duration::flag(&value).map_err(|reason| format!("for: {reason}"))?;
        if time.replace(value).is_some() {
            return Err("for is given twice: give it once".to_owned());
        }
    }
    Ok(time.unwrap_or(USUAL))
}
