//! One domain of the drawing.

use nvlink_topology::{Gpu, NodeTopologySpec, Via};

use super::canvas::Canvas;
use crate::output::{dot::switch_links, rate, summary};

const CARD: (u32, u32) = (112, 58);
const SPACE: u32 = 12;
/// GPUs in one row.
const ROW: usize = 8;
/// Room for title and detail above the cards.
const HEAD: u32 = 44;
/// Room for the label of a NUMA node.
const ZONE: u32 = 18;
/// Height of the switch bar, and of the lines that lead to it.
const BAR: u32 = 26;
const LEAD: u32 = 40;

/// GPUs, each with its place, and the wires between them.
pub(super) struct Block<'a> {
    spec: &'a NodeTopologySpec,
    title: String,
    detail: String,
    cards: Vec<(&'a Gpu, u32, u32)>,
    zones: Vec<(u32, u32, u32, u32)>,
    bars: Vec<(u32, u32, u32)>,
    direct: bool,
    size: (u32, u32),
}

impl<'a> Block<'a> {
    fn new(spec: &'a NodeTopologySpec, title: String, detail: String) -> Self {
        // A letter of the detail is about 6 px wide, one of the title 8.
        let letters = |text: &str| u32::try_from(text.chars().count()).unwrap_or(0);
        let width = (letters(&detail) * 6).max(letters(&title) * 8);
        Self {
            spec,
            title,
            detail,
            cards: Vec::new(),
            zones: Vec::new(),
            bars: Vec::new(),
            direct: false,
            size: (width, HEAD),
        }
    }

    /// Rows of cards; with `switched`, each two rows share a bar between them.
    pub(super) fn rows(
        spec: &'a NodeTopologySpec,
        title: String,
        detail: String,
        gpus: &[u32],
        switched: bool,
    ) -> Self {
        let mut block = Self::new(spec, title, detail);
        let gpus: Vec<_> = spec
            .gpus
            .iter()
            .filter(|gpu| gpus.contains(&gpu.index))
            .collect();
        let mut y = HEAD;
        for (n, row) in gpus.chunks(ROW).enumerate() {
            let below = switched && n % 2 == 1;
            let top = if below { y } else { y + ZONE };
            let right = block.row(row, top, below);
            y += CARD.1 + ZONE;
            block.size.0 = block.size.0.max(right);
            if switched && !below {
                block.bars.push((0, y + LEAD, right));
                y += LEAD + BAR + LEAD;
            } else {
                y += SPACE;
            }
        }
        // The last bar has no row below it.
        let open = switched && gpus.chunks(ROW).len() % 2 == 1;
        block.size.1 = y - if open { LEAD } else { SPACE };
        block
    }

