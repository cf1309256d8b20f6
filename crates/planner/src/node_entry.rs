//! A node in the planner's own form.

use nvlink_topology::{GpuSet, Interconnect, Scope, multi_node::Gang};

use crate::{Availability, Name, NodeState, Seat, graphs::Shared, profile::Profile, search::Case};

/// A node: its state, its graph shared with its equals, and who holds its GPUs.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) name: Name,
    /// Without the graph, and with sorted sets.
    pub(crate) state: NodeState,
    /// Whether an exporter has described its GPUs.
    pub(crate) described: bool,
    pub(crate) shared: Shared,
    pub(crate) broken: GpuSet,
    /// The sets of which a pod must have exactly one, by their lowest GPUs; `None` for any GPUs.
    pub(crate) partitions: Option<Vec<GpuSet>>,
    pub(crate) profile: Profile,
}

/// The set of nodes without partitions. No class can have this name.
pub(crate) const UNDIVIDED: &str = "nodes without partitions";

impl Node {
    /// Returns a node that nobody uses.
    pub(crate) fn new(name: &Name, mut state: NodeState, shared: Shared) -> Self {
        let partitions = state.partitions.take();
        if partitions.is_none() {
            state.sets.push(UNDIVIDED.into());
        }
        state.sets.sort_unstable();
        let all = shared.graph.all();
        let mut node = Self {
            name: name.clone(),
            described: state.graph.take().is_some(),
            broken: GpuSet::EMPTY,
            partitions: None,
            profile: Profile::new(all, state.capacity, &state.resources),
            state,
            shared,
        };
        node.broken = node.positions(&node.state.broken);
        node.partitions = partitions.map(|mut sets| {
            sets.sort_unstable();
            let known =
                |set: &Vec<u32>| Some(node.positions(set)).filter(|at| at.len() == set.len());
            sets.iter().filter_map(known).collect()
        });
        node
    }

    /// Returns the GPUs with these indices, as far as the node has them.
    pub(crate) fn positions(&self, indices: &[u32]) -> GpuSet {
        let known = |&index: &u32| self.shared.graph.set(&[index]).ok();
        let known = indices.iter().filter_map(known);
        known.fold(GpuSet::EMPTY, GpuSet::union)
    }

    /// Returns the indices of GPUs, in the given order; none if the node is not described.
    pub(crate) fn indices(&self, positions: impl IntoIterator<Item = usize>) -> Vec<u32> {
        let graph = &self.shared.graph;
        let index = |position: usize| self.described.then(|| graph.index(position));
        positions.into_iter().filter_map(index).collect()
    }

    /// Returns a seat on GPUs in rank order.
    pub(crate) fn seat(&self, pod: &Name, rank: u32, order: &[u8]) -> Seat {
        let positions = order.iter().map(|&at| usize::from(at));
        let set: GpuSet = positions.clone().collect();
        let mut domains = self.shared.graph.domains().zip(&self.shared.domains);
        let domain = domains.find(|((_, domain), _)| domain.is_superset(set));
        Seat {
            pod: pod.clone(),
            rank,
            node: Some(self.name.clone()),
            gpus: self.indices(positions),
            domain: domain.map(|(_, id)| id.clone()),
        }
    }

    /// Reports whether the node is in all of these sets.
    pub(crate) fn is_in(&self, sets: &[Name]) -> bool {
        let own = &self.state.sets;
        sets.iter().all(|set| own.binary_search(set).is_ok())
    }

    /// Reports whether jobs may start on it.
    pub(crate) fn is_ready(&self) -> bool {
        self.state.availability == Availability::Ready
    }

    /// Returns the case of the search with these free GPUs.
    pub(crate) fn case(&self, free: GpuSet) -> Case<'_> {
        Case {
            graph: &self.shared.graph,
            number: self.shared.number,
            free,
            broken: self.broken,
            partitions: self.partitions.as_deref(),
        }
    }

    /// Returns the time of the traffic between a pod of a gang on it and the others, which are
    /// within `within` ([`Gang::between`]).
    pub(crate) fn between(&self, gang: &Gang, within: Scope) -> f64 {
        let fabric = match within {
            Scope::Node => self.state.fabric.is_some(),
            within => within <= Scope::NvlinkDomain,
        };
        let network = self.state.network_bytes_per_second;
        gang.between(&self.shared.graph, network, fabric)
    }

    /// Returns how its GPUs are connected.
    pub(crate) fn interconnect(&self) -> Interconnect {
        self.state.interconnect
    }
}
