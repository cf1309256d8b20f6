//! What the queue sees of nodes, for the status of classes.

use std::collections::BTreeMap;

/// Nodes by the name of their class.
pub type Nodes = BTreeMap<String, Vec<String>>;

/// The nodes of each class that the queue cannot use as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Those of each class with the mapping `Claim` that have GPUs for several claims at a time.
    pub shared: Nodes,
    /// Those of each class that queues whose graphs change again and again.
    pub unsteady: Nodes,
}

/// The most nodes that a message names.
const NODES: usize = 10;

/// Returns the names of nodes for a message.
pub(super) fn named(nodes: &[String]) -> String {
    let shown = nodes[..nodes.len().min(NODES)].join(", ");
    match nodes.len().saturating_sub(NODES) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