    /// Places one row; NUMA neighbours share a zone.
    fn row(&mut self, gpus: &[&'a Gpu], top: u32, below: bool) -> u32 {
        let mut x = SPACE;
        for group in gpus.chunk_by(|a, b| a.numa_node == b.numa_node) {
            let left = x - SPACE / 2;
            for gpu in group {
                self.cards.push((gpu, x, top));
                x += CARD.0 + SPACE;
            }
            let y = if below { top - 6 } else { top - ZONE };
            self.zones
                .push((left, y, x - SPACE / 2 - left, CARD.1 + ZONE + 6));
            x += SPACE;
        }
        x - SPACE
    }

    /// Cards around a ring, so that no wire hides another.
    pub(super) fn ring(
        spec: &'a NodeTopologySpec,
        title: String,
        detail: String,
        gpus: &[u32],
    ) -> Self {
        let mut block = Self::new(spec, title, detail);
        block.direct = true;
        let gpus: Vec<_> = spec
            .gpus
            .iter()
            .filter(|gpu| gpus.contains(&gpu.index))
            .collect();
        let places = ring_places(gpus.len());
        for (gpu, (x, y)) in gpus.into_iter().zip(places) {
            block.cards.push((gpu, x, HEAD + y));
            block.size.0 = block.size.0.max(x + CARD.0);
            block.size.1 = block.size.1.max(HEAD + y + CARD.1 + SPACE);
        }
        block
    }

    pub(super) fn size(&self) -> (u32, u32) {
        self.size
    }

    pub(super) fn draw(&self, canvas: &mut Canvas, x: u32, y: u32) {
        canvas.text(x, y + 12, "name", &self.title);
        canvas.text(x, y + 28, "soft", &self.detail);
        for &(left, top, width, height) in &self.zones {
            canvas.rect((x + left, y + top), (width, height), 8, "zone");
        }
        self.bars(canvas, x, y);
        if self.direct {
            self.wires(canvas, x, y);
        }
        for (gpu, left, top) in &self.cards {
            self.card(canvas, gpu, x + left, y + top);
        }
        self.zone_labels(canvas, x, y);
    }

    fn zone_labels(&self, canvas: &mut Canvas, x: u32, y: u32) {
        for &(left, top, ..) in &self.zones {
            let inside = |&&(_, cx, cy): &&(&Gpu, u32, u32)| {
                cx == left + SPACE / 2 && cy > top && cy < top + CARD.1
            };
            let Some((gpu, _, card)) = self.cards.iter().find(inside) else {
                continue;
            };
            let below = card - top < ZONE;
            let baseline = if below {
                top + CARD.1 + 6 + 13
            } else {
                top + 13
            };
            let label = gpu
                .numa_node
                .map_or("NUMA unknown".into(), |numa| format!("NUMA {numa}"));
            canvas.text(x + left + SPACE / 2, y + baseline, "soft", &label);
        }
    }

    /// The switch: bars, joined by a spine where there are several, and a line from each GPU.
    fn bars(&self, canvas: &mut Canvas, x: u32, y: u32) {
        if let [(left, first, _), .., (_, last, _)] = self.bars[..] {
            canvas.rect(
                (x + left, y + first),
                (SPACE / 2, last - first + BAR),
                3,
                "bar",
            );
        }
        for (gpu, left, top) in &self.cards {
            let near = self
                .bars
                .iter()
                .min_by_key(|(_, bar, _)| bar.abs_diff(*top));
            let links = switch_links(self.spec, gpu.index);
            let Some((_, bar, _)) = near.filter(|_| links > 0) else {
                continue;
            };
            let middle = x + left + CARD.0 / 2;
            let (from, to) = match bar > top {
                true => (y + top + CARD.1, y + bar),
                false => (y + bar + BAR, y + top),
            };
            canvas.line((middle, from), (middle, to), &width(links));
            let tag = u32::midpoint(from.max(to - LEAD), to.min(from + LEAD * 2));
            canvas.text(middle + 8, tag + 4, "soft", &format!("NV{links}"));
        }
        for &(left, top, right) in &self.bars {
            canvas.rect((x + left, y + top), (right - left, BAR), 5, "bar");
            let middle = x + u32::midpoint(left, right);
            canvas.text(middle, y + top + 17, "middle", "NVSwitch");
        }
    }

    fn wires(&self, canvas: &mut Canvas, x: u32, y: u32) {
        let middle = |index: u32| {
            let card = self.cards.iter().find(|(gpu, ..)| gpu.index == index)?;
            Some((x + card.1 + CARD.0 / 2, y + card.2 + CARD.1 / 2))
        };
        let direct = self
            .spec
            .edges
            .iter()
            .filter(|edge| edge.via == Via::Direct);
        let wires = direct.filter_map(|edge| Some((edge, middle(edge.a)?, middle(edge.b)?)));
        let wires: Vec<_> = wires.collect();
        for (edge, from, to) in &wires {
            let tooltip = format!(
                "GPU {} to GPU {}: NV{}, {}",
                edge.a,
                edge.b,
                edge.links,
                rate(edge.bytes_per_second)
            );
            canvas.open(&tooltip);
            canvas.line(*from, *to, &width(edge.links));
            canvas.close();
        }
        for (edge, from, to) in &wires {
            let at = label_place(*from, *to, (edge.b - edge.a) % 2 == 0);
            canvas.rect((at.0 - 16, at.1 - 9), (32, 18), 9, "tag");
            canvas.text(at.0, at.1 + 4, "soft middle", &format!("NV{}", edge.links));
        }
    }

    fn card(&self, canvas: &mut Canvas, gpu: &Gpu, x: u32, y: u32) {
        let bad = summary::lacks_links(gpu, &self.spec.gpus);
        let nics = summary::nics(self.spec, gpu.index);
        canvas.open(&tooltip(gpu, &nics));
        canvas.rect((x, y), CARD, 6, if bad { "card-bad" } else { "card" });
        canvas.text(x + 8, y + 18, "name", &format!("GPU {}", gpu.index));
        if let Some(numa) = gpu.numa_node.filter(|_| self.direct) {
            canvas.text(x + CARD.0 - 8, y + 18, "soft end", &format!("NUMA {numa}"));
        }
        let links = match (gpu.mig_enabled, summary::links_up(gpu)) {
            (true, _) => "MIG".to_owned(),
            (_, Some(up)) if bad => format!("! {up} links"),
            (_, Some(up)) if up == "0/0" => "no NVLink".to_owned(),
            (_, Some(up)) => format!("{up} links"),
            (_, None) => String::new(),
        };
        canvas.text(x + 8, y + 34, if bad { "bad" } else { "soft" }, &links);
        let nic = match nics[..] {
            [] => String::new(),
            [one] => shortened(one),
            [one, ..] => format!("{} +{}", shortened(one), nics.len() - 1),
        };
        canvas.text(x + 8, y + 49, "soft", &nic);
        canvas.close();
    }
}

fn shortened(name: &str) -> String {
    match name.chars().count() {
        0..=12 => name.to_owned(),
        _ => name.chars().take(11).chain(['…']).collect(),
    }
}

fn tooltip(gpu: &Gpu, nics: &[&str]) -> String {
    let known = [
        Some(format!("GPU {}", gpu.index)),
        gpu.model.clone(),
        gpu.uuid.clone(),
        gpu.pci_bus_id.clone(),
        gpu.numa_node.map(|numa| format!("NUMA node {numa}")),
        (!nics.is_empty()).then(|| format!("near {}", nics.join(", "))),
    ];
    known.into_iter().flatten().collect::<Vec<_>>().join(" · ")
}

/// Stroke width of so many links: one and two are told apart at a glance, many fill no card.
fn width(links: u32) -> String {
    let tenths = match links {
        0..=2 => 15 * links,
        links => 26 + links.min(18) * 2,
    };
    format!("{}.{}", tenths / 10, tenths % 10)
}

/// On the wire, off its middle, where others cross.
fn label_place(from: (u32, u32), to: (u32, u32), nearer: bool) -> (u32, u32) {
    let (there, all) = if nearer { (2, 5) } else { (1, 2) };
    let mix = |a: u32, b: u32| (a * (all - there) + b * there) / all;
    (mix(from.0, to.0), mix(from.1, to.1))
}

/// Upper left corners of `n` cards on a ring; two stand side by side.
fn ring_places(n: usize) -> Vec<(u32, u32)> {
    if n <= 2 {
        return (0..n as u32).map(|k| (k * (CARD.0 + 44), 0)).collect();
    }
    let count = n as f64;
    let (rx, ry) = (110.0 + 30.0 * count, 60.0 + 22.0 * count);
    let place = |k: usize| {
        // The first card at the upper left, the others clockwise.
        let angle = std::f64::consts::TAU * (k as f64 + 0.5) / count - std::f64::consts::PI * 0.75;
        (
            (rx + rx * angle.cos()).round() as u32,
            (ry + ry * angle.sin()).round() as u32,
        )
    };
    let places: Vec<_> = (0..n).map(place).collect();
    let left = places.iter().map(|place| place.0).min().unwrap_or(0);
    let top = places.iter().map(|place| place.1).min().unwrap_or(0);
    places
        .into_iter()
        .map(|(x, y)| (x - left, y - top))
        .collect()
}
