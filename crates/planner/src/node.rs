//! What the planner knows of a node.

use std::sync::Arc;

use nvlink_topology::{Fabric, Graph, Interconnect};

use crate::Name;

/// A node with GPUs.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeState {
    /// Its GPUs. `None` if no exporter has described the node: then only `capacity` is
    /// known, its pairs of GPUs count as connected by the slowest path, no NVLink domain
    /// is on it, and seats on it name no GPUs.
    pub graph: Option<Arc<Graph>>,
    /// The number of GPUs that the scheduler may hand out (allocatable).
    pub capacity: u32,
    /// What the exporter reports as held.
    pub held: Vec<Held>,
    /// Indices of the GPUs that are marked as broken. The class says what that means
    /// ([`crate::Class::broken`]).
    pub broken: Vec<u32>,
    /// The sets of GPUs, by their indices, of which a pod on the node must have exactly one; `None` if
    /// it may have any GPUs.
    pub partitions: Option<Vec<Vec<u32>>>,
    /// Whether jobs may start on the node.
    pub availability: Availability,
    /// How its GPUs are connected.
    pub interconnect: Interconnect,
    /// The NVLink fabric that its GPUs are part of.
    pub fabric: Option<Fabric>,
    /// Its rack; a node without a rack shares a rack with no other node.
    pub rack: Option<Name>,
    /// The parts of the network between rack and zone that it is in, such as those below one leaf or spine
    /// switch, nearest first. In `None`, no other node is.
    pub network: Vec<Option<Name>>,
    /// Its zone; a node without a zone shares a zone with no other node.
    pub zone: Option<Name>,
    /// The share of one GPU in its RDMA devices, bytes per second in one direction
    /// ([`nvlink_topology::multi_node::Node::network_bytes_per_second`]).
    pub network_bytes_per_second: Option<u64>,
    /// 0, or how far it measures below its siblings: a slower node comes after the others.
    pub slow: u8,
    /// The sets of nodes that it belongs to: the names of the classes whose selector it
    /// matches, and of any other set that a job names in [`crate::Job::within`].
    pub sets: Vec<Name>,
    /// What the node has of other resources, in an order that the caller chooses (such as
    /// CPU in millicores, then memory in bytes). Resources beyond the end are not checked.
    pub resources: Vec<u64>,
}

impl NodeState {
    /// Returns the groups in which other nodes are nearer than those outside, widest first: its zone, the
    /// parts of the network, and its rack.
    pub(crate) fn groups(&self) -> Vec<Option<Name>> {
        let wide = std::iter::once(&self.zone).chain(self.network.iter().rev());
        wide.chain([&self.rack]).cloned().collect()
    }
}

/// GPUs that the exporter reports as held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The pod that holds them, by the id that [`crate::Planner::pod`] got. `None` if no
    /// pod of the cluster holds them: then they are out until the report changes.
    ///
    /// An entry for a pod that the planner does not know, or knows on another node, is of
    /// a pod that is gone: the API knows that earlier than the report, so it has no effect.
    pub pod: Option<Name>,
    /// Their indices.
    pub gpus: Vec<u32>,
}

/// Whether jobs may start on a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Availability {
    /// They may.
    #[default]
    Ready,
    /// What is known of the node is too old. No job starts there; those that could only
    /// start there wait with [`crate::Reason::Silent`].
    Silent,
    /// It is drained, not ready, or about to go. No job starts there.
    Out,
}
