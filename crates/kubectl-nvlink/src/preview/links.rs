//! What the links of a node say beyond its labels, which are all that admission has: whether its
//! GPUs reach each other as the scope `nvlink-domain` promises, and which links it lacks.

use std::collections::BTreeMap;

use nvlink_admission::{decide::Record, view::View};
use nvlink_api::class::Class;
use nvlink_topology::{
    GpuSet, Graph, NoPlacement, NodeTopology, Request, Scope, missing_links, place, sparing,
};

/// The maximum number of GPUs with missing links, or of slow nodes, that a note names.
const NAMED: usize = 4;

/// Returns a note if none of the nodes that fit by their labels has free GPUs that
/// NVLink connects as the pattern needs it.
pub(super) fn off_nvlink(
    record: &Record,
    class: &Class,
    fitting: &[&str],
    topologies: &BTreeMap<String, NodeTopology>,
) -> Option<String> {
    let scope: Scope = record.scope.parse().ok()?;
    if scope != Scope::NvlinkDomain || record.gpus < 2 {
        return None;
    }
    let mut last = None;
    for name in fitting {
        let node = topologies
            .get(*name)
            .filter(|node| node.spec.knows_nvlink())?;
        match placed(node, record, class)? {
            Ok(()) => return None,
            Err(reason) => last = Some(format!("node {name}: {reason}")),
        }
    }
    last
}

/// Returns a note on the nodes among `fitting` whose benchmarks measure below their siblings, if
/// any: the scheduler prefers the others.
pub(super) fn behind_siblings(
    fitting: &[&str],
    topologies: &BTreeMap<String, NodeTopology>,
) -> Option<String> {
    let slow = fitting.iter().filter_map(|name| {
        let slow = topologies.get(*name)?.spec.slow()?;
        let percent = slow.ratio * 100.0;
        Some(format!("{name} ({percent:.0} % with {} GPUs)", slow.gpus))
    });
    let list = few(slow)?;
    Some(format!(
        "measured slower than their siblings, so preferred least: {list}"
    ))
}

/// Returns the first of the texts, and how many more there are; `None` if there is none.
fn few(texts: impl Iterator<Item = String>) -> Option<String> {
    let mut texts: Vec<_> = texts.collect();
    let more = texts.len().saturating_sub(NAMED);
    texts.truncate(NAMED);
    if more > 0 {
        texts.push(format!("{more} more"));
    }
    (!texts.is_empty()).then(|| texts.join(", "))
}

/// Tries to place the pod on the node; returns `None` if the result is unknown.
fn placed(node: &NodeTopology, record: &Record, class: &Class) -> Option<Result<(), NoPlacement>> {
    let mut spec = node.spec.clone();
    // Complete it as the exporter does: recordings may omit what follows from the rest.
    spec.complete(&node.metadata.name).ok()?;
    let graph = Graph::new(&spec).ok()?;
    let request = Request {
        gpus: usize::try_from(record.gpus).ok()?,
        free: graph.set(&node.free_gpus()).ok()?,
        required: GpuSet::EMPTY,
        pattern: record.pattern.parse().ok()?,
        scope: Scope::NvlinkDomain,
    };
    let broken: Vec<u32> = spec.broken_gpus().collect();
    let broken = graph.set(&broken).ok()?;
    let placed = sparing(&graph, &request, broken, class.broken_gpus);
    match placed.and_then(|request| place(&graph, &request)) {
        Ok(_) => Some(Ok(())),
        // The warnings of admission report that GPUs are in use.
        Err(reason @ NoPlacement::OffNvlink { .. }) => Some(Err(reason)),
        Err(_) => None,
    }
}

/// Returns a note on the links that the fastest node of `class` lacks, if all nodes of the class
/// are slower than its minimum bandwidth.
pub(super) fn too_slow(
    view: &View,
    class: &Class,
    topologies: &BTreeMap<String, NodeTopology>,
) -> Option<String> {
    let best = view.too_slow(class)?;
    let gpus = &topologies.get(best.node)?.spec.gpus;
    let lacking = gpus.iter().filter_map(|gpu| {
        let missing = missing_links(gpu, gpus).filter(|missing| *missing > 0)?;
        let links = gpu.links.iter().flatten();
        let up = links.filter(|link| link.up).count() as u64;
        let all = up + missing;
        Some(format!("GPU {}: {up} of {all} links", gpu.index))
    });
    let lacking = few(lacking)?;
    Some(format!(
        "node {} has {} GB/s per GPU because links are down ({lacking})",
        best.node, best.bandwidth
    ))
}
