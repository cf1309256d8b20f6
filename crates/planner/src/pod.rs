//! What the planner knows of a pod that holds something.

use crate::{Estimate, Millis, Name};

/// A pod that was released or runs, whether or not it came through the queue.
///
/// A pod that ended (succeeded, failed, deleted) is removed with [`crate::Planner::pod`].
#[derive(Clone, Debug, PartialEq)]
pub struct PodState {
    /// The node to which it was released or bound.
    pub node: Name,
    /// The number of GPUs that it holds. A pod without GPUs holds only other resources. If nobody
    /// knows when it ends, jobs that need these go elsewhere, and reserve no GPUs here meanwhile.
    pub gpus: u32,
    /// Indices of the GPUs that were planned for it; empty if there is no plan. They stay
    /// reserved until the exporter's report names the pod; then the report wins.
    pub planned: Vec<u32>,
    /// Whether the scheduler has bound it to the node.
    pub bound: bool,
    /// When it started to hold its GPUs.
    pub since: Millis,
    /// When it is expected to end; `None` if that is unknown.
    pub end: Option<Estimate>,
    /// Its job, if it came through the queue.
    pub job: Option<Name>,
    /// Its class, if it has one: what it holds counts for the class's quota.
    pub class: Option<Name>,
    /// Its project.
    pub project: Name,
    /// Its priority.
    pub priority: i32,
    /// What it asks of other resources, in the order of [`crate::NodeState::resources`].
    pub resources: Vec<u64>,
}
