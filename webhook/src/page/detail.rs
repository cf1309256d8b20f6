//! One node with all that is known about it.

use std::fmt::Write;

use nvlink_cluster::gpus::node::{Gpu, Node};
use nvlink_runtime::page::{escape, mark};
use nvlink_runtime::words::{count, gpus, percent};

use super::board::Row;

/// Renders the content of the page of a node.
pub(super) fn html(row: &Row) -> String {
    let mut html = "<p><a href=\"/\">All nodes</a></p>\n".to_owned();
    let tray = row.tray().map(|tray| {
        let (index, slot, chassis) = (tray.index, tray.slot, &tray.chassis);
        format!("{index}, in slot {slot} of chassis {chassis}")
    });
    let facts = [
        ("Rack", row.place.rack.as_deref()),
        ("Zone", row.place.zone.as_deref()),
        ("Tray", tray.as_deref()),
    ];
    let facts: String = facts
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
        .map(|(name, value)| format!("<div><dt>{name}</dt><dd>{}</dd></div>", escape(value)))
        .collect();
    if !facts.is_empty() {
        let _ = writeln!(html, "<dl>{facts}</dl>");
    }
    match row.published.as_ref() {
        Ok(node) => {
            let held = |gpu: &Gpu| holders(row, node, gpu);
            html + &jobs(row, node) + &gpu_table("GPUs", node, held)
        }
        Err(reason) => {
            let earlier = row.earlier.as_deref();
            let earlier = earlier.and_then(|published| published.as_ref().ok());
            let unknown = |_: &Gpu| "not known".to_owned();
            let table = |node| gpu_table("GPUs, as the node published them before", node, unknown);
            let table = earlier.map(table).unwrap_or_default();
            html + &format!(
                "<section class=\"troubles bad\"><h2>✕ Its NodeTopology cannot be shown</h2>\n\
                 <p class=\"error\">{}</p></section>\n",
                escape(reason)
            ) + &table
        }
    }
}

fn jobs(row: &Row, node: &Node) -> String {
    let mut html = "<section><h2>Jobs</h2>\n".to_owned();
    let Some(free) = row.free() else {
        return html
            + "<p class=\"soft\">Who holds its GPUs is not known: the exporter does not publish \
               allocations.</p></section>\n";
    };
    let allocations = node.allocations.as_deref().unwrap_or_default();
    html += &match (free.len(), row.largest_free_set()) {
        (0, _) => "<p class=\"soft\">All GPUs are held.</p>\n".to_owned(),
        (_, most) => format!(
            "<p class=\"soft\">Free: {}; at most {} in one domain.</p>\n",
            gpus(&free),
            count(most.unwrap_or_default(), "GPU")
        ),
    };
    if allocations.is_empty() {
        return html + "</section>\n";
    }
    html += "<div class=\"scroll\"><table><thead><tr><th>Job</th><th>Pod</th><th>Container</th><th>GPUs</th>\
             <th>Quality</th><th>Pattern</th><th>Class</th><th>Project</th></tr></thead><tbody>\n";
    for (n, (held, job)) in allocations.iter().zip(&row.jobs).enumerate() {
        let pod = job.pod.as_deref().cloned().unwrap_or_default();
        let pattern = pod.pattern.map(|pattern| pattern.to_string());
        let quality = job.quality.map(percent);
        let name = format!("{}/{}", held.namespace, held.pod);
        let cells = [
            mark(n),
            name,
            held.container.clone(),
            gpus(&held.gpus),
            quality.unwrap_or_else(|| "not known".to_owned()),
            pattern.unwrap_or_else(|| "all-reduce (assumed)".to_owned()),
            pod.class.unwrap_or_default(),
            pod.project.unwrap_or_default(),
        ];
        html += &line(cells);
    }
    html + "</tbody></table></div></section>\n"
}

fn gpu_table(title: &str, node: &Node, held: impl Fn(&Gpu) -> String) -> String {
    let mut html = format!(
        "<section><h2>{title}</h2>\n<div class=\"scroll\"><table><thead><tr><th>GPU</th><th>Links up</th><th>Broken</th>\
         <th>Held by</th><th>Domain</th><th>Model</th><th>UUID</th></tr></thead><tbody>\n"
    );
    for gpu in &node.gpus {
        let domain = node.domain_of(gpu.index).map(|domain| domain.id.clone());
        html += &line([
            gpu.index.to_string(),
            links(gpu),
            gpu.broken().join(", "),
            held(gpu),
            domain.unwrap_or_else(|| "none".to_owned()),
            gpu.model.clone().unwrap_or_default(),
            gpu.uuid.clone().unwrap_or_default(),
        ]);
    }
    for lost in &node.lost {
        let (index, uuid) = (lost.index.to_string(), lost.uuid.clone());
        let [links, held, domain, model] = [const { String::new() }; 4];
        let broken = "lost".to_owned();
        html += &line([
            index,
            links,
            broken,
            held,
            domain,
            model,
            uuid.unwrap_or_default(),
        ]);
    }
    html + "</tbody></table></div></section>\n"
}

fn links(gpu: &Gpu) -> String {
    match (gpu.links, gpu.missing()) {
        (None, _) => "not known".to_owned(),
        (Some(links), 0) => links.up.to_string(),
        (Some(links), _) => format!("✕ {} of {}", links.up, links.expected),
    }
}

fn holders(row: &Row, node: &Node, gpu: &Gpu) -> String {
    let Some(allocations) = &node.allocations else {
        return "not known".to_owned();
    };
    let holders = row.holders(gpu.index).filter_map(|n| {
        let held = allocations.get(n)?;
        Some(format!("{} {}/{}", mark(n), held.namespace, held.pod))
    });
    let holders: Vec<String> = holders.collect();
    if !holders.is_empty() {
        return holders.join(", ");
    }
    match (row.is_open(gpu.index), gpu.faults.is_empty()) {
        (false, _) => "a pod that its exporter does not report".to_owned(),
        (true, true) => "free".to_owned(),
        (true, false) => "nobody".to_owned(),
    }
}

fn line<const N: usize>(cells: [String; N]) -> String {
    let cells: String = cells
        .iter()
        .map(|cell| format!("<td>{}</td>", escape(cell)))
        .collect();
    format!("<tr>{cells}</tr>\n")
}
