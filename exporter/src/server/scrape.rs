//! The metrics.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use axum::{
    body::Bytes,
    extract::{RawQuery, State},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};

use super::{Site, typed};
use crate::{
    metrics::{self, Group, Groups},
    snapshot::{Latest, View},
};

/// The state from which scrapes are answered.
#[derive(Debug)]
pub(super) struct Shared {
    latest: Arc<Latest>,
    groups: Groups,
    last: Mutex<Option<Answer>>,
}

/// The text of the last scrape, and what it was rendered from.
#[derive(Debug)]
struct Answer {
    view: View,
    groups: Groups,
    text: Bytes,
}

impl Shared {
    pub(super) fn new(site: &Site) -> Self {
        Self {
            latest: Arc::clone(&site.latest),
            groups: site.groups,
            last: Mutex::default(),
        }
    }

    /// Returns the text. Simultaneous scrapes that request the same families share
    /// one text: it is in memory once, however many clients read it and however slowly.
    fn answer(&self, groups: Groups) -> Result<Bytes, fmt::Error> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let view = self.latest.view(Instant::now());
        if let Some(answer) = last.as_ref().filter(|last| last.is_of(&view, groups)) {
            return Ok(answer.text.clone());
        }
        // Free the old text before rendering the next, unless a client still reads it.
        *last = None;
        let text = Bytes::from(metrics::render(&view, groups)?);
        let shared = text.clone();
        *last = Some(Answer { view, groups, text });
        Ok(shared)
    }
}

impl Answer {
    fn is_of(&self, view: &View, groups: Groups) -> bool {
        same(&self.view.snapshot, &view.snapshot)
            && same(&self.view.placements, &view.placements)
            && same(&self.view.results, &view.results)
            && self.groups == groups
            && self.view.is_fresh() == view.is_fresh()
            && moment(&self.view) == moment(view)
    }
}

/// Rounds the time, so that ages in a shared text are right to a tenth of a second.
fn moment(view: &View) -> u128 {
    view.since_start.as_millis() / 100
}

fn same<T>(a: &Option<Arc<T>>, b: &Option<Arc<T>>) -> bool {
    a.as_ref().map(Arc::as_ptr) == b.as_ref().map(Arc::as_ptr)
}

pub(super) async fn scrape(
    State(shared): State<Arc<Shared>>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    let groups = match wanted(shared.groups, query.as_deref().unwrap_or_default()) {
        Ok(groups) => groups,
        Err(reason) => return (StatusCode::BAD_REQUEST, format!("{reason}\n")).into_response(),
    };
    match shared.answer(groups) {
        Ok(text) if is_browser(&headers) => typed("text/plain; charset=utf-8", text),
        Ok(text) => typed(metrics::CONTENT_TYPE, text),
        Err(error) => {
            tracing::error!(%error, "metrics cannot be written");
            let reason = "metrics cannot be written\n";
            (StatusCode::INTERNAL_SERVER_ERROR, reason).into_response()
        }
    }
}

/// Reports whether a browser sent the request. It would save a type that it does
/// not know, so it gets the same text as `text/plain`.
fn is_browser(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT);
    let accept = accept.and_then(|accept| accept.to_str().ok());
    accept.is_some_and(|accept| accept.contains("text/html"))
}

/// Returns the groups of `enabled` that a scrape requests, in the syntax of
/// node_exporter: `collect[]=link&collect[]=error`, or `exclude[]=peer`.
fn wanted(enabled: Groups, query: &str) -> Result<Groups, String> {
    let (mut collect, mut exclude) = (None, Groups::NONE);
    for (key, name) in form_urlencoded::parse(query.as_bytes()) {
        if key != "collect[]" && key != "exclude[]" {
            continue;
        }
        let group = Group::switched().find(|one| one.to_string() == name);
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
    let excluded = Group::switched().filter(|&group| exclude.contains(group));
    Ok(excluded.fold(collect.unwrap_or(enabled), Groups::without))
}
