//! The page at `/`: the graph drawn from the latest snapshot. It is complete
//! without its script, which fetches it again every few seconds and updates what
//! changed. Nothing is loaded from other sites.

mod card;
mod html;
mod jobs;
mod lane;
mod layout;
mod nics;
mod panels;
mod ring;
mod scene;
mod trouble;

use std::time::Duration;

use axum::Router;
use k8s_openapi::jiff::Timestamp;
use nvlink_runtime::page::{self, Asset};

use crate::{output::summary, snapshot::View};

use self::{html::escape, scene::Scene};

const STYLE: Asset = Asset::style(&[page::STYLE, include_str!("page/page.css")]);
const SCRIPT: Asset = Asset::script(&[include_str!("page/page.js")]);

/// The page's `Content-Security-Policy`: it may load its own style and script, fetch
/// from its own origin, and nothing else.
pub const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; \
     img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Returns the routes of style and script.
pub fn assets<S: Clone + Send + Sync + 'static>() -> Router<S> {
    STYLE.router().merge(SCRIPT.router())
}

/// Renders the page as HTML; `metrics` is the path of the metrics.
///
/// The same view gives the same page, byte for byte.
#[must_use]
pub fn render(view: &View, metrics: &str) -> String {
    let (mark, body) = match view.data() {
        Some(data) => content(&Scene::new(view, data)),
        None => ("✕ ", failure(view)),
    };
    let (name, metrics) = (escape(&view.node), escape(metrics));
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{mark}{name} · NVLink</title>\n<link rel=\"icon\" href=\"data:,\">\n\
         <link rel=\"stylesheet\" href=\"{style}\">\n<script src=\"{script}\" defer></script>\n\
         </head>\n<body>\n<a class=\"skip\" href=\"#node\">Skip to the GPUs</a>\n\
         <header><h1>{name}</h1>{age}</header>\n\
         <p id=\"silent\" role=\"alert\" hidden></p>\n\
         <noscript><p class=\"note\">Without JavaScript, the page does not update: reload it for newer data.</p></noscript>\n\
         <main id=\"main\">\n{body}</main>\n\
         <footer><a href=\"{metrics}\">Metrics</a> · <a href=\"/api/v1/topology\">Topology as JSON</a> · \
         <a href=\"/readyz\">Readiness</a> · nvlink-exporter {version}</footer>\n</body>\n</html>\n",
        style = STYLE.address(),
        script = SCRIPT.address(),
        age = age(view),
        version = env!("CARGO_PKG_VERSION")
    )
}

/// Renders the age of the data. The script keeps counting from `data-age`, in seconds.
fn age(view: &View) -> String {
    match view.age {
        Some(age) => format!(
            "<p id=\"age\" data-age=\"{0}\">{0} s ago</p>",
            age.as_secs()
        ),
        None => "<p id=\"age\">no data yet</p>".to_owned(),
    }
}

/// Renders the content of a page without data: the error, and below it the last graph, if there was one.
fn failure(view: &View) -> String {
    let past = view.past();
    let last = view.last.as_ref().and_then(|last| last.data.as_ref());
    let graph = last.map_or_else(String::new, |data| {
        let mut scene = Scene::new(&past, data);
        // Those of now are not known.
        scene.jobs.clear();
        format!(
            "<div class=\"past\" id=\"graph\">\n<h2>The last graph</h2>\n{}{}</div>\n",
            about(&scene),
            graph(&scene)
        )
    });
    error(view, !graph.is_empty()) + &graph
}

/// Renders why there are no data, and since when.
fn error(view: &View, has_graph: bool) -> String {
    let title = match (&view.snapshot, view.age) {
        (None, _) => "No collection has finished yet".to_owned(),
        (Some(_), None) => format!(
            "No collection has succeeded since the start, at {}",
            ago(view, view.since_start)
        ),
        (Some(_), Some(age)) => format!("No current data since {}", ago(view, age)),
    };
    let (id, below) = match has_graph {
        true => ("", "The graph below is from the last good collection."),
        // The link that skips the header leads here.
        false => (" id=\"node\" tabindex=\"-1\"", ""),
    };
    let error = view.snapshot.as_ref().and(view.error()).unwrap_or_default();
    format!(
        "<section class=\"troubles bad\"{id}><h2 role=\"status\">✕ {title}</h2>\n\
         <p class=\"error\">{}</p>\n<p>{below}</p></section>\n",
        escape(&error)
    )
}

/// Returns the time of day and the date of so long ago.
fn ago(view: &View, ago: Duration) -> String {
    let at = view.clock.now.checked_sub(ago);
    let seconds = at.and_then(|at| i64::try_from(view.clock.unix(at)?).ok());
    match seconds.and_then(|at| Timestamp::from_second(at).ok()) {
        Some(time) => time.strftime("%H:%M:%S UTC on %Y-%m-%d").to_string(),
        None => format!("{} s ago", ago.as_secs()),
    }
}

/// Renders the mark of the title, and the content of the page.
fn content(scene: &Scene<'_>) -> (&'static str, String) {
    let troubles = trouble::find(scene);
    let html = format!(
        "{}{}<div id=\"graph\">\n{}{}</div>\n",
        about(scene),
        trouble::render(&troubles),
        jobs::render(scene),
        graph(scene)
    );
    (if troubles.is_empty() { "" } else { "▲ " }, html)
}

/// Renders what the node is, in a line.
fn about(scene: &Scene<'_>) -> String {
    let spec = scene.spec();
    let source = scene.view.snapshot.as_ref();
    let source = source.map_or("", |snapshot| &snapshot.health.source);
    let measured = summary::measured(spec)
        .map(|measured| format!(" · bandwidths measured: {}", escape(&measured)));
    format!(
        "<p class=\"about\">{} · {} · from {}{}</p>\n",
        escape(&summary::models_left(&spec.gpus, scene.data.lost.len())),
        summary::interconnect(spec),
        escape(source),
        measured.unwrap_or_default()
    )
}

fn graph(scene: &Scene<'_>) -> String {
    panels::render(scene) + &nics::render(scene.spec())
}
