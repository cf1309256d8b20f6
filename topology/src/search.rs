//! The placement of least communication time.
//!
//! In this order a placement
//! 1. stays inside one domain if one can hold it (it must, when the scope is
//!    [`Scope::NvlinkDomain`]);
//! 2. has the least cost of its busiest resource, then the least total, over
//!    all subsets and all rank orders;
//! 3. spans the fewest NUMA nodes;
//! 4. leaves the largest free domains behind, least fragmented;
//! 5. has the lowest GPU indices, and the lowest first in its rank order.
//!
//! Jobs without traffic ([`Pattern::None`]) pass over rules 1 and 3, so that they use up fragments.
//!
//! Up to [`EXACT_GPUS`] GPUs to choose from, the result is exact: see
//! `subsets` for the choice of the GPUs and `order` for their order. Beyond
//! that it is exact where the graph is regular, and says so (`large`).

mod bound;
mod exchange;
mod instance;
mod large;
mod meshed;
mod order;
mod remainder;
mod shape;
mod subsets;
mod tour;
mod tours;

use serde::Serialize;

use crate::{
    GpuSet, Graph, NoPlacement, Pattern, Scope,
    cost::{self, Cost},
    rings::Rings,
};
use instance::Instance;
use remainder::Remainder;

/// The most free GPUs of one domain, or of one node, for which every answer is exact.
pub const EXACT_GPUS: usize = 16;

/// What a job asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Number of GPUs.
    pub gpus: usize,
    /// GPUs that may be taken.
    pub free: GpuSet,
    /// GPUs that must be among them.
    pub required: GpuSet,
    /// Who talks to whom.
    pub pattern: Pattern,
    /// How close the GPUs must be. On one node, [`Scope::Node`] and wider ask for nothing more.
    pub scope: Scope,
}

/// GPUs for one job.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Placement {
    /// GPU indices in rank order (for a ring: neighbours are adjacent).
    pub gpus: Vec<u32>,
    /// Id of the domain that holds all of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// Who talks to whom.
    #[serde(serialize_with = "as_text")]
    pub pattern: Pattern,
    /// Time of the busiest resource, seconds per byte of payload.
    pub cost: f64,
    /// Time of all transfers one after the other, seconds per byte of payload.
    pub total_cost: f64,
    /// Capacity of the busiest resource, bytes per second in one direction;
    /// absent without traffic. Of an all-reduce over direct NVLinks, all its
    /// rings together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bottleneck_bytes_per_second: Option<u64>,
    /// Best possible cost over this one's.
    pub quality: Quality,
    /// Proven to be of the least cost, then the least total. Where it is not,
    /// the placement is the best that a heuristic found.
    pub exact: bool,
}

/// Best possible cost over actual cost, in (0, 1]; 1 is the best.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Quality {
    /// Against the best on this node when empty.
    pub node: f64,
    /// Against the best in what is free.
    pub free: f64,
}

fn as_text<S: serde::Serializer>(pattern: &Pattern, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(pattern)
}

/// Finds the best placement of `request` on `graph`.
///
/// # Errors
/// The reason why there is none.
pub fn place(graph: &Graph, request: &Request) -> Result<Placement, NoPlacement> {
    check(graph, request)?;
    let regions = regions(graph, request)?;
    let found = search(graph, request, &regions).ok_or(NoPlacement::OffNvlink {
        asked: request.gpus,
        pattern: request.pattern,
    })?;
    Ok(placement(graph, request, &found))
}

/// Rates GPUs that a job already holds: the best rank order of `held`, and its
/// quality against what was free (with `held`) when the job came.
///
/// # Errors
/// When `held` is empty, or not all of it was free.
pub fn rate(
    graph: &Graph,
    held: GpuSet,
    free: GpuSet,
    pattern: Pattern,
) -> Result<Placement, NoPlacement> {
    let request = Request {
        gpus: held.len(),
        free,
        required: held,
        pattern,
        scope: Scope::default(),
    };
    place(graph, &request)
}

/// GPUs in rank order, by position, and whether their cost is proven to be the least.
struct Found {
    order: Vec<usize>,
    exact: bool,
    /// The rings over direct links, where they were counted.
    rings: Option<Rings>,
}

impl Found {
    fn cost(&self, graph: &Graph, pattern: Pattern) -> Cost {
        match self.rings {
            Some(rings) => cost::of_rings(graph, self.order.len(), rings),
            None => cost::evaluate(graph, &self.order, pattern),
        }
    }
}

fn check(graph: &Graph, request: &Request) -> Result<(), NoPlacement> {
    let asked = request.gpus;
    if asked == 0 {
        return Err(NoPlacement::NoGpus);
    }
    if asked > graph.len() {
        return Err(NoPlacement::TooMany {
            asked,
            have: graph.len(),
        });
    }
    if request.required.len() > asked {
        return Err(NoPlacement::TooManyRequired {
            required: request.required.len(),
            asked,
        });
    }
    if let Some(taken) = request.required.difference(request.free).iter().next() {
        return Err(NoPlacement::RequiredNotFree {
            gpu: graph.index(taken),
        });
    }
    let free = request.free.intersection(graph.all()).len();
    if asked > free {
        return Err(NoPlacement::NotEnoughFree { asked, free });
    }
    match request.pattern {
        Pattern::Shape(shape) if shape.gpus() != asked => Err(NoPlacement::Shape {
            shape: shape.to_string(),
            needs: shape.gpus(),
            asked,
        }),
        _ => Ok(()),
    }
}

