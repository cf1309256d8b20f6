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

use axum::Router;
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
    let scene = view.data().map(|data| Scene::new(view, data));
    let name = scene.as_ref().map_or("nvlink-exporter", |scene| {
        &scene.data.topology.metadata.name
    });
    let (mark, body) = match &scene {
        Some(scene) => content(scene),
        None => ("✕ ", nothing(view)),
    };
    let (name, metrics) = (escape(name), escape(metrics));
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

/// Renders the content of a page without data.
fn nothing(view: &View) -> String {
    let (title, text) = match (&view.snapshot, view.age) {
        (None, _) => ("No collection has finished yet.", String::new()),
        (Some(_), None) => ("No collection has succeeded yet.", String::new()),
        (Some(_), Some(age)) => (
            "There are no current data.",
            format!("The last good collection is {} s old.", age.as_secs()),
        ),
    };
    let error = view.snapshot.as_ref().and(view.error()).unwrap_or_default();
    format!(
        "<section class=\"troubles bad\" id=\"node\" tabindex=\"-1\"><h2 role=\"status\">✕ {title}</h2>\n\
         <p>{text}</p>\n<p class=\"error\">{}</p></section>\n",
        escape(&error)
    )
}

/// Renders the mark of the title, and the content of the page.
fn content(scene: &Scene<'_>) -> (&'static str, String) {
    let spec = scene.spec();
    let source = scene.view.snapshot.as_ref();
    let source = source.map_or("", |snapshot| &snapshot.health.source);
    let measured = summary::measured(spec)
        .map(|measured| format!(" · bandwidths measured: {}", escape(&measured)));
    let mut html = format!(
        "<p class=\"about\">{} · {} · from {}{}</p>\n",
        escape(&summary::models_left(&spec.gpus, scene.data.lost.len())),
        summary::interconnect(spec),
        escape(source),
        measured.unwrap_or_default()
    );
    let troubles = trouble::find(scene);
    html += &trouble::render(&troubles);
    html += &jobs::render(scene);
    html += &panels::render(scene);
    html += &nics::render(spec);
    (if troubles.is_empty() { "" } else { "▲ " }, html)
}
