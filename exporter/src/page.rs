//! The page at `/`: the drawing and a table, no script, nothing loaded.

use nvlink_topology::{NodeTopology, NodeTopologySpec};

use crate::{
    output::{self, summary, svg},
    snapshot::View,
    source::Reading,
};

const STYLE: &str = "
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #59636e; --line: #d5dae0; --paper: #ffffff; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9aa4af; --line: #3a424c; --paper: #14181d; --bad: #ff9a8f; } }
body { margin: 0 auto; padding: 1rem; max-width: 66rem; font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper); }
h1 { font-size: 1.3rem; margin: 0; } h2 { font-size: 1.05rem; margin: 1.6rem 0 .4rem; }
p { margin: .2rem 0 1rem; color: var(--soft); } a { color: inherit; }
main + p { margin: 2rem 0 1rem; }
.bad { color: var(--bad); font-weight: 600; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 14px; }
th, td { text-align: left; padding: .25rem .8rem .25rem 0; border-bottom: 1px solid var(--line); white-space: nowrap; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
";

/// The page.
#[must_use]
pub fn render(view: &View) -> String {
    let data = view.data();
    let name = data.map_or("nvlink-exporter", |data| &data.topology.metadata.name);
    let mut body = format!("<h1>{}</h1>\n<p>{}</p>\n", escape(name), state(view));
    if let Some(data) = data {
        body += &content(data);
    }
    let title = escape(name);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title} · NVLink</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n{body}\
         </main>\n<p><a href=\"/metrics\">Metrics</a> · <a href=\"/api/v1/topology\">Topology as JSON</a> · \
         <a href=\"/readyz\">Readiness</a> · nvlink-exporter {}</p>\n</body>\n</html>\n",
        env!("CARGO_PKG_VERSION")
    )
}

/// What was read, when, and whether it failed.
fn state(view: &View) -> String {
    let age = view.age.unwrap_or_default().as_secs();
    match (&view.snapshot, view.error()) {
        (None, _) => "No collection has ended yet.".to_owned(),
        (Some(_), Some(error)) => format!(
            "<span class=\"bad\">The last good collection is {age} s old:</span> {}",
            escape(&error)
        ),
        (Some(snapshot), None) => {
            format!("From {}, {age} s ago.", escape(&snapshot.health.source))
        }
    }
}

fn content(data: &Reading) -> String {
    let node = &data.topology;
    let spec = &node.spec;
    let mut html = String::new();
    for warning in &data.warnings {
        html += &format!("<p class=\"bad\">{}</p>\n", escape(warning));
    }
    html += &format!("<div class=\"scroll\">{}</div>\n", svg::render(node));
    html += &section("GPUs", &GPUS, &gpus(node));
    if !spec.domains.is_empty() {
        html += &section(
            "NVLink domains",
            &["Domain", "GPUs", "Joined by"],
            &domains(spec),
        );
    }
    if !spec.nics.is_empty() {
        html += &section(
            "NICs",
            &["NIC", "NUMA", "Nearest GPUs", "Rate", "PCI address"],
            &nics(spec),
        );
    }
    html
}

const GPUS: [&str; 7] = [
    "GPU",
    "NUMA",
    "Domain",
    "Links up",
    "NICs",
    "PCI address",
    "Model",
];

fn gpus(node: &NodeTopology) -> Vec<Vec<String>> {
    let spec = &node.spec;
    let row = |gpu: &nvlink_topology::Gpu| {
        let domain = spec
            .domains
            .iter()
            .find(|domain| domain.gpus.contains(&gpu.index));
        let up = summary::links_up(gpu).unwrap_or("unknown".into());
        let bad = summary::lacks_links(gpu, &spec.gpus);
        vec![
            gpu.index.to_string(),
            gpu.numa_node
                .map(|numa| numa.to_string())
                .unwrap_or_default(),
            domain.map(|domain| domain.id.clone()).unwrap_or_default(),
            if bad {
                format!("{up}, links missing")
            } else {
                up
            },
            summary::nics(spec, gpu.index).join(", "),
            gpu.pci_bus_id.clone().unwrap_or_default(),
            gpu.model.clone().unwrap_or_default(),
        ]
    };
    spec.gpus.iter().map(row).collect()
}

fn domains(spec: &NodeTopologySpec) -> Vec<Vec<String>> {
    let row = |domain: &nvlink_topology::Domain| {
        let nvlink_topology::Domain { id, gpus, .. } = domain;
        vec![
            id.clone(),
            output::ranges(gpus),
            summary::joined(spec, domain),
        ]
    };
    spec.domains.iter().map(row).collect()
}

fn nics(spec: &NodeTopologySpec) -> Vec<Vec<String>> {
    let row = |nic: &nvlink_topology::Nic| {
        vec![
            nic.name.clone(),
            nic.numa_node
                .map(|numa| numa.to_string())
                .unwrap_or_default(),
            output::ranges(&nic.gpus),
            nic.bytes_per_second.map(output::rate).unwrap_or_default(),
            nic.pci_bus_id.clone().unwrap_or_default(),
        ]
    };
    spec.nics.iter().map(row).collect()
}

fn section(title: &str, columns: &[&str], rows: &[Vec<String>]) -> String {
    let mut html = format!("<h2>{title}</h2>\n<div class=\"scroll\"><table>\n<thead><tr>");
    for column in columns {
        html += &format!("<th scope=\"col\">{column}</th>");
    }
    html += "</tr></thead>\n<tbody>\n";
    for row in rows {
        html += "<tr>";
        for cell in row {
            let class = if cell.ends_with("links missing") {
                " class=\"bad\""
            } else {
                ""
            };
            html += &format!("<td{class}>{}</td>", escape(cell));
        }
        html += "</tr>\n";
    }
    html + "</tbody>\n</table></div>\n"
}

fn escape(text: &str) -> String {
    svg::escape(text)
}
