//! A domain with direct links, drawn as a ring of GPUs with the wires between them.

use nvlink_topology::{Domain, Edge, Gpu};

use super::{
    html::{count, percent},
    lane::{Lane, State},
    scene::Scene,
};
use crate::output::rate;

/// Half of the width and height of the drawing, and of a GPU. The drawing is shown
/// at this size in pixels or larger, so that 13 px text stays 13 px.
const HALF: (f64, f64) = (165.0, 140.0);
const NODE: (f64, f64) = (27.0, 13.0);

pub(super) fn render(scene: &Scene<'_>, domain: &Domain, gpus: &[(&Gpu, Vec<Lane<'_>>)]) -> String {
    let places: Vec<(u32, f64, f64)> = gpus
        .iter()
        .enumerate()
        .map(|(n, (gpu, _))| {
            let (x, y) = place(n, gpus.len());
            (gpu.index, x, y)
        })
        .collect();
    let at = |index: u32| places.iter().find(|one| one.0 == index).copied();
    let inside = |edge: &&Edge| domain.gpus.contains(&edge.a) && domain.gpus.contains(&edge.b);
    let mut svg = format!(
        "<svg class=\"ring\" viewBox=\"0 0 {:.0} {:.0}\" role=\"group\" aria-label=\"Links between the GPUs\">\n",
        HALF.0 * 2.0,
        HALF.1 * 2.0
    );
    let mut labels = String::new();
    for edge in scene.spec().edges.iter().filter(inside) {
        let (Some(from), Some(to)) = (at(edge.a), at(edge.b)) else {
            continue;
        };
        let lanes = between(scene, gpus, edge);
        svg += &wire(edge, from, to, &lanes);
        labels += &label(edge, from, to, &lanes);
    }
    svg += &labels;
    for (index, x, y) in &places {
        let bad = gpus.iter().find(|(gpu, _)| gpu.index == *index);
        let class = match bad.is_some_and(|(gpu, _)| scene.missing(gpu) > 0) {
            true => "node bad",
            false => "node",
        };
        svg += &format!(
            "<a href=\"#gpu-{index}\" class=\"{class}\"><rect x=\"{:.0}\" y=\"{:.0}\" width=\"{:.0}\" height=\"{:.0}\" rx=\"6\"/>\
             <text x=\"{x:.0}\" y=\"{:.0}\">GPU {index}</text></a>\n",
            x - NODE.0,
            y - NODE.1,
            NODE.0 * 2.0,
            NODE.1 * 2.0,
            y + 4.5
        );
    }
    svg + "</svg>\n"
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

fn wire(edge: &Edge, from: (u32, f64, f64), to: (u32, f64, f64), lanes: &[Lane<'_>]) -> String {
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
    let (x1, y1, x2, y2) = (from.1, from.2, to.1, to.2);
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

/// Renders the number of links on a wire, away from its middle if other wires cross there.
fn label(edge: &Edge, from: (u32, f64, f64), to: (u32, f64, f64), lanes: &[Lane<'_>]) -> String {
    let share = if (edge.b - edge.a).is_multiple_of(2) {
        0.4
    } else {
        0.5
    };
    let mix = |a: f64, b: f64| a + (b - a) * share;
    let (x, y) = (mix(from.1, to.1), mix(from.2, to.2));
    let text = match rising(lanes) {
        true => format!("{}!", edge.links),
        false => edge.links.to_string(),
    };
    format!(
        "<circle class=\"tag\" cx=\"{x:.0}\" cy=\"{y:.0}\" r=\"9\"/><text class=\"tag\" x=\"{x:.0}\" y=\"{:.0}\">{text}</text>\n",
        y + 4.0
    )
}

/// Returns the center of the `n`th of `all` GPUs, clockwise from the upper left.
fn place(n: usize, all: usize) -> (f64, f64) {
    let angle = std::f64::consts::TAU * (n as f64 + 0.5) / all as f64 - std::f64::consts::PI * 0.75;
    let (rx, ry) = (HALF.0 - NODE.0 - 3.0, HALF.1 - NODE.1 - 3.0);
    (HALF.0 + rx * angle.cos(), HALF.1 + ry * angle.sin())
}
