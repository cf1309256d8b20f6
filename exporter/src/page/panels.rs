//! The GPUs: a panel for each domain with its NUMA nodes, and their cards.

use std::collections::BTreeSet;

use nvlink_topology::{Domain, Gpu, NodeTopologySpec, Via};

use super::{
    card,
    html::{count, escape, rate},
    lane::Lane,
    ring,
    scene::Scene,
};
use crate::output::summary;

/// If there are more GPUs than this, each gets less space.
const DENSE: usize = 24;
/// This many GPUs need no drawing to show which are joined.
const PAIR: usize = 2;

/// A GPU and its links.
type Shown<'a> = (&'a Gpu, Vec<Lane<'a>>);

pub(super) fn render(scene: &Scene<'_>) -> String {
    let spec = scene.spec();
    let dense = if spec.gpus.len() > DENSE {
        " dense"
    } else {
        ""
    };
    let mut html = format!(
        "<div class=\"board{dense}\" id=\"node\" tabindex=\"-1\">\n<h2>GPUs and links</h2>\n"
    );
    html += &legend(scene);
    let small = |domain: &&Domain| is_direct(spec, domain) && domain.gpus.len() <= PAIR;
    let (pairs, others): (Vec<_>, Vec<_>) = spec.domains.iter().partition(small);
    for domain in others {
        html += &panel(scene, domain);
    }
    let panels: String = pairs.iter().map(|domain| panel(scene, domain)).collect();
    html += &match pairs.len() {
        0 | 1 => panels,
        _ => format!("<div class=\"pairs\">\n{panels}</div>\n"),
    };
    let alone: Vec<&Gpu> = spec
        .gpus
        .iter()
        .filter(|gpu| spec.domain_of(gpu.index).is_none())
        .collect();
    if !alone.is_empty() {
        html += &outside(scene, &alone);
    }
    if !scene.data.lost.is_empty() {
        html += &lost(scene);
    }
    html + "</div>\n"
}

/// Renders the legend of what is drawn: links, and the numbers between GPUs.
fn legend(scene: &Scene<'_>) -> String {
    let places = places(scene);
    let links = scene.spec().gpus.iter().flat_map(|gpu| &gpu.links);
    if links.flatten().next().is_none() {
        return match places.is_empty() {
            true => String::new(),
            false => format!("<p class=\"legend\">{places}</p>\n"),
        };
    }
    let (class, load) = match scene.measuring {
        true => ("wait", "measuring…"),
        false => ("nk", "load not known"),
    };
    format!(
        "<p class=\"legend\"><span><i class=\"l5\"></i> up, filled by load</span> \
     <span><i class=\"rise l5\"></i> new errors</span> \
     <span><i class=\"down\"></i> missing</span> \
     <span><i class=\"{class}\"></i> {load}</span> \
     <span><i class=\"unused\"></i> unused</span>{places}</p>\n"
    )
}

/// Explains the labels below the links, as far as the page uses them.
fn places(scene: &Scene<'_>) -> String {
    let spec = scene.spec();
    let lanes = spec.gpus.iter().flat_map(|gpu| scene.lanes(gpu));
    let remotes: BTreeSet<String> = lanes.filter_map(|lane| scene.remote(&lane)).collect();
    let starts = |start: &str| remotes.iter().any(|one| one.starts_with(start));
    let mut html = String::new();
    if starts("S") {
        html += " <span><b>S0</b> to NVSwitch 0</span>";
    }
    if starts("GPU ") {
        html += " <span><b>→1</b> to GPU 1</span>";
    }
    let ring = |one: &Domain| is_direct(spec, one) && one.gpus.len() > PAIR;
    if spec.domains.iter().any(ring) {
        html += " <span>—<b>2</b>— links of a pair</span>";
    }
    html
}

fn panel(scene: &Scene<'_>, domain: &Domain) -> String {
    let spec = scene.spec();
    let gpus: Vec<Shown<'_>> = spec
        .gpus
        .iter()
        .filter(|gpu| domain.gpus.contains(&gpu.index))
        .map(|gpu| (gpu, scene.lanes(gpu)))
        .collect();
    let direct = is_direct(spec, domain);
    let mut html = format!(
        "<section class=\"domain{}\"><h3>NVLink domain {}</h3>\n<p class=\"soft\">{}, {}</p>\n",
        if direct { " direct" } else { "" },
        escape(&domain.id),
        count(gpus.len(), "GPU"),
        summary::joined(spec, domain)
    );
    match direct {
        true if gpus.len() > PAIR => {
            if let Some(apart) = ring::apart(scene, domain) {
                html += &format!("<p class=\"soft apart\">No NVLink, only PCIe: {apart}</p>\n");
            }
            html += &ring::render(scene, domain, &gpus);
        }
        true => {}
        false => html += &hub(scene, domain, &gpus),
    }
    html += &numa_nodes(scene, &gpus);
    html + "</section>\n"
}

