//! The graph: one series per ordered pair of GPUs that an edge joins.

use std::fmt;

use nvlink_topology::{Edge, NodeTopologySpec, direct_links};
use prometheus_client::encoding::DescriptorEncoder;

use super::{families, family::Value, gpu::ids};

pub(super) fn write(encoder: &mut DescriptorEncoder<'_>, spec: &NodeTopologySpec) -> fmt::Result {
    let pairs = |value: fn(&Edge) -> u64| {
        ordered(spec).filter_map(move |(from, to, edge)| {
            let mut labels = from_to(spec, from, to)?;
            labels.push(edge.via.as_str().to_owned());
            Some((labels, Value::Whole(value(edge))))
        })
    };
    families::PEER_LINKS.write(encoder, pairs(|edge| edge.links.into()))?;
    families::PEER_BANDWIDTH.write(encoder, pairs(|edge| edge.bytes_per_second))?;
    let ordered = || {
        spec.gpus
            .iter()
            .flat_map(|a| spec.gpus.iter().map(move |b| (a, b)))
    };
    let asymmetric = ordered().filter_map(|(a, b)| {
        let (there, back) = (direct_links(a, b), direct_links(b, a));
        let more = there.checked_sub(back).filter(|&more| more > 0)?;
        let mut labels = ids(a);
        labels.extend(ids(b));
        Some((labels, Value::Whole(more.into())))
    });
    families::ASYMMETRIC_LINKS.write(encoder, asymmetric)
}

/// Each edge in both directions, by ascending `(from, to)`.
fn ordered(spec: &NodeTopologySpec) -> impl Iterator<Item = (u32, u32, &Edge)> {
    let both = |edge| {
        let &Edge { a, b, .. } = edge;
        [(a, b, edge), (b, a, edge)]
    };
    let mut pairs: Vec<(u32, u32, &Edge)> = spec.edges.iter().flat_map(both).collect();
    pairs.sort_by_key(|&(from, to, _)| (from, to));
    pairs.into_iter()
}

fn from_to(spec: &NodeTopologySpec, from: u32, to: u32) -> Option<Vec<String>> {
    let gpu = |index| spec.gpus.iter().find(|gpu| gpu.index == index).map(ids);
    let mut labels = gpu(from)?;
    labels.extend(gpu(to)?);
    Some(labels)
}
