//! HTTP: metrics, health, the document, the page. Every answer comes from the
//! latest snapshot; none waits for the source.

use std::{sync::Arc, time::Instant};

use axum::{
    Router,
    extract::{RawQuery, State},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};

use crate::{
    metrics::{self, Format, Group, Groups},
    output, page,
    snapshot::Latest,
};

/// What is served, and where.
#[derive(Debug)]
pub struct Site {
    /// Where it comes from.
    pub latest: Arc<Latest>,
    /// The path of the metrics; with `/` there is no page.
    pub metrics_path: String,
    /// The families that are served.
    pub groups: Groups,
}

impl Site {
    /// Everything, in its usual place.
    #[must_use]
    pub fn new(latest: Arc<Latest>) -> Self {
        Self {
            latest,
            metrics_path: "/metrics".to_owned(),
            groups: Groups::ALL,
        }
    }
}

/// The paths that the metrics cannot have.
pub const PATHS: [&str; 6] = ["/livez", "/readyz", "/api", "/page.css", "/page.js", "/sim"];

/// The routes.
pub fn router(site: Site) -> Router {
    let mut router = Router::new()
        .route(&site.metrics_path, get(scrape))
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/api/v1/topology", get(topology));
    if site.metrics_path != "/" {
        router = router.route("/", get(index)).merge(page::assets());
    }
    router.fallback(nothing).with_state(Arc::new(site))
}

async fn nothing() -> (StatusCode, &'static str) {
    let body = "there is nothing at this path; / leads to what there is\n";
    (StatusCode::NOT_FOUND, body)
}

type Sites = State<Arc<Site>>;

async fn scrape(State(site): Sites, RawQuery(query): RawQuery, headers: HeaderMap) -> Response {
    let groups = match wanted(site.groups, query.as_deref().unwrap_or_default()) {
        Ok(groups) => groups,
        Err(reason) => return (StatusCode::BAD_REQUEST, format!("{reason}\n")).into_response(),
    };
    let accept: Vec<_> = headers
        .get_all(header::ACCEPT)
        .into_iter()
        .filter_map(|value| value.to_str().ok())
        .collect();
    let format = Format::accepted(&accept.join(","));
    match metrics::render(&site.latest.view(Instant::now()), format, groups) {
        Ok(text) => typed(format.content_type(), text),
        Err(error) => {
            tracing::error!(%error, "metrics cannot be written");
            let reason = "metrics cannot be written\n";
            (StatusCode::INTERNAL_SERVER_ERROR, reason).into_response()
        }
    }
}

/// The part of `enabled` that a scrape asks for, as node_exporter's users write
/// it: `collect[]=link&collect[]=error`, or `exclude[]=peer`.
fn wanted(enabled: Groups, query: &str) -> Result<Groups, String> {
    let (mut collect, mut exclude) = (None, Groups::NONE);
    for (key, name) in form_urlencoded::parse(query.as_bytes()) {
        if key != "collect[]" && key != "exclude[]" {
            continue;
        }
        let group = Group::SWITCHED.into_iter().find(|one| one.as_str() == name);
        let group = group.ok_or_else(|| format!("there is no collector {name:?}"))?;
        if !enabled.contains(group) {
            return Err(format!("the collector {name:?} is switched off"));
        }
        match &*key {
            "collect[]" => collect = Some(collect.unwrap_or(Groups::NONE).with(group)),
            _ => exclude = exclude.with(group),
        }
    }
    if collect.is_some() && exclude != Groups::NONE {
        return Err("collect[] and exclude[] cannot be combined".to_owned());
    }
    let switched = Group::SWITCHED.into_iter();
    let excluded = switched.filter(|&group| exclude.contains(group));
    Ok(excluded.fold(collect.unwrap_or(enabled), Groups::without))
}

/// Ready while there are recent data: the Node's page and metrics are of use
/// then. `/metrics` itself always answers, and says why there are none.
async fn ready(State(site): Sites) -> Response {
    let view = site.latest.view(Instant::now());
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
