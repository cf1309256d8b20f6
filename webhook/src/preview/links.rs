//! Checks whether the GPUs of a node reach each other as the scope `nvlink-domain`
//! promises. Admission uses labels, which have the size of a domain; the preview
//! has the whole graph.

use std::collections::BTreeMap;

use nvlink_topology::{GpuSet, Graph, NoPlacement, NodeTopology, Request, Scope, place};

use crate::decide::Record;

/// Returns a note if none of the nodes that fit by their labels has free GPUs that
/// NVLink connects as the pattern needs it.
pub(super) fn off_nvlink(
    record: &Record,
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
        match placed(node, record)? {
            Ok(()) => return None,
            Err(reason) => last = Some(format!("node {name}: {reason}")),
        }
    }
    last
}

/// Tries to place the pod on the node; returns `None` if the result is unknown.
fn placed(node: &NodeTopology, record: &Record) -> Option<Result<(), NoPlacement>> {
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
    match place(&graph, &request) {
        Ok(_) => Some(Ok(())),
        // The warnings of admission report that GPUs are in use.
        Err(reason @ NoPlacement::OffNvlink { .. }) => Some(Err(reason)),
        Err(_) => None,
    }
}
