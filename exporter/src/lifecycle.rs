//! HTTP: `/-/release` and `/-/open`, by which whoever works on the driver has
//! the source let go of and taken up again. The paths begin as those of
//! Prometheus that change what it does.

use std::time::Duration;

use axum::{
    Router,
    extract::{RawQuery, State},
    http::{HeaderMap, StatusCode},
    routing::post,
};

use crate::{
    duration, origin,
    release::{Hold, Release},
};

/// The flag without which nothing is done.
pub const FLAG: &str = "web.enable-lifecycle";
/// How long the source is let go of where nobody says.
const USUAL: Duration = Duration::from_secs(600);
/// How long a request waits for it.
const PATIENCE: Duration = Duration::from_secs(10);

/// The routes; where they are not `enabled`, they say how they would be.
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
            let text = format!("let go of; read again in {left:.0} s, or after POST /-/open\n");
            (StatusCode::OK, text)
        }
        Hold::Asked => {
            let text = "the source does not answer: it is let go of as soon as it does\n";
            (StatusCode::ACCEPTED, text.to_owned())
        }
        // Another request came in between.
        Hold::Held => (StatusCode::CONFLICT, "taken up again\n".to_owned()),
    })
}

async fn open(State(release): State<Release>, headers: HeaderMap) -> Result<Answer, Answer> {
    origin::check(&headers)?;
    release.cancel();
    Ok((StatusCode::OK, "the source is read again\n".to_owned()))
}

/// `for=5m` once, and nothing else.
fn time(query: &str) -> Result<Duration, String> {
    let mut time = None;
    for (key, value) in form_urlencoded::parse(query.as_bytes()) {
        if key != "for" {
            return Err(format!("unknown parameter {key:?}; known is for=DURATION"));
        }
        let value = duration::flag(&value).map_err(|reason| format!("for: {reason}"))?;
        if time.replace(value).is_some() {
            return Err("for is given twice: give it once".to_owned());
        }
    }
    Ok(time.unwrap_or(USUAL))
}
