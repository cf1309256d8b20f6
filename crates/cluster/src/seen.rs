//! What the queue sees of nodes and DeviceClasses, for the status of classes.

use std::collections::BTreeMap;

/// Nodes by the name of their class.
pub type Nodes = BTreeMap<String, Vec<String>>;

/// What the queue sees of each class that it cannot use as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Those of each class with the mapping `Claim` that have GPUs for several claims at a time.
    pub shared: Nodes,
    /// Those of each class that queues whose graphs change again and again.
    pub unsteady: Nodes,
    /// For each class that queues, the DeviceClasses that give GPUs for a name that admission does not
    /// know, with that name.
    pub others: BTreeMap<String, Vec<String>>,
}

/// The most names in a message.
const NAMES: usize = 10;

/// Returns names for a message.
pub(super) fn named(names: &[String]) -> String {
    let shown = names[..names.len().min(NAMES)].join(", ");
    match names.len().saturating_sub(NAMES) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
