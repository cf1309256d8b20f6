//! The graph: one series per ordered pair of GPUs that an edge joins.

use std::fmt;

use nvlink_source::Reading;
use nvlink_topology::{Edge, Gpu, RemoteKind, direct_links};

use super::{
    families,
    family::{Label, Value},
    gpu::{by_index, ids},
    writer::Writer,
};

pub(super) fn write(out: &mut Writer<'_>, data: &Reading) -> fmt::Result {
    let spec = &data.topology.spec;
    // Both GPUs of a pair must have been read.
    let known = |gpu: u32| data.is_read(gpu);
    let edges = spec.edges.iter();
    let ordered = ordered(edges.filter(|edge| known(edge.a) && known(edge.b)));
    let pairs = |value: fn(&Edge) -> u64| {
        ordered.iter().filter_map(move |&(from, to, edge)| {
            let from = by_index(&spec.gpus, from)?;
            let [gpu, uuid, peer, peer_uuid] = pair(from, by_index(&spec.gpus, to)?);
            let labels = [gpu, uuid, peer, peer_uuid, edge.via.as_str().into()];
            Some((labels, Value::Whole(value(edge))))
        })
    };
    out.write(&families::PEER_LINKS, pairs(|edge| edge.links.into()))?;
    out.write(
        &families::PEER_BANDWIDTH,
        pairs(|edge| edge.bytes_per_second),
    )?;
    // With switches there is nothing to compare, and there are many pairs.
    let direct = spec.gpus.iter().filter(|gpu| has_direct_links(gpu));
    let asymmetric = direct
        .flat_map(|a| spec.gpus.iter().map(move |b| (a, b)))
        .filter(|(a, b)| known(a.index) && known(b.index))
        .filter_map(|(a, b)| {
            let (there, back) = (direct_links(a, b), direct_links(b, a));
            let more = there.checked_sub(back).filter(|&more| more > 0)?;
            Some((pair(a, b), Value::Whole(more.into())))
        });
    out.write(&families::ASYMMETRIC_LINKS, asymmetric)
}

fn has_direct_links(gpu: &Gpu) -> bool {
    let mut remotes = gpu.links.iter().flatten().flat_map(|link| &link.remote);
    remotes.any(|remote| remote.kind != RemoteKind::Switch)
}

/// Returns each edge in both directions, sorted by `(from, to)`.
fn ordered<'a>(edges: impl Iterator<Item = &'a Edge>) -> Vec<(u32, u32, &'a Edge)> {
    let both = |edge: &'a Edge| {
        let &Edge { a, b, .. } = edge;
        [(a, b, edge), (b, a, edge)]
    };
    let mut pairs: Vec<(u32, u32, &Edge)> = edges.flat_map(both).collect();
    pairs.sort_unstable_by_key(|&(from, to, _)| (from, to));
    pairs
}

fn pair<'a>(from: &'a Gpu, to: &'a Gpu) -> [Label<'a>; 4] {
    let ([gpu, uuid], [peer, peer_uuid]) = (ids(from), ids(to));
    [gpu, uuid, peer, peer_uuid]
}