/// Reports whether the GPUs of a domain are joined without switches.
fn is_direct(spec: &NodeTopologySpec, domain: &Domain) -> bool {
    let inside = |gpu| domain.gpus.contains(&gpu);
    let mut edges = spec
        .edges
        .iter()
        .filter(|one| inside(one.a) && inside(one.b));
    edges.all(|edge| edge.via == Via::Direct)
}

/// Renders what the links of a switched domain lead to: one bar, however many pairs there are.
fn hub(scene: &Scene<'_>, domain: &Domain, gpus: &[Shown<'_>]) -> String {
    // By switch: number of links up, and bytes per second that the switch received.
    let mut switches: Vec<(String, usize, Option<f64>)> = Vec::new();
    for lane in gpus.iter().flat_map(|(_, lanes)| lanes) {
        let Some(name) = scene.remote(lane).filter(|name| !name.starts_with("GPU")) else {
            continue;
        };
        let sent = lane.load.and_then(|load| load.transmit_bytes_per_second);
        match switches.iter_mut().find(|one| one.0 == name) {
            Some((_, up, sum)) => {
                *up += 1;
                *sum = sum.zip(sent).map(|(sum, sent)| sum + sent);
            }
            None => switches.push((name, 1, sent)),
        }
    }
    switches.sort_by_key(|one| (one.0.len(), one.0.clone()));
    let title = match &domain.fabric {
        Some(_) => "NVLink fabric, with GPUs of other nodes",
        None => "NVSwitch",
    };
    let mut html = format!("<div class=\"hub\"><b>{title}</b>");
    for (name, up, sent) in switches {
        let sent = sent
            .map(|sent| format!(", {} now", rate(sent)))
            .unwrap_or_default();
        let name = if name == "switch" {
            String::new()
        } else {
            format!("{name} ")
        };
        html += &format!(" <span>{name}{}{sent}</span>", count(up, "link"));
    }
    html + "</div>\n"
}

fn outside(scene: &Scene<'_>, gpus: &[&Gpu]) -> String {
    let gpus: Vec<Shown<'_>> = gpus.iter().map(|gpu| (*gpu, scene.lanes(gpu))).collect();
    let linked = gpus
        .iter()
        .flat_map(|(_, lanes)| lanes)
        .any(|lane| lane.link.up);
    let unknown = gpus.iter().any(|(gpu, _)| gpu.links.is_none());
    let why = match (linked, unknown) {
        (true, _) => "their links are up, but lead to no other GPU",
        (false, true) => "whether they have NVLink is not known",
        (false, false) => "no NVLink between them: they reach each other over PCIe",
    };
    format!(
        "<section class=\"domain outside\"><h3>Outside NVLink domains</h3>\n<p class=\"soft\">{}: {why}</p>\n{}</section>\n",
        count(gpus.len(), "GPU"),
        numa_nodes(scene, &gpus)
    )
}

fn numa_nodes(scene: &Scene<'_>, gpus: &[Shown<'_>]) -> String {
    // Sorted by NUMA node: the order of the indices may alternate between two nodes.
    let mut gpus: Vec<&Shown<'_>> = gpus.iter().collect();
    gpus.sort_by_key(|(gpu, _)| (gpu.numa_node.is_none(), gpu.numa_node));
    let groups = || gpus.chunk_by(|(a, _), (b, _)| a.numa_node == b.numa_node);
    let solo = groups().all(|group| group.len() == 1);
    let mut html = format!("<div class=\"numas{}\">\n", if solo { " solo" } else { "" });
    for group in groups() {
        let numa = group[0].0.numa_node;
        let title = numa.map_or("NUMA unknown".to_owned(), |numa| format!("NUMA {numa}"));
        let class = match group.iter().map(|(_, lanes)| lanes.len()).max() {
            Some(13..) => "",
            Some(9..) => " narrow",
            _ => " slim",
        };
        html += &format!("<div class=\"numa\"><h4>{title}</h4>\n<div class=\"cards{class}\">\n");
        for (gpu, lanes) in group {
            html += &card::render(scene, gpu, lanes);
        }
        html += "</div></div>\n";
    }
    html + "</div>\n"
}

fn lost(scene: &Scene<'_>) -> String {
    let mut html =
        "<section class=\"domain lost\"><h3>Lost</h3>\n<div class=\"cards narrow\">\n".to_owned();
    for gpu in &scene.data.lost {
        let known = [gpu.pci_bus_id.as_deref(), gpu.uuid.as_deref()];
        let known: Vec<_> = known.into_iter().flatten().map(escape).collect();
        html += &format!(
            "<div class=\"gpu bad\" id=\"gpu-{0}\" tabindex=\"-1\"><b>GPU {0}</b> \
             <span class=\"bad\">✕ does not answer</span><span class=\"sum\">{1}</span></div>\n",
            gpu.index,
            known.join("<br>")
        );
    }
    html + "</div></section>\n"
}
