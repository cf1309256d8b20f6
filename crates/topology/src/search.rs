//! Finds the placement with the least communication time.
//!
//! The rules, in this order, for a placement:
//! 1. It stays inside one domain if one can hold it (with [`Scope::NvlinkDomain`] it must).
//! 2. It has the least cost of its busiest resource, then the least total cost, over all
//!    subsets and all rank orders.
//! 3. It spans the fewest NUMA nodes.
//! 4. It leaves the largest and least fragmented free domains.
//! 5. It has the lowest GPU indices, and the lowest first in its rank order.
//!
//! Rules 1 and 3 do not apply to jobs without traffic ([`Pattern::None`]), so that such
//! jobs use up fragments.
//!
//! With up to [`EXACT_GPUS`] candidate GPUs, the result is exact: see `subsets` for the
//! choice of the GPUs and `order` for their order. With more, it is exact if the graph is
//! regular; the result reports whether it is (`large`).
//!
//! Every search ends after a number of steps, whatever the graph is like ([`Effort`]).

mod bound;
mod broken;
mod effort;
mod exchange;
mod instance;
mod large;
mod meshed;
mod next;
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
use broken::sparing_with;
pub use broken::{BrokenGpus, sparing};
pub use effort::Effort;
use effort::Share;
use instance::Instance;
pub use next::{NextBest, next_best};
use remainder::Remainder;

/// The maximum number of free GPUs of one domain, or of one node, for which every result
/// is exact.
pub const EXACT_GPUS: usize = 16;

/// The request of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Number of GPUs.
    pub gpus: usize,
    /// GPUs that the placement may use.
    pub free: GpuSet,
    /// GPUs that the placement must include.
    pub required: GpuSet,
    /// The communication pattern.
    pub pattern: Pattern,
    /// How close the GPUs must be. On one node, [`Scope::Node`] and wider scopes have no effect.
    pub scope: Scope,
}

/// Qualities that differ by less than this are equal.
const SAME: f64 = 1e-9;

/// GPUs for one job.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Placement {
    /// GPU indices in rank order (for a ring: neighbours are adjacent).
    pub gpus: Vec<u32>,
    /// Id of the domain that contains all of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// The communication pattern.
    #[serde(serialize_with = "as_text")]
    pub pattern: Pattern,
    /// Time of the busiest resource, seconds per byte of payload.
    pub cost: f64,
    /// Time of all transfers one after the other, seconds per byte of payload.
    pub total_cost: f64,
    /// Capacity of the busiest resource, bytes per second in one direction; absent
    /// without traffic. For an all-reduce over direct NVLinks, the capacity of all its
    /// rings together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bottleneck_bytes_per_second: Option<u64>,
    /// Best possible cost divided by the cost of this placement.
    pub quality: Quality,
    /// Whether the placement is proven to have the least cost, then the least total cost.
    /// If not, it is the best that a heuristic found.
    pub exact: bool,
}

impl Placement {
    /// Reports whether it has no traffic, or is within one NVLink domain and no other of the same
    /// node, empty, is faster.
    #[must_use]
    pub fn is_at_full_speed(&self) -> bool {
        self.cost <= 0.0 || (self.domain.is_some() && self.quality.node > 1.0 - SAME)
    }
}

/// Best possible cost divided by actual cost, in (0, 1]; 1 is the best.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Quality {
    /// Relative to the best placement on this node when empty.
    pub node: f64,
    /// Relative to the best placement on the free GPUs.
    pub free: f64,
}

fn as_text<S: serde::Serializer>(pattern: &Pattern, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(pattern)
}

/// Finds the best placement of `request` on `graph`.
///
/// # Errors
/// The reason why there is no placement.
pub fn place(graph: &Graph, request: &Request) -> Result<Placement, NoPlacement> {
    place_with(graph, request, Share::whole(&Effort::default()))
}

/// Does what [`sparing`] and then [`place`] do, and counts in `effort` what that costs.
///
/// # Errors
/// The reason why there is no placement.
pub fn place_sparing(
    graph: &Graph,
    request: &Request,
    broken: GpuSet,
    how: BrokenGpus,
    effort: &Effort,
) -> Result<Placement, NoPlacement> {
    let share = Share::whole(effort);
    let request = sparing_with(graph, request, broken, how, share)?;
    place_with(graph, &request, share)
}

fn place_with(
    graph: &Graph,
    request: &Request,
    share: Share<'_>,
) -> Result<Placement, NoPlacement> {
    check(graph, request)?;
    let regions = regions(graph, request)?;
    let Some(found) = search(graph, request, &regions, share) else {
        let (asked, pattern) = (request.gpus, request.pattern);
        return Err(match share.gave_up() {
            true => NoPlacement::NotFound { asked, pattern },
            false => NoPlacement::OffNvlink { asked, pattern },
        });
    };
    Ok(placement(graph, request, &found, share))
}

/// Rates GPUs that a job already holds: returns the best rank order of `held`, and its
/// quality relative to the GPUs that were free when the job came (`free`, which includes
/// `held`).
///
/// # Errors
/// When `held` is empty, or is not a subset of `free`.
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
    /// The rings over direct links, if they were counted.
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

/// Returns the regions: the placement must be within one of these sets.
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

/// Returns the best placement over all regions; `None` if the scope allows none.
///
/// What is not proven is compared with the best placements without each of its GPUs, so that
/// [`next_best`] finds none that is better.
fn search(graph: &Graph, request: &Request, regions: &[GpuSet], share: Share<'_>) -> Option<Found> {
    let found = search_once(graph, request, regions, share)?;
    if found.exact {
        return Some(found);
    }
    Some(next::improved(graph, request, regions, found, share))
}

/// The same, in one search.
fn search_once(
    graph: &Graph,
    request: &Request,
    regions: &[GpuSet],
    share: Share<'_>,
) -> Option<Found> {
    let mut best: Option<(Rank, Found)> = None;
    for &region in regions {
        let Some(found) = search_region(graph, request, region, share) else {
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

fn search_region(
    graph: &Graph,
    request: &Request,
    region: GpuSet,
    share: Share<'_>,
) -> Option<Found> {
    if region.len() > EXACT_GPUS {
        return large::search(graph, request, region, share);
    }
    let instance = Instance::new(graph, request, region, share);
    instance.search(request.pattern)
}

impl Instance<'_> {
    /// Returns the best placement in the region; `None` if the scope allows none.
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

/// The values that rules 2 to 5 compare, for placements in different regions.
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

fn placement(graph: &Graph, request: &Request, found: &Found, share: Share<'_>) -> Placement {
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
        quality: quality(graph, request, cost.slowest, share),
        exact: found.exact,
    }
}

fn quality(graph: &Graph, request: &Request, cost: f64, share: Share<'_>) -> Quality {
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
        let Some(found) = search(graph, &request, &regions, share) else {
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
