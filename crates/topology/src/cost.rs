//! Expected communication time of a placement whose rank order is given.
//!
//! The cost is a lower bound of the real time of what links carry. It includes bandwidths and the
//! resources that share them. It leaves out latency, trees and the reduction in switches
//! ([`crate::bandwidth::in_switch_gain`]), which do not change the order of sets of equal size behind
//! one switch, and the traffic of other jobs.

use crate::{
    GpuSet, Graph, Pattern,
    flows::Loads,
    rings::{self, Mesh, Rings},
    volumes::Volumes,
};

/// Communication time of a placement, in seconds per byte of payload per GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// The volume divided by the capacity of the busiest resource: a collective ends when
    /// its slowest part does.
    pub slowest: f64,
    /// The time of all transfers one after the other; it breaks ties.
    pub total: f64,
    /// The capacity of the busiest resource, bytes per second in one direction; `None`
    /// without traffic. For an all-reduce over direct NVLinks, the capacity of all its
    /// rings together.
    pub bottleneck_bytes_per_second: Option<u64>,
    /// Whether some traffic leaves NVLink.
    pub over_pcie: bool,
}

/// Returns the cost for `pattern` of the GPUs at the positions `order`, in rank order:
/// the volume divided by the capacity of the busiest resource.
///
/// An all-reduce over direct NVLinks runs as many rings at once as the links allow,
/// whatever the rank order. Elsewhere it is one ring in that order.
///
/// # Panics
/// When `order` names a position that the graph does not have.
#[must_use]
pub fn evaluate(graph: &Graph, order: &[usize], pattern: Pattern) -> Cost {
    let volumes = Volumes::new(pattern, order.len());
    let job: GpuSet = order.iter().copied().collect();
    if pattern == Pattern::AllReduce {
        let mesh = Mesh::new(graph, job);
        let mut steps = rings::steps(job.len());
        let rings = mesh.map(|mesh| mesh.most(rings::all(job.len()), 1, &mut steps));
        if let Some(rings) = rings.filter(|rings| rings.number > 0) {
            return of_rings(graph, order.len(), rings);
        }
    }
    let loads = Loads::of(graph, order, &volumes);
    let busy = loads.busy();
    Cost {
        slowest: volumes.seconds(busy.busiest),
        total: volumes.seconds(busy.total),
        bottleneck_bytes_per_second: loads.bottleneck(),
        over_pcie: busy.over_pcie,
    }
}

/// Returns the cost of an all-reduce of `gpus` GPUs that splits its data over all rings.
pub(crate) fn of_rings(graph: &Graph, gpus: usize, rings: Rings) -> Cost {
    let volumes = Volumes::new(Pattern::AllReduce, gpus);
    let weight = rings.weight(graph);
    let sent: u64 = volumes.row(0).iter().sum();
    Cost {
        slowest: volumes.seconds(sent * weight),
        total: volumes.seconds(sent * rings.total(weight, volumes.ranks())),
        bottleneck_bytes_per_second: Some(rings.bytes_per_second(graph)),
        over_pcie: false,
    }
}