/// The sets within one of which the placement must lie.
fn regions(graph: &Graph, request: &Request) -> Result<Vec<GpuSet>, NoPlacement> {
    let free = request.free.intersection(graph.all());
    let asked = request.gpus;
    if asked == 1 {
        return Ok(vec![free]);
    }
    if request.scope == Scope::Gpu {
        return Err(NoPlacement::Scope {
            scope: request.scope,
            asked,
            most: 1,
        });
    }
    let within: Vec<GpuSet> = graph
        .domains()
        .map(|(_, domain)| domain.intersection(free))
        .filter(|domain| domain.is_superset(request.required))
        .collect();
    let most = within.iter().map(|domain| domain.len()).max().unwrap_or(0);
    match request.scope {
        Scope::NvlinkDomain if most < asked => Err(NoPlacement::Scope {
            scope: request.scope,
            asked,
            most,
        }),
        Scope::NvlinkDomain => Ok(holding(within, asked)),
        _ if most < asked || request.pattern == Pattern::None => Ok(vec![free]),
        _ => Ok(holding(within, asked)),
    }
}

fn holding(mut regions: Vec<GpuSet>, gpus: usize) -> Vec<GpuSet> {
    regions.retain(|region| region.len() >= gpus);
    regions
}

/// The best over all regions; `None` if the scope allows none.
fn search(graph: &Graph, request: &Request, regions: &[GpuSet]) -> Option<Found> {
    let mut best: Option<(Rank, Found)> = None;
    for &region in regions {
        let Some(found) = search_region(graph, request, region) else {
            continue;
        };
        if let [_] = regions {
            return Some(found);
        }
        let rank = Rank::of(graph, request, &found);
        if best.as_ref().is_none_or(|(least, _)| rank < *least) {
            best = Some((rank, found));
        }
    }
    best.map(|(_, found)| found)
}

fn search_region(graph: &Graph, request: &Request, region: GpuSet) -> Option<Found> {
    if region.len() > EXACT_GPUS {
        return large::search(graph, request, region);
    }
    let instance = Instance::new(graph, request, region);
    instance.search(request.pattern)
}

impl Instance<'_> {
    /// The best placement in the region; `None` if the scope allows none.
    fn search(&self, pattern: Pattern) -> Option<Found> {
        match pattern {
            Pattern::AllReduce => subsets::of_tours(self, tour::Kind::Ring),
            Pattern::Pipeline => subsets::of_tours(self, tour::Kind::Chain),
            Pattern::AllToAll => subsets::of_sums(self, subsets::Sums::AllToAll),
            Pattern::ParameterServer => subsets::of_sums(self, subsets::Sums::Star),
            Pattern::None => subsets::of_sums(self, subsets::Sums::Nothing),
            Pattern::Shape(_) => shape::search(self, pattern),
        }
    }
}

/// What rules 2 to 5 compare, for placements of different regions.
#[derive(PartialEq, PartialOrd)]
struct Rank {
    cost: (f64, f64),
    numa_nodes: u32,
    remainder: std::cmp::Reverse<Remainder>,
    gpus: Vec<usize>,
}

impl Rank {
    fn of(graph: &Graph, request: &Request, found: &Found) -> Self {
        let Cost { slowest, total, .. } = found.cost(graph, request.pattern);
        let set: GpuSet = found.order.iter().copied().collect();
        Self {
            cost: (slowest, total),
            numa_nodes: match request.pattern {
                Pattern::None => 0,
                _ => remainder::numa_nodes(graph, set),
            },
            remainder: std::cmp::Reverse(Remainder::of(graph, request.free.difference(set))),
            gpus: set.iter().collect(),
        }
    }
}

fn placement(graph: &Graph, request: &Request, found: &Found) -> Placement {
    let cost = found.cost(graph, request.pattern);
    let held: GpuSet = found.order.iter().copied().collect();
    let domain = graph.domains().find(|(_, domain)| domain.is_superset(held));
    Placement {
        gpus: found
            .order
            .iter()
            .map(|&position| graph.index(position))
            .collect(),
        domain: domain.map(|(id, _)| id.to_owned()),
        pattern: request.pattern,
        cost: cost.slowest,
        total_cost: cost.total,
        bottleneck_bytes_per_second: cost.bottleneck_bytes_per_second,
        quality: quality(graph, request, cost.slowest),
        exact: found.exact,
    }
}

fn quality(graph: &Graph, request: &Request, cost: f64) -> Quality {
    if cost == 0.0 {
        return Quality {
            node: 1.0,
            free: 1.0,
        };
    }
    let best = |free: GpuSet| {
        let scope = Scope::default();
        let request = Request {
            free,
            required: GpuSet::EMPTY,
            scope,
            ..*request
        };
        let Ok(regions) = regions(graph, &request) else {
            return cost;
        };
        let Some(found) = search(graph, &request, &regions) else {
            return cost;
        };
        found.cost(graph, request.pattern).slowest
    };
    let free = if request.required.is_empty() {
        cost
    } else {
        best(request.free)
    };
    let node = if request.required.is_empty() && request.free.is_superset(graph.all()) {
        cost
    } else {
        best(graph.all())
    };
    // A heuristic reference may be worse than the placement itself.
    Quality {
        node: (node / cost).min(1.0),
        free: (free / cost).min(1.0),
    }
}
