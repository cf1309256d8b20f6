//! Conversion between the matrix and the document.

use nvlink_topology::{Edge, Gpu, Nic, NodeTopologySpec, Path, PathClass, Source, Via, bandwidth};

use super::{GpuRow, Matrix, Relation, tail};

/// The maximum number of links of a bridge between two GPUs: 12 on A100 PCIe, H100
/// NVL and similar cards.
const MOST_LINKS_OF_A_BRIDGE: u32 = 12;
/// The maximum number of links of a GPU, up to Blackwell.
const MOST_LINKS_OF_A_GPU: u32 = 18;

/// Returns the document of a node with this `matrix`. A matrix has no models,
/// addresses or individual links, so these are absent, and bandwidths are marked as
/// assumed. If there are several GPUs and no NVLink between them, they have no links.
#[must_use]
pub fn spec(matrix: &Matrix, source: Source) -> NodeTopologySpec {
    let gpus = matrix.gpus.iter().map(|row| Gpu {
        index: row.index,
        numa_node: tail::lowest(&row.numa_affinity),
        ..Gpu::default()
    });
    let (mut edges, mut paths) = (Vec::new(), Vec::new());
    for (n, a) in matrix.gpus.iter().enumerate() {
        for (m, b) in matrix.gpus.iter().enumerate().skip(n + 1) {
            let (low, high) = (a.index.min(b.index), a.index.max(b.index));
            let (class, rate) = match a.to_gpus[m] {
                Relation::Nvlink(links) => {
                    let rate = bandwidth::assumed_nvlink(links);
                    edges.push(Edge {
                        a: low,
                        b: high,
                        via: via(links, [a, b]),
                        links,
                        bytes_per_second: rate,
                    });
                    (PathClass::Nvlink, rate)
                }
                Relation::Class(class) => (class, bandwidth::assumed(class)),
                Relation::Own => continue,
            };
            paths.push(Path {
                a: low,
                b: high,
                class,
                bytes_per_second: rate,
                assumed: true,
            });
        }
    }
    let mut gpus: Vec<_> = gpus.collect();
    if edges.is_empty() && gpus.len() > 1 {
        for gpu in &mut gpus {
            gpu.links = Some(Vec::new());
        }
    }
    NodeTopologySpec {
        edges,
        paths,
        nics: nics(matrix),
        ..NodeTopologySpec::of(source, gpus)
    }
}

/// Returns how an NV# pair is joined, which a matrix does not show. The pair is on a
/// switch if direct links are impossible: more links than a bridge has, or more
/// links in total than a GPU has (`NV8` to each of seven others).
fn via(links: u32, ends: [&GpuRow; 2]) -> Via {
    let all = |row: &GpuRow| -> u32 { row.to_gpus.iter().filter_map(nvlinks).sum() };
    let crowded = ends.iter().any(|row| all(row) > MOST_LINKS_OF_A_GPU);
    if links > MOST_LINKS_OF_A_BRIDGE || crowded {
        Via::Switch
    } else {
        Via::Direct
    }
}

fn nvlinks(relation: &Relation) -> Option<u32> {
    match relation {
        Relation::Nvlink(links) => Some(*links),
        _ => None,
    }
}

/// Returns the NICs, each with the GPUs that are nearest to it. If all GPUs are in
/// another NUMA node, none is near.
fn nics(matrix: &Matrix) -> Vec<Nic> {
    let nic = |(n, column): (usize, &super::NicColumn)| {
        let class = |row: &GpuRow| match row.to_nics.get(n) {
            Some(Relation::Class(class)) => *class,
            _ => PathClass::Sys,
        };
        let best = matrix
            .gpus
            .iter()
            .map(class)
            .min()
            .unwrap_or(PathClass::Sys);
        let near = |row: &&GpuRow| best < PathClass::Sys && class(row) == best;
        let mut gpus: Vec<_> = matrix
            .gpus
            .iter()
            .filter(near)
            .map(|row| row.index)
            .collect();
        gpus.sort_unstable();
        Nic {
            name: column.name.clone(),
            gpus,
            ..Nic::default()
        }
    };
    matrix.nics.iter().enumerate().map(nic).collect()
}

/// Returns the matrix of a document, without its NICs: a document has only the
/// nearest GPUs of a NIC, not every relation.
#[must_use]
pub fn of_document(spec: &NodeTopologySpec) -> Matrix {
    let relation = |a: u32, b: u32| match (a == b, spec.edge(a, b), spec.path(a, b)) {
        (true, ..) => Relation::Own,
        (_, Some(edge), _) => Relation::Nvlink(edge.links),
        (_, None, path) => Relation::Class(path.map_or(PathClass::Sys, |path| path.class)),
    };
    let row = |gpu: &Gpu| GpuRow {
        index: gpu.index,
        to_gpus: spec
            .gpus
            .iter()
            .map(|other| relation(gpu.index, other.index))
            .collect(),
        numa_affinity: gpu
            .numa_node
            .map(|node| node.to_string())
            .unwrap_or_default(),
        ..GpuRow::default()
    };
    Matrix {
        gpus: spec.gpus.iter().map(row).collect(),
        nics: Vec::new(),
    }
}
