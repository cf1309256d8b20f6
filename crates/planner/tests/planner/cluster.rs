//! Nodes and jobs to test with.

use std::sync::{Arc, LazyLock};

use nvlink_planner::{Availability, Estimate, Job, Member, Millis, Name, NodeState};
use nvlink_topology::{Graph, Interconnect, Pattern, Scope, multi_node::local};

use crate::boards;

/// The class of all jobs unless a test says otherwise.
pub(crate) const CLASS: &str = "class";

static SWITCHED: LazyLock<Arc<Graph>> = LazyLock::new(|| shared(&boards::switched(8, 2)));
static BRIDGES: LazyLock<Arc<Graph>> = LazyLock::new(|| {
    let pairs = [(0, 1, 12), (2, 3, 12), (4, 5, 12), (6, 7, 12)];
    shared(&boards::board(8, 1, &pairs))
});
static PAIRS: LazyLock<Arc<Graph>> = LazyLock::new(|| shared(&boards::pairs(4, 1)));
static DGX1V: LazyLock<Arc<Graph>> = LazyLock::new(|| shared(&boards::dgx1v()));

fn shared(spec: &nvlink_topology::NodeTopologySpec) -> Arc<Graph> {
    Arc::new(Graph::new(spec).unwrap())
}

fn node(graph: &Arc<Graph>, interconnect: Interconnect) -> NodeState {
    NodeState {
        capacity: u32::try_from(graph.len()).unwrap(),
        graph: Some(graph.clone()),
        held: Vec::new(),
        broken: Vec::new(),
        partitions: None,
        availability: Availability::Ready,
        interconnect,
        fabric: None,
        rack: None,
        network: Vec::new(),
        zone: None,
        network_bytes_per_second: None,
        slow: 0,
        sets: vec![CLASS.into()],
        resources: Vec::new(),
    }
}

/// Returns a node of eight GPUs on switches: one domain.
pub(crate) fn switched() -> NodeState {
    node(&SWITCHED, Interconnect::Nvswitch)
}

/// Returns a node of two pairs of GPUs: domains {0, 1} and {2, 3}.
pub(crate) fn pairs() -> NodeState {
    node(&PAIRS, Interconnect::Nvlink)
}

/// Returns a node of four pairs of GPUs, which are two thirds as fast as on switches: domains
/// {0, 1} to {6, 7}.
pub(crate) fn bridges() -> NodeState {
    node(&BRIDGES, Interconnect::Nvlink)
}

/// Returns a node whose eight GPUs have links of unlike width: one domain.
pub(crate) fn dgx1v() -> NodeState {
    node(&DGX1V, Interconnect::Nvlink)
}

/// Returns a job of one pod that runs for exactly `seconds`.
pub(crate) fn job(created: Millis, gpus: u32, seconds: Millis) -> Job {
    Job {
        class: CLASS.into(),
        project: "project".into(),
        priority: 0,
        created,
        members: Vec::new(),
        complete: true,
        pattern: Pattern::AllReduce,
        scope: Scope::NvlinkDomain,
        gang_scope: Scope::Cluster,
        within: Vec::new(),
        duration: Some(Estimate::exact(seconds * 1000)),
        deadline: None,
        seats: Vec::new(),
        released: 0,
    }
    .of(1, gpus)
}

/// Changes to a job.
pub(crate) trait With {
    /// Returns it with so many pods of so many GPUs.
    fn of(self, pods: u32, gpus: u32) -> Self;
    /// Returns it with another scope: that of its GPUs, and that of its pods.
    fn scope(self, scope: Scope) -> Self;
}

impl With for Job {
    fn of(mut self, pods: u32, gpus: u32) -> Self {
        let member = |rank| Member {
            pod: format!("{rank:02}").into(),
            gpus,
            rank: (pods > 1).then_some(rank),
            role: None,
            resources: Vec::new(),
        };
        self.members = (0..pods).map(member).collect();
        self
    }

    fn scope(mut self, scope: Scope) -> Self {
        (self.scope, self.gang_scope) = (local(scope), scope);
        self
    }
}

/// Returns a name.
pub(crate) fn name(text: impl std::fmt::Display) -> Name {
    text.to_string().into()
}
