//! A domain with direct links, drawn as GPUs with the wires between them.

use nvlink_topology::{Domain, Edge, Gpu};

use super::{
    html::{count, percent},
    lane::{Lane, State},
    layout::{Layout, NODE, Place},
    scene::Scene,
};
use crate::output::{self, rate};

/// A GPU and its links.
type Shown<'a> = (&'a Gpu, Vec<Lane<'a>>);

pub(super) fn render(scene: &Scene<'_>, domain: &Domain, gpus: &[Shown<'_>]) -> String {
    let inside = |edge: &&Edge| domain.gpus.contains(&edge.a) && domain.gpus.contains(&edge.b);
    let edges: Vec<&Edge> = scene.spec().edges.iter().filter(inside).collect();
    let drawn: Vec<&Gpu> = gpus.iter().map(|(gpu, _)| *gpu).collect();
    let layout = Layout::new(&drawn, &edges);
    let mut svg = format!(
        "<svg class=\"ring\" viewBox=\"0 0 {:.0} {:.0}\" role=\"group\" aria-label=\"Links between the GPUs\">\n",
        layout.width, layout.height
    );
    for (x, title) in &layout.titles {
        svg += &format!("<text class=\"title\" x=\"{x:.0}\" y=\"16\">{title}</text>\n");
    }
    let mut labels = String::new();
    for edge in edges {
        let (Some(from), Some(to)) = (layout.of(edge.a), layout.of(edge.b)) else {
            continue;
        };
        let lanes = between(scene, gpus, edge);
        svg += &wire(edge, from, to, &lanes);
        labels += &label(edge, from, to, &lanes);
    }
    svg += &labels;
    for place in &layout.places {
        let shown = gpus.iter().find(|(gpu, _)| gpu.index == place.gpu);
        svg += &node(place, shown.is_some_and(|(gpu, _)| scene.missing(gpu) > 0));
    }
    svg + "</svg>\n"
}

fn node(place: &Place, bad: bool) -> String {
    let Place { gpu, x, y, .. } = place;
    let class = if bad { "node bad" } else { "node" };
    format!(
        "<a href=\"#gpu-{gpu}\" class=\"{class}\"><rect x=\"{:.0}\" y=\"{:.0}\" width=\"{:.0}\" height=\"{:.0}\" rx=\"6\"/>\
         <text x=\"{x:.0}\" y=\"{:.0}\">GPU {gpu}</text></a>\n",
        x - NODE.0,
        y - NODE.1,
        NODE.0 * 2.0,
        NODE.1 * 2.0,
        y + 4.5
    )
}

/// Lists the pairs of a domain that no NVLink joins, each once: `0 to 5-7, 1 to 4`.
pub(super) fn apart(scene: &Scene<'_>, domain: &Domain) -> Option<String> {
    let joined = |a: u32, b: u32| scene.spec().edge(a, b).is_some();
    let of = |&gpu: &u32| {
        let others = domain.gpus.iter().copied().filter(|&other| other > gpu);
        let apart: Vec<u32> = others.filter(|&other| !joined(gpu, other)).collect();
        (!apart.is_empty()).then(|| format!("{gpu} to {}", output::ranges(&apart)))
    };
    let all: Vec<String> = domain.gpus.iter().filter_map(of).collect();
    (!all.is_empty()).then(|| all.join(" · "))
}

/// Returns the links of both GPUs of an edge that lead to the other one.
fn between<'a>(scene: &Scene<'_>, gpus: &[(&Gpu, Vec<Lane<'a>>)], edge: &Edge) -> Vec<Lane<'a>> {
    let towards = |from: u32, to: u32| {
        let name = format!("GPU {to}");
        let end = gpus.iter().find(move |(gpu, _)| gpu.index == from);
        let lanes = end.map(|(_, lanes)| &lanes[..]).unwrap_or_default();
        lanes
            .iter()
            .copied()
            .filter(move |lane| scene.remote(lane).as_ref() == Some(&name))
    };
    towards(edge.a, edge.b)
        .chain(towards(edge.b, edge.a))
        .collect()
}

fn wire(edge: &Edge, from: Place, to: Place, lanes: &[Lane<'_>]) -> String {
    let busy: Vec<f64> = lanes.iter().filter_map(Lane::utilization).collect();
    let load = busy.iter().copied().fold(0.0, f64::max);
    let told = match busy.is_empty() {
        true => String::new(),
        false => format!(", {} load", percent(load)),
    };
    let class = match rising(lanes) {
        true => " rise",
        false => "",
    };
    let (x1, y1, x2, y2) = (from.x, from.y, to.x, to.y);
    let width = 1.5 * f64::from(edge.links.min(4));
    format!(
        "<line class=\"wire{class}\" x1=\"{x1:.0}\" y1=\"{y1:.0}\" x2=\"{x2:.0}\" y2=\"{y2:.0}\" \
         stroke-width=\"{width}\" stroke-opacity=\"{:.1}\"><title>GPU {} to GPU {}: {}, {}{told}</title></line>\n",
        0.4 + 0.6 * load,
        edge.a,
        edge.b,
        count(edge.links as usize, "link"),
        rate(edge.bytes_per_second)
    )
}

fn rising(lanes: &[Lane<'_>]) -> bool {
    lanes.iter().any(|lane| lane.state() == State::Rising)
}

/// Renders the number of links on a wire, away from where other wires cross.
fn label(edge: &Edge, from: Place, to: Place, lanes: &[Lane<'_>]) -> String {
    let share = from.number(&to);
    let mix = |a: f64, b: f64| a + (b - a) * share;
    let (x, y) = (mix(from.x, to.x), mix(from.y, to.y));
    let text = match rising(lanes) {
        true => format!("{}!", edge.links),
        false => edge.links.to_string(),
    };
    format!(
        "<circle class=\"tag\" cx=\"{x:.0}\" cy=\"{y:.0}\" r=\"9\"/><text class=\"tag\" x=\"{x:.0}\" y=\"{:.0}\">{text}</text>\n",
        y + 4.0
    )
}
