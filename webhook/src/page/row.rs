//! A node as a row: its GPUs as cells, what is free, and who holds the others.

use std::fmt::Write;

use nvlink_cluster::gpus::node::{Gpu, Node};
use nvlink_runtime::page::{escape, mark};
use nvlink_runtime::words::{gpus, percent};

use super::{
    board::{Kind, POOR, Row},
    find::{self, Query},
};

/// Renders the row. Cells repeat what the text says, so readers of the text skip them.
pub(super) fn html(row: &Row) -> String {
    let name = escape(&row.name);
    let (cells, fit, held) = match row.published.as_ref() {
        Ok(node) => (cells(row, node), fit(row), held(row, node)),
        Err(reason) => {
            let reason = format!("<span class=\"bad\">✕ {}</span>", escape(reason));
            (String::new(), "not known".to_owned(), reason)
        }
    };
    format!(
        "<div class=\"row\" role=\"row\" id=\"node-{name}\" data-find=\"{find}\">\
         <span role=\"rowheader\"><a href=\"{address}\">{name}</a>{tray}</span>\
         <span role=\"cell\" class=\"cells\"><span aria-hidden=\"true\">{cells}</span></span>\
         <span role=\"cell\" class=\"fit\">{fit}</span>\
         <span role=\"cell\" class=\"held\">{held}</span></div>\n",
        find = escape(&find::of_row(row)),
        address = address(&row.name),
        tray = row.tray().map_or_else(String::new, |tray| {
            format!(" <span class=\"soft\">tray {}</span>", tray.index)
        }),
    )
}

/// Renders the place of a tray that is away, hidden if the query does not find it.
pub(super) fn away(tray: u8, group: &Kind, query: &Query) -> String {
    let find = find::of_away(tray, group);
    let hidden = if query.matches(&find) { "" } else { "hidden " };
    format!(
        "<div {hidden}class=\"row\" role=\"row\" data-find=\"{}\">\
         <span role=\"rowheader\" class=\"soft\">tray {tray}</span>\
         <span role=\"cell\" class=\"cells\"></span><span role=\"cell\" class=\"fit\"></span>\
         <span role=\"cell\" class=\"held\"><span class=\"bad\">✕ no node reports this tray</span></span></div>\n",
        escape(&find)
    )
}

/// Returns the address of a node's own page.
pub(super) fn address(name: &str) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    let query = query.append_pair("name", name).finish();
    format!("/node?{}", escape(&query))
}

/// Reports whether a query finds the row.
pub(super) fn is_found(row: &Row, query: &Query) -> bool {
    query.is_empty() || query.matches(&find::of_row(row))
}

/// Renders a cell for each GPU, in a frame for each domain.
fn cells(row: &Row, node: &Node) -> String {
    let mut html = String::new();
    for domain in &node.domains {
        html += "<span class=\"d\">";
        let inside = node
            .gpus
            .iter()
            .filter(|gpu| domain.gpus.contains(&gpu.index));
        inside.for_each(|gpu| html += &cell(row, node, gpu));
        html += "</span>";
    }
    let outside = node
        .gpus
        .iter()
        .filter(|gpu| node.domain_of(gpu.index).is_none());
    outside.for_each(|gpu| html += &cell(row, node, gpu));
    html
}

fn cell(row: &Row, node: &Node, gpu: &Gpu) -> String {
    let mut holders = row.holders(gpu.index);
    let (class, text) = match (holders.next(), row.is_open(gpu.index)) {
        (Some(job), _) => {
            let shared = if holders.next().is_some() { "+" } else { "" };
            let class = format!("{} h{}", grade(row.jobs[job].quality), hue(row, node, job));
            (class, mark(job) + shared)
        }
        (None, true) => ("f".to_owned(), String::new()),
        (None, false) => ("x".to_owned(), "?".to_owned()),
    };
    let broken = if gpu.broken().is_empty() { "" } else { " b" };
    format!("<i class=\"{class}{broken}\">{text}</i>")
}

/// Returns the class of a quality: poor, fair, the best, or not known.
pub(super) fn grade(quality: Option<f64>) -> &'static str {
    match quality {
        None => "q0",
        Some(quality) if quality < POOR => "q1",
        Some(quality) if quality < 0.995 => "q2",
        Some(_) => "q3",
    }
}

/// How many colours there are for projects.
const HUES: u64 = 8;

/// Returns the colour of a job's project: the same on all nodes. Without a project, it is
/// that of its namespace.
fn hue(row: &Row, node: &Node, job: usize) -> u64 {
    let namespace = node.allocations.as_ref().and_then(|all| all.get(job));
    let pod = row.jobs[job].pod.as_ref();
    let project = pod.and_then(|pod| pod.project.as_deref());
    let name = project.or(namespace.map(|held| held.namespace.as_str()));
    let bytes = name.unwrap_or_default().bytes().map(u64::from);
    bytes.fold(0_u64, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte)) % HUES
}

/// Says what still fits on a node.
fn fit(row: &Row) -> String {
    let (Some(free), Some(most)) = (row.free(), row.largest_free_set()) else {
        return "not known".to_owned();
    };
    match (free.len(), most) {
        (0, _) => "full".to_owned(),
        (free, most) if free == most => format!("{free} free"),
        (free, most) => format!("{free} free, {most} together"),
    }
}

fn held(row: &Row, node: &Node) -> String {
    let mut html = String::new();
    for (what, broken) in row.broken() {
        // Writing to a string never fails.
        let _ = write!(
            html,
            "<span class=\"bad\">✕ {}: {}</span> ",
            gpus(&broken),
            escape(&what)
        );
    }
    if let Some(lacking) = row.lacking() {
        let _ = write!(html, "<span class=\"bad\">✕ {lacking}</span> ");
    }
    if let Some(ratio) = node.slow {
        let _ = write!(
            html,
            "<span class=\"warning\">▲ measures {} of its siblings</span> ",
            percent(ratio)
        );
    }
    let Some(allocations) = &node.allocations else {
        return html + "<span class=\"soft\">who holds its GPUs is not known</span>";
    };
    for (n, (held, job)) in allocations.iter().zip(&row.jobs).enumerate() {
        let name = escape(&format!("{}/{}", held.namespace, held.pod));
        let quality = match (job.quality, grade(job.quality)) {
            (None, _) => String::new(),
            (Some(quality), "q1") => format!(" <b class=\"warning\">▲ {}</b>", percent(quality)),
            (Some(quality), _) => format!(" {}", percent(quality)),
        };
        let _ = write!(
            html,
            "<span class=\"job\"><b>{}</b> <span class=\"sr\">{}</span> {name}{quality}</span> ",
            mark(n),
            gpus(&held.gpus),
        );
    }
    html
}
