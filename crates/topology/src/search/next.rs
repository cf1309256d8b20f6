//! The best placement of another set of GPUs, to show what a placement was preferred to.

use serde::Serialize;

use super::{
    Effort, Found, Placement, Rank, Request, Share, check, large::most_searches, regions,
    search_once,
};
use crate::{GpuSet, Graph, cost::Cost};

/// The best placement of GPUs other than those of a [`Placement`].
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NextBest {
    /// GPU indices in rank order, as in [`Placement`].
    pub gpus: Vec<u32>,
    /// Time of the busiest resource, seconds per byte of payload.
    pub cost: f64,
    /// Time of all transfers one after the other, seconds per byte of payload.
    pub total_cost: f64,
    /// Capacity of the busiest resource, bytes per second in one direction; absent
    /// without traffic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bottleneck_bytes_per_second: Option<u64>,
    /// Whether no other set is proven to have a lower cost, then a lower total cost.
    pub exact: bool,
}

/// Finds the best placement of another set of GPUs than `placement`, which [`super::place`]
/// returned for `request`; `None` if no other set satisfies the request.
///
/// Another set lacks at least one GPU of the placement, so the search runs once without
/// each of them that is not required. This takes up to `request.gpus` times as long as
/// [`super::place`], if its placement is exact; else as long. On more than 16 GPUs it ends
/// after fewer searches, without a proof, if they are long. Rules 1 to 3 decide between
/// all other sets; for rule 4, each search takes the GPU that it leaves out as held.
#[must_use]
pub fn next_best(graph: &Graph, request: &Request, placement: &Placement) -> Option<NextBest> {
    let chosen = graph.set(&placement.gpus).ok()?;
    let mut best: Option<(Rank, Found)> = None;
    let mut exact = true;
    let effort = Effort::default();
    let share = match placement.exact {
        true => Share::whole(&effort),
        false => Share::whole(&effort).split(searches(request)),
    };
    let most = most_searches(graph, request, request.free);
    for (at, gpu) in chosen.difference(request.required).iter().enumerate() {
        if at == most {
            exact = false;
            break;
        }
        let without = without(request, gpu);
        let Ok(regions) = check(graph, &without).and_then(|()| regions(graph, &without)) else {
            continue;
        };
        let Some(found) = search_once(graph, &without, &regions, share) else {
            continue;
        };
        exact &= found.exact;
        let rank = Rank::of(graph, request, &found);
        if best.as_ref().is_none_or(|(least, _)| rank < *least) {
            best = Some((rank, found));
        }
    }
    let (_, found) = best?;
    let Cost {
        slowest,
        total,
        bottleneck_bytes_per_second,
        ..
    } = found.cost(graph, request.pattern);
    Some(NextBest {
        gpus: found.order.iter().map(|&at| graph.index(at)).collect(),
        cost: slowest,
        total_cost: total,
        bottleneck_bytes_per_second,
        exact,
    })
}

/// Returns `found` or, if there is one, a better placement within `regions` that a search
/// finds without one of its GPUs, and so on until no such search finds a better one. These
/// are the searches of [`next_best`]: all of them together spend as much as the first one.
pub(super) fn improved(
    graph: &Graph,
    request: &Request,
    regions: &[GpuSet],
    found: Found,
    share: Share<'_>,
) -> Found {
    let rank = |found: &Found| Rank::of(graph, request, found);
    let set = |found: &Found| found.order.iter().copied().collect::<GpuSet>();
    let (mut best, mut tried) = ((rank(&found), found), request.required);
    let largest = regions.iter().copied().max_by_key(|region| region.len());
    let mut left = most_searches(graph, request, largest.unwrap_or_default());
    while let Some(gpu) = set(&best.1).difference(tried).iter().next()
        && left > 0
    {
        left -= 1;
        tried.insert(gpu);
        let one = [gpu].into_iter().collect();
        let within = regions.iter().map(|region| region.difference(one));
        let within: Vec<GpuSet> = within.filter(|left| left.len() >= request.gpus).collect();
        let found = search_once(
            graph,
            &without(request, gpu),
            &within,
            share.split(searches(request)),
        );
        if let Some(found) = found
            .map(|found| (rank(&found), found))
            .filter(|found| found.0 < best.0)
        {
            best = found;
        }
    }
    Found {
        exact: false,
        ..best.1
    }
}

/// Returns the request for another set, which lacks `gpu`.
fn without(request: &Request, gpu: usize) -> Request {
    let free = request.free.difference([gpu].into_iter().collect());
    Request { free, ..*request }
}

/// Returns the number of searches that share a budget: one for each GPU that a placement
/// may do without.
fn searches(request: &Request) -> u64 {
    (request.gpus - request.required.len()).max(1) as u64
}

/// Returns the best placement of `request` that one search finds; `None` if there is none.
pub(super) fn searched(graph: &Graph, request: &Request, share: Share<'_>) -> Option<Found> {
    check(graph, request).ok()?;
    let regions = regions(graph, request).ok()?;
    search_once(graph, request, &regions, share)
}
