//! Where the GPUs of a domain with direct links are drawn.

use std::collections::BTreeSet;

use nvlink_topology::{Edge, Gpu};

/// Half of the width and height of a GPU.
pub(super) const NODE: (f64, f64) = (27.0, 13.0);
/// Width of the drawing. It is shown at this size in pixels or larger, so that 13 px
/// text stays 13 px.
const WIDTH: f64 = 330.0;
const RING_HEIGHT: f64 = 280.0;
/// The most GPUs of a NUMA node that are drawn as one column.
const QUAD: usize = 4;
/// The height of the first of the four rows of a column, and the distance of the rows.
const ROWS: (f64, f64) = (46.0, 78.0);
/// The middle of the GPUs in even and in odd rows of the left column. No row holds two
/// GPUs of a column, so that no wire passes behind a GPU.
const ZIGZAG: [f64; 2] = [30.0, 100.0];

/// A GPU and its center.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) gpu: u32,
    pub(super) x: f64,
    pub(super) y: f64,
    /// Column and row; none in a ring.
    cell: Option<(usize, usize)>,
}

pub(super) struct Layout {
    pub(super) width: f64,
    pub(super) height: f64,
    pub(super) places: Vec<Place>,
    /// The titles of the columns, with the middle of each.
    pub(super) titles: Vec<(f64, String)>,
}

impl Layout {
    /// Returns two columns for a mesh of two NUMA nodes, each with up to four GPUs, and
    /// a ring for other meshes.
    pub(super) fn new(gpus: &[&Gpu], edges: &[&Edge]) -> Self {
        let numas: BTreeSet<_> = gpus.iter().map(|gpu| gpu.numa_node).collect();
        let numas: Vec<u32> = numas.into_iter().flatten().collect();
        let on = |numa: u32| {
            let here = gpus.iter().filter(move |gpu| gpu.numa_node == Some(numa));
            here.map(|gpu| gpu.index).collect::<Vec<u32>>()
        };
        if let [left, right] = numas[..] {
            let columns = [on(left), on(right)];
            let all = columns[0].len() + columns[1].len();
            let fits = columns.iter().all(|column| column.len() <= QUAD);
            if fits && all > QUAD && all == gpus.len() {
                return Self::columns(&columns, [left, right], edges);
            }
        }
        Self::ring(gpus)
    }

    /// Returns the GPUs clockwise from the upper left.
    fn ring(gpus: &[&Gpu]) -> Self {
        let (rx, ry) = (WIDTH / 2.0 - NODE.0 - 3.0, RING_HEIGHT / 2.0 - NODE.1 - 3.0);
        let place = |(n, gpu): (usize, &&Gpu)| {
            let turn = std::f64::consts::TAU * (n as f64 + 0.5) / gpus.len() as f64;
            let angle = turn - std::f64::consts::PI * 0.75;
            Place {
                gpu: gpu.index,
                x: WIDTH / 2.0 + rx * angle.cos(),
                y: RING_HEIGHT / 2.0 + ry * angle.sin(),
                cell: None,
            }
        };
        Self {
            width: WIDTH,
            height: RING_HEIGHT,
            places: gpus.iter().enumerate().map(place).collect(),
            titles: Vec::new(),
        }
    }

    fn columns(columns: &[Vec<u32>; 2], numas: [u32; 2], edges: &[&Edge]) -> Self {
        let left = columns[0].iter().copied().enumerate();
        let left = left.map(|(row, gpu)| cell(gpu, 0, row));
        let right = facing(&columns[0], &columns[1], edges);
        let right = right.into_iter().map(|(gpu, row)| cell(gpu, 1, row));
        let middle = (ZIGZAG[0] + ZIGZAG[1]) / 2.0;
        let titles = [middle, WIDTH - middle].into_iter().zip(numas);
        Self {
            width: WIDTH,
            height: ROWS.0 + 3.0 * ROWS.1 + NODE.1 + 3.0,
            places: left.chain(right).collect(),
            titles: titles
                .map(|(x, numa)| (x, format!("NUMA {numa}")))
                .collect(),
        }
    }

    pub(super) fn of(&self, gpu: u32) -> Option<Place> {
        self.places.iter().find(|place| place.gpu == gpu).copied()
    }
}

impl Place {
    /// Returns how far along a wire to another GPU its number is, so that it is not
    /// where other wires cross.
    pub(super) fn number(&self, other: &Self) -> f64 {
        match (self.cell, other.cell) {
            (Some((a, from)), Some((b, to))) if a == b && from.abs_diff(to) == 3 => 0.75,
            (Some((a, _)), Some((b, _))) if a == b => 0.35,
            (Some((_, from)), Some((_, to))) if from == to => 0.5,
            (None, None) if !self.gpu.abs_diff(other.gpu).is_multiple_of(2) => 0.5,
            _ => 0.4,
        }
    }
}

fn cell(gpu: u32, column: usize, row: usize) -> Place {
    let x = ZIGZAG[row % 2];
    Place {
        gpu,
        x: if column == 0 { x } else { WIDTH - x },
        y: ROWS.0 + ROWS.1 * row as f64,
        cell: Some((column, row)),
    }
}

/// Returns a row for each GPU of the right column: that of the GPU of the left column to
/// which it has links, else the first free one.
fn facing(left: &[u32], right: &[u32], edges: &[&Edge]) -> Vec<(u32, usize)> {
    let joined = |a: u32, b: u32| {
        let pair = (a.min(b), a.max(b));
        edges.iter().any(|edge| (edge.a, edge.b) == pair)
    };
    let mut rows: [Option<u32>; QUAD] = [None; QUAD];
    let mut rest = Vec::new();
    for &gpu in right {
        let free = |row: &usize| rows[*row].is_none() && joined(left[*row], gpu);
        match (0..left.len()).find(free) {
            Some(row) => rows[row] = Some(gpu),
            None => rest.push(gpu),
        }
    }
    for gpu in rest {
        if let Some(row) = rows.iter_mut().find(|row| row.is_none()) {
            *row = Some(gpu);
        }
    }
    let rows = rows.into_iter().enumerate();
    rows.filter_map(|(row, gpu)| Some((gpu?, row))).collect()
}
