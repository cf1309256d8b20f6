//! The graph as a drawing: one block for each NVLink domain, readable on its
//! own in dark and light, with no script and nothing loaded.
//!
//! Switched domains are rows of GPUs along a bar, not a line per pair; direct
//! ones a ring of GPUs with their links; what has no NVLink stands apart.

mod block;
mod canvas;

use nvlink_topology::{NodeTopology, Via};

pub(crate) use self::canvas::escape;
use self::{block::Block, canvas::Canvas};
use super::summary;

/// Blocks are put side by side up to this width.
const WIDTH: u32 = 1160;
const MARGIN: u32 = 16;
const GAP: u32 = 24;
const TITLE: u32 = 34;

/// Draws `node`.
#[must_use]
pub fn render(node: &NodeTopology) -> String {
    let spec = &node.spec;
    let mut blocks: Vec<Block<'_>> = spec
        .domains
        .iter()
        .map(|domain| {
            let inside = |gpu| domain.gpus.contains(&gpu);
            let direct = spec
                .edges
                .iter()
                .filter(|edge| inside(edge.a) && inside(edge.b))
                .all(|edge| edge.via == Via::Direct);
            let title = domain.id.clone();
            let detail = summary::joined(spec, domain);
            match direct {
                true => Block::ring(spec, title, detail, &domain.gpus),
                false => Block::rows(spec, title, detail, &domain.gpus, true),
            }
        })
        .collect();
    let alone: Vec<u32> = spec
        .gpus
        .iter()
        .map(|gpu| gpu.index)
        .filter(|gpu| !spec.domains.iter().any(|domain| domain.gpus.contains(gpu)))
        .collect();
    if !alone.is_empty() {
        let (title, detail) = match spec.knows_nvlink() {
            true => ("no NVLink", "PCIe only"),
            false => ("NVLink unknown", "PCIe is known"),
        };
        blocks.push(Block::rows(
            spec,
            title.into(),
            detail.into(),
            &alone,
            false,
        ));
    }
    draw(node, &blocks)
}

fn draw(node: &NodeTopology, blocks: &[Block<'_>]) -> String {
    let title = format!(
        "{}: {}",
        node.metadata.name,
        summary::models(&node.spec.gpus)
    );
    let mut canvas = Canvas::default();
    canvas.text(MARGIN, MARGIN + 14, "title", &title);
    let (mut x, mut y, mut row_height, mut right) = (MARGIN, MARGIN + TITLE, 0, 320);
    for block in blocks {
        let (width, height) = block.size();
        if x > MARGIN && x + width > WIDTH {
            (x, y, row_height) = (MARGIN, y + row_height + GAP, 0);
        }
        block.draw(&mut canvas, x, y);
        x += width + GAP;
        row_height = row_height.max(height);
        right = right.max(x - GAP);
    }
    // Titles are set in 15 px: about 8 px a letter.
    let title_width = u32::try_from(title.chars().count()).unwrap_or(0).min(110) * 8;
    let right = right.max(MARGIN + title_width);
    canvas.finish(right + MARGIN, y + row_height + MARGIN, &title)
}

#[cfg(test)]
mod tests {
    use nvlink_topology::{Gpu, NodeTopologySpec, Source, SourceKind};

    use super::*;

    #[test]
    fn names_are_escaped() {
        let source = Source {
            kind: SourceKind::File,
            from: String::new(),
        };
        let gpu = Gpu {
            model: Some("<b>\"&'".into()),
            ..Gpu::default()
        };
        let spec = NodeTopologySpec {
            source,
            gpus: vec![gpu],
            edges: vec![],
            paths: vec![],
            domains: vec![],
            nics: vec![],
        };
        let svg = render(&NodeTopology::new("</title><script>", spec));
        assert!(!svg.contains("<script") && !svg.contains("<b>"), "{svg}");
        assert!(svg.contains("&lt;/title&gt;&lt;script&gt;"));
    }
}
